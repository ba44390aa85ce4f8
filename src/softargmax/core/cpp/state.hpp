// The softmax state and its operations: empty, fold, merge, finalize.
//
//     m = max z_i      l = sum e^(beta (z_i - m))      o = sum e^(beta (z_i - m)) v_i
//
// The states of disjoint pieces merge into the state of the whole, in any grouping:
//
//     m = max(m1, m2)      l = w1 l1 + w2 l2      o = w1 o1 + w2 o2      w_i = e^(beta (m_i - m))
//
// This recurrence is implemented here and in core/state.py, and nowhere else. There are two kinds of states. `State`
// has the m and the weights w_i above. In `PowerState`, m is rounded to a multiple of ln 2, so that the weights are
// powers of two.
#pragma once

#include <type_traits>

#include "args.hpp"
#include "math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// m is the maximum score. The sum l - 1 does not contain the maximum's own term, 1. This way the tail of a confident
// row, for example 1e-18, survives every merge, and lse = beta m + log1p(l - 1). The sum is kept as r + low,
// unevaluated, because rows of 10^6 scores have hundreds of merges, and each merge would add a rounding error.
//
// The empty state is {}: m = -inf, r = -1. If m = +inf, then r + 1 scores are +inf. If r is NaN, the row has a NaN.
struct State {
    using Weight = double;
    double m = -kInf, r = -1, low = 0;

    static SOFTARGMAX_INLINE double weight(double m, double top, Scale beta) {
        if (m == top) return 1;  // also for -inf and +inf
        if (m == -kInf) return 0;  // a fast path for the empty state, with which every row begins
        // The rounding errors of both steps are kept. Without them the weight would have an error of |x| / 2 ulp.
        const Twofold d = two_sum(m, -top), x = times(d.hi, beta);
        const double w = exp_scalar(std::isinf(d.hi) ? d.hi : x.hi);
        return w > 0 && w < 1 ? fma(w, x.lo + d.lo * beta.hi, w) : w;
    }
    SOFTARGMAX_INLINE State plus(const State& other, double w) const {
        const Twofold s = two_sum(r, (1.0 + other.r) * w), sum = two_sum(s.hi, low + (s.lo + other.low * w));
        return {m, sum.hi, std::isinf(sum.hi) ? 0 : sum.lo};
    }
};

// m is the maximum in units of ln 2: the largest rint(z log2 e). A weight is 2^(m_i - m), which is exact in T. A weight
// below all normal numbers is replaced by 0. The scores z are already multiplied by beta. The empty state is {}: l = 0.
template <class T> struct PowerState {
    using Weight = T;
    std::int32_t m = std::numeric_limits<std::int32_t>::min();
    double l = 0;
    bool empty() const { return l == 0; }

    static T weight(std::int32_t m, std::int32_t top) {
        const std::int64_t d = std::int64_t{m} - top;
        return d < std::numeric_limits<T>::min_exponent - 1 ? T{0} : std::ldexp(T{1}, static_cast<int>(d));
    }
    PowerState plus(const PowerState& other, T w) const { return {m, l + other.l * static_cast<double>(w)}; }
};

// The merged state of two parts, and the weight of each part in it. One of the weights is 1. `merge` needs beta for
// `State`, but not for `PowerState`.
template <class S> struct Merged {
    S state;
    typename S::Weight first, second;
};
template <class S, class... Beta> SOFTARGMAX_INLINE Merged<S> merge(const S& a, const S& b, Beta... beta) {
    const bool later = b.m > a.m;
    const S &top = later ? b : a, &other = later ? a : b;
    const typename S::Weight one = 1, w = S::weight(other.m, top.m, beta...);
    return {top.plus(other, w), later ? w : one, later ? one : w};
}

// The state of a single score. A score of -inf is outside the support.
SOFTARGMAX_INLINE State state_of(double z) { return {z, z == -kInf ? -1.0 : 0.0}; }

// l = 1 + r.
SOFTARGMAX_INLINE Twofold sum_l(const State& s) {
    const Twofold l = two_sum(1.0, s.r);
    return {l.hi, l.lo + s.low};
}

// ---- finalize -------------------------------------------------------------------------------------------------

// log l = log1p(r). It is -inf for an empty row.
inline double log_l(const State& s) {
    const double log = log1p_scalar(s.r);
    return s.r > -1 ? log + s.low / (1.0 + s.r) : log;
}

