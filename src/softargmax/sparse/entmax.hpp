// The sparse maps: p as a function of the scores and of the root, one number per row, chosen so that p sums to 1.
//
//     p = e_a(beta (z - m) - lambda),   e_a(x) = [1 + a x]_+^(1/a),   a = alpha - 1,   e_0 = exp,   m = max z
//
// The root is lambda >= 0, and tau = a (beta m + lambda) - 1. Let v = 1 + a x. Then the
// derivative of p with respect to x is p / v (`slope`). The second derivative is (1 - a) p / v^2, and `curve` is
// p / v^2.
//
// The variable of a map, `at`, is a pair of doubles that determines lambda. Each map has its own kind of variable, the
// one that gives the most accurate p. For alpha <= 2, `shift` moves `at` by a step of lambda. Far from the root,
// `rough` computes p approximately, in packs of the scores' type. In the last steps, `exact` computes p in double, and
// uses both numbers of `at`. Scores up to `cut` have p = 0 now and after all further steps.
#pragma once

#include "core/cpp/math.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

// ---- v^(1/a) in packs, and scores minus a threshold that is stored as a pair ----------------------------------

using Doubles = Pack<double>;
template <class V> struct Rough {
    V p, slope;
};
struct Exact {
    Two<Doubles> p;  // the low part is only computed by `exact<T, true>`
    Doubles slope, curve, v;  // where p is 0, v is only used for `ExactSums::nearest` (newton_root.hpp)
};

// N, the type of the numbers of a map, is double for one row, or a pack with one row per lane.
template <class V> SOFTARGMAX_INLINE V all(double x) { return V::all(static_cast<typename V::Scalar>(x)); }
template <class V> SOFTARGMAX_INLINE V all(V x) { return x; }
template <class N> SOFTARGMAX_INLINE N as(double x) {
    if constexpr (std::is_same_v<N, double>) return x;
    else return all<N>(x);
}
template <class N> SOFTARGMAX_INLINE Two<Doubles> spread(Two<N> x) { return {all<Doubles>(x.hi), all<Doubles>(x.lo)}; }
// z - c as a pair whose first part is rounded once. The difference is NaN for infinite z and on overflow. The formulas
// for p start with max(.., 0), which turns NaN into 0. This is correct, because a score that far below the threshold
// has p = 0.
template <class N> SOFTARGMAX_INLINE Two<Doubles> difference(Doubles z, Two<N> c) {
    const Two<Doubles> by = spread(c), d = two_sum(z, Doubles::all(0) - by.hi);
    const Doubles low = d.lo - by.lo, hi = d.hi + low;
    return {hi, low - (hi - d.hi)};
}
// z - c, rounded. For a float z, z - c.hi is exact near c.
template <class T, class N> SOFTARGMAX_INLINE Doubles rounded_difference(Doubles z, Two<N> c) {
    if constexpr (sizeof(T) == 4) return (z - all<Doubles>(c.hi)) - all<Doubles>(c.lo);
    else return difference(z, c).hi;
}

// tiny: smaller v count as 0. min_log: p with a smaller logarithm count as 0. max_v: below order 1, a v of this size or
// more has p = 0.
template <class T> struct Limit;
template <> struct Limit<float> {
    static constexpr double tiny = 0x1p-120, min_log = -86, max_v = 0x1p126;
};
template <> struct Limit<double> {
    static constexpr double tiny = 0x1p-1000, min_log = -708.396, max_v = 0x1p1023;
};

// The accuracy of a power: kRough to approach the root, kSummed (double accuracy) for the sums of the last steps, and
// kResult for results.
enum class Power { kRough, kSummed, kResult };

// Returns e^y, or 0 if e^y is below the smallest normal number. For float32 results the relative error is 2e-10.
template <Power how, class T, class V> SOFTARGMAX_INLINE V exp_or_zero(Two<V> y) {
    constexpr bool brief = how == Power::kResult && sizeof(T) == 4;
    const V min_log = all<V>(Limit<typename V::Scalar>::min_log), hi = max(y.hi, min_log);
    constexpr int terms = brief ? 7 : kExpTerms<typename V::Scalar>;
    return keep(above(hi, min_log), exp_of<terms>(Two<V>{hi, y.lo}));
}

