// Losses of rows, and their gradients. Compiled once for each instruction set.
//
// A row's blocks are folded into its state; the loss is made of the state and of what the target picks. The gradient is
// the state applied to the blocks, as softmax is, less the target's mass. Classes as targets, without label smoothing
// and soft-cap, need nothing else (`plain`). Other losses run in double, since p less a smoothed target cancels, and
// where the target has more than one class they look at each block once more, for its sums.
#include "core/native/deal.hpp"
#include "core/native/softcap.hpp"
#include "loss/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

template <class T, int Size> struct Rows {
    Group<T, Size>& group;
    const LossJob& job;
    const bool plain, looks;  // whether the state and the target's class are all that is needed; whether sums are, too
    Row row[Size];
    // Of the block: weights, target, scores before the soft-cap.
    const double *w = nullptr, *t = nullptr, *raw = nullptr;

    Rows(Group<T, Size>& g, const LossJob& j)
        : group(g), job(j), plain(is_plain(j)), looks(!j.target || j.label_smoothing > 0) {
        for (int i = 0; i < group.count; ++i) {
            if (!job.target) continue;
            row[i].y = job.target[group.first + i];
            row[i].ignored = row[i].y == job.ignore_index;
            if (row[i].ignored) row[i].y = 0;
            else if (job.weight) row[i].w_y = weight_of(row[i].y);
        }
    }
    static bool is_plain(const LossJob& j) { return j.target && j.label_smoothing == 0 && j.softcap == 0; }
    double weight_of(std::int64_t y) const {
        double value = 0;
        with_type(job.weight.type, job.weight.data,
                  [&](auto* base) { value = convert<double>(base[offset_of(y, job.cols, job.weight.col)]); });
        return value;
    }
    std::int64_t size(std::int64_t block) const { return group.end(block) - group.begin(block); }
    const T* scores(int g) const { return group.scores + g * group.pitch; }
    bool holds(int g, std::int64_t block) const {
        return row[g].y >= group.begin(block) && row[g].y < group.end(block);
    }

    void load(std::int64_t block) {
        group.load(block);
        if (plain) return;
        if constexpr (sizeof(T) == 8) {
            const std::int64_t b = group.begin(block), e = group.end(block);
            w = group.load_if_there(job.weight, b, e, kWeights);
            t = group.other;
            if (job.softcap == 0) return;
            T* bent = group.own(group.scores, e - b, kScores);
            T* kept = scratch(kMask).template get<T>(Size * group.pitch);
            std::copy_n(bent, Size * group.pitch, kept);
            raw = kept;
            const Softcap<double> cap(job.softcap);
            for (int g = 0; g < group.count; ++g) {
                double* row_bent = bent + g * group.pitch;
                cap.bend(row_bent, e - b);
                for (std::int64_t i = 0; i < e - b && group.scale[g].flat; ++i)  // beta = 0: infinities are bent, too
                    row_bent[i] = row_bent[i] - row_bent[i] == 0 ? 0 : row_bent[i];
            }
        }
    }

    // The sums of one block whose row's maximum is known.
    void look(int g, std::int64_t block) {
        using V = Pack<double>;
        const State s = group.state[g];
        const Scale beta = group.beta(g);
        // far = kFar beta (m - z): (m - z) may overflow where that does not.
        const double part = beta.hi < 1 || std::fabs(s.m) > 1e290 ? kFar : 1;
        const V top = V::all(s.m), m = V::all(part * s.m), minus_part = V::all(-part);
        const V rest_of_beta = V::all(beta.hi * (kFar / part));
        const V zero = V::all(0), one = V::all(1), out = V::all(-kInf);
        const std::int64_t n = size(block), from = g * group.pitch;
        Count<double> count;
        Sum<double> w_sum, w_far, t_sum, t_far, beyond;
        for (std::int64_t i = 0; i < n; i += V::kLanes) {
            const V z = V::load_part(group.scores + from + i, n - i, -kInf);
            const V weight = w ? V::load_part(w + from + i, n - i, 0) : one;
            const auto in = above(z, out);
            const V far = keep(unless(in, equal(z, top)), fma(z, minus_part, m) * rest_of_beta);  // ties: 0, at inf too
            count.add(in);
            w_far.add({w ? keep(above(weight, zero), weight * far) : far});
            if (w) w_sum.add({keep(in, weight)});
            if (!t) continue;
            const V both = weight * V::load_part(t + from + i, n - i, 0), here = keep(in, both);
            t_sum.add({here});
            t_far.add({keep(above(here, zero), here * far)});
            beyond.add({both - here});
        }
        Row& to = row[g];
        const Twofold rest = std::isinf(beta.hi) ? Twofold{1, 0} : Twofold{1, beta.lo / beta.hi};
        to.n += static_cast<double>(count.total());
        to.w = plus(to.w, w ? w_sum.total() : Twofold{static_cast<double>(count.total()), 0});
        to.w_far = plus(to.w_far, times(w_far.total(), rest));
        to.t = plus(to.t, t_sum.total());
        to.t_far = plus(to.t_far, times(t_far.total(), rest));
        to.beyond = plus(to.beyond, beyond.total());
    }

    // The states, from the scores or as given, and what the formulas need besides.
    void fold_rows() {
        for (int g = 0; g < group.count; ++g) {
            const double* given = job.states + 3 * (group.first + g);
            group.state[g] = job.folds ? State{} : State{given[0], given[1], given[2]};
        }
        for (std::int64_t b = 0; b < group.blocks() && job.folds; ++b) {
            load(b);
            for (int g = 0; g < group.count; ++g) {
                group.state[g] = merge(group.state[g], group.fold_row(g, b), group.beta(g));
                if (holds(g, b)) row[g].at_y = static_cast<double>(scores(g)[row[g].y - group.begin(b)]);
            }
        }
        for (int g = 0; g < group.count; ++g) {
            State& s = group.state[g];
            if (group.scale[g].undefined) s.r = kNaN;
            row[g].inside = row[g].at_y > -kInf;
            if (!job.folds) continue;
            double* kept = job.states + 3 * (group.first + g);
            kept[0] = s.m;
            kept[1] = s.r;
            kept[2] = s.low;
        }
        for (std::int64_t b = 0; b < group.blocks() && looks; ++b) {
            if (group.blocks() > 1 || !job.folds) load(b);
            if constexpr (sizeof(T) == 8)
                for (int g = 0; g < group.count; ++g) look(g, b);
        }
    }

    void put_losses() const {
        for (int g = 0; g < group.count; ++g) {
            const std::int64_t at = group.first + g;
            if (job.loss) job.loss[at] = loss_of(row[g], group.state[g], group.beta(g), job);
            if (job.lse) job.lse[at] = finalize(group.state[g], group.beta(g));
        }
    }

    void gradient(std::int64_t block) {
        for (int g = 0; g < group.count; ++g) {
            const double seed = job.seed[(group.first + g) * job.seed_stride];
            const Slope slope(row[g], group.state[g], group.beta(g), times(beta_to_scores(g), seed), job);
            const T* z = scores(g);
            const std::int64_t n = size(block), y = row[g].y - group.begin(block);
            const bool here = holds(g, block) && slope.gain.hi == slope.gain.hi;  // a row of NaN is one as it is
            const auto to = group.target(g, block, z);
            if (slope.flat()) {
                std::fill_n(to.out, n, T{0});
            } else if (plain) {
                const double at_y = here ? static_cast<double>(z[y]) : -kInf;  // results may go to where the scores are
                probabilities(g, z, n, here ? y : -1, slope.gain, to);
                if (at_y > -kInf)
                    to.out[y] = static_cast<T>(rounded(slope.at(at_y == group.state[g].m, to.out[y], row[g].w_y, 1)));
            } else if constexpr (sizeof(T) == 8) {
                double* p = scratch(kTerms).get<double>(kBlock);
                apply<Log::no>(z, n, group.state[g], group.beta(g), {p, to.next, false}, slope.gain, job.least);
                less_masses(g, n, here ? y : -1, slope, p, to);
            }
        }
        group.flush(block);
    }
    // d x / d z: beta with the sign it was asked with.
    Twofold beta_to_scores(int g) const {
        const RowScale& s = group.scale[g];
        const Scale beta = group.beta(g);
        return times(Twofold{beta.hi, beta.lo}, s.flat ? 0.0 : s.negate ? -1.0 : 1.0);
    }
    // gain p. The line of y is not written past the caches, as it is read again: that takes 0.95 ms of 4096 x 1024, so
    // 0.4.
    void probabilities(int g, const T* z, std::int64_t n, std::int64_t y, Twofold gain, const Target<T>& to) const {
        const std::int64_t line = 64 / sizeof(T);
        const bool cut = to.streaming && y >= 0;
        const std::int64_t near = cut ? y / line * line : n, far = std::min(n, near + line);
        const auto put = [&](std::int64_t from, std::int64_t end, bool streaming) {
            const Target<T> part{to.out + from, to.next.from(from), streaming};
            apply<Log::no>(z + from, end - from, group.state[g], group.beta(g), part, gain, job.least);
        };
        put(0, near, to.streaming);
        if (near == n) return;
        put(near, far, false);
        put(far, n, true);
    }
    // From gain p to the gradient of a block: less the target's masses, times the soft-cap's slope, 0 outside the
    // support.
    void less_masses(int g, std::int64_t n, std::int64_t y, const Slope& slope, const double* p,
                     const Target<double>& to) const {
        using V = Pack<double>;
        const std::int64_t from = g * group.pitch;
        const State& s = group.state[g];
        const V zero = V::all(0), one = V::all(1), m = V::all(s.m), out = V::all(-kInf);
        const Softcap<double> cap(job.softcap > 0 ? job.softcap : 1);
        map(scores(g), p, n, Target<double>{to.out, p, to.streaming},
            [&, i = std::int64_t{0}](V z, V p_k) mutable SOFTARGMAX_LAMBDA {
            const V w_k = w ? V::load_part(w + from + i, n - i, 0) : one;
            const V t_k = t ? V::load_part(t + from + i, n - i, 0) : zero;
            Two<V> d = slope.off_maximum(p_k, w_k, t_k);
            if (any(equal(z, m)) || (i <= y && y < i + V::kLanes)) {
                double lanes[6][V::kLanes];
                const V parts[] = {z, p_k, w_k, t_k, d.hi, d.lo};
                for (int k = 0; k < 6; ++k) parts[k].store(lanes[k]);
                auto& [at, gain_p, w_at, t_at, hi, lo] = lanes;
                for (int k = 0; k < V::kLanes; ++k)
                    if (at[k] == s.m || i + k == y) {
                        const Twofold x = slope.at(at[k] == s.m, gain_p[k], w_at[k], i + k == y ? 1 : t_at[k]);
                        hi[k] = x.hi;
                        lo[k] = x.lo;
                    }
                d = {V::load(hi), V::load(lo)};
            }
            if (raw) {
                const Two<V> bend = cap.slope(V::load_part(raw + from + i, n - i, 0));
                const auto level = equal(bend.hi, zero);  // 0, whatever is multiplied by it
                d = times(d, bend);
                d = {keep(unless(equal(zero, zero), level), d.hi), keep(unless(equal(zero, zero), level), d.lo)};
            }
            i += V::kLanes;
            return keep(above(z, out), d.hi + d.lo);
        });
    }

    void run() {
        fold_rows();
        put_losses();
        for (std::int64_t b = 0; b < group.blocks() && job.out; ++b) {
            if (group.blocks() > 1 || !(looks || job.folds)) load(b);
            gradient(b);
        }
    }
};

template <class T> void run_as(const LossJob& job) {
    if (rows_are_adjacent(job, job.z))
        each_group<T, kGroup>(Frame<T>(job, kGroup), [&](Group<T, kGroup>& g) { Rows<T, kGroup>(g, job).run(); });
    else each_group<T, 1>(Frame<T>(job, 1), [&](Group<T, 1>& g) { Rows<T, 1>(g, job).run(); });
}

}  // namespace

void run_loss(const LossJob& job) {
    const FloatEnvironment environment;
    if (Rows<double, 1>::is_plain(job) && job.z.type != Type::f64) run_as<float>(job);
    else run_as<double>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
