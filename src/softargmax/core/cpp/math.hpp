// exp and log with the same bits on every instruction set: for SIMD vectors (packs), for double scalars, and for
// unevaluated sums of two numbers.
#pragma once

#include <limits>

#include "simd.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- exp ------------------------------------------------------------------------------------------------------
//
// exp without a rounded subtraction of the maximum:
//
//     e^x = 2^k e^r,   k = rint(x log2 e),   r = x - k ln 2  in two fused steps, ln 2 = hi + lo, k hi exact
//     e^r = 1 + t,     t = r + r^2 q(r)      (q: tools/fit_polynomials.py)
//
// The shift by the maximum becomes a shift of the exponent, 2^(k - k_max), which is exact. Other libraries round z - m
// before exp. In float32 this adds an error of up to 64 ulp to the p of a score that is 64 or more below the maximum.

template <class T> struct Exp;

template <> struct Exp<float> {
    static constexpr float log2e = 0x1.715476p+0f;
    static constexpr float ln2_hi = 0x1.62e8p-1f;           // 14 bits: k * ln2_hi is exact for |k| < 1024
    static constexpr float ln2_lo = -0x1.e8082ep-16f;
    static constexpr float magic = 0x1.8p+23f;              // x + magic has rint(x) in its low bits
    static constexpr int bias = 127;
    // Relative error of 1 + t: 2^-28.
    static constexpr float q[] = {0x1.fffff8p-2f, 0x1.55548ep-3f, 0x1.555b96p-5f, 0x1.123bd0p-7f, 0x1.685352p-10f};
};

template <> struct Exp<double> {
    static constexpr double log2e = 0x1.71547652b82fep+0;
    static constexpr double ln2_hi = 0x1.62e42fefap-1;      // 38 bits: k * ln2_hi is exact for |k| < 2^15
    static constexpr double ln2_lo = 0x1.cf79abc9e3b3ap-40;
    static constexpr double magic = 0x1.8p+52;
    static constexpr int bias = 1023;
    // Relative error of 1 + t: 2^-63.
    static constexpr double q[] = {0x1.0000000000000p-1,  0x1.555555555555cp-3,  0x1.5555555555541p-5,
                                   0x1.111111110ea06p-7,  0x1.6c16c16c1fa9dp-10, 0x1.a01a01b43e0efp-13,
                                   0x1.a01a0176e937cp-16, 0x1.71ddee867a44ep-19, 0x1.27e540c3e9a90p-22,
                                   0x1.af6e5b2b81035p-26, 0x1.1ed986d1f5259p-29};
};

// q(r), with separate sums of even and odd powers. They have half the latency of Horner's rule. u is r^2, which the
// caller needs as well.
template <class T, int n = sizeof(Exp<T>::q) / sizeof(T), class V> SOFTARGMAX_INLINE V exp_tail(V r, V u) {
    constexpr int even = (n - 1) / 2 * 2, odd = n / 2 * 2 - 1;
    V a = Splat<V>::of(Exp<T>::q[even]), b = Splat<V>::of(Exp<T>::q[odd]);
#pragma GCC unroll 8
    for (int i = even - 2; i >= 0; i -= 2) a = fma(a, u, Splat<V>::of(Exp<T>::q[i]));
#pragma GCC unroll 8
    for (int i = odd - 2; i >= 1; i -= 2) b = fma(b, u, Splat<V>::of(Exp<T>::q[i]));
    return fma(r, b, a);
}
// t = e^r - 1 for |r| <= ln2 / 2.
template <class T, int n = sizeof(Exp<T>::q) / sizeof(T), class V> SOFTARGMAX_INLINE V exp_less_one(V r) {
    const V u = r * r;
    return fma(u, exp_tail<T, n>(r, u), r);
}

// The positive factor beta = hi + lo of the scores of a row. The sum is not evaluated: with 1/T rounded to one double,
// the error of e^(z / T) is 248 ulp at z = -2000 and T = 3.7.
struct Scale {
    double hi = 1, lo = 0;
    bool unit() const { return hi == 1 && lo == 0; }
};

