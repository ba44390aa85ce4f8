// A row of scores, and the set of its scores that can be drawn.
#pragma once

#include "core/cpp/parallel_rows.hpp"
#include "sample/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

template <class T> using Frame = FrameOf<Args, T>;
template <class T, int Size> using Group = GroupOf<Args, T, Size>;

constexpr double kFar = -1e300;  // distances below kFar become kFar, because they might overflow

// Returns x = beta (z - m). It is computed from z / 2 and m / 2, because z - m may overflow even if x does not.
SOFTARGMAX_INLINE double distance(double z, double m, Scale beta) {
    const double d = 0.5 * z - 0.5 * m, x = d * beta.hi;
    return x < kFar ? kFar : x > -kFar ? -kFar : 2 * (x + d * beta.lo);
}

// Returns beta (z - m) for a pack of scores, none of which is above m.
SOFTARGMAX_INLINE Pack<double> distance(Pack<double> z, double m, Scale beta) {
    using V = Pack<double>;
    const V half = V::all(0.5), d = half * z - V::all(0.5 * m), x = d * V::all(beta.hi), limit = V::all(kFar);
    const auto all = equal(half, half), far = above(limit, x);
    return keep(unless(all, far), V::all(2) * (x + d * V::all(beta.lo))) + keep(far, limit);
}
// Converts n scores to doubles, and calls f(position, pack) for each pack of them. The last packs are padded with -inf.
template <class T, class F> SOFTARGMAX_INLINE void wide_packs(const T* z, std::int64_t n, F f) {
    constexpr T out = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < n; i += 16) {
        if constexpr (sizeof(T) == 4) {
            const Wide w = widen(Pack<float>::load_part(z + i, n - i, out));
            f(i, w.low);
            f(i + 8, w.high);
        } else {
            f(i, Pack<double>::load_part(z + i, n - i, out));
            f(i + 8, Pack<double>::load_part(z + i + 8, n - i - 8, out));
        }
    }
}

// A set of scores: all scores above `edge`, and the scores equal to `edge` in columns up to `tie`. The filters top-k
// and top-p, and those that set a lower bound of p, keep such a set.
template <class T> struct Kept {
    static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
    T edge = -std::numeric_limits<T>::infinity();
    std::int64_t tie = -1;
    SOFTARGMAX_INLINE bool operator()(T z, std::int64_t column) const {
        return z > edge || (z == edge && column <= tie);
    }
    bool everything() const { return edge == -std::numeric_limits<T>::infinity(); }
    void tighten(const Kept& other) {
        if (other.edge > edge || (other.edge == edge && other.tie < tie)) *this = other;
    }
    // Sets `low` to the smallest score that is kept in the columns from `first` to `last`. Returns false if these
    // columns are on both sides of `tie`. `low` is then not valid for all of them.
    SOFTARGMAX_INLINE bool one_bound(std::int64_t first, std::int64_t last, T& low) const {
        low = everything() ? std::numeric_limits<T>::lowest() : last <= tie ? edge : -next_below(-edge);
        return last <= tie || first > tie || everything();
    }
};

// A set of locally typical scores. The distance x of such a score from the maximum of its row differs from `center` by
// less than `width`, or by exactly `width` in columns up to `tie`.
struct Band {
    double center = 0, width = kInf;
    std::int64_t tie = -1;
    bool everything() const { return width == kInf; }
    double off(double x) const { return std::fabs(x - center); }
    bool operator()(double x, std::int64_t column) const {
        const double far = off(x);
        return far < width || (far == width && column <= tie);
    }
};

// Scores of a row, in adjacent columns or in listed columns.
template <class T> struct Piece {
    const T* z;
    const std::int64_t* columns;  // null: adjacent columns, from `first` on
    std::int64_t first, count;
    SOFTARGMAX_INLINE std::int64_t column(std::int64_t i) const { return columns ? columns[i] : first + i; }
};

// The maximum of a block, and whether it contains a NaN.
template <class T> struct Look {
    T top = -std::numeric_limits<T>::infinity();
    bool nan = false;
};
template <class T> SOFTARGMAX_INLINE Look<T> look(const T* z, std::int64_t n) {
    using V = Pack<T>;
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    V top[kUnroll];
    for (V& t : top) t = V::all(lowest);
    Count<T> nans;
    steps(z, n, lowest, [&](const V(&v)[kUnroll], int) SOFTARGMAX_LAMBDA {
        for (int u = 0; u < kUnroll; ++u) {
            top[u] = max(v[u], top[u]);
            nans.add(above(v[u], v[u]));
        }
    });
    return {max_of(max(max(top[0], top[1]), max(top[2], top[3]))), nans.total() > 0};
}

// Writes 0 in the places of the infinite scores, and -inf elsewhere.
template <class T> SOFTARGMAX_CALLED void mark_infinities(const T* z, std::int64_t n, T* marked) {
    constexpr T inf = std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < n; ++i) marked[i] = z[i] == inf ? T{0} : -inf;
}

