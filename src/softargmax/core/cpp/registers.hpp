// One register of the instruction set and its operations. Each operation is one correctly rounded IEEE operation,
// including fused multiply-add.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's headers read an uninitialised variable on purpose
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef SOFTARGMAX_ISA_NAME
#error "compile with -DSOFTARGMAX_ISA_NAME=v4|v3|baseline|neon"
#endif

// Sanitized builds let GCC choose what to inline, which halves their compile time.
#if defined(__SANITIZE_ADDRESS__)
#define SOFTARGMAX_SANITIZED true
#define SOFTARGMAX_INLINE inline
#define SOFTARGMAX_LAMBDA
#else
#define SOFTARGMAX_SANITIZED false
#define SOFTARGMAX_INLINE inline __attribute__((always_inline))
#define SOFTARGMAX_LAMBDA __attribute__((always_inline))
#endif
#if defined(__clang__)  // GCC 12 expects `mutable` before the attribute, clang after it
#define SOFTARGMAX_MUTABLE_LAMBDA SOFTARGMAX_LAMBDA mutable
#else
#define SOFTARGMAX_MUTABLE_LAMBDA mutable SOFTARGMAX_LAMBDA
#endif
// The baseline instruction set calls the C library for every fma. So its fma of a pack, and its functions with many
// fmas, are not inlined. Not inlining fma makes the module 0.3 MB smaller, and not inlining functions of the sparse
// maps another 0.17 MB. On processors without fma no kernel takes longer, because the C library's fma takes almost all
// of the time. The baseline's fma of a pack takes its arguments by reference. An inlined fma takes them by value: with
// references, entmax takes a sixth longer with AVX2.
#define SOFTARGMAX_CALLED __attribute__((noinline))
// Compiled for size: a function that spends its time in others.
#define SOFTARGMAX_RARE __attribute__((noinline, cold))
#if defined(__x86_64__) && !defined(__FMA__)
#define SOFTARGMAX_FORMULA SOFTARGMAX_CALLED
#define SOFTARGMAX_PASSED(...) const __VA_ARGS__&
#else
#define SOFTARGMAX_FORMULA SOFTARGMAX_INLINE
#define SOFTARGMAX_PASSED(...) __VA_ARGS__
#endif

namespace softargmax::SOFTARGMAX_ISA_NAME {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr bool kHasMasks = kRegisterBytes > 16;

template <class T> struct IntOf;
template <> struct IntOf<float> {
    using Type = std::int32_t;
};
template <> struct IntOf<double> {
    using Type = std::int64_t;
};

template <class T> struct RegisterOf {
    typedef T Type __attribute__((vector_size(kRegisterBytes)));
    typedef typename IntOf<T>::Type Int __attribute__((vector_size(kRegisterBytes)));
};
template <class T> using Register = typename RegisterOf<T>::Type;
template <class T> using IntRegister = typename RegisterOf<T>::Int;

// ---- one register ---------------------------------------------------------------------------------------------

template <class T> struct One {
    using Scalar = T;
    static constexpr int kLanes = kRegisterBytes / static_cast<int>(sizeof(T));
    Register<T> r;
    static SOFTARGMAX_INLINE One all(T x) { return {x - Register<T>{}}; }
    static SOFTARGMAX_INLINE One load(const T* p) {
        One v;
        std::memcpy(&v.r, p, kRegisterBytes);
        return v;
    }
    SOFTARGMAX_INLINE void store(T* p) const { std::memcpy(p, &r, kRegisterBytes); }
    // Loads n lanes from memory and sets the others to `fill`. n may be negative or more than kLanes. A full load uses
    // no mask, because masked loads are slow even if all lanes are loaded. The gradient of sparsemax takes 12.3 ms with
    // masks only and 7.0 ms with the branch for full loads. (The baseline instruction set has no such branch, because
    // GCC 12 fails to compile it.)
    static SOFTARGMAX_INLINE One load_part(const T* p, std::int64_t n, T fill) {
        if constexpr (kHasMasks)
            if (n >= kLanes) return load(p);
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) return {_mm512_mask_loadu_ps(all(fill).r, lanes(n), p)};
        else return {_mm512_mask_loadu_pd(all(fill).r, static_cast<__mmask8>(lanes(n)), p)};
#elif defined(__AVX2__) && defined(__FMA__)
        if constexpr (sizeof(T) == 4)
            return {_mm256_blendv_ps(all(fill).r, _mm256_maskload_ps(p, lanes(n)), _mm256_castsi256_ps(lanes(n)))};
        else return {_mm256_blendv_pd(all(fill).r, _mm256_maskload_pd(p, lanes(n)), _mm256_castsi256_pd(lanes(n)))};
#else
        return lane_by_lane(p, n, fill);
#endif
    }
    SOFTARGMAX_INLINE void store_part(T* p, std::int64_t n) const {
        if constexpr (kHasMasks)
            if (n >= kLanes) return store(p);
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(p, lanes(n), r);
        else _mm512_mask_storeu_pd(p, static_cast<__mmask8>(lanes(n)), r);
#elif defined(__AVX2__) && defined(__FMA__)
        if constexpr (sizeof(T) == 4) _mm256_maskstore_ps(p, lanes(n), r);
        else _mm256_maskstore_pd(p, lanes(n), r);
#else
        lane_by_lane(p, n, r);
#endif
    }