// lse = log sum exp(beta z), in nats.
inline Twofold lse_of(const State& s, Scale beta) {
    const double tail = log_l(s);
    if (std::isinf(s.m) || std::isinf(beta.hi)) return {s.m == 0 ? tail : s.m * beta.hi + 0 * s.r, 0};
    const Twofold top = times(s.m, beta);
    return std::isinf(top.hi) ? Twofold{top.hi, 0} : plus(top, Twofold{tail, 0});
}
inline double finalize(const State& s, Scale beta) { return rounded(lse_of(s, beta)); }
template <class T> double finalize(const PowerState<T>& s) {
    return fma(s.m, Exp<double>::ln2_hi, fma(s.m, Exp<double>::ln2_lo, log_scalar(s.l)));
}

// lse / beta, the smooth maximum m + log1p(r) / beta.
inline double smooth_maximum(const State& s, Scale beta) {
    if (std::isinf(s.m)) return s.m + 0 * s.r;
    const double tail = log_l(s);
    return tail == 0 ? s.m : s.m + tail / beta.hi * (1.0 - beta.lo / beta.hi);
}

// The weight of a part in the whole, from the lse of both. The output o / l of the whole is the weighted sum of the
// outputs of its parts.
inline double share(double part, double whole) { return part == -kInf ? 0 : exp_scalar(part - whole); }

// ---- the terms of a block of scores ---------------------------------------------------------------------------

// Terms below e^-reach times the maximum's term are not added. Terms are scaled up by 2^lift, so that all of them are
// normal numbers, and `lower` is 2^-lift. A term below e^-104 (double: e^-750) times the maximum's term is smaller
// than the rounding error of every result. `twice` is two times 104 (double: 750). It is used by `Peak`, which explains
// the factor of two.
template <class T> struct Reach;
template <> struct Reach<float> {
    static constexpr double reach = 130, twice = 2 * 104;
    static constexpr int lift = 62;
    static constexpr double lower = 0x1p-62;
};
template <> struct Reach<double> {
    static constexpr double reach = 1100, twice = 2 * 750;
    static constexpr int lift = 600;
    static constexpr double lower = 0x1p-600;
};

// e^(beta d) as 2^k (e + e_low), for a number or a pack.
template <class V> struct Parts {
    V k, e, e_low;
};
template <class V> SOFTARGMAX_INLINE Parts<V> parts_of(V d, Scale beta) {
    using E = Exp<double>;
    const auto all = [](double x) SOFTARGMAX_LAMBDA { return Splat<V>::of(x); };
    const Two<V> x = times(d, beta);
    const V k = fma(x.hi, all(E::log2e), all(E::magic)) - all(E::magic);
    const V r = fma(k, all(-E::ln2_hi), x.hi) + fma(k, all(-E::ln2_lo), x.lo);
    const V t = exp_less_one<double>(r), e = all(1.0) + t;
    return {k, e, t - (e - all(1.0))};
}

// The shift that is subtracted from the scores of a piece with maximum m, and e^(beta (m - shift)) = 2^k (e + e_low).
//
// The shift is 0 if |beta m| is less than Reach::twice, and m otherwise. In both cases z - shift is exact for every
// score that changes the result. In the second case such a score is within a factor of two of m, so that Sterbenz's
// lemma applies.
template <class T> struct Peak {
    T m, shift;
    int k;
    double e, e_low;
    SOFTARGMAX_INLINE Peak(T top, Scale beta) : m(top), shift(shift_of(top, beta)) {
        const Parts<double> x = parts_of(static_cast<double>(m) - static_cast<double>(shift), beta);
        k = static_cast<int>(x.k);
        e = x.e;
        e_low = x.e_low;
    }
    static SOFTARGMAX_INLINE T shift_of(T m, Scale beta) {
        return std::fabs(static_cast<double>(m) * beta.hi) >= Reach<T>::twice ? m : 0;
    }
    // True if the terms are simply e^z, without shift or scale.
    SOFTARGMAX_INLINE bool plain(Scale beta) const { return shift == 0 && beta.unit(); }
    // Scores up to this bound have no term: beta times their distance from m is at least `reach`. The bound is always
    // less than m.
    static SOFTARGMAX_INLINE T floor_of(T m, Scale beta, double reach = Reach<T>::reach) {
        // Omitting the division at beta = 1 saves 15 cycles per row.
        const double far = beta.hi == 1 ? reach : reach / beta.hi;
        const T low = static_cast<T>(static_cast<double>(m) - far);
        const T below = next_below(m);
        return low < below ? low : below;
    }
};

// ---- fold -----------------------------------------------------------------------------------------------------

