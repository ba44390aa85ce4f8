// Elementwise functions of a row in contiguous memory. `apply` computes probabilities or their logarithms from the
// row's state, `Softcap` bounds scores, and `map` applies any function.
#pragma once

#include "state.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- map: a function of each element of a row, or of each pair of elements of two rows --------------------------

// The destination of results. `next` is prefetched during the writes: for 512 x 32768 scores on Zen 5, a call takes
// 3.8 ms without the prefetch and 3.2 ms with it. With `streaming` the results are written past the caches, and the
// call takes 2.6 ms. Other threads are sure to see such writes only after a locked instruction. Each thread executes
// one when it ends its work for the call, and Python's lock contains another one.
template <class T> struct Target {
    T* out;
    Next next;
    bool streaming;
};

// to.out[i] = f(z[i]), one pack at a time.
template <class T, class F> SOFTARGMAX_INLINE void map(const T* z, std::int64_t n, const Target<T> to, F f) {
    using V = Pack<T>;
    constexpr int L = V::kLanes;
    std::int64_t i = 0;
    if (to.streaming && reinterpret_cast<std::uintptr_t>(to.out) % 64 == 0) {
        for (; i + L <= n; i += L) {
            to.next.fetch(i);
            f(V::load(z + i)).stream(to.out + i);
        }
    } else {
        for (; i + L <= n; i += L) {
            to.next.fetch(i);
            f(V::load(z + i)).store(to.out + i);
        }
    }
    if (i == n) return;
    f(V::load_part(z + i, n - i, 0)).store_part(to.out + i, n - i);
}

// to.out[i] = f(p[i], g[i]), one pack at a time.
template <class T, class F> SOFTARGMAX_INLINE void map(const T* p, const T* g, std::int64_t n, const Target<T>& to,
                                                       F f) {
    constexpr int L = Pack<T>::kLanes;
    const std::int64_t whole = n - n % L;
    map(p, whole, to, [&, i = std::int64_t{0}](Pack<T> x) SOFTARGMAX_MUTABLE_LAMBDA {
        const Pack<T> y = Pack<T>::load(g + i);
        i += L;
        return f(x, y);
    });
    if (whole == n) return;
    const std::int64_t rest = n - whole;
    f(Pack<T>::load_part(p + whole, rest, 0), Pack<T>::load_part(g + whole, rest, 0)).store_part(to.out + whole, rest);
}

// x + rest = hi + lo, in packs of T.
template <class T> struct Split {
    Pack<T> hi, lo;
    explicit SOFTARGMAX_INLINE Split(double x, double rest = 0)
        : hi(Pack<T>::all(static_cast<T>(x))),
          lo(Pack<T>::all(static_cast<T>((x - static_cast<double>(static_cast<T>(x))) + rest))) {}
};

// ---- softmax: p = exp(beta z - lse) -----------------------------------------------------------------------------

// 2^-lift / (E l), the factor that converts the terms of a row to probabilities, with E = peak.e + peak.e_low. For
// float32 one double is exact enough. For float64 the factor is a pair of doubles.
template <class T> SOFTARGMAX_INLINE double inverse_of(double r, double e) { return Reach<T>::lower / (e * (1.0 + r)); }
template <class T> SOFTARGMAX_INLINE Twofold inverse_of(const State& s, const Peak<T>& peak) {
    if constexpr (sizeof(T) == 4) return {inverse_of<T>(s.r, peak.e), 0};
    const Twofold q = inverse(times(Twofold{peak.e, peak.e_low}, sum_l(s))), both = two_sum(q.hi, q.lo);
    return {both.hi * Reach<T>::lower, both.lo * Reach<T>::lower};
}
// `softmax_finite` multiplies a softmax by a gain. If gain / l is below Small::gain, the product of gain / l and
// 2^-lift may be subnormal. In this case the terms are not scaled up by 2^lift. Terms below e^-Small::reach times the
// maximum's term may then be subnormal, and are omitted. The omitted results would be less than e^-86 2^-30 in float
// and e^-700 2^-300 in double, which round to 0.
template <class T> struct Small {
    static constexpr double gain = sizeof(T) == 4 ? 0x1p-30 : 0x1p-300, reach = sizeof(T) == 4 ? 86 : 700;
};
// The factor of `inverse_of` as a pair of T. Compared with one T, a pair needs one more instruction and reduces the
// error of the result by 0.5 ulp.
template <class T> struct Factor {
    Split<T> f;
    SOFTARGMAX_INLINE explicit Factor(Twofold x) : f(x.hi, x.lo) {}
    SOFTARGMAX_INLINE Factor(const State& s, const Peak<T>& peak) : Factor(inverse_of(s, peak)) {}
    SOFTARGMAX_INLINE Pack<T> times(Term<T> e) const { return (f.hi + fma(e.t, f.hi, f.lo)) * e.power; }
};