// The beta of a row in packs of T.
template <class T> struct ScaleIn {
    Pack<T> hi, lo, log2e;
    explicit SOFTARGMAX_INLINE ScaleIn(Scale b)
        : hi(Pack<T>::all(static_cast<T>(b.hi))),
          lo(Pack<T>::all(static_cast<T>((b.hi - static_cast<double>(static_cast<T>(b.hi))) + b.lo))),
          log2e(Pack<T>::all(static_cast<T>(b.hi * Exp<double>::log2e))) {}
};

// 2^shift e^(beta d) = power (1 + t). `exp_term` receives the shift as magic_shifted = magic_of(shift).
template <class T> struct Term {
    Pack<T> t, power;
    SOFTARGMAX_INLINE Pack<T> value() const { return fma(t, power, power); }
};
template <bool Unit, class T>
SOFTARGMAX_INLINE Term<T> exp_term(Pack<T> d, const ScaleIn<T>& beta, Pack<T> magic_shifted) {
    using E = Exp<T>;
    using V = Pack<T>;
    const V hi = V::all(-E::ln2_hi), lo = V::all(-E::ln2_lo);
    const V km = fma(d, beta.log2e, magic_shifted);
    const V k = km - magic_shifted;
    V r;
    if constexpr (Unit) r = fma(k, lo, fma(k, hi, d));  // the inner fma is exact
    else r = fma(d, beta.hi, k * hi) + fma(d, beta.lo, k * lo);
    return {exp_less_one<T>(r), power_of_two(km)};
}
// The magic number that makes `power_of_two` return 2^(k + shift).
template <class T> SOFTARGMAX_INLINE T magic_of(int shift) {
    return Exp<T>::magic + static_cast<T>(Exp<T>::bias + shift);
}

// ---- scalars, in double ---------------------------------------------------------------------------------------

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline double exp_scalar(double x) {
    using E = Exp<double>;
    if (!(x > -746.0)) return x == x ? 0.0 : x;
    if (x > 710.0) return kInf;
    const double k = (x * E::log2e + E::magic) - E::magic;
    const double r = fma(k, -E::ln2_lo, fma(k, -E::ln2_hi, x));
    const double y = 1.0 + exp_less_one<double>(r);
    const double half = static_cast<double>(static_cast<int>(k) / 2);  // two factors, so that a subnormal result is
                                                                       // rounded only once
    return y * power_of_two(E::magic + E::bias + half) * power_of_two(E::magic + E::bias + (k - half));
}

// log(1 + x) for |x| < 0.42, computed as 2 atanh(s), s = x / (2 + x). The code computes x minus a
// small correction, so that the last subtraction is the only large rounding.
inline double log1p_small(double x) {
    constexpr double w[] = {0x1.5555555555555p-2, 0x1.9999999999d0dp-3, 0x1.2492492439dc7p-3, 0x1.c71c724b00b54p-4,
                            0x1.745ce1e46b4ebp-4, 0x1.3b202098f5061p-4, 0x1.0f678a3d1e989p-4, 0x1.0f0befb1d6faep-4};
    const double s = x / (2.0 + x), u = s * s, half = 0.5 * x * x;
    double p = w[7];
#pragma GCC unroll 8
    for (int i = 6; i >= 0; --i) p = fma(p, u, w[i]);
    return x - (half - s * (half + 2.0 * u * p));
}

// log(u + lost) for a positive normal u, and a `lost` that is at most the rounding error of u.
inline double log_of_parts(double u, double lost) {
    int e;
    double f = std::frexp(u, &e);
    if (f < 0.70710678118654752) {
        f *= 2.0;
        --e;
    }
    return fma(e, Exp<double>::ln2_hi, fma(e, Exp<double>::ln2_lo, lost / u) + log1p_small(f - 1.0));
}

// log(1 + x).
inline double log1p_scalar(double x) {
    if (x > -0.29 && x < 0.41) return log1p_small(x);
    if (!(x > -1.0)) return x == -1.0 ? -kInf : kNaN;
    if (x > 1e308) return x;  // the only larger value that occurs is +inf
    const double u = 1.0 + x;
    return log_of_parts(u, x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x));
}

// log w.
inline double log_scalar(double w) {
    if (w == 0) return -kInf;
    if (!(w > 0)) return kNaN;
    return w < kInf ? log_of_parts(w, 0) : w;
}

// ---- unevaluated sums of two numbers or packs -----------------------------------------------------------------

