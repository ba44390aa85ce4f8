// One row, or one block of a row, in contiguous memory: the formulas of this room (design section 8).
#pragma once

#include "core/native/fold.hpp"
#include "core/native/map.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- softmax: p = exp(beta z - lse) -----------------------------------------------------------------------------

// 2^-lift / (E l): what turns the terms of a row into probabilities. For float32 one double is enough.
template <class T> SOFTARGMAX_INLINE double inverse_of(double r, double e) { return Reach<T>::lower / (e * (1.0 + r)); }
template <class T> SOFTARGMAX_INLINE Twofold inverse_of(State s, const Peak<T>& peak) {
    if constexpr (sizeof(T) == 4) return {inverse_of<T>(s.r, peak.e), 0};
    const Twofold l = two_sum(1.0, s.r);
    const double whole = peak.e * l.hi;
    const double rest = fma(peak.e, l.hi, -whole) + (peak.e * (l.lo + s.low) + peak.e_low * l.hi);
    const double q = 1.0 / whole;
    const Twofold inverse = two_sum(q, (fma(-q, whole, 1.0) - q * rest) * q);
    return {inverse.hi * Reach<T>::lower, inverse.lo * Reach<T>::lower};
}
// The same as a pair of T: it costs one instruction and takes 0.5 ulp off the result.
template <class T> struct Factor {
    Split<T> f;
    SOFTARGMAX_INLINE Factor(State s, const Peak<T>& peak) : f(inverse_of(s, peak).hi, inverse_of(s, peak).lo) {}
    SOFTARGMAX_INLINE Pack<T> times(Term<T> e) const { return (f.hi + fma(e.t, f.hi, f.lo)) * e.power; }
};

template <class T> void softmax_finite(const T* z, std::int64_t n, State s, Scale beta, Target<T> to) {
    const Peak<T> peak(static_cast<T>(s.m), beta);
    const Factor<T> factor(s, peak);
    with_plain(peak, beta, [&](auto plain) {
        const Terms<plain.value, T> terms(peak, beta);
        map(z, n, to, [&](Pack<T> v) SOFTARGMAX_LAMBDA { return keep(terms.in(v), factor.times(terms(v))); });
    });
}

// ---- log_softmax: beta z - lse ----------------------------------------------------------------------------------

// = beta (z - m) - log l: both parts have one sign, so nothing cancels, and the loss of a confident row, log1p(r), is
// right however small.
template <bool Unit, class T> struct LogOf {
    using V = Pack<T>;
    V top, hi, lo, out_of_support = V::all(-std::numeric_limits<T>::infinity());
    ScaleIn<T> scale;
    SOFTARGMAX_INLINE LogOf(V m, V log_hi, V log_lo, Scale beta) : top(m), hi(log_hi), lo(log_lo), scale(beta) {}
    SOFTARGMAX_INLINE V operator()(V z) const {
        const V d = z - top;
        if constexpr (Unit) return (d + hi) + lo;
        return fma(d, scale.hi, hi) + fma(keep(above(z, out_of_support), d), scale.lo, lo);
    }
};
template <bool Unit, class T> void log_softmax_finite(const T* z, std::int64_t n, State s, Scale beta, Target<T> to) {
    if constexpr (sizeof(T) == 8)
        if (std::fabs(s.m) > 1e290) {  // z - m may overflow where beta (z - m) does not
            for (std::int64_t i = 0; i < n; ++i) to.out[i] = 2.0 * ((z[i] * 0.5 - s.m * 0.5) * beta.hi) - log_l(s);
            return;
        }
    const Split<T> l(-log_l(s));
    const LogOf<Unit, T> log_of(Pack<T>::all(static_cast<T>(s.m)), l.hi, l.lo, beta);
    map(z, n, to, [&](Pack<T> v) SOFTARGMAX_LAMBDA { return log_of(v); });
}

// ---- any row ----------------------------------------------------------------------------------------------------

enum class Log : bool { no, yes };