// Computes gain times p, because some gradients are multiples of p. Probabilities of at most `smallest` become 0.
template <class T> void softmax_finite(const T* z, std::int64_t n, const State& s, Scale beta, const Target<T>& to,
                                       Twofold gain, double smallest) {
    const Peak<T> peak(static_cast<T>(s.m), beta);
    const bool small = std::fabs(gain.hi) < Small<T>::gain * (1 + s.r);
    const Factor<T> factor(times(inverse_of(s, peak), small ? times(gain, 1 / Reach<T>::lower) : gain));
    const double limit = small ? Small<T>::reach : Reach<T>::reach;
    const double reach = smallest > 0 ? std::min(-log_scalar(smallest) - log_l(s), limit) : limit;
    with_plain(peak, beta, [&](auto plain) {
        const Terms<plain.value, T> terms(peak, beta, reach, small ? 0 : Reach<T>::lift);
        map(z, n, to, [&](Pack<T> v) SOFTARGMAX_LAMBDA { return keep(terms.in(v), factor.times(terms(v))); });
    });
}

// Computes p from the t of each term, which the fold has stored. If the row has several blocks, Peak::plain must be
// true. Then t does not depend on the maximum of a block: the maximum affects the rounding of z log2 e to an integer k
// only at a tie, and log2 e has too many digits for a tie in the range of exp.
template <class T> void softmax_stored(const T* z, const T* t, std::int64_t n, const State& s, const Peak<T>& peak,
                                       Scale beta, const Target<T>& to) {
    const Factor<T> factor(s, peak);
    with_plain(peak, beta, [&](auto plain) {
        const Terms<plain.value, T> terms(peak, beta);
        map(z, t, n, to, [&](Pack<T> v, Pack<T> x) SOFTARGMAX_LAMBDA {
            return keep(terms.in(v), factor.times({x, terms.power(v)}));
        });
    });
}

// ---- log_softmax: beta z - lse ----------------------------------------------------------------------------------

// Computes beta (z - m) - log l. Both terms have the same sign, so no digits cancel. This makes the loss of a
// confident row, log1p(r), accurate even if it is very small.
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
template <bool Unit, class T> void log_softmax_finite(const T* z, std::int64_t n, const State& s, Scale beta,
                                                      const Target<T>& to) {
    if constexpr (sizeof(T) == 8)
        if (std::fabs(s.m) > 1e290) {  // z - m may overflow where beta (z - m) does not
            for (std::int64_t i = 0; i < n; ++i) to.out[i] = 2.0 * ((z[i] * 0.5 - s.m * 0.5) * beta.hi) - log_l(s);
            return;
        }
    const Split<T> l(-log_l(s));
    const LogOf<Unit, T> log_of(Pack<T>::all(static_cast<T>(s.m)), l.hi, l.lo, beta);
    map(z, n, to, [&](Pack<T> v) SOFTARGMAX_LAMBDA { return log_of(v); });
}

// ---- rows in general ------------------------------------------------------------------------------------------

enum class Log : bool { no, yes };

// Computes rows without a finite maximum (with NaN, with infinities, or with an empty support), and rows at T = 0. At
// T = 0 all scores equal to the maximum have the same probability.
template <Log log, class T> void apply_limit(const T* z, std::int64_t n, const State& s, T* out, double gain = 1) {
    using V = Pack<T>;
    const bool nan = s.r != s.r;
    const V top = V::all(static_cast<T>(s.m)), lowest = V::all(-std::numeric_limits<T>::infinity());
    const V none = V::all(static_cast<T>(log == Log::yes ? -kInf : 0));
    // In a row with a NaN, every result inside the support is a NaN of the same sign.
    const V share = V::all(static_cast<T>(nan ? kNaN : log == Log::yes ? -log_l(s) : gain / (1.0 + s.r)));
    map(z, n, Target<T>{out, z, false}, [&](V v) SOFTARGMAX_LAMBDA {
        const auto counts = nan ? above(v, lowest) : unless(equal(v, top), equal(v, lowest));
        return keep(counts, share) + keep(unless(equal(lowest, lowest), counts), none);
    });
}

