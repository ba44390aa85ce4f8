// Linear chains: the sum over all paths of tags of e^score, with the score sum_t emission(t, y_t) + sum_t T(y_t,
// y_t+1).
//
//     alpha_t(j) = emission(t, j) + log sum_i e^(alpha_t-1(i) + T(i, j))      log Z = log sum_j e^alpha_last(j)
//     beta_t(i) = log sum_j e^(T(i, j) + emission(t+1, j) + beta_t+1(j))      p(y_t = i) = e^(alpha_t(i) + beta_t(i) -
//     log Z)
//
// Each step is a product of a vector and a matrix of exponentials in float64. The vector's exponentials are relative to
// its largest number, those of the matrix to the largest of a column (in beta's step: of a row). If a sum is so small
// that products may have underflowed, it is computed again from the logarithms.
#pragma once

#include "structure/exponentials.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

constexpr double kLeastSum = 0x1p-600;

// log sum e^z.
inline double log_sum(const double* z, std::int64_t n) {
    State all;
    for (std::int64_t i = 0; i < n; i += kBlock)
        all = merge(all, fold(z + i, std::min(kBlock, n - i), Scale{}, Next(z)), Scale{}).state;
    return finalize(all, Scale{});
}

// e^(z - m), and 0 for scores that are smaller than m by 700 or more.
SOFTARGMAX_INLINE V exponential(V z, V m) {
    const Parts<V> x = parts_of(z - m, Scale{});
    return keep(above(z, m - V::all(700)), x.e * power_of_two(x.k + V::all(magic_of<double>(0))));
}
// e^(z - m) for n numbers, padded with zeros.
inline void exponentials(const double* z, std::int64_t n, double m, double* to) {
    for (std::int64_t i = 0; i < n; i += kLanes)
        exponential(V::load_part(z + i, n - i, -kInf), V::all(m)).store(to + i);
}

// The transitions T of one step, and their exponentials relative to the largest number of each target's column.
// If `backwards`, sources and targets are exchanged.
struct Transitions {
    const std::int64_t tags, pitch = whole_packs(tags);
    const Numbers<double> score = numbers<double>(tags * pitch), factor = numbers<double>(tags * pitch);
    const Numbers<double> top = numbers<double>(pitch);  // of each target

    explicit Transitions(std::int64_t count) : tags(count) {}
    void load(const Matrix2D& t) {
        std::fill_n(top.get(), pitch, -kInf);
        for (std::int64_t i = 0; i < tags; ++i) {
            t.read(i, 0, tags, score.get() + i * pitch, -kInf);
            for (std::int64_t j = 0; j < pitch; j += kLanes)
                max(V::load(score.get() + i * pitch + j), V::load(top.get() + j)).store(top.get() + j);
        }
        for (std::int64_t i = 0; i < tags; ++i)
            for (std::int64_t j = 0; j < pitch; j += kLanes) {
                const V v = V::load(score.get() + i * pitch + j);
                exponential(v, V::load(top.get() + j)).store(factor.get() + i * pitch + j);
            }
    }
};

// One step for all targets: log sum_i e^(z_i + T(i, j)) to `to`, and the sums of exponentials to `sums`.
class Step {
    const std::int64_t tags_, pitch_ = whole_packs(tags_);
    const Numbers<double> a_ = numbers<double>(pitch_), terms_ = numbers<double>(pitch_);
    const Numbers<double> sums_ = numbers<double>(pitch_);
    double m_ = 0;

    template <int packs> void multiply(const Transitions& t, std::int64_t j) {
        V sum[packs];
        for (auto& s : sum) s = V::all(0);
        for (std::int64_t i = 0; i < tags_; ++i) {
            const V x = V::all(a_[i]);
#pragma GCC unroll 4
            for (int k = 0; k < packs; ++k)
                sum[k] = fma(x, V::load(t.factor.get() + i * t.pitch + j + k * kLanes), sum[k]);
        }
        for (int k = 0; k < packs; ++k) sum[k].store(sums_.get() + j + k * kLanes);
    }

