// The sparse maps over all rows of a job, and their derivative. Compiled once for each instruction set.
//
// Newton's method for the threshold runs over the scores that were gathered alone, and each of its steps drops some.
// Then p is formed where a pack of scores holds one above the threshold; elsewhere it is 0.
#include "sparse/gradient.hpp"
#include "sparse/lanes.hpp"
#include "sparse/loss.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

// A list of candidates is at most this long; rows with more are read again for each step.
constexpr std::int64_t kMostListed = 1 << 20;
// Rows that are read 128 at a time have lists of at most this length each: 16 MiB of floats.
constexpr std::int64_t kMostTogether = 1 << 15;
// What was found stays between the loss and its gradient: m, r (kOrdinary where there is a root), the root, `others`.
constexpr int kRootNumbers = 5;
constexpr double kOrdinary = -2;
inline void store(const Found& f, double* to) {
    const double numbers[kRootNumbers] = {f.limit.m, f.ordinary ? kOrdinary : f.limit.r, f.at.hi, f.at.lo, f.others};
    std::copy_n(numbers, kRootNumbers, to);
}
inline void recall(const double* from, Found& f) {
    f.ordinary = from[1] == kOrdinary;
    f.limit = {from[0], f.ordinary ? 0 : from[1]};
    f.at = {from[2], from[3]};
    f.others = from[4];
}

// Whether row `at` has a target; of one outside the support the loss is infinite, of an ignored row 0.
template <class F> void put_loss(const SparseJob& job, std::int64_t row, Found& found, F loss_at) {
    const std::int64_t y = job.target[row];
    if (y == job.ignore_index) {
        if (job.loss) job.loss[row] = 0;
        return;
    }
    const auto read_at = [&](const Operand& x) {
        double value = 0;
        with_type(x.type, RowOf{job, row}.start(x),
                  [&](auto* base) { value = convert<double>(base[offset_of(y, job.cols, x.col)]); });
        return value;
    };
    const double z_y = read_at(job.z);
    const bool in = z_y != -kInf && (!job.where || read_at(job.where) != 0);
    const bool nan = found.limit.r != found.limit.r;
    const LossOf result = in || nan ? loss_at(z_y) : LossOf{kInf, -1};
    if (job.loss) job.loss[row] = result.loss;
    found.others = result.others;
}

// The threshold of an ordinary row stays finite: infinity says what the row is.
inline double in_range(const Operand& x, double tau) {
    const double most = x.type == Type::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    return std::clamp(tau, -most, most);
}

template <class T, int Size> void find_root(Candidates<T, Size>& row, const SparseJob& job, std::int64_t at,
                                            Found& found) {
    const State& s = found.limit;
    Twofold tau{s.r == s.r ? s.m : kNaN, 0};
    std::int64_t support = s.r == s.r ? static_cast<std::int64_t>(s.r + 1) : -1;
    if (found.ordinary)
        with_solution(s.m, found.a, row, [&](const auto& map_) {
            if (job.support) support = support_of(map_, row);
            tau = map_.tau();
            found.at = map_.at;
            if (job.target) put_loss(job, at, found, [&](double z_y) { return loss_of(map_, row, z_y); });
        });
    else if (job.target)
        put_loss(job, at, found, [&](double z_y) {
            const bool in = z_y == kInf && s.r == s.r;
            return LossOf{in ? loss_of_ties(found.a, s.r + 1) : s.r == s.r ? kInf : kNaN, in ? s.r / (s.r + 1) : 0};
        });
    if (job.tau) put(job.tau, job, at, found.ordinary ? in_range(job.tau, rounded(tau)) : rounded(tau));
    if (job.support) job.support[at] = support;
}

