// Vectors of 64 bytes and their operations. A kernel written with them gives the same bits on every machine.
//
// A `Pack` has 16 floats or 8 doubles: one 512-bit, two 256-bit or four 128-bit registers contain the same lanes in the
// same order.
#pragma once

#include "core/cpp/registers.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- pairs ----------------------------------------------------------------------------------------------------
//
// A vector longer than a register is a Pair of halves, recursively. GCC keeps such pairs in registers. It would keep
// arrays of registers on the stack, which reduces the speed on AVX2 to a third. It would also keep its own 64-byte
// vector type on the stack, which reduces the speed to a seventh.

template <class V> struct Pair {
    using Scalar = typename V::Scalar;
    static constexpr int kLanes = 2 * V::kLanes;
    V a, b;
    static SOFTARGMAX_INLINE Pair all(Scalar x) { return {V::all(x), V::all(x)}; }
    static SOFTARGMAX_INLINE Pair load(const Scalar* p) { return {V::load(p), V::load(p + V::kLanes)}; }
    SOFTARGMAX_INLINE void store(Scalar* p) const {
        a.store(p);
        b.store(p + V::kLanes);
    }
    static SOFTARGMAX_INLINE Pair load_part(const Scalar* p, std::int64_t n, Scalar fill) {
        return {V::load_part(p, n, fill), V::load_part(p + V::kLanes, n - V::kLanes, fill)};
    }
    SOFTARGMAX_INLINE void store_part(Scalar* p, std::int64_t n) const {
        a.store_part(p, n);
        b.store_part(p + V::kLanes, n - V::kLanes);
    }
    SOFTARGMAX_INLINE void stream(Scalar* p) const {
        a.stream(p);
        b.stream(p + V::kLanes);
    }
};
template <class M> struct PairMask {
    M a, b;
};
template <class C> struct PairCount {
    C a, b;
    template <class M> SOFTARGMAX_INLINE void add(PairMask<M> m) {
        a.add(m.a);
        b.add(m.b);
    }
    SOFTARGMAX_INLINE std::int64_t total() const { return a.total() + b.total(); }
};
// Keeps GCC from vectorizing the loop that calls it. In rare strided loops, gathers make the module larger, not faster.
SOFTARGMAX_INLINE void stay_scalar() { asm volatile(""); }
// Frees all 16 vector registers of AVX2 for the loop that follows. Without this call, GCC keeps a mask of an outer loop
// in one of them. It then moves an accumulator of the product to memory in the inner loop.
SOFTARGMAX_INLINE void free_registers() {
#if defined(__AVX2__) && !defined(__AVX512F__)
    asm volatile("" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                       "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}
template <class V> SOFTARGMAX_INLINE Pair<V> operator+(Pair<V> x, Pair<V> y) { return {x.a + y.a, x.b + y.b}; }
template <class V> SOFTARGMAX_INLINE Pair<V> operator-(Pair<V> x, Pair<V> y) { return {x.a - y.a, x.b - y.b}; }
template <class V> SOFTARGMAX_INLINE Pair<V> operator*(Pair<V> x, Pair<V> y) { return {x.a * y.a, x.b * y.b}; }
template <class V> SOFTARGMAX_INLINE Pair<V> operator/(Pair<V> x, Pair<V> y) { return {x.a / y.a, x.b / y.b}; }
template <class V>
SOFTARGMAX_FORMULA Pair<V> fma(SOFTARGMAX_PASSED(Pair<V>) x, SOFTARGMAX_PASSED(Pair<V>) y,
                               SOFTARGMAX_PASSED(Pair<V>) z) {
    return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)};
}
template <class V> SOFTARGMAX_INLINE Pair<V> max(Pair<V> x, Pair<V> y) { return {max(x.a, y.a), max(x.b, y.b)}; }
template <class V> SOFTARGMAX_INLINE Pair<V> min(Pair<V> x, Pair<V> y) { return {min(x.a, y.a), min(x.b, y.b)}; }
template <class V> SOFTARGMAX_INLINE auto above(Pair<V> x, Pair<V> y) {
    return PairMask<decltype(above(x.a, y.a))>{above(x.a, y.a), above(x.b, y.b)};
}
template <class V> SOFTARGMAX_INLINE auto equal(Pair<V> x, Pair<V> y) {
    return PairMask<decltype(equal(x.a, y.a))>{equal(x.a, y.a), equal(x.b, y.b)};
}
template <class M> SOFTARGMAX_INLINE PairMask<M> unless(PairMask<M> x, PairMask<M> y) {
    return {unless(x.a, y.a), unless(x.b, y.b)};
}
template <class M> SOFTARGMAX_INLINE bool any(PairMask<M> x) { return any(x.a) || any(x.b); }
template <class M> SOFTARGMAX_INLINE bool every(PairMask<M> x) { return every(x.a) && every(x.b); }
template <class M, class V> SOFTARGMAX_INLINE Pair<V> keep(PairMask<M> m, Pair<V> x) {
    return {keep(m.a, x.a), keep(m.b, x.b)};
}
template <class M, class V>
SOFTARGMAX_INLINE typename V::Scalar* compress(PairMask<M> m, Pair<V> x, typename V::Scalar* to) {
    return compress(m.b, x.b, compress(m.a, x.a, to));
}
template <class V> SOFTARGMAX_INLINE Pair<V> sqrt(Pair<V> x) { return {sqrt(x.a), sqrt(x.b)}; }
template <class V> SOFTARGMAX_INLINE Pair<V> power_of_two(Pair<V> x) { return {power_of_two(x.a), power_of_two(x.b)}; }

