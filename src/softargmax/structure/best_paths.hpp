// The best paths of a linear chain: for each position and tag, the k largest scores of the paths that end there.
//
//     value_t(j, 1..k) = emission(t, j) + the k largest of value_t-1(i, r) + T(i, j), over all tags i and ranks r
#pragma once

#include "structure/chain.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

class BestPaths {
    const Sequence of_;
    const std::int64_t tags_ = of_.tags, paths_ = of_.args.paths, length_ = of_.length, each_ = tags_ * paths_;
    // Numbers of one tag are adjacent, from the largest.
    const Numbers<double> value_ = numbers<double>(each_), next_ = numbers<double>(each_);
    const Numbers<double> to_target_ = numbers<double>(tags_ * tags_), row_ = numbers<double>(whole_packs(tags_));
    // For each tag i: the score by its largest number that is not yet taken, and the rank of this number.
    const Numbers<double> candidate_ = numbers<double>(tags_);
    const Numbers<std::int64_t> rank_ = numbers<std::int64_t>(tags_);
    // For each position, tag and rank: the entry (tag * paths + rank) of the previous position from which it comes.
    const Numbers<std::int64_t> from_ = numbers<std::int64_t>(std::max<std::int64_t>(length_, 1) * each_);
    const Numbers<std::int64_t> last_ = numbers<std::int64_t>(paths_);  // the entry at which each path ends

    // The transitions of a step, one row per target.
    void load(std::int64_t t) {
        const Matrix2D step = of_.transitions(t);
        for (std::int64_t i = 0; i < tags_; ++i) {
            step.read(i, 0, tags_, row_.get(), -kInf);
            for (std::int64_t j = 0; j < tags_; ++j) to_target_[j * tags_ + i] = row_[j];
        }
    }
    double score(std::int64_t i, const double* t) const {
        if (rank_[i] == paths_) return -kInf;
        const double z = value_[i * paths_ + rank_[i]];
        return t ? Step::term(z, t[i]) : z;
    }
    // Writes the largest scores over all tags and ranks, and where they come from. Of equal ones it takes the first. t
    // has a score per tag, or is null. If a score is NaN, all results are.
    SOFTARGMAX_CALLED void largest(const double* t, double* to, std::int64_t* from) {
        bool nan = false;
        for (std::int64_t i = 0; i < tags_; ++i) {
            rank_[i] = 0;
            candidate_[i] = score(i, t);
            nan |= candidate_[i] != candidate_[i];
        }
        for (std::int64_t r = 0; r < paths_; ++r) {
            std::int64_t best = 0;
            for (std::int64_t i = 1; i < tags_; ++i) best = candidate_[i] > candidate_[best] ? i : best;
            to[r] = nan ? std::numeric_limits<double>::quiet_NaN() : candidate_[best];
            from[r] = best * paths_ + std::min(rank_[best], paths_ - 1);
            rank_[best] = std::min(rank_[best] + 1, paths_);
            candidate_[best] = score(best, t);
        }
    }

  public:
    explicit BestPaths(const Sequence& of) : of_(of) {}
    SOFTARGMAX_CALLED void compute() {
        double* const scores = of_.args.scores + of_.item * paths_;
        std::int64_t* const best = of_.args.best + of_.item * paths_ * of_.args.length;
        std::fill_n(best, paths_ * of_.args.length, std::int64_t{-1});
        std::fill_n(scores, paths_, -kInf);
        scores[0] = 0;  // of the empty sequence's only path
        if (length_ == 0) return;
        std::fill_n(value_.get(), each_, -kInf);
        for (std::int64_t j = 0; j < tags_; ++j) value_[j * paths_] = 0;
        for (std::int64_t t = 0; t < length_; ++t) {
            if (t > 0) {
                if (t == 1 || !of_.shares_transitions()) load(t - 1);
                for (std::int64_t j = 0; j < tags_; ++j)
                    largest(to_target_.get() + j * tags_, next_.get() + j * paths_,
                            from_.get() + t * each_ + j * paths_);
                std::copy_n(next_.get(), each_, value_.get());
            }
            add_emissions(of_, t, row_.get(), value_.get(), paths_);
        }
        largest(nullptr, scores, last_.get());
        for (std::int64_t r = 0; r < paths_; ++r) {
            if (scores[r] == -kInf || scores[r] != scores[r]) continue;
            std::int64_t at = last_[r];
            for (std::int64_t t = length_ - 1; t >= 0; --t) {
                best[r * of_.args.length + t] = at / paths_;
                if (t > 0) at = from_[t * each_ + at];
            }
        }
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
