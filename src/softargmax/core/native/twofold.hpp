// Numbers, or packs of them, as unevaluated sums of two.
#pragma once

#include "math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

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

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