template <class V> struct Two {
    V hi, lo;
};
using Twofold = Two<double>;
template <class V> SOFTARGMAX_INLINE Two<V> two_sum(V a, V b) {
    const V s = a + b, part = s - a;
    return {s, (a - (s - part)) + (b - part)};
}
// beta d as an unevaluated sum.
template <class V> SOFTARGMAX_INLINE Two<V> times(V d, Scale beta) {
    const V b = Splat<V>::of(beta.hi), hi = d * b;
    return {hi, fma(d, b, Splat<V>::of(-0.0) - hi) + d * Splat<V>::of(beta.lo)};
}

// Sums, products and inverses with a relative error of about 2^-100 for pairs of doubles. Infinite results, and the
// inverse of 0, have a lower part of 0.
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

// ---- logarithms and exponentials of unevaluated sums, in packs, for powers -------------------------------------
//
//     log v = k ln 2 + log(1 + t),   v = 2^k (1 + t),   sqrt(1/2) <= 1 + t < sqrt(2)
//     log(1 + t) = t - t^2 / 2 + s (t^2 / 2 + 2 u p(u)),   s = t / (2 + t),   u = s^2        (2 atanh s)
//
// The sum of t and -t^2 / 2 is kept as a pair. So the error of the logarithm is a quarter of one rounding. The power
// v^(1/a) multiplies this error by 1/a.

template <class T> struct Logarithm;  // the coefficients of p
template <> struct Logarithm<float> {
    static constexpr float p[] = {0x1.555556p-2f, 0x1.99999ap-3f, 0x1.24924ap-3f, 0x1.c71c72p-4f};
};
template <> struct Logarithm<double> {
    static constexpr double p[] = {0x1.5555555555555p-2, 0x1.9999999999d0dp-3, 0x1.2492492439dc7p-3,
                                   0x1.c71c724b00b54p-4, 0x1.745ce1e46b4ebp-4, 0x1.3b202098f5061p-4,
                                   0x1.0f678a3d1e989p-4, 0x1.0f0befb1d6faep-4};
};

// The parts of log v: v = 2^k (1 + t), log(1 + t) = t - half + tail, half = t^2 / 2.
template <class V> struct Logs {
    V k, t, half, tail, rest;  // `rest` is the contribution of v.lo
};
template <int terms, class V> SOFTARGMAX_FORMULA Logs<V> logs_of(Two<V> v) {
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

// log v as a pair, for positive normal v.hi.
template <class V> SOFTARGMAX_INLINE Two<V> log_pair(Two<V> v) {
    using E = Exp<typename V::Scalar>;
    const Logs<V> x = logs_of<kLogTerms<typename V::Scalar>>(v);
    const V zero = V::all(0), half_low = fma(V::all(0.5) * x.t, x.t, zero - x.half);
    const Two<V> head = two_sum(x.t, zero - x.half), sum = two_sum(x.k * V::all(E::ln2_hi), head.hi);
    const V low = sum.lo + (fma(x.k, V::all(E::ln2_lo), head.lo) + ((x.tail - half_low) + x.rest));
    return two_sum(sum.hi, low);  // normalised, because `low` may be as large as sum.hi / 20
}
// log v with an error of one or two roundings if all terms of the series are used. Fewer terms are less accurate.
template <int terms, class V> SOFTARGMAX_INLINE V log_of(Two<V> v) {
    using E = Exp<typename V::Scalar>;
    const Logs<V> x = logs_of<terms>(v);
    return fma(x.k, V::all(E::ln2_hi), x.t - (x.half - (x.tail + fma(x.k, V::all(E::ln2_lo), x.rest))));
}
template <class T> constexpr int kExpTerms = sizeof(Exp<T>::q) / sizeof(T);

// e^y, computed with n terms of the series, or with all terms for n = 0. e^y must be a normal number.
template <int n = 0, class V> SOFTARGMAX_FORMULA V exp_of(Two<V> y) {
    using T = typename V::Scalar;
    using E = Exp<T>;
    const V magic = V::all(E::magic + E::bias), km = fma(y.hi, V::all(E::log2e), magic), k = km - magic;
    const V r = fma(k, V::all(-E::ln2_lo), fma(k, V::all(-E::ln2_hi), y.hi)) + y.lo, power = power_of_two(km);
    return fma(exp_less_one<T, n == 0 ? kExpTerms<T> : n>(r), power, power);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