// The function v^(1/a), which is 0 if v is 0.
struct Root {
    Twofold inverse_a;
    explicit Root(Twofold a) : inverse_a(inverse(a)) {}
    template <Power how, class T, class V> SOFTARGMAX_INLINE V of(Two<V> v) const {
        const V tiny = all<V>(Limit<typename V::Scalar>::tiny), hi = max(v.hi, tiny);
        const auto in = above(hi, tiny);
        const Two<V> positive{hi, keep(in, v.lo)};
        if constexpr (sizeof(T) == 8 && how != Power::kRough) {
            return keep(in, exp_or_zero<how, T>(times(log_pair(positive), spread(inverse_a))));
        } else {
            constexpr int terms = how == Power::kResult ? 5 : kLogTerms<typename V::Scalar>;
            const V y = log_of<terms>(positive) * all<V>(inverse_a.hi);
            return keep(in, exp_or_zero<how, T>(Two<V>{y, V::all(0)}));
        }
    }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(Two<V> v) const {
        const V p = of<Power::kRough, typename V::Scalar>(v);
        return {p, p / max(v.hi, all<V>(Limit<typename V::Scalar>::tiny))};
    }
    template <class T> SOFTARGMAX_INLINE Exact exact(Two<Doubles> v) const {
        const Doubles p = of<Power::kSummed, T>(v),
                      part = Doubles::all(1) / max(v.hi, Doubles::all(Limit<double>::tiny));
        return {{p, Doubles::all(0)}, p * part, p * part * part, v.hi};
    }
};

// ---- maps -----------------------------------------------------------------------------------------------------

// Scores up to `cut` are skipped, because they have p = 0 at the root. This also holds if the current lambda exceeds
// the root by up to kMargin.
constexpr double kMargin = 1e-3;

// (1 - e^-u) / u for u >= 0.
inline double mean_decay(double u) { return u < 1e-3 ? 1 - u * (0.5 - u * (1.0 / 6)) : (1 - exp_scalar(-u)) / u; }
template <class V> SOFTARGMAX_INLINE V mean_decay(V u) {
    const V one = all<V>(1), zero = all<V>(0), near = all<V>(1e-3), safe = max(u, near);
    const auto far = above(u, near);
    return keep(far, (one - exp_of(Two<V>{zero - safe, zero})) / safe) +
           keep(unless(equal(zero, zero), far), one - u * (all<V>(0.5) - u * all<V>(1.0 / 6)));
}
inline double log1p_of(double x) { return log1p_scalar(x); }
template <class V> SOFTARGMAX_INLINE V log1p_of(V x) {
    return log_of<kLogTerms<typename V::Scalar>>(two_sum(all<V>(1), x));
}

// Returns (S - S^(1 - a)) / (a D), the step of lambda in Newton's method for S^a = 1. S = 1 + rest is the sum of p, and
// D is the sum of p / v, passed as `slope`. For alpha <= 2 the steps approach the root from one side, and 2 to 6 steps
// suffice for 32768 scores. Below order 1, (e^u - 1) / u with u = -a log S is computed from (1 - e^-u) / u.
template <class N> SOFTARGMAX_INLINE N newton(double a, N rest, N slope) {
    const N log = log1p_of(rest), u = as<N>(std::fabs(a)) * log, decay = mean_decay(u);
    return (as<N>(1) + rest) * log * (a < 0 ? decay / (as<N>(1) - u * decay) : decay) / slope;
}

// Returns a distance d: if beta z is more than d below beta m + lambda, p is 0.
inline double reach_of(double a) {
    constexpr double reach = -Limit<double>::min_log, slack = 1 + 1e-6;
    const double u = -a * reach;
    if (a >= 0) return a * reach > 1 ? 1 / a : reach;
    return slack * reach * (u < 1e-3 ? 1 + u * (0.5 + u * (1.0 / 6)) : (exp_scalar(u) - 1) / u);
}
// Returns the `cut` that keeps all scores of at least x. x may be -inf.
inline double cut_below(double x) { return next_below(std::max(x, std::numeric_limits<double>::lowest())); }

