// The marginals of linear chains, which are the gradients of log Z.
#pragma once

#include "structure/chain.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

// The marginals of one sequence, times its incoming gradient g.
template <class T> class Marginals {
    const Sequence of_;
    const std::int64_t tags_ = of_.tags, pitch_ = whole_packs(tags_);
    const double log_z_ = of_.args.log_z[of_.item], g_ = of_.args.g[of_.item];
    Transitions& from_targets_;  // with sources and targets exchanged
    Step step_{tags_};
    const Numbers<double> z_ = numbers<double>(pitch_), beta_ = numbers<double>(pitch_), row_ = numbers<double>(pitch_);
    const Numbers<double> p_ = numbers<double>(pitch_), b_ = numbers<double>(pitch_);

    // p(y_t = i) g for all i, from alpha and beta.
    void take_marginals(std::int64_t t) {
        const double* const alpha = of_.alpha() + t * tags_;
        for (std::int64_t i = 0; i < tags_; ++i) row_[i] = Step::term(alpha[i], beta_[i]);
        exponentials(row_.get(), tags_, log_z_, p_.get());
        const V g = V::all(g_);
        for (std::int64_t i = 0; i < pitch_; i += kLanes) (g * V::load(p_.get() + i)).store(p_.get() + i);
        T* const to = matrix(of_.args.to_emissions, of_.item, of_.args.length, tags_).template at<T>(t, 0);
        convert(p_.get(), tags_, to);
    }
    // Adds p(y_t = i, y_t+1 = j) g to pairs(j, i), for all i and j.
    void add_pairs(std::int64_t t, double* pairs) {
        const double* const alpha = of_.alpha() + t * tags_;
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
                const double score = Step::term(alpha[i], Step::term(from_targets_.score[j * pitch_ + i], z_[j]));
                if (score > -kInf) pairs[j * pitch_ + i] += g_ * exp_scalar(score - log_z_);
            }
    }

  public:
    Marginals(const Sequence& of, Transitions& from_targets) : of_(of), from_targets_(from_targets) {}

    // Writes the marginals of tags. Calls put(t, pairs) for each step, after its pairs have been added.
    template <class Put> void compute(double* pairs, const Put& put) {
        std::fill_n(beta_.get(), pitch_, 0.0);
        if (log_z_ == -kInf) return;  // there is no path
        for (std::int64_t t = of_.length - 1; t >= 0; --t) {
            if (t < of_.length - 1) {
                std::copy_n(beta_.get(), tags_, z_.get());
                add_emissions(of_, t + 1, row_.get(), z_.get());
                if (!of_.shares_transitions() || t == of_.length - 2)
                    from_targets_.load(of_.transitions(t).transposed());
                step_.compute(z_.get(), from_targets_, beta_.get());
            }
            take_marginals(t);
            if (t == of_.length - 1) continue;
            add_pairs(t, pairs);
            put(t);
        }
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
