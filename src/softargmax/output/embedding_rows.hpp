// Single rows of embedding tables: inner products, weighted sums, and binary logistic losses.
//
//     <a, b>        Pack i of the products is added to partial sum i mod kChains by fma. Then the partial sums
//                   and their lanes are added.
//     sum f_p x_p   The terms are split into groups of kSummands adjacent terms. The terms of a group are added in
//                   order by fma, starting from 0. Then the sums of the groups are added in order.
//
// The bits of a result depend only on the vectors and on the order of the terms.
#pragma once

#include "core/cpp/strided_tiles.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::output {

// ---- products and sums ----------------------------------------------------------------------------------------

// An inner product has this many partial sums, so that its additions do not wait for each other.
constexpr int kChains = 4;
// A weighted sum adds this many terms one after the other, then begins a new partial sum. Longer chains have larger
// rounding errors.
constexpr std::int64_t kSummands = 512;
// Vectors are prefetched this many pairs ahead.
constexpr std::int64_t kAhead = 8;
// A weighted sum is computed in type T from vectors of type S. This number of its packs are in registers at the same
// time: 16 with AVX-512, otherwise 4. With sanitizers it is 4, because this file would take a minute to compile
// with 16. It is also 4 for sums in double of float vectors, which are rare: with 16 their code would have 17 KB more.
template <class T, class S>
constexpr int kSummed = kRegisterBytes == 64 && !SOFTARGMAX_SANITIZED && (sizeof(T) == 4 || sizeof(S) == 8) ? 16 : 4;

// Returns <a, b>, and prefetches the vector `next`, which has the length of b.
template <class T, class S>
SOFTARGMAX_INLINE double inner(const T* a, const T* b, std::int64_t n, const S* next) {
    using V = Pack<T>;
    constexpr int L = V::kLanes;
    V s[kChains];
#pragma GCC unroll 4
    for (V& each : s) each = V::all(0);
    std::int64_t i = 0;
    for (; i + kChains * L <= n; i += kChains * L)
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
            __builtin_prefetch(next + i + c * L);
            s[c] = fma(V::load(a + i + c * L), V::load(b + i + c * L), s[c]);
        }
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c)
        if (const std::int64_t rest = n - i - c * L; rest > 0) {
            __builtin_prefetch(next + i + c * L);
            s[c] = fma(V::load_part(a + i + c * L, rest, 0), V::load_part(b + i + c * L, rest, 0), s[c]);
        }
    __builtin_prefetch(next + n - 1);  // the last cache line, since a vector may start anywhere in a line
    return sum_of((s[0] + s[1]) + (s[2] + s[3]));
}