template <class T> struct Row {
    using Block = Group<T, 1>;
    Block& group;
    const Scale beta;
    bool infinite = false;  // true if the row contains +inf: only the infinities can be drawn
    double m = -kInf;       // the maximum; 0 for a row with +inf
    Kept<T> kept;
    Band band;
    const T* list = nullptr;  // the remaining scores and their columns, if these are listed; else null
    const std::int64_t* columns = nullptr;
    std::int64_t length;

    explicit Row(Block& g) : group(g), beta(g.beta(0)), length(g.length) {}
    bool frozen() const { return std::isinf(beta.hi); }  // T = 0: only the first maximum can be drawn

    const T* as_they_are(std::int64_t block) {
        if (block != loaded_) group.load(block);
        loaded_ = block;
        return group.scores;
    }
    // Returns the scores of a block. In a row with +inf, the infinities become 0 and all other scores -inf.
    const T* scores(std::int64_t block) {
        const T* z = as_they_are(block);
        return infinite ? infinities(block) : z;
    }
    template <class F> void each(F f) {
        for (std::int64_t i = 0; list && i < length; i += kBlock)
            f(Piece<T>{list + i, columns + i, i, std::min(kBlock, length - i)});
        for (std::int64_t b = 0; !list && b < group.blocks(); ++b)
            f(Piece<T>{scores(b), nullptr, group.begin(b), group.end(b) - group.begin(b)});
    }

    // Sets m to the maximum of the row. Returns true if the row contains a NaN.
    bool nan_or_maximum() {
        T top = -std::numeric_limits<T>::infinity();
        for (std::int64_t b = 0; b < group.blocks(); ++b) {
            const Look<T> found = look(as_they_are(b), group.end(b) - group.begin(b));
            if (found.nan) return true;
            top = std::max(top, found.top);
        }
        infinite = top == std::numeric_limits<T>::infinity();
        m = infinite ? 0 : static_cast<double>(top);
        return false;
    }
    std::int64_t first_maximum() {
        std::int64_t found = -1;
        each([&](const Piece<T>& piece) {
            for (std::int64_t i = 0; found < 0 && i < piece.count; ++i)
                if (static_cast<double>(piece.z[i]) == m) found = piece.column(i);
        });
        return found;
    }

    // Calls f(piece, distances, start, count) for every kTile scores of the row. The distances of excluded scores, and
    // of the padding of the last pack, are -inf.
    static constexpr int kTile = 256;
    template <class F> void distances(F f) {
        each([&](const Piece<T>& piece) {
            alignas(64) double x[kTile];
            for (std::int64_t i = 0; i < piece.count; i += kTile) {
                const std::int64_t n = std::min<std::int64_t>(kTile, piece.count - i);
                put_distances(piece, i, n, x);
                f(piece, x, i, n);
            }
        });
    }

  private:
    std::int64_t loaded_ = -1;

    const T* infinities(std::int64_t block) {
        T* marked = scratch(kTerms).template get<T>(kBlock);
        mark_infinities(group.scores, group.end(block) - group.begin(block), marked);
        return marked;
    }
    void put_distances(const Piece<T>& piece, std::int64_t from, std::int64_t n, double* x) const {
        using V = Pack<double>;
        const T* z = piece.z + from;
        T low;
        const bool exact = kept.one_bound(piece.column(from), piece.column(from + n - 1), low);
        const V least = V::all(static_cast<double>(exact ? low : kept.edge)), out = V::all(-kInf);
        wide_packs(z, n, [&](std::int64_t i, V y) SOFTARGMAX_LAMBDA {
            const auto below = above(least, y), in = unless(equal(out, out), below);
            (keep(in, distance(y, m, beta)) + keep(below, out)).store(x + i);
        });
        for (std::int64_t i = 0; !exact && i < n; ++i)
            if (!kept(z[i], piece.column(from + i))) x[i] = -kInf;
        for (std::int64_t i = 0; !band.everything() && i < n; ++i)
            if (x[i] > -kInf && !band(x[i], piece.column(from + i))) x[i] = -kInf;
    }
};

// Computes w = e^x for x <= 0, in whole packs. For x <= -reach, w is 0.
SOFTARGMAX_INLINE void exponentials(const double* x, std::int64_t n, double reach, double* w) {
    using V = Pack<double>;
    const V low = V::all(-reach);
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const V y = V::load(x + i);
        const auto in = above(y, low);
        keep(in, exp_of(Two<V>{keep(in, y), V::all(0)})).store(w + i);
    }
}

// Sums over the distances x of the remaining scores: r = l - 1 with l = sum e^x, mean = <p, x>, and the number of
// scores.
struct Moments {
    double r = -1, mean = 0;
    std::int64_t count = 0;
    double log_l() const { return log1p_scalar(r); }
};
template <class T> Moments moments(Row<T>& row) {
    using V = Pack<double>;
    Moments found;
    Sum<double> rest, first;
    Count<double> ties, count;
    row.distances([&](const Piece<T>&, const double* x, std::int64_t, std::int64_t n) {
        alignas(64) double w[Row<T>::kTile];
        exponentials(x, n, 708, w);
        const V zero = V::all(0), out = V::all(-kInf);
        for (std::int64_t i = 0; i < n; i += V::kLanes) {
            const V y = V::load(x + i), its = V::load(w + i);
            const auto tie = equal(y, zero), rest_of_it = unless(above(its, zero), tie);
            const V mass[1] = {keep(rest_of_it, its)}, moment[1] = {mass[0] * keep(rest_of_it, y)};
            ties.add(tie);
            count.add(above(y, out));
            rest.add(mass);
            first.add(moment);
        }
    });
    found.count = count.total();
    found.r = static_cast<double>(ties.total() - 1) + rounded(rest.total());
    if (found.count) found.mean = rounded(first.total()) / (1 + found.r);
    return found;
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