// Returns the product of a and beta. a = alpha - 1 is a pair, because below order 1/2 a single double would lose digits
// of a.
inline Twofold slope_of(Twofold a, Scale beta) { return times(a, Twofold{beta.hi, beta.lo}); }

// Maps with alpha <= 2. Their variable is c = m + lambda / beta - below, where `below` depends on the map. Each map
// also has two settings:
//
// kStepFraction: float32 results are accurate if the last step changes v by less than this fraction of the smallest
// |v|, the distance of the nearest score to the threshold. After the step, the relative error of this v is about the
// third power of the fraction.
//
// kLogarithm: true if computing p takes a logarithm. A map with kLogarithm always uses compensated sums, and multiplies
// p by the gain (`write_row` in kernels.cpp) even if the gain is 1. Both cost little compared to the logarithm.
template <class N> struct GentleEntmax {
    N m;
    Two<N> at;  // c
    GentleEntmax(N top, N below) : m(top), at(two_sum(top, as<N>(0) - below)) {}
    void shift(N step) { at = plus(at, {step, as<N>(0)}); }
    template <class V> SOFTARGMAX_INLINE V rough_difference(V z) const {
        return (z - all<V>(m)) - all<V>((at.hi - m) + at.lo);
    }
};

// Maps with a closed form in beta (z - c), where c = m + (lambda - offset) / beta.
template <class N, int offset, bool scaled> struct ClosedEntmax : GentleEntmax<N> {
    using GentleEntmax<N>::at;
    static constexpr bool kLogarithm = false;
    Two<N> beta;
    ClosedEntmax(N top, Two<N> scale) : GentleEntmax<N>(top, as<N>(offset) / scale.hi), beta(scale) {}
    N x(N z) const { return ((z - at.hi) - at.lo) * beta.hi - as<N>(offset); }  // beta (z - m) - lambda
    N scale() const { return as<N>(1); }  // a step is measured relative to this
    void shift(N step) {
        if constexpr (scaled) GentleEntmax<N>::shift(step / beta.hi);
        else GentleEntmax<N>::shift(step);
    }
    double move(double step, bool /*over*/) {
        shift(step);
        return std::fabs(step);
    }
    double cut() const { return next_below(at.hi - kMargin / beta.hi); }
    Two<N> threshold() const {  // beta * c
        if constexpr (scaled) return times(at, beta);
        else return at;
    }
    template <class T, bool pairs> SOFTARGMAX_INLINE Two<Doubles> distance(Doubles z) const {
        if constexpr (!pairs) {
            return {scaled_by_beta(rounded_difference<T>(z, at)), Doubles::all(0)};
        } else if constexpr (scaled) {
            const Two<Doubles> x = times(difference(z, at), spread(beta));
            const Doubles hi = x.hi + x.lo;
            return {hi, x.lo - (hi - x.hi)};
        } else {
            return difference(z, at);
        }
    }
    template <class T> SOFTARGMAX_INLINE Doubles rounded_distance(Doubles z) const {
        constexpr bool pairs = scaled && sizeof(T) == 8;
        return distance<T, pairs>(z).hi;
    }
    template <class V> SOFTARGMAX_INLINE V rough_difference(V z) const {
        return scaled_by_beta(GentleEntmax<N>::rough_difference(z));
    }

  private:
    template <class V> SOFTARGMAX_INLINE V scaled_by_beta(V x) const {
        if constexpr (scaled) return x * all<V>(beta.hi);
        else return x;
    }
};