// Prefetches what will likely be read next: the scores of the next block or row, in the caller's memory. Without the
// prefetch, the search for the next maximum waits for memory for 83 of 290 ns per row (4096 x 1000 scores). The
// logsumexp of 512 x 32768 takes 2.5 ms without the prefetch and 1.6 ms with it. A softmax of short rows prefetches
// during the fold, and again while it writes. For 4096 x 1024, torch's time divided by softargmax's time is 1.44
// without the prefetch during the fold and 1.60 with it.
struct Next {
    const char* at;
    int width;  // bytes of a score
    template <class T> SOFTARGMAX_INLINE Next(const T* x) : at(reinterpret_cast<const char*>(x)), width(sizeof(T)) {}
    SOFTARGMAX_INLINE Next(const char* x, int bytes) : at(x), width(bytes) {}
    SOFTARGMAX_INLINE void fetch(std::int64_t i) const { __builtin_prefetch(at + i * width); }
    SOFTARGMAX_INLINE Next from(std::int64_t i) const { return {at + i * width, width}; }
};

constexpr int kUnroll = 4;  // packs per step, enough to hide the latency of the multiply-adds

// The sum of many terms. Four packs of floats are added in float, and their sum is added in double. For doubles the
// rounding errors are added as well, because a plain sum of 10^6 equal terms has an error of hundreds of ulp.
template <class T> struct Sum;
template <> struct Sum<float> {
    Pack<double> low = Pack<double>::all(0), high = low;
    SOFTARGMAX_INLINE void add(const Pack<float> (&y)[kUnroll]) {
        const Wide w = widen((y[0] + y[1]) + (y[2] + y[3]));
        low = low + w.low;
        high = high + w.high;
    }
    SOFTARGMAX_INLINE Twofold total() const { return {sum_of(low + high), 0}; }
};
template <> struct Sum<double> {
    Pack<double> sum = Pack<double>::all(0), error = sum;
    template <int N> SOFTARGMAX_INLINE void add(const Pack<double> (&y)[N]) {
        for (const auto& x : y) {
            const Pack<double> s = sum + x, part = s - sum;
            error = error + ((sum - (s - part)) + (x - part));
            sum = s;
        }
    }
    SOFTARGMAX_INLINE Twofold total() const {
        double x[8];
        sum.store(x);
        Twofold s{0, sum_of(error)};
        for (double y : x) {
            const Twofold next = two_sum(s.hi, y);
            s = {next.hi, s.lo + next.lo};
        }
        return std::isinf(s.hi) ? Twofold{s.hi, 0} : two_sum(s.hi, s.lo);  // an infinite term has no rounding error
    }
};

// A plain sum of doubles, which does not track rounding errors.
struct PlainSum {
    Pack<double> sum = Pack<double>::all(0);
    template <int N> SOFTARGMAX_INLINE void add(const Pack<double> (&y)[N]) {
        for (const auto& x : y) sum = sum + x;
    }
    SOFTARGMAX_INLINE Twofold total() const { return {sum_of(sum), 0}; }
};

// Calls body(packs, count) for every step of kUnroll packs of z. The last step is padded with `fill`. `count` is the
// number of packs in the step that contain scores.
template <class T, class Body> SOFTARGMAX_INLINE void steps(const T* z, std::int64_t n, T fill, Body body) {
    using V = Pack<T>;
    constexpr std::int64_t step = kUnroll * V::kLanes;
    std::int64_t i = 0;
    V v[kUnroll];
    for (; i + step <= n; i += step) {
        for (int u = 0; u < kUnroll; ++u) v[u] = V::load(z + i + u * V::kLanes);
        body(v, kUnroll);
    }
    if (i == n) return;
    for (int u = 0; u < kUnroll; ++u) v[u] = V::load_part(z + i + u * V::kLanes, n - i - u * V::kLanes, fill);
    body(v, static_cast<int>((n - i + V::kLanes - 1) / V::kLanes));
}

template <class V> SOFTARGMAX_INLINE V highest(const V (&v)[kUnroll]) { return max(max(v[0], v[1]), max(v[2], v[3])); }
template <class V> SOFTARGMAX_INLINE V lowest(const V (&v)[kUnroll]) { return min(min(v[0], v[1]), min(v[2], v[3])); }

template <class T> T maximum(const T* z, std::int64_t n) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    Pack<T> top[kUnroll];
    for (auto& t : top) t = Pack<T>::all(lowest);
    steps(z, n, lowest, [&](const Pack<T>(&v)[kUnroll], int) {
        for (int u = 0; u < kUnroll; ++u) top[u] = max(v[u], top[u]);
    });
    return max_of(highest(top));
}