  private:
#if defined(__AVX512F__)
    static SOFTARGMAX_INLINE __mmask16 lanes(std::int64_t n) {
        return static_cast<__mmask16>(n <= 0 ? 0 : (1 << n) - 1);
    }
#elif defined(__AVX2__) && defined(__FMA__)
    static SOFTARGMAX_INLINE __m256i lanes(std::int64_t n) {
        const int count = n < 0 ? 0 : n > kLanes ? kLanes : static_cast<int>(n);
        if constexpr (sizeof(T) == 4)
            return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        else return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
    }
#else
    static SOFTARGMAX_CALLED One lane_by_lane(const T* p, std::int64_t n, T fill) {
        One v = all(fill);
        for (int i = 0; i < kLanes && i < n; ++i) v.r[i] = p[i];
        return v;
    }
    static SOFTARGMAX_CALLED void lane_by_lane(T* p, std::int64_t n, Register<T> r) {
        for (int i = 0; i < kLanes && i < n; ++i) p[i] = r[i];
    }
#endif

  public:
    SOFTARGMAX_INLINE void stream(T* p) const {  // stores past the caches, to an address aligned to 64 bytes
#if !defined(__x86_64__)
        store(p);  // streaming_bytes() is larger than any result
#elif defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)r);
#elif defined(__AVX2__)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)r);
#else
        _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)r);
#endif
    }
};
template <class T> SOFTARGMAX_INLINE One<T> operator+(One<T> a, One<T> b) { return {a.r + b.r}; }
template <class T> SOFTARGMAX_INLINE One<T> operator-(One<T> a, One<T> b) { return {a.r - b.r}; }
template <class T> SOFTARGMAX_INLINE One<T> operator*(One<T> a, One<T> b) { return {a.r * b.r}; }
template <class T> SOFTARGMAX_INLINE One<T> operator/(One<T> a, One<T> b) { return {a.r / b.r}; }

