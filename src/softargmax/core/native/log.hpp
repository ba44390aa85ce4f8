// Logarithms and exponentials of unevaluated pairs, in packs of double: what powers are made of.
//
//     log v = k ln 2 + log(1 + t),   v = 2^k (1 + t),   sqrt(1/2) <= 1 + t < sqrt(2)
//     log(1 + t) = t - t^2 / 2 + s (t^2 / 2 + 2 u p(u)),   s = t / (2 + t),   u = s^2        (2 atanh s)
//
// The first two terms are a pair, so that the error is a tenth of 2^-53 of the logarithm: a power v^(1/a) multiplies it
// by 1/a.
#pragma once

#include "state.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// log v, v.hi positive and normal.
SOFTARGMAX_INLINE Two<Pack<double>> log_of(Two<Pack<double>> v) {
    using V = Pack<double>;
    constexpr double p[] = {0x1.5555555555555p-2, 0x1.9999999999d0dp-3, 0x1.2492492439dc7p-3, 0x1.c71c724b00b54p-4,
                            0x1.745ce1e46b4ebp-4, 0x1.3b202098f5061p-4, 0x1.0f678a3d1e989p-4, 0x1.0f0befb1d6faep-4};
    const V one = V::all(1), two = V::all(2), zero = V::all(0);
    const Binary<V> parts = binary_of(v.hi);
    const Two<V> t = two_sum(parts.f - one, v.lo * power_of_two(V::all(Exp<double>::magic + 1023) - parts.k));
    const V s = t.hi / (two + t.hi), u = s * s;
    V q = V::all(p[7]);
#pragma GCC unroll 8
    for (int i = 6; i >= 0; --i) q = fma(q, u, V::all(p[i]));
    const V halved = V::all(0.5) * t.hi, half = halved * t.hi, half_low = fma(halved, t.hi, zero - half);
    const V tail = s * fma(two * u, q, half), rest = t.lo * (one - t.hi * (one - t.hi));
    const Two<V> head = two_sum(t.hi, zero - half), sum = two_sum(parts.k * V::all(Exp<double>::ln2_hi), head.hi);
    return {sum.hi, sum.lo + (fma(parts.k, V::all(Exp<double>::ln2_lo), head.lo) + ((tail - half_low) + rest))};
}
SOFTARGMAX_INLINE Pack<double> log_of(Pack<double> v) {
    const Two<Pack<double>> log = log_of({v, Pack<double>::all(0)});
    return log.hi + log.lo;
}
// log(1 + w), -1 < w.
SOFTARGMAX_INLINE Two<Pack<double>> log1p_of(Two<Pack<double>> w) {
    const Two<Pack<double>> v = two_sum(Pack<double>::all(1), w.hi);
    return log_of({v.hi, v.lo + w.lo});
}

// e^y for -708 <= y.hi <= 709.
SOFTARGMAX_INLINE Pack<double> exp_of(Two<Pack<double>> y) {
    using E = Exp<double>;
    using V = Pack<double>;
    const V magic = V::all(E::magic + E::bias), km = fma(y.hi, V::all(E::log2e), magic), k = km - magic;
    const V r = fma(k, V::all(-E::ln2_lo), fma(k, V::all(-E::ln2_hi), y.hi)) + y.lo, power = power_of_two(km);
    return fma(exp_less_one<double>(r), power, power);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