// alpha = 2: p = beta (z - c).
template <class N, bool scaled> struct LinearEntmax : ClosedEntmax<N, 1, scaled> {
    using ClosedEntmax<N, 1, scaled>::ClosedEntmax;
    // If no score enters or leaves the support, the sum is linear, and any step is exact.
    static constexpr double kStepFraction = 0.5;
    static constexpr double a() { return 1; }
    static constexpr double tolerance() { return kInf; }
    static N newton(N rest, N slope) { return rest / slope; }
    Two<N> tau() const { return this->threshold(); }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(V z) const {
        const V p = max(this->rough_difference(z), V::all(0));
        return {p, keep(above(p, V::all(0)), V::all(1))};
    }
    template <class T, bool pairs = true> SOFTARGMAX_INLINE Exact exact(Doubles z) const {
        const Two<Doubles> v = this->template distance<T, pairs>(z);
        const Doubles p = max(v.hi, Doubles::all(0));
        const auto in = above(p, Doubles::all(0));
        return {{p, keep(in, v.lo)}, keep(in, Doubles::all(1)), Doubles::all(0), v.hi};
    }
    template <class T> SOFTARGMAX_INLINE Doubles result(Doubles z) const {
        return max(this->template rounded_distance<T>(z), Doubles::all(0));
    }
};

// alpha = 1.5: p = v^2,  v = beta (z - c) / 2.
template <class N, bool scaled> struct SquaredEntmax : ClosedEntmax<N, 2, scaled> {
    using ClosedEntmax<N, 2, scaled>::ClosedEntmax;
    static constexpr double kStepFraction = 1e-3;
    static constexpr double a() { return 0.5; }
    static constexpr double tolerance() { return 1e-8; }
    static N newton(N rest, N slope) {
        using std::sqrt;
        const N one = as<N>(1), root = sqrt(one + rest);
        return (rest + rest) * root / ((one + root) * slope);
    }
    Two<N> tau() const { return times(this->threshold(), as<N>(0.5)); }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(V z) const {
        const V v = max(this->rough_difference(z) * all<V>(0.5), V::all(0));
        return {v * v, v};
    }
    template <class T, bool pairs = true> SOFTARGMAX_INLINE Exact exact(Doubles z) const {
        const Two<Doubles> twice = this->template distance<T, pairs>(z);
        const Doubles v = twice.hi * Doubles::all(0.5), h = max(v, Doubles::all(0)), p = h * h;
        const auto in = above(h, Doubles::all(0));
        return {{p, fma(h, h, Doubles::all(0) - p) + h * keep(in, twice.lo)}, h, keep(in, Doubles::all(1)), v};
    }
    template <class T> SOFTARGMAX_INLINE Doubles result(Doubles z) const {
        const Doubles v = max(this->template rounded_distance<T>(z) * Doubles::all(0.5), Doubles::all(0));
        return v * v;
    }
};

// alpha = 1.25: p = v^4,  v = beta (z - c) / 4.
template <class N> struct QuarticEntmax : ClosedEntmax<N, 4, true> {
    using ClosedEntmax<N, 4, true>::ClosedEntmax;
    static constexpr double kStepFraction = 1e-3;
    static constexpr double a() { return 0.25; }
    static constexpr double tolerance() { return 1e-5; }
    static N newton(N rest, N slope) {
        using std::sqrt;
        const N one = as<N>(1), square = sqrt(one + rest), root = sqrt(square);
        return as<N>(4) * square * root * rest / ((one + square) * (one + root) * slope);
    }
    Two<N> tau() const { return times(this->threshold(), as<N>(0.25)); }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(V z) const {
        const V v = max(this->rough_difference(z) * all<V>(0.25), V::all(0)), square = v * v;
        return {square * square, square * v};
    }
    template <class T, bool pairs = true> SOFTARGMAX_INLINE Exact exact(Doubles z) const {
        const Two<Doubles> four = this->template distance<T, pairs>(z);
        const Doubles zero = Doubles::all(0), v = four.hi * Doubles::all(0.25), h = max(v, zero);
        const auto in = above(h, zero);
        const Doubles low = keep(in, four.lo) * Doubles::all(0.25), s = h * h, p = s * s;
        const Doubles s_low = fma(h, h, zero - s) + (h + h) * low;
        return {{p, fma(s, s, zero - p) + (s + s) * s_low}, s * h, s, v};
    }
    template <class T> SOFTARGMAX_INLINE Doubles result(Doubles z) const {
        const Doubles v = max(this->template rounded_distance<T>(z) * Doubles::all(0.25), Doubles::all(0)), s = v * v;
        return s * s;
    }
};

