// Logarithms and exponentials of unevaluated pairs, in packs: what powers are made of.
//
//     log v = k ln 2 + log(1 + t),   v = 2^k (1 + t),   sqrt(1/2) <= 1 + t < sqrt(2)
//     log(1 + t) = t - t^2 / 2 + s (t^2 / 2 + 2 u p(u)),   s = t / (2 + t),   u = s^2        (2 atanh s)
//
// The first two terms are a pair, so that the error is a quarter of a rounding of the logarithm: a power v^(1/a)
// multiplies it by 1/a.
#pragma once

#include "twofold.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

template <class T> struct Logarithm;  // the coefficients of p
template <> struct Logarithm<float> {
    static constexpr float p[] = {0x1.555556p-2f, 0x1.99999ap-3f, 0x1.24924ap-3f, 0x1.c71c72p-4f};
};
template <> struct Logarithm<double> {
    static constexpr double p[] = {0x1.5555555555555p-2, 0x1.9999999999d0dp-3, 0x1.2492492439dc7p-3,
                                   0x1.c71c724b00b54p-4, 0x1.745ce1e46b4ebp-4, 0x1.3b202098f5061p-4,
                                   0x1.0f678a3d1e989p-4, 0x1.0f0befb1d6faep-4};
};

// What log v is made of: v = 2^k (1 + t), log(1 + t) = t - half + tail, half = t^2 / 2.
template <class V> struct Logs {
    V k, t, half, tail, rest;  // `rest` is what v.lo adds
};
template <int terms, class V> SOFTARGMAX_INLINE Logs<V> logs_of(Two<V> v) {
    using T = typename V::Scalar;
    const V one = V::all(1), two = V::all(2);
    const Binary<V> parts = binary_of(v.hi);
    const Two<V> t = two_sum(parts.f - one, v.lo * power_of_two(V::all(Exp<T>::magic + Exp<T>::bias) - parts.k));
    const V s = t.hi / (two + t.hi), u = s * s, half = V::all(T(0.5)) * t.hi * t.hi;
    V q = V::all(Logarithm<T>::p[terms - 1]);
#pragma GCC unroll 8
    for (int i = terms - 2; i >= 0; --i) q = fma(q, u, V::all(Logarithm<T>::p[i]));
    return {parts.k, t.hi, half, s * fma(two * u, q, half), t.lo * (one - t.hi * (one - t.hi))};
}
template <class T> constexpr int kLogTerms = sizeof(Logarithm<T>::p) / sizeof(T);

// log v, v.hi positive and normal, as a pair.
template <class V> SOFTARGMAX_INLINE Two<V> log_pair(Two<V> v) {
    using E = Exp<typename V::Scalar>;
    const Logs<V> x = logs_of<kLogTerms<typename V::Scalar>>(v);
    const V zero = V::all(0), half_low = fma(V::all(0.5) * x.t, x.t, zero - x.half);
    const Two<V> head = two_sum(x.t, zero - x.half), sum = two_sum(x.k * V::all(E::ln2_hi), head.hi);
    const V low = sum.lo + (fma(x.k, V::all(E::ln2_lo), head.lo) + ((x.tail - half_low) + x.rest));
    return two_sum(sum.hi, low);  // `low` may be a twentieth of it
}
// The same rounded, to a rounding or two; fewer terms make it rougher.
template <int terms, class V> SOFTARGMAX_INLINE V log_of(Two<V> v) {
    using E = Exp<typename V::Scalar>;
    const Logs<V> x = logs_of<terms>(v);
    return fma(x.k, V::all(E::ln2_hi), x.t - (x.half - (x.tail + fma(x.k, V::all(E::ln2_lo), x.rest))));
}
template <class T> constexpr int kExpTerms = sizeof(Exp<T>::q) / sizeof(T);

// e^y where that is a normal number; of n terms, or 0: of all.
template <int n = 0, class V> SOFTARGMAX_INLINE V exp_of(Two<V> y) {
    using T = typename V::Scalar;
    using E = Exp<T>;
    const V magic = V::all(E::magic + E::bias), km = fma(y.hi, V::all(E::log2e), magic), k = km - magic;
    const V r = fma(k, V::all(-E::ln2_lo), fma(k, V::all(-E::ln2_hi), y.hi)) + y.lo, power = power_of_two(km);
    return fma(exp_less_one<T, n == 0 ? kExpTerms<T> : n>(r), power, power);
}
}  // namespace softargmax::SOFTARGMAX_ISA_NAME