// Computes softmax or log_softmax of a block of a row from the state of the whole row. The softmax is multiplied by
// `gain`, and probabilities of at most `smallest` become 0.
template <Log log, class T>
void apply(const T* z, std::int64_t n, const State& s, Scale beta, const Target<T>& to, Twofold gain = {1, 0},
           double smallest = 0) {
    if (s.r != s.r || std::isinf(s.m) || std::isinf(beta.hi)) return apply_limit<log>(z, n, s, to.out, gain.hi);
    if constexpr (sizeof(T) == 4) {
        if (!fits_float(s.m, beta)) {
            double doubles[kBlock] = {};
            for (std::int64_t i = 0; i < n; i += kBlock) {
                const std::int64_t count = n - i < kBlock ? n - i : kBlock;
                for (std::int64_t j = 0; j < count; ++j) doubles[j] = z[i + j];
                apply<log, double>(doubles, count, s, beta, {doubles, doubles, false}, gain, smallest);
                for (std::int64_t j = 0; j < count; ++j) to.out[i + j] = static_cast<T>(doubles[j]);
            }
            return;
        }
    }
    if constexpr (log == Log::yes)
        return beta.unit() ? log_softmax_finite<true>(z, n, s, beta, to) : log_softmax_finite<false>(z, n, s, beta, to);
    else return softmax_finite(z, n, s, beta, to, gain, smallest);
}

// Compiled once, in core/kernels.cpp.
extern template void apply_limit<Log::no>(const float*, std::int64_t, const State&, float*, double);
extern template void apply_limit<Log::no>(const double*, std::int64_t, const State&, double*, double);
extern template void apply<Log::no>(const float*, std::int64_t, const State&, Scale, const Target<float>&, Twofold,
                                    double);
extern template void apply<Log::no>(const double*, std::int64_t, const State&, Scale, const Target<double>&, Twofold,
                                    double);

// ---- the soft-cap: s tanh(z / s), between -s and s, and its slope 1 - tanh^2 ----------------------------------

// With u = z / s, x = -2 |u| and q = e^x:  tanh |u| = (1 - q) / (1 + q),  1 - tanh^2 = 4 q / (1 + q)^2. If |x| is
// small, q - 1 is computed without cancellation. Let t(y) = e^y - 1, so that q - 1 = t(x). The computation starts with
// t(x / 4) and applies t(2 y) = t(y) (2 + t(y)) twice.
template <class T> class Softcap {
    using V = Pack<T>;
    Terms<true, T> terms_{Peak<T>(0, Scale{}), Scale{}};
    V cap_, zero_ = V::all(0), one_ = V::all(1), two_ = V::all(2), lower_ = V::all(static_cast<T>(Reach<T>::lower));

    SOFTARGMAX_INLINE V exponent(V z) const { return V::all(-2) * (max(z, zero_ - z) / cap_); }
    SOFTARGMAX_INLINE Two<V> decay(V x) const {
        const auto in = terms_.in(x);
        const Term<T> term = terms_(keep(in, x));
        const V e = one_ + term.t, power = keep(in, term.power) * lower_;
        return {e * power, (term.t - (e - one_)) * power};
    }

  public:
    explicit Softcap(double cap) : cap_(V::all(static_cast<T>(cap))) {}
    SOFTARGMAX_INLINE V operator()(V z) const {
        const V x = exponent(z), q = decay(x).hi;
        const auto all = equal(zero_, zero_), near = above(x, V::all(T(-1.36))), far = unless(all, near);
        const V t = exp_less_one<T>(keep(near, x) * V::all(T(0.25))), t2 = t * (two_ + t), less = t2 * (two_ + t2);
        const V tanh = keep(near, (zero_ - less) / (two_ + less)) + keep(far, (one_ - q) / (one_ + q)), y = tanh * cap_;
        const auto nan = unless(all, equal(z, z)), negative = above(zero_, z);
        return keep(unless(all, negative), y) - keep(negative, y) + keep(nan, z);
    }
    // The slope is computed in pairs of numbers. With rounding at every step, its error would be 4 ulp.
    SOFTARGMAX_INLINE Two<V> slope(V z) const {
        const Two<V> q = decay(exponent(z)), r = inverse(plus(Two<V>{one_, zero_}, q));
        return times(times(q, times(r, r)), V::all(4));
    }
    // Caps n scores in place. Scores of -inf are outside the support and stay -inf.
    void bend(T* z, std::int64_t n) const {
        const V out = V::all(-std::numeric_limits<T>::infinity());
        for (std::int64_t i = 0; i < n; i += V::kLanes) {
            const V x = V::load_part(z + i, n - i, 0);
            const auto stays = equal(x, out);
            (keep(unless(equal(zero_, zero_), stays), (*this)(x)) + keep(stays, x)).store_part(z + i, n - i);
        }
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