template <class V> SOFTARGMAX_INLINE Binary<Pair<V>> binary_of(Pair<V> x) {
    const auto a = binary_of(x.a), b = binary_of(x.b);
    return {{a.k, b.k}, {a.f, b.f}};
}

template <class V, class C, int Bytes> struct Widest {
    using Pack = typename Widest<Pair<V>, PairCount<C>, 2 * Bytes>::Pack;
    using Count = typename Widest<Pair<V>, PairCount<C>, 2 * Bytes>::Count;
};
template <class V, class C> struct Widest<V, C, 64> {
    using Pack = V;
    using Count = C;
};
template <class T> using Pack = typename Widest<One<T>, OneCount<T>, kRegisterBytes>::Pack;
template <class T> using Count = typename Widest<One<T>, OneCount<T>, kRegisterBytes>::Count;

// ---- functions of scalars, with which the formulas of math.hpp accept scalars too -------------------------------

SOFTARGMAX_INLINE double fma(double a, double b, double c) { return std::fma(a, b, c); }
SOFTARGMAX_INLINE double power_of_two(double km) {
    std::uint64_t u;
    std::memcpy(&u, &km, sizeof u);
    u <<= 52;
    std::memcpy(&km, &u, sizeof u);
    return km;
}
// The largest number below a finite x, as nextafter would return it, but without a function call.
template <class T> SOFTARGMAX_INLINE T next_below(T x) {
    typename IntOf<T>::Type i;
    T y;
    std::memcpy(&i, &x, sizeof i);
    i += x > 0 ? -1 : 1;
    std::memcpy(&y, &i, sizeof i);
    return x == 0 ? -std::numeric_limits<T>::denorm_min() : y;
}
template <class V> struct Splat {  // a constant in every lane, or as a scalar
    static SOFTARGMAX_INLINE V of(typename V::Scalar x) { return V::all(x); }
};
template <> struct Splat<double> {
    static SOFTARGMAX_INLINE double of(double x) { return x; }
};

// ---- reductions across lanes, in one fixed order --------------------------------------------------------------

template <class V> SOFTARGMAX_INLINE typename V::Scalar max_of(V v) {
    typename V::Scalar x[V::kLanes];
    v.store(x);
#pragma GCC unroll 4
    for (int half = V::kLanes / 2; half > 0; half /= 2)  // computed as a tree, because 16 comparisons in sequence would
                                                         // take 50 cycles
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}
SOFTARGMAX_INLINE double sum_of(Pack<double> v) {
    double x[8];
    v.store(x);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// A pack of 16 floats as doubles: lanes 0 to 7, and lanes 8 to 15.
struct Wide {
    Pack<double> low, high;
};
SOFTARGMAX_INLINE Wide operator+(Wide a, Wide b) { return {a.low + b.low, a.high + b.high}; }
SOFTARGMAX_INLINE Wide widen(Pack<float> v) {
#if defined(__AVX512F__)
    return {{_mm512_cvtps_pd(_mm512_castps512_ps256(v.r))}, {_mm512_cvtps_pd(_mm512_extractf32x8_ps(v.r, 1))}};
#elif defined(__AVX2__) && defined(__FMA__)
    const auto half = [](__m256 r) SOFTARGMAX_LAMBDA {
        return Pack<double>{{_mm256_cvtps_pd(_mm256_castps256_ps128(r))},
                            {_mm256_cvtps_pd(_mm256_extractf128_ps(r, 1))}};
    };
    return {half(v.a.r), half(v.b.r)};
#else
    float x[16];
    double y[16];
    v.store(x);
    for (int i = 0; i < 16; ++i) y[i] = x[i];
    return {Pack<double>::load(y), Pack<double>::load(y + 8)};
#endif
}

SOFTARGMAX_INLINE double sum_of(Pack<float> v) {
    const Wide w = widen(v);
    return sum_of(w.low + w.high);
}

SOFTARGMAX_INLINE Pack<float> narrow(Wide w) {
#if defined(__AVX512F__)
    return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(w.low.r)), _mm512_cvtpd_ps(w.high.r), 1)};
#elif defined(__AVX2__) && defined(__FMA__)
    const auto half = [](Pack<double> v) SOFTARGMAX_LAMBDA {
        return One<float>{_mm256_set_m128(_mm256_cvtpd_ps(v.b.r), _mm256_cvtpd_ps(v.a.r))};
    };
    return {half(w.low), half(w.high)};
#else
    float x[16];
    double y[16];
    w.low.store(y);
    w.high.store(y + 8);
    for (int i = 0; i < 16; ++i) x[i] = static_cast<float>(y[i]);
    return Pack<float>::load(x);
#endif
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