// Returns the vector x in type T: x itself if it has this type, otherwise a converted copy in `room`.
template <class T, class S> SOFTARGMAX_INLINE const T* as(const S* x, std::int64_t n, T* room) {
    if constexpr (std::is_same_v<S, T>) return x;
    else {
        convert(x, n, room);
        return room;
    }
}
// The terms of a sum: rows of a table, each times a factor. Term j has position order[j] in `index` and `factors`, or j
// without `order`. Terms 0 to `known` - 1 may be prefetched. This may include terms of later sums.
template <class T, class S> struct Summands {
    const S* table;
    std::int64_t pitch;
    const std::int64_t *index, *order;
    const T* factors;
    std::int64_t known;

    SOFTARGMAX_INLINE std::int64_t place(std::int64_t j) const { return order ? order[j] : j; }
    SOFTARGMAX_INLINE const S* vector(std::int64_t j) const { return table + index[place(j)] * pitch; }
    SOFTARGMAX_INLINE T factor(std::int64_t j) const { return factors[place(j)]; }
};
// out[i] = sum of factor(j) * vector(j)[at + i] over j from begin to end - 1, for i below n. The n numbers fill `Packs`
// packs, of which the last may be partial. If begin > 0, the sum is added to out[i] instead.
template <int Packs, class T, class S>
SOFTARGMAX_INLINE void add_packs(const Summands<T, S>& terms, std::int64_t begin, std::int64_t end, std::int64_t at,
                                 std::int64_t n, T* out) {
    using V = Pack<T>;
    constexpr int L = V::kLanes, last = Packs - 1;
    V sum[Packs];
#pragma GCC unroll 16
    for (V& each : sum) each = V::all(0);
    for (std::int64_t j = begin; j < end; ++j) {
        T room[Packs * L];
        const T* x = as<T, S>(terms.vector(j) + at, n, room);
        const V factor = V::all(terms.factor(j));
        const S* next = terms.vector(std::min(j + kAhead, terms.known - 1)) + at;
#pragma GCC unroll 16
        for (int c = 0; c < last; ++c) {
            __builtin_prefetch(next + c * L);
            sum[c] = fma(factor, V::load(x + c * L), sum[c]);
        }
        __builtin_prefetch(next + last * L);
        sum[last] = fma(factor, V::load_part(x + last * L, n - last * L, 0), sum[last]);
    }
    if (begin > 0) {
#pragma GCC unroll 16
        for (int c = 0; c < last; ++c) sum[c] = V::load(out + c * L) + sum[c];
        sum[last] = V::load_part(out + last * L, n - last * L, 0) + sum[last];
    }
#pragma GCC unroll 16
    for (int c = 0; c < last; ++c) sum[c].store(out + c * L);
    sum[last].store_part(out + last * L, n - last * L);
}
template <int Packs, class T, class S>
SOFTARGMAX_INLINE void add_last(const Summands<T, S>& terms, std::int64_t begin, std::int64_t end, std::int64_t at,
                                std::int64_t n, T* out) {
    constexpr std::int64_t L = Pack<T>::kLanes;
    if constexpr (sizeof(S) == 2 && Packs > 1) {  // the code for every number of packs would take 0.03 MB
        constexpr std::int64_t half = Packs / 2 * L;
        if (n == Packs * L) return add_packs<Packs>(terms, begin, end, at, n, out);
        if (n > half) add_packs<Packs / 2>(terms, begin, end, at, half, out);
        return add_last<Packs / 2>(terms, begin, end, n > half ? at + half : at, n > half ? n - half : n,
                                   n > half ? out + half : out);
    } else if constexpr (Packs > 1) {
        if (n <= (Packs - 1) * L) return add_last<Packs - 1>(terms, begin, end, at, n, out);
    }
    add_packs<Packs>(terms, begin, end, at, n, out);
}
// Writes the sum of the first `count` terms, a vector of n numbers, to `out`.
template <class T, class S> void add_up(const Summands<T, S>& terms, std::int64_t count, std::int64_t n, T* out) {
    constexpr int packs = kSummed<T, S>;
    constexpr std::int64_t step = packs * Pack<T>::kLanes;
    std::int64_t begin = 0;
    do {
        const std::int64_t end = std::min(count, begin + kSummands);
        std::int64_t i = 0;
        for (; i + step < n; i += step) add_packs<packs>(terms, begin, end, i, step, out + i);
        add_last<packs>(terms, begin, end, i, n - i, out + i);
        begin = end;
    } while (begin < count);
}

// ---- binary logistic losses: log sigma and its slope, the same bits on every instruction set --------------------

// loss = -log sigma(x), and slope = sigma(-x) = -d loss / dx. Both are NaN if x is NaN. If e^-|x| would be subnormal,
// it is replaced by 0.
template <class V> struct LogisticLoss {
    V loss, slope;
};
template <class V> SOFTARGMAX_INLINE LogisticLoss<V> logistic_loss(V x) {
    using T = typename V::Scalar;
    const V zero = V::all(0), one = V::all(1), least = V::all(sizeof(T) == 4 ? T(-87) : T(-708));
    const auto all = equal(zero, zero), negative = above(zero, x);
    const V nan = keep(unless(all, equal(x, x)), x);
    const V minus = zero - max(x, zero - x);
    const V e = keep(unless(all, above(least, minus)), exp_of(Two<V>{max(minus, least), zero})), u = one + e;
    const V log = log_of<kLogTerms<T>>(Two<V>{u, e - (u - one)});
    return {max(zero - x, zero) + log + nan, (keep(unless(all, negative), e) + keep(negative, one)) / u + nan};
}

// Replaces each of n scores x, with sign s, by factor * s * sigma(-s x). This is -factor times the derivative of the
// loss -log sigma(s x). Calls lost(j, loss) for every score j whose sign is not 0.
template <class T, class Sign, class Lost>
SOFTARGMAX_INLINE void logistic_slopes(T* x, std::int64_t n, T factor, const Sign& sign, const Lost& lost) {
    using V = Pack<T>;
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const std::int64_t count = std::min<std::int64_t>(V::kLanes, n - i);
        T y[V::kLanes] = {}, loss[V::kLanes], slope[V::kLanes];
        for (std::int64_t j = 0; j < count; ++j) y[j] = sign(i + j) < 0 ? -x[i + j] : x[i + j];
        const LogisticLoss<V> found = logistic_loss(V::load(y));
        found.loss.store(loss);
        found.slope.store(slope);
        for (std::int64_t j = 0; j < count; ++j) {
            const int s = sign(i + j);
            x[i + j] = s == 0 ? T{0} : (s < 0 ? -slope[j] : slope[j]) * factor;
            if (s != 0) lost(i + j, static_cast<double>(loss[j]));
        }
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::output
