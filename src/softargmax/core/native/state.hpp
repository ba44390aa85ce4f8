// The softmax state and its verbs: empty, fold, merge, finalize (design section 2).
//
//     m = max z_i       l = sum exp(beta (z_i - m))       r = l - 1, the sum without the maximum's own term
//
// A state keeps r, so that the tail of a confident row (1e-18, say) survives every merge and lse = beta m + log1p(r). It
// is the unevaluated sum r + low: rows of 10^6 scores have hundreds of merges, each of which would round.
// The recurrence stands here and in core/state.py, and nowhere else.
#pragma once

#include "math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

constexpr std::int64_t kBlock = 4096;  // scores to a block: 16 KiB of float32, half of the smallest first-level cache

// `empty` is {}: m = -inf, r = -1. m = +inf: r + 1 entries are +inf. r = NaN: a NaN in the row.
struct State {
    double m = -kInf, r = -1, low = 0;
};

// An unevaluated sum.
struct Twofold {
    double hi, lo;
};
SOFTARGMAX_INLINE Twofold two_sum(double a, double b) {
    const double s = a + b, part = s - a;
    return {s, (a - (s - part)) + (b - part)};
}
// beta d.
SOFTARGMAX_INLINE Twofold times(double d, Scale beta) {
    const double hi = d * beta.hi;
    return {hi, fma(d, beta.hi, -hi) + d * beta.lo};
}

SOFTARGMAX_INLINE State merge(State a, State b, Scale beta) {
    if (b.m > a.m) {
        const State c = a;
        a = b;
        b = c;
    }
    const double d = b.m - a.m;
    const double w = b.m == a.m ? 1 : exp_scalar(std::isinf(d) ? d : fma(d, beta.hi, d * beta.lo));
    const Twofold r = two_sum(a.r, (1.0 + b.r) * w);  // where both are empty, or both +inf, w is 1
    return {a.m, r.hi, a.low + (r.lo + b.low * w)};
}

// How far below the maximum scores matter, e^-reach, and the power of two by which their terms are raised so that all of
// them are normal numbers.
template <class T> struct Reach;
template <> struct Reach<float> {
    static constexpr double reach = 130, twice = 208;
    static constexpr int lift = 62;
    static constexpr double lower = 0x1p-62;
};
template <> struct Reach<double> {
    static constexpr double reach = 1100, twice = 1500;
    static constexpr int lift = 600;
    static constexpr double lower = 0x1p-600;
};

// What a piece with maximum m is measured from: e^(beta (m - shift)) = 2^k (e + e_low).
//
// The shift is nothing while the scores are small, and m itself once |beta m| is twice the reach of exp. Either way
// z - shift is exact for every score that matters: in the second case such a z is within a factor of two of m (Sterbenz).
template <class T> struct Peak {
    T m, shift;
    int k;
    double e, e_low;
    SOFTARGMAX_INLINE Peak(T top, Scale beta)
        : m(top), shift(std::fabs(static_cast<double>(top) * beta.hi) >= Reach<T>::twice ? top : 0) {
        using E = Exp<double>;
        const Twofold x = times(static_cast<double>(m) - static_cast<double>(shift), beta);
        const double n = fma(x.hi, E::log2e, E::magic) - E::magic;
        const double r = fma(n, -E::ln2_hi, x.hi) + fma(n, -E::ln2_lo, x.lo);
        const double t = exp_less_one<double>(r);
        k = static_cast<int>(n);
        e = 1.0 + t;
        e_low = t - (e - 1.0);
    }
    // Scores at or below this contribute nothing. Always below m itself.
    SOFTARGMAX_INLINE T floor(Scale beta) const {
        const double reach = beta.hi == 1 ? Reach<T>::reach : Reach<T>::reach / beta.hi;  // a division is 15 cycles of a row
        const T low = static_cast<T>(static_cast<double>(m) - reach);
        const T below = next_below(m);
        return low < below ? low : below;
    }
};

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
    SOFTARGMAX_INLINE Twofold total() const { return {sum_of(low + high), 0}; }
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
    SOFTARGMAX_INLINE Twofold total() const {
        double x[8];
        sum.store(x);
        Twofold s{0, sum_of(error)};
        for (double y : x) {
            const Twofold next = two_sum(s.hi, y);
            s = {next.hi, s.lo + next.lo};
        }
        return s;
    }
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
    for (int u = 0; u < kUnroll; ++u) v[u] = V::load_part(z + i + u * V::kLanes, n - i - u * V::kLanes, fill);
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
    return {static_cast<double>(m), nan ? kNaN : l - 1};
}