// alpha <= 2 without a closed form, or with an extreme beta (`is_closed`): v = 1 + a beta (z - c), with
// c = m + lambda / beta. Below order 1 every v is at least 1, so no score is near the threshold. Below order 1, lambda
// may be in the thousands. Therefore a step is measured relative to the v of the maximum.
template <class N> struct ShiftedEntmax : GentleEntmax<N> {
    using GentleEntmax<N>::at, GentleEntmax<N>::m;
    static constexpr bool kLogarithm = true;
    static constexpr double kStepFraction = 1e-3;
    double a_;
    Scale beta;
    Twofold b;  // a * beta
    Root root;
    ShiftedEntmax(N top, Twofold a, Scale scale)
        : GentleEntmax<N>(top, as<N>(0)),
          a_(a.hi),
          beta(scale),
          b(slope_of(a, scale)),
          root(a.hi != 0 ? a : Twofold{1, 0}) {}
    double a() const { return a_; }
    N x(N z) const { return ((z - at.hi) - at.lo) * as<N>(beta.hi); }
    N scale() const { return as<N>(1) - as<N>(std::min(b.hi, 0.0)) * ((at.hi - m) + at.lo); }
    void shift(N step) { GentleEntmax<N>::shift(step / as<N>(beta.hi)); }
    double move(double step, bool /*over*/) {
        shift(step);
        return std::fabs(step) / scale();
    }
    // A step may bring a score into the support. The score then adds v^(1/a) to the sum. The derivatives at the start
    // of the step do not include this term. The tolerance bounds this v by e^(-37 a), so that the score adds at most
    // e^-37, less than half an ulp of 1 in double. At a = 1 the sum is linear (see `LinearEntmax`).
    double tolerance() const { return a_ == 1 ? kInf : std::min(1e-5, exp_scalar(-37 * a_)); }
    N newton(N rest, N slope) const { return sparse::newton(a_, rest, slope); }
    double cut() const { return cut_below(at.hi - (reach_of(a_) + kMargin) / beta.hi); }
    Two<N> tau() const { return plus(times(at, Two<N>{as<N>(b.hi), as<N>(b.lo)}), {as<N>(-1), as<N>(0)}); }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(V z) const {
        const V x = this->rough_difference(z) *
                    all<V>(std::min(beta.hi, static_cast<double>(Limit<typename V::Scalar>::max_v)));
        if (a_ == 0) {
            const V p = exp_or_zero<Power::kRough, typename V::Scalar>(Two<V>{x, V::all(0)});
            return {p, p};
        }
        constexpr double max_v = Limit<typename V::Scalar>::max_v;
        const V a = all<V>(a_), w = a_ < 0 ? max(x, all<V>(-max_v)) * a : max(x * a, all<V>(-2));
        return root.rough(two_sum(V::all(1), w));
    }
    SOFTARGMAX_INLINE Two<Doubles> v(Doubles z) const {
        const Two<Doubles> x = difference(z, at);
        const Doubles slope = Doubles::all(b.hi), w = x.hi * slope,
                      low = fma(x.hi, Doubles::all(b.lo), fma(x.hi, slope, Doubles::all(0) - w) + x.lo * slope);
        const Two<Doubles> sum = two_sum(Doubles::all(1), w);
        const Doubles rest = sum.lo + low, hi = sum.hi + rest;
        return {hi, rest - (hi - sum.hi)};
    }
    template <class T, bool = true> SOFTARGMAX_FORMULA Exact exact(Doubles z) const {
        const Doubles zero = Doubles::all(0), one = Doubles::all(1);
        if (a_ == 1 || a_ == 0.5) {  // v and its square keep their low parts
            const Two<Doubles> x = v(z);
            const Doubles h = max(x.hi, zero);
            const auto in = above(h, zero);  // test h, not x.hi, because `above` is true for NaN
            const Doubles low = keep(in, x.lo), p = h * h;
            if (a_ == 1) return {{h, low}, keep(in, one), zero, x.hi};
            return {{p, fma(h, h, zero - p) + (h + h) * low}, h, keep(in, one), x.hi};
        }
        if (a_ != 0) return root.exact<T>(v(z));
        const Doubles p = exp_or_zero<Power::kSummed, T>(exponent(z));
        return {{p, zero}, p, p, one};
    }
    template <class T> SOFTARGMAX_FORMULA Doubles result(Doubles z) const {
        if (a_ == 1 || a_ == 0.5) {
            const Doubles h = max(v(z).hi, Doubles::all(0));
            return a_ == 1 ? h : h * h;
        }
        return a_ == 0 ? exp_or_zero<Power::kResult, T>(exponent(z)) : root.of<Power::kResult, T>(v(z));
    }
    SOFTARGMAX_INLINE Two<Doubles> exponent(Doubles z) const {
        const Two<Doubles> d = difference(z, at), x = times(d.hi, beta);
        return {x.hi, fma(d.lo, Doubles::all(beta.hi), x.lo)};
    }
};