// Rows without an ordinary maximum: NaN, an empty support, infinities, or T = 0, where the ties share.
template <Log log, class T> void apply_limit(const T* z, std::int64_t n, State s, T* out) {
    using V = Pack<T>;
    const bool nan = s.r != s.r;
    const V top = V::all(static_cast<T>(s.m)), lowest = V::all(-std::numeric_limits<T>::infinity());
    const V none = V::all(static_cast<T>(log == Log::yes ? -kInf : 0));
    // In a row with a NaN every entry of the support is one, whatever its sign was on the way.
    const V share = V::all(static_cast<T>(nan ? kNaN : log == Log::yes ? -log_l(s) : 1.0 / (1.0 + s.r)));
    map(z, n, Target<T>{out, z, false}, [&](V v) SOFTARGMAX_LAMBDA {
        const auto counts = nan ? above(v, lowest) : unless(equal(v, top), equal(v, lowest));
        return keep(counts, share) + keep(unless(equal(lowest, lowest), counts), none);
    });
}

// softmax or log_softmax of a piece of a row, from the state of the whole row.
template <Log log, class T> void apply(const T* z, std::int64_t n, State s, Scale beta, Target<T> to) {
    if (s.r != s.r || std::isinf(s.m) || std::isinf(beta.hi)) return apply_limit<log>(z, n, s, to.out);
    if constexpr (sizeof(T) == 4) {
        if (!fits_float(s.m, beta)) {
            double wide[kBlock] = {};
            for (std::int64_t i = 0; i < n; i += kBlock) {
                const std::int64_t count = n - i < kBlock ? n - i : kBlock;
                for (std::int64_t j = 0; j < count; ++j) wide[j] = z[i + j];
                apply<log, double>(wide, count, s, beta, {wide, wide, false});
                for (std::int64_t j = 0; j < count; ++j) to.out[i + j] = static_cast<T>(wide[j]);
            }
            return;
        }
    }
    if constexpr (log == Log::yes)
        return beta.unit() ? log_softmax_finite<true>(z, n, s, beta, to) : log_softmax_finite<false>(z, n, s, beta, to);
    else
        return softmax_finite(z, n, s, beta, to);
}

// softmax of a row of one block: the terms of the sum stay in the first-level cache (two rows of kBlock) and are scaled,
// not computed again.
template <class T> State softmax_short(const T* z, std::int64_t n, Scale beta, T* store, Target<T> to) {
    const T m = maximum(z, n);
    if (std::isinf(m) || std::isinf(beta.hi) || (sizeof(T) == 4 && !fits_float(m, beta))) {
        const State s = fold(z, n, beta);
        apply<Log::no>(z, n, s, beta, to);
        return s;
    }
    // The lines of the result come while the sum is computed (4096 x 1024, 2 threads: 0.57 ms with, 0.65 without).
    for (std::int64_t i = 0; i < n; i += Pack<T>::kLanes) __builtin_prefetch(to.out + i, 1);
    const Peak<T> peak(m, beta);
    const State s = fold_finite<Fold::kStore>(z, n, peak, beta, store);
    if (s.r != s.r) {
        apply_limit<Log::no>(z, n, s, to.out);
        return s;
    }
    const Factor<T> factor(s, peak);
    map(store, store + kBlock, n, to, [&](Pack<T> t, Pack<T> power) SOFTARGMAX_LAMBDA { return factor.times({t, power}); });
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
void softmax_vjp(const T* p, const T* g, std::int64_t n, double inner, double beta, Target<T> to) {
    using V = Pack<T>;
    const Split<T> mean(inner);
    const V zero = V::all(0), b = V::all(static_cast<T>(beta));
    map(p, g, n, to, [&](V x, V y) SOFTARGMAX_LAMBDA {
        return keep(above(x, zero), b * x * ((y - mean.hi) - mean.lo));
    });
}

// beta (g - p sum g), p = exp(log p)
template <class T>
void log_softmax_vjp(const T* log_p, const T* g, std::int64_t n, double sum, double beta, Target<T> to) {
    using V = Pack<T>;
    const Terms<true, T> terms(Peak<T>(0, Scale{}), Scale{});
    const V none = V::all(-std::numeric_limits<T>::infinity()), b = V::all(static_cast<T>(beta));
    const V total = V::all(static_cast<T>(-sum)), lower = V::all(static_cast<T>(Reach<T>::lower));
    map(log_p, g, n, to, [&](V x, V y) SOFTARGMAX_LAMBDA {
        const V p = keep(terms.in(x), terms(x).value()) * lower;
        return keep(above(x, none), b * fma(p, total, y));
    });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