// The terms e^(beta (z - shift)) of one row or block, times 2^(lift - k); 0 at and below its floor.
template <bool Unit, class T> struct Terms {
    using V = Pack<T>;
    ScaleIn<T> scale;
    V shift, low, magic;
    SOFTARGMAX_INLINE Terms(const Peak<T>& peak, Scale beta)
        : scale(beta),
          shift(V::all(peak.shift)),
          low(V::all(peak.floor(beta))),
          magic(magic_for<T>(Reach<T>::lift - peak.k)) {}
    SOFTARGMAX_INLINE auto in(V z) const { return above(z, low); }
    SOFTARGMAX_INLINE Term<T> operator()(V z) const { return exp_term<Unit>(z - shift, scale, magic); }
};

// The maximum's own term and its ties are counted, not added: r keeps the tail of a confident row, and the largest term
// brings no rounding error into the sum. With Store, t and power of each term are written to two rows of kBlock, for
// softmax to scale.
template <bool Unit, bool Store, class T> State fold_finite(const T* z, std::int64_t n, const Peak<T>& peak, Scale beta, T* store) {
    using V = Pack<T>;
    const Terms<Unit, T> terms(peak, beta);
    const V top = V::all(peak.m);
    const double lower = Reach<T>::lower / peak.e;
    Sum<T> sum;
    Count<T> ties;
    steps(z, n, -std::numeric_limits<T>::infinity(), [&](const V(&v)[kUnroll], int count) SOFTARGMAX_LAMBDA {
        V y[kUnroll];
        for (int u = 0; u < kUnroll; ++u) {
            if (u >= count) {
                y[u] = V::all(0);
                continue;
            }
            const auto in = terms.in(v[u]), tie = equal(v[u], top);
            const Term<T> term = terms(v[u]);
            if constexpr (Store) {
                keep(in, term.t).store(store + u * V::kLanes);
                keep(in, term.power).store(store + kBlock + u * V::kLanes);
            }
            ties.add(tie);
            y[u] = keep(unless(in, tie), term.value());
        }
        if constexpr (Store) store += count * V::kLanes;
        sum.add(y);
    });
    const Twofold total = sum.total();
    if constexpr (sizeof(T) == 4)  // double has room enough: no twofold sums
        return {static_cast<double>(peak.m), static_cast<double>(ties.total() - 1) + total.hi * lower};
    const double rest = total.hi / peak.e;
    const double lost = ((fma(-rest, peak.e, total.hi) - rest * peak.e_low) + total.lo) / peak.e;
    const Twofold r = two_sum(static_cast<double>(ties.total() - 1), rest * Reach<T>::lower);
    return {static_cast<double>(peak.m), r.hi, r.lo + lost * Reach<T>::lower};
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
    const Peak<T> peak(m, beta);
    return beta.unit() ? fold_finite<true, false, T>(z, n, peak, beta, nullptr)
                       : fold_finite<false, false, T>(z, n, peak, beta, nullptr);
}

// ---- finalize -------------------------------------------------------------------------------------------------

// log l = log1p(r); -inf for an empty row.
inline double log_l(State s) {
    const double log = log1p_scalar(s.r);
    return s.r > -1 ? log + s.low / (1.0 + s.r) : log;
}

// lse = log sum exp(beta z), in nats, as a double-double.
inline Twofold finalize(State s, Scale beta) {
    const double tail = log_l(s);
    if (std::isinf(s.m) || std::isinf(beta.hi)) return {s.m == 0 ? tail : s.m * beta.hi + 0 * s.r, 0};
    const Twofold top = times(s.m, beta), lse = two_sum(top.hi, tail);
    return {lse.hi, lse.lo + top.lo};
}

// The same divided by beta: the smooth maximum m + log1p(r) / beta.
inline double smooth_maximum(State s, Scale beta) {
    if (std::isinf(s.m)) return s.m + 0 * s.r;
    const double tail = log_l(s);
    return tail == 0 ? s.m : s.m + tail / beta.hi * (1.0 - beta.lo / beta.hi);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
