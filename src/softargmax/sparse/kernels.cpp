// The sparse maps over all rows of a job, and their derivative. Compiled once for each instruction set.
//
// While the maximum m of a row is sought, the scores above m - 1 / (alpha - 1) are gathered: no other can have p > 0.
// Newton's method for the threshold runs over these alone, and each of its steps drops some. Then p is formed where a
// pack of scores holds one above the threshold; elsewhere it is 0.
#include "sparse/gradient.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

// A list of candidates is at most this long; rows with more are read again for each step.
constexpr std::int64_t kMostListed = 1 << 20;
// Rows that are read 128 at a time have lists of at most this length each: 16 MiB.
constexpr std::int64_t kMostTogether = 1 << 15;
// How far below the maximum p is 0 as a T, whatever alpha.
template <class T> constexpr double kReach = sizeof(T) == 4 ? 110 : -Limit<double>::least;

struct Found {  // what a row's results are made of
    double a = 0;
    Twofold at;    // the root, where there is one
    State limit;   // else the state that says what the row is: of infinities, empty, with a NaN
    bool ordinary = false;
};

template <class T, int Size> void gather_rows(Group<T, Size>& group, Candidates<T, Size>* rows, Found* found) {
    T top[Size], *to[Size];
    bool nan[Size] = {};
    for (int g = 0; g < group.count; ++g) {
        top[g] = -std::numeric_limits<T>::infinity();
        to[g] = rows[g].list;
    }
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        group.load(b);
        const std::int64_t n = group.end(b) - group.begin(b);
        for (int g = 0; g < group.count; ++g) {
            const T* z = group.scores + g * group.pitch;
            const T here = maximum(z, n);
            top[g] = here > top[g] ? here : top[g];
            const double far = found[g].a * kReach<T> > 1 ? 1 / found[g].a : kReach<T>;
            const T cut = std::min(rounded_down<T>(static_cast<double>(top[g]) - far), next_below(top[g]));
            rows[g].add(z, n, to[g], [&](const T* from, std::int64_t count, T*& end) {
                end = gather(from, count, cut, end, nan[g]);
            });
        }
    }
    for (int g = 0; g < group.count; ++g) {
        rows[g].count = to[g] - rows[g].list;
        State& s = found[g].limit;
        s.m = static_cast<double>(top[g]);
        if (nan[g] || !(found[g].a >= 0)) {
            s.r = kNaN;
        } else if (top[g] == std::numeric_limits<T>::infinity()) {
            std::int64_t ties = 0;
            rows[g].each([&](const T* z, std::int64_t n, T*& end) {
                end += n;
                for (std::int64_t i = 0; i < n; ++i) ties += z[i] == top[g];
            });
            s.r = static_cast<double>(ties - 1);
        } else {
            found[g].ordinary = s.m > -kInf;
        }
    }
}

template <class T, int Size> void find_root(Candidates<T, Size>& row, const SparseJob& job, std::int64_t at,
                                            Found& found) {
    const State& s = found.limit;
    Twofold tau{s.r == s.r ? s.m : kNaN, 0};
    std::int64_t support = s.r == s.r ? static_cast<std::int64_t>(s.r + 1) : -1;
    if (found.ordinary)
        with_map(s.m, found.a, static_cast<double>(row.group.length), nullptr, [&](auto map) {
            support = solve(map, row);
            tau = map.tau();
            found.at = map.at;
        });
    if (job.tau) put(job.tau, job, at, rounded(tau));
    if (job.support) job.support[at] = support;
}

template <class T, class F> void write_row(const T* z, std::int64_t n, const F& map_, const Target<T>& to) {
    using V = Pack<T>;
    const T cut = rounded_down<T>(map_.cut());
    const V low = V::all(cut), zero = V::all(0);
    const Doubles least = Doubles::all(static_cast<double>(cut));
    const auto p = [&](Doubles d) SOFTARGMAX_LAMBDA { return map_.template result<T>(max(d, least)); };
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

template <class T, int Size> void map_group(Group<T, Size>& group, const SparseJob& job) {
    const std::int64_t capacity = std::min(group.length, Size > 1 ? kMostTogether : kMostListed),
                       pitch = capacity + kSlack;
    T* const lists = scratch(kTerms).get<T>(Size * pitch);
    std::vector<Candidates<T, Size>> rows;
    Found found[Size];
    for (int g = 0; g < group.count; ++g) {
        rows.push_back({group, g, lists + g * pitch, capacity});
        found[g].a = at(job.alpha, job, group.first + g) - 1;
    }
    gather_rows(group, rows.data(), found);
    for (int g = 0; g < group.count; ++g) find_root(rows[static_cast<std::size_t>(g)], job, group.first + g, found[g]);
    if (!job.out) return;
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        if (group.blocks() > 1) group.load(b);
        const std::int64_t n = group.end(b) - group.begin(b);
        for (int g = 0; g < group.count; ++g) {
            const T* z = group.scores + g * group.pitch;
            const auto to = group.target(g, b, z);
            const State& s = found[g].limit;
            if (!found[g].ordinary) apply_limit<Log::no>(z, n, s, to.out);
            else with_map(s.m, found[g].a, 1, &found[g].at, [&](const auto& map_) { write_row(z, n, map_, to); });
        }
        group.flush(b);
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
            else write_gradient(p, dp, n, slope(row), mean[g].nan ? kNaN : mean[g].value(), to);
        });
        group.flush(b);
    }
}

template <class T, int Size> void run_groups(const SparseJob& job) {
    each_group<T, Size>(Frame<T>(job, Size), [&](Group<T, Size>& group) {
        if (job.gradient) gradient_group(group, job);
        else map_group(group, job);
    });
}
template <class T> void run_as(const SparseJob& job) {
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
