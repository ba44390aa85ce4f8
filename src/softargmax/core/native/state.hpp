// The softmax state and its verbs: empty, fold, merge, finalize (design section 2).
//
//     m = max z_i       l = sum exp(beta (z_i - m))       r = l - 1, the sum without the maximum's own term
//
// A state keeps r, so that the tail of a confident row (1e-18, say) survives every merge and lse = beta m + log1p(r).
// The recurrence stands here and in core/state.py, and nowhere else.
#pragma once

#include "math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBlock = 4096;  // scores to a block: 16 KiB of float32, half of the smallest first-level cache

// `empty` is {}: m = -inf, r = -1. m = +inf: r + 1 entries are +inf. r = NaN: a NaN in the row.
struct State {
    double m = -kInf, r = -1;
};

SOFTARGMAX_INLINE State merge(State a, State b, Scale beta) {
    if (b.m > a.m) {
        const State c = a;
        a = b;
        b = c;
    }
    if (b.m == a.m) return {a.m, a.r + (1.0 + b.r)};  // also two empty states, and two with m = +inf
    const double d = b.m - a.m;
    const double x = std::isinf(d) ? d : fma(d, beta.hi, d * beta.lo);
    return {a.m, a.r + (1.0 + b.r) * exp_scalar(x)};
}

// beta d as a double-double.
struct Product {
    double hi, lo;
};
SOFTARGMAX_INLINE Product times(double d, Scale beta) {
    const double hi = d * beta.hi;
    return {hi, fma(d, beta.hi, -hi) + d * beta.lo};
}

// The constant taken off the scores of a piece whose maximum is m: nothing while the scores are small, m itself once
// |beta m| is twice the reach of exp. Either way z - shift is exact for every score that matters: in the second case
// such a z lies within a factor of two of m (Sterbenz).
template <class T> SOFTARGMAX_INLINE double shift_for(double m, Scale beta) {
    constexpr double twice_reach = sizeof(T) == 4 ? 208 : 1500;
    return std::fabs(m * beta.hi) >= twice_reach ? m : 0;
}

// Scores at or below this contribute nothing: exp(beta (z - m)) < e^-reach. Always below m itself.
template <class T> SOFTARGMAX_INLINE T floor_for(double m, Scale beta, double reach) {
    const T top = static_cast<T>(m), low = static_cast<T>(m - reach / beta.hi);
    const T below = std::nextafter(top, -std::numeric_limits<T>::infinity());
    return low < below ? low : below;
}

// e^(beta (m - shift)) = 2^k E, in double.
struct Peak {
    int k;
    double e;
};
SOFTARGMAX_INLINE Peak peak_of(double m, double shift, Scale beta) {
    const Product x = times(m - shift, beta);
    const double k = std::rint(x.hi * Exp<double>::log2e);
    const double r = fma(k, -Exp<double>::ln2_hi, x.hi) + fma(k, -Exp<double>::ln2_lo, x.lo);
    return {static_cast<int>(k), 1.0 + fma(r * r, exp_tail<double>(r), r)};
}

// ---- fold -----------------------------------------------------------------------------------------------------

constexpr int kUnroll = 4;  // packs to a step: hides the latency of the multiply-adds

// Sum of many terms: float lanes are added four at a time, then in double lanes; doubles are added with their rounding
// errors kept (a plain sum of 10^6 equal terms is off by hundreds of ulp).
template <class T> struct Sum;
template <> struct Sum<float> {
    Pack<double> low = Pack<double>::all(0), high = low;
    SOFTARGMAX_INLINE void add(const Pack<float> (&y)[kUnroll]) {
        const Wide w = widen((y[0] + y[1]) + (y[2] + y[3]));
        low = low + w.low;
        high = high + w.high;
    }
    SOFTARGMAX_INLINE double total() const { return sum_of(low + high); }
};
template <> struct Sum<double> {
    Pack<double> sum = Pack<double>::all(0), error = sum;
    SOFTARGMAX_INLINE void add(const Pack<double> (&y)[kUnroll]) {
        for (const auto& x : y) {
            const Pack<double> s = sum + x, part = s - sum;
            error = error + ((sum - (s - part)) + (x - part));
            sum = s;
        }
    }
    SOFTARGMAX_INLINE double total() const { return sum_of(sum) + sum_of(error); }
};

// Runs body(packs, count) over z in steps of kUnroll packs; the last step is filled up with `fill`, and count says how
// many of its packs hold scores.
template <class T, class Body> SOFTARGMAX_INLINE void steps(const T* z, std::int64_t n, T fill, Body body) {
    using V = Pack<T>;
    constexpr std::int64_t step = kUnroll * V::kLanes;
    std::int64_t i = 0;
    V v[kUnroll];
    for (; i + step <= n; i += step) {
        for (int u = 0; u < kUnroll; ++u) v[u] = V::load(z + i + u * V::kLanes);
        body(v, kUnroll);
    }
    if (i == n) return;
    T rest[step];
    for (T& x : rest) x = fill;
    std::memcpy(rest, z + i, static_cast<std::size_t>(n - i) * sizeof(T));
    for (int u = 0; u < kUnroll; ++u) v[u] = V::load(rest + u * V::kLanes);
    body(v, static_cast<int>((n - i + V::kLanes - 1) / V::kLanes));
}