// alpha > 2: v = q^a + a beta (z - o), where o is the smallest score with p > 0, and q is the p of o. For large a, the
// v of o is the tiny number q^a. If v were computed from a score other than o, this number would be rounded to 0.
struct SteepEntmax {
    static constexpr bool kLogarithm = true;
    static constexpr double kStepFraction = 0;
    double a_;
    Scale beta;
    Twofold b;  // a * beta
    Root root;
    Twofold at;  // o and q
    double q_a, q_slope;
    SteepEntmax(double a, Scale scale, double o, double q)
        : a_(a),
          beta(scale),
          b(slope_of({a, 0}, scale)),
          root({a, 0}),
          at{o, q},
          q_a(exp_scalar(a * log_scalar(q))),
          q_slope(exp_scalar((a - 1) * log_scalar(q))) {}
    double a() const { return a_; }
    double cut() const { return next_below(at.hi); }
    Twofold tau() const { return minus(times(Twofold{at.hi, 0}, b), {q_a, 0}); }
    double x(double z) const { return beta.hi * (z - at.hi) - (1 - q_a) / a_; }
    SOFTARGMAX_INLINE Two<Doubles> v(Doubles z) const {
        const Two<Doubles> far = times(two_sum(z, Doubles::all(-at.hi)), spread(b));
        return two_sum(far.hi, far.lo + Doubles::all(q_a));
    }
    // `slope` is the derivative of p with respect to q.
    template <class T, bool = true> SOFTARGMAX_FORMULA Exact exact(Doubles z) const {
        const Doubles zero = Doubles::all(0), one = Doubles::all(1), o = Doubles::all(at.hi);
        const Two<Doubles> v = this->v(z);
        const auto above_o = above(z, o), tie = equal(z, o);
        const Doubles p = keep(above_o, root.of<Power::kSummed, T>(v)),
                      slope = p * Doubles::all(q_slope) / max(v.hi, Doubles::all(Limit<double>::tiny));
        return {{p + keep(tie, Doubles::all(at.lo)), zero}, slope + keep(tie, one), zero, v.hi};
    }
    template <class T> SOFTARGMAX_FORMULA Doubles result(Doubles z) const {
        const Doubles o = Doubles::all(at.hi);
        return keep(above(z, o), root.of<Power::kResult, T>(v(z))) + keep(equal(z, o), Doubles::all(at.lo));
    }
};