// p, or where it is `scaled` gain p, 0 where p is whatever the gain.
template <bool scaled, class T, class F>
void write_row(const T* z, std::int64_t n, const F& map_, const Target<T>& to, double gain) {
    using V = Pack<T>;
    const V low = V::all(rounded_down<T>(map_.cut())), zero = V::all(0);
    const auto p = [&](Doubles d) SOFTARGMAX_LAMBDA {
        const Doubles x = map_.template result<T>(d);
        if constexpr (scaled) return keep(above(x, Doubles::all(0)), Doubles::all(gain) * x);
        else return x;
    };
    map(z, n, to, [&](V v) SOFTARGMAX_LAMBDA -> V {
        if (!any(above(v, low))) return zero;
        if constexpr (sizeof(T) == 8) {
            return p(v);
        } else {
            const Wide w = widen(v);
            return narrow({p(w.low), p(w.high)});
        }
    });
}

// p into `out`, or where there is a target seed (p - onehot): the class's own part is -seed (1 - p), from what the
// others have.
template <class T, int Size> void write_block(Group<T, Size>& group, const SparseJob& job, std::int64_t b,
                                              const Found* found) {
    const std::int64_t n = group.end(b) - group.begin(b);
    for (int g = 0; g < group.count; ++g) {
        const std::int64_t row = group.first + g, y = job.target ? job.target[row] - group.begin(b) : -1;
        const T* z = group.scores + g * group.pitch;
        const auto to = group.target(g, b, z);
        const Found& f = found[g];
        // A row that is ignored, or of infinities.
        const bool level =
            job.target && (job.target[row] == job.ignore_index || (f.limit.m == kInf && f.limit.r == f.limit.r));
        const double gain = job.target ? job.seed[row * job.seed_stride] : 1;
        if (level) std::fill_n(to.out, n, T{0});
        else if (!f.ordinary) apply_limit<Log::no>(z, n, f.limit, to.out, gain);
        else
            with_map(f.limit.m, f.a, f.at, [&](const auto& map_) {
                if (job.target) write_row<true>(z, n, map_, to, gain);
                else write_row<false>(z, n, map_, to, gain);
            });
        if (!level && f.ordinary && f.others >= 0 && y >= 0 && y < n) to.out[y] = static_cast<T>(-gain * f.others);
    }
    group.flush(b);
}

template <class T, int Size> void map_group(Group<T, Size>& group, const SparseJob& job) {
    const std::int64_t capacity = std::min(group.length, Size > 1 ? kMostTogether : kMostListed),
                       pitch = capacity + kSlack;
    Found found[Size];
    for (int g = 0; g < group.count; ++g) found[g].a = at(job.alpha, job, group.first + g) - 1;
    if (job.given) {
        for (int g = 0; g < group.count; ++g) recall(job.roots + (group.first + g) * kRootNumbers, found[g]);
    } else {
        T* const lists = scratch(kTerms).get<T>(Size * pitch);
        std::vector<Candidates<T, Size>> rows;
        for (int g = 0; g < group.count; ++g) rows.push_back({group, g, lists + g * pitch, capacity});
        gather_rows(group, rows.data(), found);
        for (int g = 0; g < group.count; ++g) {
            find_root(rows[static_cast<std::size_t>(g)], job, group.first + g, found[g]);
            if (job.roots) store(found[g], job.roots + (group.first + g) * kRootNumbers);
        }
    }
    for (std::int64_t b = 0; b < group.blocks() && job.out; ++b) {
        if (group.blocks() > 1 || job.given) group.load(b);
        write_block(group, job, b, found);
    }
}