template <class T> T maximum(const T* z, std::int64_t n) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    Pack<T> top[kUnroll];
    for (auto& t : top) t = Pack<T>::all(lowest);
    steps(z, n, lowest, [&](const Pack<T>(&v)[kUnroll], int) {
        for (int u = 0; u < kUnroll; ++u) top[u] = max(v[u], top[u]);
    });
    return max_of(max(max(top[0], top[1]), max(top[2], top[3])));
}

// The state of a piece whose maximum is infinite, or whose beta is: its ties with the maximum, or NaN.
template <class T> State count_ties(const T* z, std::int64_t n, T m) {
    std::int64_t ties = 0;
    bool nan = false;
    for (std::int64_t i = 0; i < n; ++i) {
        ties += z[i] == m;
        nan |= z[i] != z[i];
    }
    const double l = static_cast<double>(m == -std::numeric_limits<T>::infinity() ? 0 : ties);
    return {static_cast<double>(m), nan ? std::numeric_limits<double>::quiet_NaN() : l - 1};
}

// How far below the maximum scores matter, e^-reach, and the power of two by which their terms are raised so that all of
// them are normal numbers.
template <class T> struct Reach;
template <> struct Reach<float> {
    static constexpr double reach = 130;
    static constexpr int lift = 62;
};
template <> struct Reach<double> {
    static constexpr double reach = 1100;
    static constexpr int lift = 600;
};

// The terms of one row or block: beta (z - shift) reduced, kept where z is above `low`.
template <bool Unit, class T> struct Terms {
    using V = Pack<T>;
    ScaleIn<T> scale;
    V taken, low, magic;
    SOFTARGMAX_INLINE Terms(double m, double shift, Scale beta, int exponent)
        : scale(beta),
          taken(V::all(static_cast<T>(shift))),
          low(V::all(floor_for<T>(m, beta, Reach<T>::reach))),
          magic(magic_for<T>(exponent)) {}
    // 2^exponent e^(beta (z - shift)), rounded once from 1 + t.
    SOFTARGMAX_INLINE V term(V z) const {
        const auto e = reduce<Unit>(z - taken, scale, magic);
        const V t = fma(e.r * e.r, exp_tail<T>(e.r), e.r);
        return fma(t, e.power, e.power);
    }
};

// The maximum's own term and its ties are counted, not added: r keeps the tail of a confident row, and the largest term
// brings no rounding error into the sum. With Store, the terms are written out for softmax to scale.
template <bool Unit, bool Store, class T> State fold_finite(const T* z, std::int64_t n, T m, Scale beta, T* store) {
    using V = Pack<T>;
    const double shift = shift_for<T>(m, beta);
    const Peak peak = peak_of(m, shift, beta);
    const Terms<Unit, T> terms(m, shift, beta, Reach<T>::lift - peak.k);
    const V top = V::all(m);
    Sum<T> sum;
    Count<T> ties;
    steps(z, n, -std::numeric_limits<T>::infinity(), [&](const V(&v)[kUnroll], int count) SOFTARGMAX_LAMBDA {
        V y[kUnroll];
        for (int u = 0; u < kUnroll; ++u) {
            if (u >= count) {
                y[u] = V::all(0);
                continue;
            }
            const auto in = above(v[u], terms.low), tie = equal(v[u], top);
            const V term = terms.term(v[u]);
            if constexpr (Store) keep(in, term).store(store + u * V::kLanes);
            ties.add(tie);
            y[u] = keep(unless(in, tie), term);
        }
        if constexpr (Store) store += count * V::kLanes;
        sum.add(y);
    });
    const double rest = std::ldexp(sum.total(), -Reach<T>::lift) / peak.e;
    return {static_cast<double>(m), static_cast<double>(ties.total() - 1) + rest};
}

// Whether a float32 piece can be folded in float32: beyond these it is folded in float64.
inline bool fits_float(double m, Scale beta) { return beta.hi >= 1e-30 && beta.hi <= 1e30 && std::fabs(m) < 1e30; }

// The state of at most kBlock contiguous scores. Where the design asks for a negative beta, z comes negated.
template <class T> State fold(const T* z, std::int64_t n, Scale beta) {
    const T m = maximum(z, n);
    if (std::isinf(m) || std::isinf(beta.hi)) return count_ties(z, n, m);
    if constexpr (sizeof(T) == 4) {
        if (!fits_float(m, beta)) {
            double wide[kBlock] = {};
            for (std::int64_t i = 0; i < n; ++i) wide[i] = z[i];
            return fold<double>(wide, n, beta);
        }
    }
    return beta.unit() ? fold_finite<true, false, T>(z, n, m, beta, nullptr)
                       : fold_finite<false, false, T>(z, n, m, beta, nullptr);
}

// ---- finalize -------------------------------------------------------------------------------------------------

// lse = log sum exp(beta z), in nats, as a double-double.
inline Product finalize(State s, Scale beta) {
    const double tail = log1p_scalar(s.r);
    if (std::isinf(s.m) || std::isinf(beta.hi)) return {s.m == 0 ? tail : s.m * beta.hi + 0 * s.r, 0};
    const Product top = times(s.m, beta);
    const double hi = top.hi + tail, part = hi - top.hi;
    return {hi, ((top.hi - (hi - part)) + (tail - part)) + top.lo};
}

// The same divided by beta: the smooth maximum m + log1p(r) / beta.
inline double smooth_maximum(State s, Scale beta) {
    if (std::isinf(s.m)) return s.m + 0 * s.r;
    const double tail = log1p_scalar(s.r);
    return tail == 0 ? s.m : s.m + tail / beta.hi * (1.0 - beta.lo / beta.hi);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