// fma(a, b, c) = a b + c, rounded once. max(z, acc) is acc if z is NaN, so a running maximum ignores NaN.
#if defined(__AVX512F__)
SOFTARGMAX_INLINE One<float> fma(One<float> a, One<float> b, One<float> c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
SOFTARGMAX_INLINE One<double> fma(One<double> a, One<double> b, One<double> c) {
    return {_mm512_fmadd_pd(a.r, b.r, c.r)};
}
SOFTARGMAX_INLINE One<float> max(One<float> z, One<float> acc) { return {_mm512_maskz_max_ps(0xFFFF, z.r, acc.r)}; }
SOFTARGMAX_INLINE One<double> max(One<double> z, One<double> acc) { return {_mm512_maskz_max_pd(0xFF, z.r, acc.r)}; }
SOFTARGMAX_INLINE One<float> min(One<float> z, One<float> acc) { return {_mm512_maskz_min_ps(0xFFFF, z.r, acc.r)}; }
SOFTARGMAX_INLINE One<double> min(One<double> z, One<double> acc) { return {_mm512_maskz_min_pd(0xFF, z.r, acc.r)}; }
#else
#if defined(__AVX2__) && defined(__FMA__)
SOFTARGMAX_INLINE One<float> fma(One<float> a, One<float> b, One<float> c) { return {_mm256_fmadd_ps(a.r, b.r, c.r)}; }
SOFTARGMAX_INLINE One<double> fma(One<double> a, One<double> b, One<double> c) {
    return {_mm256_fmadd_pd(a.r, b.r, c.r)};
}
#elif defined(__aarch64__)
SOFTARGMAX_INLINE One<float> fma(One<float> a, One<float> b, One<float> c) {
    return {(Register<float>)vfmaq_f32((float32x4_t)c.r, (float32x4_t)a.r, (float32x4_t)b.r)};
}
SOFTARGMAX_INLINE One<double> fma(One<double> a, One<double> b, One<double> c) {
    return {(Register<double>)vfmaq_f64((float64x2_t)c.r, (float64x2_t)a.r, (float64x2_t)b.r)};
}
#else  // the baseline has no fused multiply-add, and the C library's fma is correct but slow
template <class T> SOFTARGMAX_CALLED One<T> fma(One<T> a, One<T> b, One<T> c) {
    for (int i = 0; i < One<T>::kLanes; ++i) a.r[i] = std::fma(a.r[i], b.r[i], c.r[i]);
    return a;
}
#endif
template <class T> SOFTARGMAX_INLINE One<T> max(One<T> z, One<T> acc) { return {z.r > acc.r ? z.r : acc.r}; }
template <class T> SOFTARGMAX_INLINE One<T> min(One<T> z, One<T> acc) { return {z.r < acc.r ? z.r : acc.r}; }
#endif

// Masks: above(a, b) is !(a <= b), so it is true if a or b is NaN. keep(m, a) equals a where m is true, and 0
// elsewhere. unless(a, b) is a && !b. every(m) is true if m is true in all lanes. `compress` writes the lanes for which
// the mask is true contiguously, and returns the address after the last of them. From this address on, it may also
// overwrite up to L + 1 elements, where L is the number of lanes.
#if defined(__AVX512F__)
template <class T> struct OneMask {
    std::uint32_t bits;
};
SOFTARGMAX_INLINE OneMask<float> above(One<float> a, One<float> b) {
    return {_mm512_cmp_ps_mask(a.r, b.r, _CMP_NLE_UQ)};
}
SOFTARGMAX_INLINE OneMask<double> above(One<double> a, One<double> b) {
    return {_mm512_cmp_pd_mask(a.r, b.r, _CMP_NLE_UQ)};
}
SOFTARGMAX_INLINE OneMask<float> equal(One<float> a, One<float> b) {
    return {_mm512_cmp_ps_mask(a.r, b.r, _CMP_EQ_OQ)};
}
SOFTARGMAX_INLINE OneMask<double> equal(One<double> a, One<double> b) {
    return {_mm512_cmp_pd_mask(a.r, b.r, _CMP_EQ_OQ)};
}
// These intrinsics work in mask registers. Integer operations would move the masks to general registers and back.
SOFTARGMAX_INLINE OneMask<float> unless(OneMask<float> a, OneMask<float> b) {
    return {_kandn_mask16(static_cast<__mmask16>(b.bits), static_cast<__mmask16>(a.bits))};
}
SOFTARGMAX_INLINE OneMask<double> unless(OneMask<double> a, OneMask<double> b) {
    return {_kandn_mask8(static_cast<__mmask8>(b.bits), static_cast<__mmask8>(a.bits))};
}
SOFTARGMAX_INLINE One<float> keep(OneMask<float> m, One<float> a) {
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(m.bits), a.r)};
}
SOFTARGMAX_INLINE One<double> keep(OneMask<double> m, One<double> a) {
    return {_mm512_maskz_mov_pd(static_cast<__mmask8>(m.bits), a.r)};
}
template <class T> SOFTARGMAX_INLINE bool any(OneMask<T> m) { return m.bits != 0; }
template <class T> SOFTARGMAX_INLINE bool every(OneMask<T> m) { return m.bits == (1u << One<T>::kLanes) - 1; }
SOFTARGMAX_INLINE float* compress(OneMask<float> m, One<float> a, float* to) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(m.bits), a.r));
    return to + __builtin_popcount(m.bits);
}
SOFTARGMAX_INLINE double* compress(OneMask<double> m, One<double> a, double* to) {
    _mm512_storeu_pd(to, _mm512_maskz_compress_pd(static_cast<__mmask8>(m.bits), a.r));
    return to + __builtin_popcount(m.bits);
}
template <class T> struct OneCount {
    std::int64_t n = 0;
    SOFTARGMAX_INLINE void add(OneMask<T> m) { n += __builtin_popcount(m.bits); }
    SOFTARGMAX_INLINE std::int64_t total() const { return n; }
};
#else
template <class T> struct OneMask {
    IntRegister<T> bits;
};
// GCC would select with the vector comparisons of the language, which takes three operations on Intel in place of one.
#if defined(__AVX2__)
SOFTARGMAX_INLINE OneMask<float> above(One<float> a, One<float> b) {
    return {(IntRegister<float>)_mm256_cmp_ps(a.r, b.r, _CMP_NLE_UQ)};
}
SOFTARGMAX_INLINE OneMask<double> above(One<double> a, One<double> b) {
    return {(IntRegister<double>)_mm256_cmp_pd(a.r, b.r, _CMP_NLE_UQ)};
}
SOFTARGMAX_INLINE OneMask<float> equal(One<float> a, One<float> b) {
    return {(IntRegister<float>)_mm256_cmp_ps(a.r, b.r, _CMP_EQ_OQ)};
}
SOFTARGMAX_INLINE OneMask<double> equal(One<double> a, One<double> b) {
    return {(IntRegister<double>)_mm256_cmp_pd(a.r, b.r, _CMP_EQ_OQ)};
}
template <class T> SOFTARGMAX_INLINE bool any(OneMask<T> m) {
    return !_mm256_testz_si256((__m256i)m.bits, (__m256i)m.bits);
}
template <class T> SOFTARGMAX_INLINE bool every(OneMask<T> m) { return _mm256_movemask_epi8((__m256i)m.bits) == -1; }
#else
template <class T> SOFTARGMAX_INLINE OneMask<T> above(One<T> a, One<T> b) { return {~(a.r <= b.r)}; }
template <class T> SOFTARGMAX_INLINE OneMask<T> equal(One<T> a, One<T> b) { return {a.r == b.r}; }
template <class T> SOFTARGMAX_INLINE bool any(OneMask<T> m) {
    const IntRegister<T> none{};
    return std::memcmp(&m.bits, &none, sizeof none) != 0;
}
template <class T> SOFTARGMAX_INLINE bool every(OneMask<T> m) { return !any(OneMask<T>{~m.bits}); }
#endif
template <class T> SOFTARGMAX_INLINE OneMask<T> unless(OneMask<T> a, OneMask<T> b) { return {a.bits & ~b.bits}; }
template <class T> SOFTARGMAX_INLINE One<T> keep(OneMask<T> m, One<T> a) {
    return {(Register<T>)((IntRegister<T>)a.r & m.bits)};
}
template <class T> SOFTARGMAX_INLINE T* compress(OneMask<T> m, One<T> a, T* to) {
    for (int i = 0; i < One<T>::kLanes; ++i) {
        *to = a.r[i];
        to -= m.bits[i];
    }
    return to;
}
template <class T> struct OneCount {
    IntRegister<T> n{};
    SOFTARGMAX_INLINE void add(OneMask<T> m) { n -= m.bits; }
    SOFTARGMAX_INLINE std::int64_t total() const {
        std::int64_t sum = 0;
        for (int i = 0; i < One<T>::kLanes; ++i) sum += n[i];
        return sum;
    }
};
#endif

