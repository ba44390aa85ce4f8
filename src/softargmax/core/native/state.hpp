// The softmax state and its verbs: empty, fold, merge, finalize (design section 2).
//
//     m = max z_i       l = sum exp(beta (z_i - m))       r = l - 1, the sum without the maximum's own term
//
// A state keeps r, so that the tail of a confident row (1e-18, say) survives every merge and lse = beta m + log1p(r).
// It is the unevaluated sum r + low: rows of 10^6 scores have hundreds of merges, each of which would round. The
// recurrence stands here and in core/state.py, and nowhere else.
#pragma once

#include "job.hpp"
#include "math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// `empty` is {}: m = -inf, r = -1. m = +inf: r + 1 entries are +inf. r = NaN: a NaN in the row.
struct State {
    double m = -kInf, r = -1, low = 0;
};

// An unevaluated sum, of numbers or of packs.
template <class V> struct Two {
    V hi, lo;
};
using Twofold = Two<double>;
template <class V> SOFTARGMAX_INLINE Two<V> two_sum(V a, V b) {
    const V s = a + b, part = s - a;
    return {s, (a - (s - part)) + (b - part)};
}
// beta d.
template <class V> SOFTARGMAX_INLINE Two<V> times(V d, Scale beta) {
    const V b = Splat<V>::of(beta.hi), hi = d * b;
    return {hi, fma(d, b, Splat<V>::of(-0.0) - hi) + d * Splat<V>::of(beta.lo)};
}

// Sums, products and inverses to about 2^-100; what is infinite, and the inverse of 0, has no lower part.
SOFTARGMAX_INLINE double or_zero(double lo) { return lo == lo ? lo : 0; }
template <class V> SOFTARGMAX_INLINE V or_zero(V lo) { return keep(equal(lo, lo), lo); }
template <class V> SOFTARGMAX_INLINE Two<V> plus(Two<V> a, Two<V> b) {
    const Two<V> s = two_sum(a.hi, b.hi);
    return {s.hi, or_zero(s.lo + (a.lo + b.lo))};
}
template <class V> SOFTARGMAX_INLINE Two<V> minus(Two<V> a, Two<V> b) {
    const V none = Splat<V>::of(-0.0);
    return plus(a, Two<V>{none - b.hi, none - b.lo});
}
template <class V> SOFTARGMAX_INLINE Two<V> times(Two<V> a, Two<V> b) {
    const V hi = a.hi * b.hi;
    return {hi, or_zero(fma(a.hi, b.hi, Splat<V>::of(-0.0) - hi) + (a.hi * b.lo + a.lo * b.hi))};
}
template <class V> SOFTARGMAX_INLINE Two<V> times(Two<V> a, V b) { return times(a, Two<V>{b, Splat<V>::of(0)}); }
template <class V> SOFTARGMAX_INLINE Two<V> inverse(Two<V> x) {
    const V one = Splat<V>::of(1), q = one / x.hi;
    return {q, or_zero((fma(Splat<V>::of(-0.0) - q, x.hi, one) - q * x.lo) * q)};
}
SOFTARGMAX_INLINE double rounded(Twofold x) { return x.hi + x.lo; }

SOFTARGMAX_INLINE State merge(State a, State b, Scale beta) {
    if (b.m > a.m) {
        const State c = a;
        a = b;
        b = c;
    }
    double w = 1;
    if (b.m != a.m) {  // with the rounding errors of both steps: they would be |x| / 2 ulp of w
        const Twofold d = two_sum(b.m, -a.m), x = times(d.hi, beta);
        w = exp_scalar(std::isinf(d.hi) ? d.hi : x.hi);
        if (w > 0 && w < 1) w = fma(w, x.lo + d.lo * beta.hi, w);
    }
    const Twofold r = two_sum(a.r, (1.0 + b.r) * w);  // where both are empty, or both +inf, w is 1
    const Twofold sum = two_sum(r.hi, a.low + (r.lo + b.low * w));
    return {a.m, sum.hi, std::isinf(sum.hi) ? 0 : sum.lo};
}

// l = 1 + r.
SOFTARGMAX_INLINE Twofold sum_l(const State& s) {
    const Twofold l = two_sum(1.0, s.r);
    return {l.hi, l.lo + s.low};
}

// ---- finalize -------------------------------------------------------------------------------------------------

// log l = log1p(r); -inf for an empty row.
inline double log_l(const State& s) {
    const double log = log1p_scalar(s.r);
    return s.r > -1 ? log + s.low / (1.0 + s.r) : log;
}

// lse = log sum exp(beta z), in nats.
inline Twofold lse_of(const State& s, Scale beta) {
    const double tail = log_l(s);
    if (std::isinf(s.m) || std::isinf(beta.hi)) return {s.m == 0 ? tail : s.m * beta.hi + 0 * s.r, 0};
    const Twofold top = times(s.m, beta);
    return std::isinf(top.hi) ? Twofold{top.hi, 0} : plus(top, Twofold{tail, 0});
}
inline double finalize(const State& s, Scale beta) { return rounded(lse_of(s, beta)); }

// The same divided by beta: the smooth maximum m + log1p(r) / beta.
inline double smooth_maximum(const State& s, Scale beta) {
    if (std::isinf(s.m)) return s.m + 0 * s.r;
    const double tail = log_l(s);
    return tail == 0 ? s.m : s.m + tail / beta.hi * (1.0 - beta.lo / beta.hi);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