  public:
    explicit Step(std::int64_t tags) : tags_(tags) {}
    const double* exponentials_of_z() const { return a_.get(); }
    double sum(std::int64_t j) const { return sums_[j]; }
    bool usable(std::int64_t j) const { return sums_[j] >= kLeastSum && sums_[j] < kInf; }

    void compute(const double* z, const Transitions& t, double* to) {
        m_ = maximum(z, tags_);
        exponentials(z, tags_, m_, a_.get());
        std::int64_t j = 0;
        for (; j + 4 * kLanes <= pitch_; j += 4 * kLanes) multiply<4>(t, j);
        for (; j < pitch_; j += kLanes) multiply<1>(t, j);
        for (j = 0; j < pitch_; j += kLanes) {
            const V log = log_of<kLogTerms<double>>(Two<V>{V::load(sums_.get() + j), V::all(0)});
            ((V::all(m_) + V::load(t.top.get() + j)) + log).store_part(to + j, tags_ - j);
        }
        for (j = 0; j < tags_; ++j)
            if (!usable(j)) to[j] = by_logarithms(z, t, j);
    }
    double by_logarithms(const double* z, const Transitions& t, std::int64_t j) {
        for (std::int64_t i = 0; i < tags_; ++i) terms_[i] = term(z[i], t.score[i * t.pitch + j]);
        return log_sum(terms_.get(), tags_);
    }
    static double term(double z, double t) { return z == -kInf || t == -kInf ? -kInf : z + t; }
};

// The arrays of one sequence.
struct Sequence {
    const ChainArgs& args;
    std::int64_t item;
    const std::int64_t length = args.lengths[item], tags = args.tags;
    const Matrix2D emissions = matrix(args.emissions, item, args.length, args.tags);
    // The transitions from position t to position t + 1.
    Matrix2D transitions(std::int64_t t) const {
        const std::int64_t of = args.transition_items == 1 ? 0 : item, step = args.transition_steps == 1 ? 0 : t;
        return matrix(args.transitions, of * args.transition_steps + step, tags, tags);
    }
    bool shares_transitions() const { return args.transition_steps == 1; }
    double* alpha() const { return args.alpha + item * args.length * tags; }
};

// Adds the emissions of a position to `to`, which has `each` numbers per tag, with `start` and `end`. A sum with -inf
// is -inf.
inline void add_emissions(const Sequence& of, std::int64_t t, double* row, double* to, std::int64_t each = 1) {
    const auto add = [&](const double* scores) {
        for (std::int64_t j = 0; j < of.tags; ++j)
            for (std::int64_t r = 0; r < each; ++r) to[j * each + r] = Step::term(to[j * each + r], scores[j]);
    };
    of.emissions.read(t, 0, of.tags, row, -kInf);
    add(row);
    if (t == 0) add(of.args.start);
    if (t == of.length - 1) add(of.args.end);
}

// Computes alpha and log Z of one sequence. The empty sequence has one path, with score 0.
inline void forward(const Sequence& of, Transitions& transitions) {
    const std::int64_t tags = of.tags;
    Step step(tags);
    const auto row = numbers<double>(whole_packs(tags));
    double* alpha = of.alpha();
    std::fill_n(alpha, of.args.length * tags, -kInf);
    for (std::int64_t t = 0; t < of.length; ++t, alpha += tags) {
        if (t == 0) {
            std::fill_n(alpha, tags, 0.0);
        } else {
            if (!of.shares_transitions() || t == 1) transitions.load(of.transitions(t - 1));
            step.compute(alpha - tags, transitions, alpha);
        }
        add_emissions(of, t, row.get(), alpha);
    }
    of.args.log_z[of.item] = of.length ? log_sum(alpha - tags, tags) : 0;
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