// The state of a piece with an infinite maximum or an infinite beta. Its l is the number of scores that are equal to
// the maximum, or 0 if the maximum is -inf. If a score is NaN, r is NaN.
template <class T> State count_ties(const T* z, std::int64_t n, T m) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    const Pack<T> top = Pack<T>::all(m);
    Count<T> ties, nans;
    steps(z, n, lowest, [&](const Pack<T>(&v)[kUnroll], int) SOFTARGMAX_LAMBDA {
        for (const Pack<T>& x : v) {
            ties.add(equal(x, top));
            nans.add(above(x, x));
        }
    });
    const double l = m == lowest ? 0 : static_cast<double>(ties.total());
    return {static_cast<double>(m), nans.total() ? kNaN : l - 1};
}

// The terms e^(beta (z - shift)) of a row or block, times 2^(lift - k). `in` is false for scores at or below
// `Peak::floor_of`. Their terms must be replaced by 0. `Plain` skips the subtraction of the shift, which takes 5% of
// the time of a softmax.
template <bool Plain, class T> struct Terms {
    using V = Pack<T>;
    ScaleIn<T> scale;
    V shift, low, magic;
    SOFTARGMAX_INLINE Terms(const Peak<T>& peak, Scale beta, double reach = Reach<T>::reach, int lift = Reach<T>::lift)
        : scale(beta),
          shift(V::all(peak.shift)),
          low(V::all(Peak<T>::floor_of(peak.m, beta, reach))),
          magic(V::all(magic_of<T>(lift - peak.k))) {}
    SOFTARGMAX_INLINE auto in(V z) const { return above(z, low); }
    SOFTARGMAX_INLINE Term<T> operator()(V z) const { return exp_term<Plain>(Plain ? z : z - shift, scale, magic); }
    // The power of the term of z, without its t.
    SOFTARGMAX_INLINE V power(V z) const { return power_of_two(fma(Plain ? z : z - shift, scale.log2e, magic)); }
};

// kStore: the t of each term is also stored. softmax computes its results from these t.
// kCareful: a term is power (1 + t), and power and power * t are summed separately, so that no term is rounded.
enum class Fold { kPlain, kStore, kCareful };

// Scores equal to the maximum are counted, and their terms are not added. So r keeps the tail of a confident row, and
// the largest terms add no rounding error to the sum.
template <bool Plain, Fold mode, class T>
State fold_once(const T* z, std::int64_t n, const Peak<T>& peak, Scale beta, const Next& next, T* store = nullptr) {
    using V = Pack<T>;
    const Terms<Plain, T> terms(peak, beta);
    const V top = V::all(peak.m), none = V::all(0);
    const double lower = Reach<T>::lower / peak.e;
    Sum<T> sum, powers;
    Count<T> ties;
    steps(z, n, -std::numeric_limits<T>::infinity(),
          [&, i = std::int64_t{0}](const V(&v)[kUnroll], int count) SOFTARGMAX_MUTABLE_LAMBDA {
        V y[kUnroll], x[kUnroll];
        if constexpr (mode == Fold::kCareful) static_cast<void>(i);  // clang warns about an unused capture
        else
            for (int u = 0; u < kUnroll; ++u, i += V::kLanes) next.fetch(i);
        const auto add_terms = [&](auto all_count) SOFTARGMAX_LAMBDA {
            for (int u = 0; u < kUnroll; ++u) {
                if (!all_count && u >= count) {
                    y[u] = x[u] = none;
                    continue;
                }
                const Term<T> term = terms(v[u]);
                if constexpr (mode == Fold::kStore) term.t.store(store + u * V::kLanes);
                if constexpr (all_count) {
                    y[u] = term.value();
                    continue;
                }
                const auto tie = equal(v[u], top), counts = unless(terms.in(v[u]), tie);
                ties.add(tie);
                if constexpr (mode == Fold::kCareful) {
                    y[u] = keep(counts, term.t * term.power);
                    x[u] = keep(counts, term.power);
                } else {
                    y[u] = keep(counts, term.value());
                }
            }
        };
        // Most steps have no tie and no score below the floor. With one test per step, in place of tests of every
        // score, a loss of float32 scores takes 0.85 of its time with AVX2, and one of bfloat16 scores 0.9. Other types
        // and modes are rare: there, the test would only make the module larger.
        constexpr bool is_tested = sizeof(T) == 4 && mode != Fold::kCareful;
        if (is_tested && every(unless(terms.in(lowest(v)), equal(highest(v), top)))) add_terms(std::true_type{});
        else add_terms(std::false_type{});
        if constexpr (mode == Fold::kStore) store += count * V::kLanes;
        if constexpr (mode == Fold::kCareful) powers.add(x);
        sum.add(y);
    });
    const Twofold total = sum.total();
    const double others = static_cast<double>(ties.total() - 1);
    if constexpr (sizeof(T) == 4) {  // the terms are float32 and their sums are double, which has enough digits
        const double rest = mode == Fold::kCareful ? powers.total().hi + total.hi : total.hi;
        return {static_cast<double>(peak.m), others + rest * lower};
    }
    const double rest = total.hi / peak.e;
    const double lost = ((fma(-rest, peak.e, total.hi) - rest * peak.e_low) + total.lo) / peak.e;
    const Twofold r = two_sum(others, rest * Reach<T>::lower);
    const Twofold all = two_sum(r.hi, r.lo + lost * Reach<T>::lower);
    return {static_cast<double>(peak.m), all.hi, all.lo};
}

