// The softmax state and its verbs: empty, fold (fold.hpp), merge, finalize.
//
//     m = max z_i      l = sum e^(beta (z_i - m))      o = sum e^(beta (z_i - m)) v_i
//
// The states of disjoint pieces merge to that of the whole, in any grouping:
//
//     m = max(m1, m2)      l = w1 l1 + w2 l2      o = w1 o1 + w2 o2      w_i = e^(beta (m_i - m))
//
// This recurrence stands here and in core/state.py, and nowhere else. There are two kinds of states, which differ in
// what m is and how a weight is formed from it: exact ones, and those whose weights are powers of two.
#pragma once

#include "twofold.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// m is a score. The maximum's own term, 1, is left out of the sum, so that the tail of a confident row (1e-18, say)
// survives every merge and lse = beta m + log1p(r); r = l - 1 is the unevaluated sum r + low, since rows of 10^6 scores
// have hundreds of merges, each of which would round.
//
// Empty is {}: m = -inf, r = -1. m = +inf: r + 1 entries are +inf. r = NaN: a NaN in the row.
struct State {
    using Weight = double;
    double m = -kInf, r = -1, low = 0;

    static SOFTARGMAX_INLINE double weight(double m, double top, Scale beta) {
        if (m == top) return 1;  // -inf and +inf, too
        if (m == -kInf) return 0;  // of the empty state that a row of one block begins with, at once
        // With the rounding errors of both steps: they would be |x| / 2 ulp of the weight.
        const Twofold d = two_sum(m, -top), x = times(d.hi, beta);
        const double w = exp_scalar(std::isinf(d.hi) ? d.hi : x.hi);
        return w > 0 && w < 1 ? fma(w, x.lo + d.lo * beta.hi, w) : w;
    }
    SOFTARGMAX_INLINE State plus(const State& other, double w) const {
        const Twofold s = two_sum(r, (1.0 + other.r) * w), sum = two_sum(s.hi, low + (s.lo + other.low * w));
        return {m, sum.hi, std::isinf(sum.hi) ? 0 : sum.lo};
    }
};

// m counts ln 2: the largest of rint(z log2 e). A weight is 2^(m_i - m), which is exact in T unless it is below every
// number; then it is 0. Scores come scaled by beta. Empty is {}: l = 0.
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

// The state of a whole, and what its two parts weigh in it: one of them 1. (Exact states take beta, too.)
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

// The state of one score; -inf is outside of the support.
SOFTARGMAX_INLINE State state_of(double z) { return {z, z == -kInf ? -1.0 : 0.0}; }

// l = 1 + r.
SOFTARGMAX_INLINE Twofold sum_l(const State& s) {
    const Twofold l = two_sum(1.0, s.r);
    return {l.hi, l.lo + s.low};
}

// ---- finalize -------------------------------------------------------------------------------------------------

// log l = log1p(r); -inf for an empty row.
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

// The same divided by beta: the smooth maximum m + log1p(r) / beta.
inline double smooth_maximum(const State& s, Scale beta) {
    if (std::isinf(s.m)) return s.m + 0 * s.r;
    const double tail = log_l(s);
    return tail == 0 ? s.m : s.m + tail / beta.hi * (1.0 - beta.lo / beta.hi);
}

// What the output o / l of a part counts in that of the whole, from the lse of both.
inline double share(double part, double whole) { return part == -kInf ? 0 : exp_scalar(part - whole); }

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