// The search for o in a row of n scores. With v = t + a beta (z - m), it finds the t between n^-a and 1 at which the
// v^(1/a) sum to 1. This sum is not convex in t, so a bisection replaces every fourth step, and each step that leaves
// the bracket.
struct SteepEntmaxSearch {
    double m, a_;
    Scale beta;
    double b, low, high = 1, t = 1;  // b = a * beta
    Root root;
    int steps = 0;
    SteepEntmaxSearch(double top, double a, Scale scale, double n)  // at most n scores have p > 0
        : m(top),
          a_(a),
          beta(scale),
          b(slope_of({a, 0}, scale).hi),
          low(std::max(exp_scalar(-a * log_scalar(n)) * 0.999, 0x1p-900)),
          root({a, 0}) {}
    double a() const { return a_; }
    double newton(double rest, double slope) const { return sparse::newton(a_, rest, slope); }
    double cut() const { return cut_below(m - high * (1 + kMargin) * root.inverse_a.hi / beta.hi); }
    double threshold() const { return m - t * root.inverse_a.hi / beta.hi; }
    // A margin keeps the root in the bracket in spite of the rounding errors of the sums.
    double move(double step, bool over) {
        const double from = t, change = -a_ * step;
        if (!(std::fabs(change) < kInf)) return t = 0;  // overflow: `search_smallest_in_support` starts at m
        (over ? high : low) = from * (over ? 1 + kMargin : 1 - kMargin);
        t += change;
        if (std::fabs(change) > 1e-9 * from && (!(t >= low && t <= high) || ++steps % 4 == 0))
            t = std::sqrt(low) * std::sqrt(high);
        // For t below 1e-30, v is not accurate in float. The result 0 ends the steps here, and
        // `search_smallest_in_support` finds o exactly.
        return t < 1e-30 ? 0 : std::fabs(t - from) / t;
    }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(V z) const {
        return root.rough(Two<V>{fma(z - all<V>(m), all<V>(b), all<V>(t)), V::all(0)});
    }
};

// True if 1 / beta is well inside the range of floats.
inline bool has_moderate_scale(Scale beta) { return beta.hi >= 0x1p-64 && beta.hi <= 0x1p64; }
// True if the order 1 + a has a closed form for single rows and for lanes.
inline bool is_closed(double a, Scale beta) { return (a == 1 || a == 0.5) && has_moderate_scale(beta); }
// Calls f with the closed-form map of order 1 + a, in its initial state: not moved by a step yet.
template <bool scaled, class N, class F> SOFTARGMAX_INLINE void with_closed_map(N m, double a, Two<N> beta, F f) {
    if (a == 1) f(LinearEntmax<N, scaled>(m, beta));
    else f(SquaredEntmax<N, scaled>(m, beta));
}
// Calls f with the map of order 1 + a, for a <= 1 and scores of type T, in its initial state: not moved by a step yet.
//
// Each map adds 0.1 to 0.2 MB to the module, so there are few. For doubles with beta = 1, the `scaled` maps have the
// same bits. QuarticEntmax is for single rows of floats: 512 rows of 32768 scores take 0.27 of the time of
// ShiftedEntmax.
template <class T, class N, class F> SOFTARGMAX_INLINE void with_gentle_map(N m, Twofold a, Scale beta, F f) {
    const Two<N> by{as<N>(beta.hi), as<N>(beta.lo)};
    if constexpr (sizeof(T) == 4 && std::is_same_v<N, double>) {
        if (a.hi == 0.25 && has_moderate_scale(beta)) return f(QuarticEntmax<N>(m, by));
    }
    if (!is_closed(a.hi, beta)) return f(ShiftedEntmax<N>(m, a, beta));
    if constexpr (sizeof(T) == 4) {
        if (beta.unit()) return with_closed_map<false>(m, a.hi, by, f);
    }
    with_closed_map<true>(m, a.hi, by, f);
}
// Calls f with the map of order 1 + a, moved to its root `at`.
template <class T, class F> SOFTARGMAX_INLINE void with_map(double m, Twofold a, Scale beta, Twofold at, F f) {
    if (a.hi > 1) f(SteepEntmax(a.hi, beta, at.hi, at.lo));
    else
        with_gentle_map<T>(m, a, beta, [&](auto map) {
            map.at = at;
            f(map);
        });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
