// The loss of a row, and its gradient (design section 8):
//
//     loss = -sum m_k log p_k + c lse^2        d loss / d x_k = (tau + 2 c lse) p_k - m_k
//     m_k = w_k ((1 - e) t_k + e / n)          tau = sum m_k
//
// n and all sums but tau's run over the support; what the target has outside of it makes the loss +inf.
#pragma once

#include "core/native/apply.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// What the formulas need of a row besides its state. `far` is beta (m - z_k).
struct Row {
    std::int64_t y = -1;  // its class; -1: the target is probabilities
    bool ignored = false;
    bool inside = false;  // whether y is in the support
    double at_y = 0;      // the score of y
    double w_y = 1;
    double n = 0;             // scores in the support
    double w = 0, w_far = 0;  // sum w_k, sum w_k far
    double t = 0, t_far = 0;  // sum w_k t_k, sum w_k t_k far
    double beyond = 0;        // sum w_k t_k outside the support
};

inline bool is_limit(const State& s, Scale beta) { return std::isinf(s.m) || std::isinf(beta.hi); }

// beta (m - z); in the limits, where the ties with m share the row, 0 for these and infinite for the others.
inline double distance(double z, const State& s, Scale beta) {
    if (is_limit(s, beta)) return z == s.m ? 0 : kInf;
    if (std::fabs(s.m) > 1e290) return 2 * ((s.m * 0.5 - z * 0.5) * beta.hi);
    const Twofold d = two_sum(s.m, -z), x = times(d.hi, beta);
    return std::isinf(d.hi) ? d.hi : x.hi + (x.lo + d.lo * beta.hi);
}
// c lse^2
inline double z_loss_of(const State& s, Scale beta, const LossJob& job) {
    if (job.z_loss == 0) return 0;
    const double lse = finalize(s, beta);
    return job.z_loss * lse * lse;
}

inline double loss_of(const Row& row, const State& s, Scale beta, const LossJob& job) {
    if (row.ignored) return 0;
    if (s.r != s.r) return kNaN;
    const double e = job.label_smoothing, log = log_l(s), w_y = (1 - e) * row.w_y;
    const bool lost = row.y >= 0 ? !row.inside && w_y > 0 : (1 - e) * row.beyond > 0;
    if (lost || s.r == -1) return kInf;
    double nll = row.y < 0 ? (1 - e) * (row.t_far + row.t * log) : w_y > 0 ? w_y * (distance(row.at_y, s, beta) + log) : 0;
    if (e > 0) nll += e / row.n * (row.w_far + row.w * log);
    return nll + z_loss_of(s, beta, job);
}

// The gradient to the scores of one row, gain p_k - scale m_k.
//
// At the maximum p_k may be next to 1: there it is scale ((rest - m_k) p_k - m_k (1 - p_k)) with 1 - p_k = r / (1 + r).
struct Slope {
    double gain = 0, scale = 0;
    double rest = 0;  // tau + 2 c lse
    double own = 0, each = 0, lse = 0;  // (1 - e) sum w t, e / n, 2 c lse: the parts of rest
    double p = 0, others_p = 0;  // of a score at the maximum, and of the rest

    Slope(const Row& row, const State& s, Scale beta, double seed, const LossJob& job) {
        if (row.ignored || s.r == -1 || (is_limit(s, beta) && s.r == s.r)) return;  // constant there
        const double e = job.label_smoothing;
        own = (1 - e) * (row.y < 0 ? row.t + row.beyond : row.w_y);
        each = e > 0 ? e / row.n : 0;
        lse = job.z_loss > 0 ? 2 * job.z_loss * finalize(s, beta) : 0;
        rest = own + each * row.w + lse;
        scale = seed;
        gain = s.r == s.r ? seed * rest : kNaN;
        p = 1 / (1 + s.r);
        others_p = (s.r + s.low) / (1 + s.r);
    }
    bool flat() const { return scale == 0 && gain == gain; }  // a row of NaN has a gradient of NaN, whatever comes in
    double mass(double w, double t, double e) const { return w * ((1 - e) * t + each); }
    // rest - m_k, each part without cancellation
    double others(const Row& row, double w, double w_t, double e) const {
        return (own - (1 - e) * w_t) + (each > 0 ? each * (row.w - w) : 0) + lse;
    }
    double at_maximum(const Row& row, double w, double t, double e) const {
        return scale * (others(row, w, w * t, e) * p - mass(w, t, e) * others_p);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