#if defined(__AVX512F__)
SOFTARGMAX_INLINE One<float> sqrt(One<float> a) { return {_mm512_sqrt_ps(a.r)}; }
SOFTARGMAX_INLINE One<double> sqrt(One<double> a) { return {_mm512_sqrt_pd(a.r)}; }
#elif defined(__AVX2__) && defined(__FMA__)
SOFTARGMAX_INLINE One<float> sqrt(One<float> a) { return {_mm256_sqrt_ps(a.r)}; }
SOFTARGMAX_INLINE One<double> sqrt(One<double> a) { return {_mm256_sqrt_pd(a.r)}; }
#else
template <class T> SOFTARGMAX_INLINE One<T> sqrt(One<T> a) {
    for (int i = 0; i < One<T>::kLanes; ++i) a.r[i] = std::sqrt(a.r[i]);
    return a;
}
#endif

// 2^k for km = magic + bias + k (math.hpp): the low bits of km's significand become the exponent.
SOFTARGMAX_INLINE One<float> power_of_two(One<float> km) { return {(Register<float>)((IntRegister<float>)km.r << 23)}; }
SOFTARGMAX_INLINE One<double> power_of_two(One<double> km) {
    return {(Register<double>)((IntRegister<double>)km.r << 52)};
}

// v = 2^k f with sqrt(1/2) <= f < sqrt(2), for positive normal v. k is a floating-point number.
template <class V> struct Binary {
    V k, f;
};
template <class T> SOFTARGMAX_INLINE Binary<One<T>> binary_of(One<T> v) {
    using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    typedef Word Words __attribute__((vector_size(kRegisterBytes)));
    constexpr int digits = std::numeric_limits<T>::digits - 1, bias = std::numeric_limits<T>::max_exponent - 1;
    constexpr Word root = sizeof(T) == 4 ? Word{0x3F3504F3} : static_cast<Word>(0x3FE6A09E667F3BCD);
    constexpr Word one = Word{1} << digits, magic = static_cast<Word>(bias + digits) << digits;  // 2^digits as a T
    const Words bits = (Words)v.r, above_root = bits - root;
    const One<T> biased{(Register<T>)(((above_root + bias * one) >> digits) | magic)};
    return {biased - One<T>::all(static_cast<T>(one) + bias), {(Register<T>)(bits - (above_root & ~(one - 1)))}};
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