template <class T, int Size> void gradient_group(Group<T, Size>& group, const SparseJob& job) {
    Mean mean[Size];
    const auto each_row = [&](std::int64_t b, auto body) {
        const std::int64_t n = group.end(b) - group.begin(b);
        for (int g = 0; g < group.count; ++g) {
            const std::int64_t row = group.first + g;
            body(g, group.scores + g * group.pitch, group.other + g * group.pitch, n, row);
        }
    };
    const auto slope = [&](std::int64_t row) { return Slope{at(job.alpha, job, row) - 1}; };
    bool steep = false;
    for (int g = 0; g < group.count; ++g) steep = steep || slope(group.first + g).a > 1;
    for (std::int64_t b = 0; b < group.blocks() && steep; ++b) {
        group.load(b);
        each_row(b, [&](int g, const T* p, const T* dp, std::int64_t n, std::int64_t row) {
            if (slope(row).a > 1) find_origin(p, dp, n, mean[g]);
        });
    }
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        group.load(b);
        each_row(b, [&](int g, const T* p, const T* dp, std::int64_t n, std::int64_t row) {
            add_mean(p, dp, n, slope(row), mean[g]);
        });
    }
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        if (group.blocks() > 1) group.load(b);
        each_row(b, [&](int g, const T* p, const T* dp, std::int64_t n, std::int64_t row) {
            const auto to = group.target(g, b, p);
            const bool level = at(job.tau, job, row) == kInf;  // a row of infinities is constant
            if (level) std::fill_n(to.out, n, T{0});
            else write_gradient(p, dp, n, slope(row), mean[g], to);
        });
        group.flush(b);
    }
}

// Sixteen rows or fewer of the order 1 + a.
inline void side_by_side(const Frame<float>& frame, const SparseJob& job, const std::int64_t* rows, int count, double a,
                         Lanes& lanes) {
    for (int g = 0; g < kSide; ++g) {
        Group<float, 1> group(frame, rows[g < count ? g : 0]);
        group.load(0);
        lanes.put(g, group.scores);
    }
    lanes.solve(a);
    for (int g = 0; g < count; ++g) {
        Group<float, 1> group(frame, rows[g]);
        if (!lanes.has_root(g)) {
            map_group(group, job);
            continue;
        }
        lanes.take(g, group.target(0, 0, group.scores).out);
        group.flush(0);
        if (job.tau) put(job.tau, job, rows[g], in_range(job.tau, lanes.tau(g)));
    }
}
// Rows [begin, end): those of one order that follow one another side by side.
inline void short_rows(const Frame<float>& frame, const SparseJob& job, std::int64_t begin, std::int64_t end) {
    Lanes lanes(static_cast<int>(job.cols.total));
    std::int64_t waiting[kSide];
    int count = 0;
    double order = 0;
    const auto run = [&] {
        if (count) side_by_side(frame, job, waiting, count, order, lanes);
        count = 0;
    };
    for (std::int64_t row = begin; row < end; ++row) {
        const double a = at(job.alpha, job, row) - 1;
        if (!(a >= 0 && a <= 1)) {
            Group<float, 1> group(frame, row);
            map_group(group, job);
            continue;
        }
        if (count == kSide || a != order) run();
        order = a;
        waiting[count++] = row;
    }
    run();
}

template <class T, int Size> void run_groups(const SparseJob& job) {
    each_group<T, Size>(Frame<T>(job, Size), [&](Group<T, Size>& group) {
        if (job.gradient) gradient_group(group, job);
        else map_group(group, job);
    });
}
template <class T> void run_as(const SparseJob& job) {
    if constexpr (sizeof(T) == 4) {
        if (job.out && !job.gradient && !job.target && job.cols.total > 0 && job.cols.total <= kShort) {
            const Frame<float> frame(job, 1);
            parallel_for(job.threads, job.rows.total,
                         [&](std::int64_t begin, std::int64_t end) { short_rows(frame, job, begin, end); });
            return;
        }
    }
    if (rows_are_adjacent(job, job.z) && (job.gradient || job.cols.total <= kMostTogether)) run_groups<T, kGroup>(job);
    else run_groups<T, 1>(job);
}

}  // namespace

// In float64 where any of it is.
void run_sparse(const SparseJob& job) {
    const FloatEnvironment environment;
    if (job.z.type == Type::f64 || (job.out && job.out.type == Type::f64)) run_as<double>(job);
    else run_as<float>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
