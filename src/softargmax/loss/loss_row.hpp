// The loss of a row, and its gradient.
//
// The formulas are those of docs/design.md:
//
//     loss = -sum m_k log p_k + c lse^2        d loss / d x_k = (tau + 2 c lse) p_k - m_k
//     m_k = w_k ((1 - e) t_k + e / n)          tau = sum m_k
//
// n is the number of scores in the support. All sums run over the support, except that tau also includes m_k outside
// the support. A positive m_k outside the support makes the loss +inf.
#pragma once

#include "core/cpp/elementwise.hpp"
#include "loss/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::loss {

// The sums for targets with more than one class. `far` is beta (m - z_k). The sums of `far` are scaled by kFar = 2^-64,
// because they may overflow even if the weighted mean of `far` does not.
constexpr double kFar = 0x1p-64;
struct Sums {
    double n = 0;          // number of scores in the support
    Twofold w{}, w_far{};  // sum w_k, kFar sum w_k far
    Twofold t{}, t_far{};  // sum w_k t_k, kFar sum w_k t_k far
    Twofold beyond{};      // sum w_k t_k outside the support
    void add(const Sums& piece) {
        n += piece.n;
        w = plus(w, piece.w);
        w_far = plus(w_far, piece.w_far);
        t = plus(t, piece.t);
        t_far = plus(t_far, piece.t_far);
        beyond = plus(beyond, piece.beyond);
    }
};

// The values that the formulas need for a row.
struct Row : Sums {
    State state;
    std::int64_t y = -1;  // the target class; -1 if targets are probabilities
    bool ignored = false;
    bool inside = false;  // true if y is in the support
    double at_y = 0;      // the score of y
    double w_y = 1;
};

inline bool is_limit(const State& s, Scale beta) { return std::isinf(s.m) || std::isinf(beta.hi); }

// Returns beta (m - z). If m or beta is infinite, only the scores equal to m have a probability. The distance is 0 for
// these scores and infinite for all others.
inline Twofold distance(double z, const State& s, Scale beta) {
    if (is_limit(s, beta)) return {z == s.m ? 0 : kInf, 0};
    if (std::fabs(s.m) > 1e290) return {2 * ((s.m * 0.5 - z * 0.5) * beta.hi), 0};
    const Twofold d = two_sum(s.m, -z), x = times(d.hi, beta);
    return {x.hi, or_zero(x.lo + d.lo * beta.hi)};
}

// The label-smoothing factors of a row: 1 - e, and e / n.
struct Smoothing {
    Twofold own, each;
    Smoothing(const Row& row, double e)
        : own(two_sum(1.0, -e)), each(e > 0 ? times(inverse(Twofold{row.n, 0}), e) : Twofold{}) {}
};

inline double loss_of(const Row& row, Scale beta, const Args& args) {
    const State& s = row.state;
    if (row.ignored) return 0;
    if (s.r != s.r) return kNaN;
    const Twofold log{log_l(s), 0};
    const Smoothing share(row, args.label_smoothing);
    const bool owns = share.own.hi > 0 && (row.y < 0 || row.w_y > 0);
    if (s.r == -1 || (owns && (row.y >= 0 ? !row.inside : row.beyond.hi > 0))) return kInf;
    Twofold loss{};
    if (owns && row.y >= 0) loss = times(times(share.own, row.w_y), plus(distance(row.at_y, s, beta), log));
    else if (owns) loss = plus(times(times(share.own, 1 / kFar), row.t_far), times(times(share.own, row.t), log));
    const auto add = [&](Twofold x) { loss = plus(loss, x); };
    if (share.each.hi > 0) {
        add(times(times(share.each, 1 / kFar), row.w_far));
        add(times(times(share.each, row.w), log));
    }
    if (args.z_loss > 0) {
        const Twofold lse = lse_of(s, beta);
        add(times(times(lse, lse), args.z_loss));
    }
    return rounded(loss);
}

// The gradient with respect to the scores of one row, gain p_k - scale m_k. scale is the incoming gradient times beta,
// and gain = scale (tau + 2 c lse).
//
// At the maximum p_k may be close to 1. The gradient is therefore computed there as scale ((tau + 2 c lse - m_k) p_k -
// m_k (1 - p_k)) with 1 - p_k = r / (1 + r). All factors are pairs of doubles. If the incoming gradient, beta, tau and
// 2 c lse were each rounded to a double, a float64 gradient would have an error of 6 ulp.
struct Slope {
    Smoothing share;
    Twofold gain{}, scale{};
    Twofold own{}, lse{};  // own: (1 - e) sum w t, so that tau = own + (e / n) sum w; lse: 2 c times the lse
    Twofold w{};
    Twofold own_mass{}, each_mass{};  // scale (1 - e) and scale e / n
    Twofold p{}, others_p{};  // p at the maximum, and 1 - p at the maximum

    // `seed` is the incoming gradient of the loss, times beta.
    Slope(const Row& row, Scale beta, Twofold seed, const Args& args) : share(row, args.label_smoothing) {
        const State& s = row.state;
        if (row.ignored || s.r == -1 || (is_limit(s, beta) && s.r == s.r)) return;  // the loss is constant
        own = times(share.own, row.y < 0 ? plus(row.t, row.beyond) : Twofold{row.w_y, 0});
        if (args.z_loss > 0) lse = times(lse_of(s, beta), 2 * args.z_loss);
        w = row.w;
        scale = seed;
        own_mass = times(scale, share.own);
        each_mass = times(scale, share.each);
        gain = s.r == s.r ? times(seed, plus(plus(own, times(share.each, w)), lse)) : Twofold{kNaN, 0};
        p = inverse(sum_l(s));
        others_p = times(Twofold{s.r, s.low}, p);
    }
    // True if the gradient is 0. A row with NaN has a gradient of NaN, even if the incoming gradient is 0.
    bool flat() const { return scale.hi == 0 && gain.hi == gain.hi; }
    // Returns gain p_k - scale m_k. `top` is true for a score equal to the maximum.
    Twofold at(bool top, double gain_p, double w_k, double t) const {
        if (!top) return off_maximum(gain_p, w_k, t);
        const Twofold m = times(plus(times(share.own, t), share.each), w_k);
        const Twofold own_others = minus(own, times(times(share.own, w_k), t));
        const Twofold others = plus(plus(own_others, times(share.each, minus(w, Twofold{w_k, 0}))), lse);
        return times(scale, minus(times(others, p), times(m, others_p)));
    }
    template <class V> SOFTARGMAX_INLINE Two<V> off_maximum(V gain_p, V w_k, V t) const {
        const auto all = [](Twofold x) SOFTARGMAX_LAMBDA { return Two<V>{Splat<V>::of(x.hi), Splat<V>::of(x.lo)}; };
        const Two<V> m = times(plus(times(all(own_mass), t), all(each_mass)), w_k);  // scale m_k
        return minus(Two<V>{gain_p, Splat<V>::of(0)}, m);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::loss
