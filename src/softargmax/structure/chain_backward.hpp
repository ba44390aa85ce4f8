// The marginals of linear chains, which are the gradients of log Z.
//
//     p(y_t = i, y_t+1 = j) = e^(alpha_t(i) + T(i, j) + emission(t+1, j) + beta_t+1(j) - log Z)
//
// If log Z is +inf, this is inf - inf. Then each tag shares its probability among the tags before it, as a softmax of
// alpha_t(i) + T(i, j) does, and a softmax shares 1 among infinite scores.
#pragma once

#include "structure/chain.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

// Writes the softmax of n terms, times `mass`. It shares 1 among infinite terms.
inline void share(const double* terms, std::int64_t n, double mass, double* p) {
    const double sum = log_sum(terms, n), infinite = static_cast<double>(std::count(terms, terms + n, kInf));
    for (std::int64_t i = 0; i < n; ++i) {
        if (sum == kInf) p[i] = terms[i] == kInf ? mass / infinite : 0;
        else p[i] = terms[i] == -kInf ? 0 : mass * exp_scalar(terms[i] - sum);
    }
}

// The marginals of one sequence, times its incoming gradient g.
class Marginals {
    const Sequence of_;
    const std::int64_t tags_ = of_.tags, pitch_ = whole_packs(tags_), last_ = of_.length - 1;
    const double log_z_ = of_.args.log_z[of_.item], g_ = of_.args.g[of_.item];
    Transitions& from_targets_;  // with sources and targets exchanged
    Step step_{tags_};
    const Numbers<double> z_ = numbers<double>(pitch_), beta_ = numbers<double>(pitch_), row_ = numbers<double>(pitch_);
    const Numbers<double> p_ = numbers<double>(pitch_);  // p(y_t = i) g

    const double* alpha(std::int64_t t) const { return of_.alpha() + t * tags_; }
    void load_transitions(std::int64_t t) {
        if (!of_.shares_transitions() || t == last_ - 1) from_targets_.load(of_.transitions(t).transposed());
    }
    // beta of position t, from that of t + 1.
    void step_back(std::int64_t t) {
        std::copy_n(beta_.get(), tags_, z_.get());
        add_emissions(of_, t + 1, row_.get(), z_.get());
        step_.compute(z_.get(), from_targets_, beta_.get());
    }
    void take_marginals(std::int64_t t) {
        for (std::int64_t i = 0; i < tags_; ++i) row_[i] = Step::term(alpha(t)[i], beta_[i]);
        exponentials(row_.get(), tags_, log_z_, p_.get());
        const V g = V::all(g_);
        for (std::int64_t i = 0; i < pitch_; i += kLanes) (g * V::load(p_.get() + i)).store(p_.get() + i);
    }
    // Adds p(y_t = i, y_t+1 = j) g to pairs(j, i), for all i and j.
    void add_pairs(std::int64_t t, double* pairs) {
        std::fill(row_.get() + tags_, row_.get() + pitch_, 0.0);
        for (std::int64_t i = 0; i < tags_; ++i) row_[i] = step_.usable(i) ? p_[i] / step_.sum(i) : 0;
        const double* const b = step_.exponentials_of_z();
        for (std::int64_t j = 0; j < tags_; ++j)
            for (std::int64_t i = 0; i < pitch_; i += kLanes) {
                double* const to = pairs + j * pitch_ + i;
                const V share = V::load(row_.get() + i) * V::load(from_targets_.factor.get() + j * pitch_ + i);
                fma(share, V::all(b[j]), V::load(to)).store(to);
            }
        for (std::int64_t i = 0; i < tags_; ++i)
            for (std::int64_t j = 0; !step_.usable(i) && j < tags_; ++j) {
                const double score = Step::term(alpha(t)[i], Step::term(from_targets_.score[j * pitch_ + i], z_[j]));
                if (score > -kInf) pairs[j * pitch_ + i] += g_ * exp_scalar(score - log_z_);
            }
    }
    // Shares p(y_t+1 = j) g among the tags i at t, and adds the shares to pairs(j, i).
    void share_pairs(std::int64_t t, double* pairs) {
        std::fill_n(beta_.get(), tags_, 0.0);
        for (std::int64_t j = 0; j < tags_; ++j) {
            for (std::int64_t i = 0; i < tags_; ++i)
                z_[i] = Step::term(alpha(t)[i], from_targets_.score[j * pitch_ + i]);
            share(z_.get(), tags_, p_[j], row_.get());
            for (std::int64_t i = 0; i < tags_; ++i) {
                pairs[j * pitch_ + i] += row_[i];
                beta_[i] += row_[i];
            }
        }
        std::copy_n(beta_.get(), tags_, p_.get());
    }

  public:
    Marginals(const Sequence& of, Transitions& from_targets) : of_(of), from_targets_(from_targets) {
        std::fill_n(beta_.get(), pitch_, 0.0);
    }

    // Computes the marginals of position t, from those of t + 1. Adds p(y_t = i, y_t+1 = j) g to pairs(j, i).
    SOFTARGMAX_CALLED const double* at(std::int64_t t, double* pairs) {
        const bool is_last = t == last_;
        if (!is_last) load_transitions(t);
        if (log_z_ == kInf) {
            if (is_last) share(alpha(t), tags_, g_, p_.get());
            else share_pairs(t, pairs);
            return p_.get();
        }
        if (!is_last) step_back(t);
        take_marginals(t);
        if (!is_last) add_pairs(t, pairs);
        return p_.get();
    }
};

// Adds pairs(j, i) to `to`, of which element (i, j) is the probability of source i and target j, and clears them.
template <class T> void move_pairs(double* pairs, std::int64_t tags, T* to) {
    const std::int64_t pitch = whole_packs(tags);
    for (std::int64_t i = 0; i < tags; ++i)
        for (std::int64_t j = 0; j < tags; ++j)
            to[i * tags + j] = static_cast<T>(static_cast<double>(to[i * tags + j]) + pairs[j * pitch + i]);
    std::fill_n(pairs, tags * pitch, 0.0);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
