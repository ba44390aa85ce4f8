// One row, or one block of a row, in contiguous memory: the formulas of this room (design section 8).
#pragma once

#include "core/native/apply.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// ---- softmax and its derivatives -----------------------------------------------------------------------------

// softmax of a row of one block: the terms of the sum stay in the first-level cache (two rows of kBlock) and are
// scaled, not computed again.
template <class T> State softmax_short(const T* z, std::int64_t n, Scale beta, T* store, const Target<T>& to) {
    const T m = maximum(z, n);
    if (std::isinf(m) || std::isinf(beta.hi) || (sizeof(T) == 4 && !fits_float(m, beta))) {
        const State s = fold(z, n, beta, to.next);
        apply<Log::no>(z, n, s, beta, to);
        return s;
    }
    // The lines of the result come while the sum is computed (4096 x 1024, 2 threads: 0.57 ms with, 0.65 without),
    // unless it is written past the caches, which would throw them out again.
    for (std::int64_t i = 0; i < n && !to.streaming; i += Pack<T>::kLanes) __builtin_prefetch(to.out + i, 1);
    const Peak<T> peak(m, beta);
    const State s = fold_finite<Fold::kStore>(z, n, peak, beta, to.next, store);
    if (s.r != s.r) {
        apply_limit<Log::no>(z, n, s, to.out);
        return s;
    }
    const Factor<T> factor(s, peak);
    map(store, store + kBlock, n, to,
        [&](Pack<T> t, Pack<T> power) SOFTARGMAX_LAMBDA { return factor.times({t, power}); });
    return s;
}

// ---- derivatives: inside the support only; incoming gradients outside it are ignored, NaN included ----------------

// Runs body(p, g, packs) over two rows, the last step filled up with `fill` and 0.
template <class T, class Body> SOFTARGMAX_INLINE void steps(const T* p, const T* g, std::int64_t n, T fill, Body body) {
    using V = Pack<T>;
    constexpr std::int64_t step = kUnroll * V::kLanes;
    V x[kUnroll], y[kUnroll];
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
        for (int u = 0; u < kUnroll; ++u) {
            x[u] = V::load(p + i + u * V::kLanes);
            y[u] = V::load(g + i + u * V::kLanes);
        }
        body(x, y);
    }
    if (i == n) return;
    for (int u = 0; u < kUnroll; ++u) {
        x[u] = V::load_part(p + i + u * V::kLanes, n - i - u * V::kLanes, fill);
        y[u] = V::load_part(g + i + u * V::kLanes, n - i - u * V::kLanes, 0);
    }
    body(x, y);
}

// <p, g>, the sum of one block.
template <class T> Twofold inner_product(const T* p, const T* g, std::int64_t n) {
    using V = Pack<T>;
    const V zero = V::all(0);
    Sum<T> sum;
    steps(p, g, n, T{0}, [&](const V(&x)[kUnroll], const V(&y)[kUnroll]) SOFTARGMAX_LAMBDA {
        V t[kUnroll];
        for (int u = 0; u < kUnroll; ++u) t[u] = keep(above(x[u], zero), x[u] * y[u]);
        sum.add(t);
    });
    return sum.total();
}

// sum of g where log p > -inf, of one block.
template <class T> double sum_in_support(const T* log_p, const T* g, std::int64_t n) {
    using V = Pack<T>;
    const V none = V::all(-std::numeric_limits<T>::infinity());
    Sum<T> sum;
    steps(log_p, g, n, -std::numeric_limits<T>::infinity(),
          [&](const V(&x)[kUnroll], const V(&y)[kUnroll]) SOFTARGMAX_LAMBDA {
        V t[kUnroll];
        for (int u = 0; u < kUnroll; ++u) t[u] = keep(above(x[u], none), y[u]);
        sum.add(t);
    });
    return sum.total().hi;
}

// beta p (g - <p, g>)
template <class T>
void softmax_vjp(const T* p, const T* g, std::int64_t n, double inner, double beta, const Target<T>& to) {
    using V = Pack<T>;
    const Split<T> mean(inner);
    const V zero = V::all(0), b = V::all(static_cast<T>(beta));
    map(p, g, n, to,
        [&](V x, V y) SOFTARGMAX_LAMBDA { return keep(above(x, zero), b * x * ((y - mean.hi) - mean.lo)); });
}

// beta (g - p sum g), p = exp(log p)
template <class T>
void log_softmax_vjp(const T* log_p, const T* g, std::int64_t n, double sum, double beta, const Target<T>& to) {
    using V = Pack<T>;
    const Terms<true, T> terms(Peak<T>(0, Scale{}), Scale{});
    const V none = V::all(-std::numeric_limits<T>::infinity()), b = V::all(static_cast<T>(beta));
    const V total = V::all(static_cast<T>(-sum)), lower = V::all(static_cast<T>(Reach<T>::lower));
    map(log_p, g, n, to, [&](V x, V y) SOFTARGMAX_LAMBDA {
        const V p = keep(terms.in(x), terms(x).value()) * lower;
        return keep(above(x, none), b * fma(p, total, y));
    });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
