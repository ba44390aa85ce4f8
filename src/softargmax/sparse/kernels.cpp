// The sparse maps for all rows of a call, and their gradients. Compiled once for each instruction set.
//
// Newton's method for the threshold reads only the candidates (newton_root.hpp), and each step drops some of them. Then
// p is computed for the packs that contain a score above the threshold. All other p are 0.
#include "sparse/gradient_and_loss.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {
namespace {

// The longest list of candidates. If a row has more candidates, each step reads the row again.
constexpr std::int64_t kMaxListed = 1 << 20;
// The length of the longest rows that are read 128 at a time. The lists of 128 such rows take 16 MiB of floats.
constexpr std::int64_t kMaxGrouped = 1 << 15;
constexpr double kOrdinary = -2;
// Returns alpha - 1 of a row.
inline Twofold order_of(const Args& args, std::int64_t row) { return two_sum(at(args.alpha, args, row), -1.0); }
inline void save_root(const Found& f, double* to) {
    const double numbers[kRootNumbers] = {f.limit.m, f.ordinary ? kOrdinary : f.limit.r, f.at.hi, f.at.lo, f.others};
    std::copy_n(numbers, kRootNumbers, to);
}
inline void load_root(const double* from, Found& f) {
    f.ordinary = from[1] == kOrdinary;
    f.limit = {from[0], f.ordinary ? 0 : from[1]};
    f.at = {from[2], from[3]};
    f.others = from[4];
}

// Writes the loss of row `row`: loss_at(z_y) for the target's score z_y, but infinity for a target outside the support,
// and 0 for an ignored row.
template <class F> void put_loss(const Args& args, std::int64_t row, const RowScale& scale, Found& found, F loss_at) {
    const std::int64_t y = args.target[row];
    if (y == args.ignore_index) {
        if (args.loss) args.loss[row] = 0;
        return;
    }
    const auto read_at = [&](const Operand& x) {
        double value = 0;
        with_type(x.type, RowOf{args, row}.start(x),
                  [&](auto* base) { value = convert<double>(base[offset_of(y, args.cols, x.col)]); });
        return value;
    };
    double z_y = read_at(args.z);
    if (scale.negate) z_y = -z_y;
    if (scale.flat && std::isfinite(z_y)) z_y = 0;
    const bool in = z_y != -kInf && (!args.where || read_at(args.where) != 0);
    const bool nan = found.limit.r != found.limit.r;
    const LossOf result = in || nan ? loss_at(z_y) : LossOf{kInf, -1};
    if (args.loss) args.loss[row] = result.loss;
    found.others = result.others;
}

// Clips the threshold of an ordinary row to finite values, because infinity marks rows of infinities.
inline double in_range(const Operand& x, double tau) {
    const double largest = x.type == Type::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    return std::clamp(tau, -largest, largest);
}

// Returns the threshold of a row without a root: a row with infinities, an empty row (-inf), or a row at infinite beta.
inline double threshold_of_ties(const Found& f) {
    if (std::isinf(f.limit.m)) return f.limit.m;
    const double side = f.a.hi * f.limit.m;
    return side == 0 ? -exp_scalar(-f.a.hi * log_scalar(f.limit.r + 1)) : std::copysign(kInf, side);
}

template <class T>
void find_root(Candidates<T>& row, const Args& args, std::int64_t at, const RowScale& scale, Found& found) {
    const State& s = found.limit;
    Twofold tau{s.r == s.r ? threshold_of_ties(found) : kNaN, 0};
    std::int64_t support = s.r == s.r ? static_cast<std::int64_t>(s.r + 1) : -1;
    if (found.ordinary)
        with_solution(s.m, found.a, found.beta, row, [&](const auto& map_) {
            if (args.support) support = support_of(map_, row);
            tau = map_.tau();
            found.at = map_.at;
            if (args.target) put_loss(args, at, scale, found, [&](double z_y) { return loss_of(map_, row, z_y); });
        });
    else if (args.target)
        put_loss(args, at, scale, found, [&](double z_y) {
            const bool in = z_y == s.m && s.r == s.r;
            return LossOf{in ? loss_of_ties(found.a.hi, s.r + 1) : s.r == s.r ? kInf : kNaN, in ? s.r / (s.r + 1) : 0};
        });
    if (args.tau) put(args.tau, args, at, found.ordinary ? in_range(args.tau, rounded(tau)) : rounded(tau));
    if (args.support) args.support[at] = support;
}

// Writes p, or the gain times p if `scaled`. Where p is 0 the result is 0, even for an infinite or NaN gain.
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

// Writes p, or g (p - onehot) if there is a target. At the class the result is -g (1 - p), where 1 - p is computed from
// the other entries.
template <class T, int Size> void write_block(Group<T, Size>& group, std::int64_t b, const Found* found) {
    const Args& args = group.args;
    const std::int64_t n = group.end(b) - group.begin(b);
    for (int g = 0; g < group.count; ++g) {
        const std::int64_t row = group.first + g, y = args.target ? args.target[row] - group.begin(b) : -1;
        const T* z = group.scores + g * group.pitch;
        const auto to = group.target(g, b, z);
        const Found& f = found[g];
        // The gradient is 0 for an ignored row, and for a row of infinities.
        const bool zero_gradient =
            args.target && (args.target[row] == args.ignore_index || (f.limit.m == kInf && f.limit.r == f.limit.r));
        const double gain = args.target ? args.g[row] : 1;
        if (zero_gradient) std::fill_n(to.out, n, T{0});
        else if (!f.ordinary) apply_limit<Log::no>(z, n, f.limit, to.out, gain);
        else
            with_map<T>(f.limit.m, f.a, f.beta, f.at, [&](const auto& map_) {
                if (map_.kLogarithm || args.target) write_row<true>(z, n, map_, to, gain);
                else write_row<false>(z, n, map_, to, gain);
            });
        if (!zero_gradient && f.ordinary && f.others >= 0 && y >= 0 && y < n)
            to.out[y] = static_cast<T>(-gain * f.others);
    }
    group.flush(b);
}

template <class T, int Size> void map_group(Group<T, Size>& group) {
    const Args& args = group.args;
    const std::int64_t capacity = std::min(group.length, Size > 1 ? kMaxGrouped : kMaxListed),
                       pitch = capacity + kSlack;
    Found found[Size];
    for (int g = 0; g < group.count; ++g) {
        found[g].a = order_of(args, group.first + g);
        found[g].beta = group.beta(g);
    }
    if (args.found) {
        for (int g = 0; g < group.count; ++g) load_root(args.found + (group.first + g) * kRootNumbers, found[g]);
    } else {
        T* const lists = scratch(kTerms).get<T>(Size * pitch);
        std::vector<Candidates<T>> rows;
        Group<T, 1>* single = nullptr;
        if constexpr (Size == 1) single = &group;
        for (int g = 0; g < group.count; ++g) rows.push_back({single, lists + g * pitch, group.length, capacity});
        find_candidates(group, rows.data(), found);
        for (int g = 0; g < group.count; ++g) {
            find_root(rows[static_cast<std::size_t>(g)], args, group.first + g, group.scale[g], found[g]);
            if (args.roots) save_root(found[g], args.roots + (group.first + g) * kRootNumbers);
        }
    }
    for (std::int64_t b = 0; b < group.blocks() && args.out; ++b) {
        if (group.blocks() > 1 || args.found) group.load(b);
        write_block(group, b, found);
    }
}

// Quantities of one row from which its gradient is computed.
struct GradientRow {
    Slope slope;
    Origin origin;
    Mean mean;
};
// A block of a row: p and the incoming gradient.
template <class T> struct RowBlock {
    const T *p, *g;
    std::int64_t n;
    template <int Size> RowBlock(const Group<T, Size>& group, std::int64_t block, int row)
        : p(group.scores + row * group.pitch),
          g(group.other + row * group.pitch),
          n(group.end(block) - group.begin(block)) {}
};
template <class T, int Size> void gradient(const Args& args) {
    using G = Group<T, Size>;
    const Frame<T> frame(args, Size, Reads::probabilities);
    fold_rows<GradientRow, G>(frame, splits_rows(frame), [&](auto& rows) {
        bool steep = false;
        rows.each([&](const G& group, int g, GradientRow& row) {
            row.slope.a = at(args.alpha, args, group.first + g) - 1;
            steep = steep || row.slope.a > 1;
        });
        if (steep)
            rows.fold([](const G& group, std::int64_t block, int g, const GradientRow& row) {
                const RowBlock<T> x(group, block, g);
                return row.slope.a > 1 ? origin_of(x.p, x.g, x.n) : Origin{};
            }, [](const G&, int, GradientRow& row, const Origin& piece) { row.origin.add(piece); });
        rows.fold([](const G& group, std::int64_t block, int g, const GradientRow& row) {
            const RowBlock<T> x(group, block, g);
            return mean_of(x.p, x.g, x.n, row.slope, row.origin);
        }, [](const G&, int, GradientRow& row, const Mean& piece) { row.mean.add(piece); });
        rows.apply([&](G& group, std::int64_t block, const GradientRow* all) {
            for (int g = 0; g < group.count; ++g) {
                const RowBlock<T> x(group, block, g);
                const auto to = group.target(g, block, x.p);
                const bool zero_gradient = at(args.tau, args, group.first + g) == kInf;  // a row of infinities
                if (zero_gradient) std::fill_n(to.out, x.n, T{0});
                else write_gradient(x.p, x.g, x.n, all[g].slope, all[g].origin, all[g].mean, to);
            }
            group.flush(block);
        });
    });
}

// Computes up to sixteen rows of order 1 + a in lanes. Rows without a root are computed one by one.
inline void solve_in_lanes(const Frame<float>& frame, const std::int64_t* rows, int count, Twofold a, Lanes& lanes) {
    const Args& args = frame.args;
    for (int g = 0; g < kSide; ++g) {
        Group<float, 1> group(frame, rows[g < count ? g : 0]);
        group.load(0);
        lanes.put(g, group.scores, group.beta(0));
    }
    lanes.solve(a, static_cast<bool>(args.hi));
    for (int g = 0; g < count; ++g) {
        Group<float, 1> group(frame, rows[g]);
        if (!lanes.has_root(g)) {
            map_group(group);
            continue;
        }
        lanes.take(g, group.target(0, 0, group.scores).out);
        group.flush(0);
        if (args.tau) put(args.tau, args, rows[g], in_range(args.tau, lanes.tau(g)));
    }
}
// Computes rows [begin, end). Consecutive rows of the same order run together, one row per lane.
inline void short_rows(const Frame<float>& frame, std::int64_t begin, std::int64_t end) {
    const Args& args = frame.args;
    Lanes lanes(static_cast<int>(args.cols.total));
    std::int64_t waiting[kSide];
    int count = 0;
    Twofold order{0, 0};
    const auto run = [&] {
        if (count) solve_in_lanes(frame, waiting, count, order, lanes);
        count = 0;
    };
    for (std::int64_t row = begin; row < end; ++row) {
        const Twofold a = order_of(args, row);
        const RowScale scale = scale_of(args, row);
        if (scale.undefined || (args.hi ? !is_closed(a.hi, scale.beta) : !(a.hi >= -1 && a.hi <= 1))) {
            Group<float, 1> group(frame, row);
            map_group(group);
            continue;
        }
        if (count == kSide || a.hi != order.hi || a.lo != order.lo) run();
        order = a;
        waiting[count++] = row;
    }
    run();
}

template <class T, int Size> void run_groups(const Args& args) {
    if (args.gradient) return gradient<T, Size>(args);
    each_group<Group<T, Size>>(Frame<T>(args, Size), [](Group<T, Size>& group) { map_group(group); });
}
template <class T> void run_as(const Args& args) {
    if constexpr (sizeof(T) == 4) {
        if (args.out && !args.gradient && !args.target && args.cols.total > 0 && args.cols.total <= kShort) {
            const Frame<float> frame(args, 1);
            parallel_for(args.threads, args.rows.total,
                         [&](std::int64_t begin, std::int64_t end) { short_rows(frame, begin, end); });
            return;
        }
    }
    if (rows_are_adjacent(args, args.z) && (args.gradient || args.cols.total <= kMaxGrouped))
        run_groups<T, kGroup>(args);
    else run_groups<T, 1>(args);
}

}  // namespace

// Computes in float64 if the scores or the result are float64, or if a threshold of size 1 / beta could exceed the
// range of floats.
void run(const Args& args) {
    const FloatEnvironment environment;
    bool use_double = args.z.type == Type::f64 || (args.out && args.out.type == Type::f64);
    for (std::int64_t row = 0; args.hi && !use_double && row < args.rows.total; ++row) {
        const double size = std::fabs(at(args.hi, args, row));
        use_double = size > 0 && size < 0x1p-64;
    }
    if (use_double) run_as<double>(args);
    else run_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