SOFTARGMAX_INLINE bool looks_confident(double r) { return r > 0 && r < 0.125; }

// Calls f(std::true_type) if `Peak::plain` is true, else f(std::false_type).
template <class T, class F> SOFTARGMAX_INLINE auto with_plain(const Peak<T>& peak, Scale beta, F f) {
    return peak.plain(beta) ? f(std::true_type{}) : f(std::false_type{});
}

// A confident float32 piece, whose log l is about r, is folded a second time with Fold::kCareful. In the first fold the
// terms have an error of one ulp, which the division of their sum by peak.e can double.
template <Fold mode, class T>
State fold_finite(const T* z, std::int64_t n, const Peak<T>& peak, Scale beta, const Next& next, T* store = nullptr) {
    return with_plain(peak, beta, [&](auto plain) {
        const State s = fold_once<plain.value, mode>(z, n, peak, beta, next, store);
        if (sizeof(T) == 8 || !looks_confident(s.r)) return s;
        return fold_once<plain.value, Fold::kCareful>(z, n, peak, beta, next);
    });
}

// True if a float32 piece can be folded in float32. Otherwise it is folded in float64.
inline bool fits_float(double m, Scale beta) { return beta.hi >= 1e-30 && beta.hi <= 1e30 && std::fabs(m) < 1e30; }

// The state of at most kBlock contiguous scores. beta must be positive. For a negative beta, the caller negates z and
// beta.
template <class T> State fold(const T* z, std::int64_t n, Scale beta, const Next& next) {
    const T m = maximum(z, n);
    if (std::isinf(m) || std::isinf(beta.hi)) return count_ties(z, n, m);
    if constexpr (sizeof(T) == 4) {
        if (!fits_float(m, beta)) {
            double doubles[kBlock] = {};
            for (std::int64_t i = 0; i < n; ++i) doubles[i] = z[i];
            return fold<double>(doubles, n, beta, next);
        }
    }
    return fold_finite<Fold::kPlain>(z, n, Peak<T>(m, beta), beta, next);
}

// Compiled once, in core/kernels.cpp.
extern template State fold(const float*, std::int64_t, Scale, const Next&);
extern template State fold(const double*, std::int64_t, Scale, const Next&);

// A PowerState omits the terms of scores that are this far or further below the maximum. So all its terms are normal
// numbers.
template <class T> constexpr T kPowerReach = sizeof(T) == 4 ? T(80) : T(700);

// The state of n scores with the finite maximum `top`. n must be a multiple of two packs. Each score in memory is
// replaced by its term, e^(z - m ln 2).
template <class T> PowerState<T> fold_in_place(T* z, std::int64_t n, T top) {
    using V = Pack<T>;
    const auto m = static_cast<std::int32_t>(std::rint(static_cast<double>(top) * Exp<double>::log2e));
    const V low = V::all(top - kPowerReach<T>), magic = V::all(magic_of<T>(-m));
    const ScaleIn<T> unit{Scale{}};
    V sum[2] = {V::all(0), V::all(0)};
    for (std::int64_t i = 0; i < n; i += 2 * V::kLanes)
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
            T* at = z + i + u * V::kLanes;
            const V x = V::load(at), term = keep(above(x, low), exp_term<true>(x, unit, magic).value());
            term.store(at);
            sum[u] = sum[u] + term;
        }
    return {m, sum_of(sum[0] + sum[1])};
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
