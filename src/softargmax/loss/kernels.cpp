// Losses of rows, and their gradients. Compiled once for each instruction set.
//
// A row's blocks are folded into its state; the loss is made of the state and of what the target picks. The gradient is
// the state applied to the blocks, as softmax is, less the target's mass. Classes as targets, without label smoothing and
// soft-cap, need nothing else (`plain`); other losses look at each block once more, in double.
#include "core/native/deal.hpp"
#include "loss/rows.hpp"
#include "loss/softcap.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

template <class T, int Size> struct Rows {
    Group<T, Size>& group;
    const LossJob& job;
    const bool plain;
    Row row[Size];
    const double *w = nullptr, *t = nullptr, *raw = nullptr;  // of the block: weights, target, scores before the soft-cap

    Rows(Group<T, Size>& g, const LossJob& j) : group(g), job(j), plain(is_plain(j)) {
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
    bool holds(int g, std::int64_t block) const { return row[g].y >= group.begin(block) && row[g].y < group.end(block); }

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
            const Softcap cap(job.softcap);
            for (int g = 0; g < group.count; ++g) cap.bend(bent + g * group.pitch, e - b);
        }
    }

    // The sums of one block whose row's maximum is known.
    void look(int g, std::int64_t block) {
        using V = Pack<double>;
        const Scale beta = group.beta(g);
        const State s = group.state[g];
        const V zero = V::all(0), one = V::all(1), m = V::all(s.m), out = V::all(-kInf), hi = V::all(beta.hi), lo = V::all(beta.lo);
        const std::int64_t n = size(block), from = g * group.pitch;
        Sum<double> sums[6];
        for (std::int64_t i = 0; i < n; i += V::kLanes) {
            const V z = V::load_part(group.scores + from + i, n - i, -kInf);
            const auto in = above(z, out);
            V far;
            if (is_limit(s, beta) || std::fabs(s.m) > 1e290) {
                double x[V::kLanes];
                z.store(x);
                for (double& each : x) each = distance(each, s, beta);
                far = V::load(x);
            } else {
                const V d = keep(in, m - z);
                far = fma(d, hi, d * lo);
            }
            const V weight = w ? V::load_part(w + from + i, n - i, 0) : one;
            const auto weighs = above(weight, zero);
            const V both = t ? weight * V::load_part(t + from + i, n - i, 0) : zero, w_in = keep(in, weight), t_in = keep(in, both);
            const auto counts = above(t_in, zero);
            sums[0].add({keep(in, one)});
            sums[1].add({w_in});
            sums[2].add({keep(in, keep(weighs, weight * far))});
            sums[3].add({t_in});
            sums[4].add({keep(counts, t_in * far)});
            sums[5].add({both - t_in});
        }
        double* const to[] = {&row[g].n, &row[g].w, &row[g].w_far, &row[g].t, &row[g].t_far, &row[g].beyond};
        for (int i = 0; i < 6; ++i) *to[i] += sums[i].total().hi;
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
        for (std::int64_t b = 0; b < group.blocks() && !plain; ++b) {
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
            const Slope slope(row[g], group.state[g], group.beta(g), job.seed[(group.first + g) * job.seed_stride] * sign(g), job);
            const T* z = scores(g);
            const std::int64_t n = size(block), y = row[g].y - group.begin(block);
            const bool here = holds(g, block) && slope.gain == slope.gain;  // a row of NaN is one as it is
            const bool top = here && z[y] == static_cast<T>(group.state[g].m), in = here && z[y] > -kInf;
            if constexpr (sizeof(T) == 8)
                if (!plain && !slope.flat()) masses(g, n, here ? y : -1, slope);
            auto to = group.target(g, block, z);
            to.streaming = to.streaming && plain;  // else all of it is read again
            if (slope.flat()) {
                std::fill_n(to.out, n, T{0});
                continue;
            }
            probabilities(g, z, n, here ? y : -1, slope.gain, to);
            if (!plain) subtract(n, to.out);
            else if (top) to.out[y] = static_cast<T>(slope.at_maximum(row[g], row[g].w_y, 1, 0));
            else if (in) to.out[y] = static_cast<T>(static_cast<double>(to.out[y]) - slope.scale * row[g].w_y);
        }
        group.flush(block);
    }
    // d x / d z: beta with the sign it was asked with.
    double sign(int g) const {
        const RowScale& s = group.scale[g];
        return group.beta(g).hi * (s.flat ? 0 : s.negate ? -1 : 1);
    }
    // gain p. The line of y is not written past the caches, as it is read again: that takes 0.95 ms of 4096 x 1024, so 0.4.
    void probabilities(int g, const T* z, std::int64_t n, std::int64_t y, double gain, const Target<T>& to) const {
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
    // scale m_k of a block, the soft-cap's slope (0 outside the support), and what stands at the maximum.
    void masses(int g, std::int64_t n, std::int64_t y, const Slope& slope) {
        double *mass = scratch(kTerms).get<double>(3 * kBlock), *bend = mass + kBlock, *top = bend + kBlock;
        const double e = job.label_smoothing, m = group.state[g].m;
        const std::int64_t from = g * group.pitch;
        const Softcap cap(job.softcap > 0 ? job.softcap : 1);
        for (std::int64_t i = 0; i < n; ++i) {
            const double z = group.scores[from + i], weight = w ? w[from + i] : 1, target = t ? t[from + i] : i == y ? 1 : 0;
            mass[i] = slope.scale * slope.mass(weight, target, e);
            bend[i] = z > -kInf || z != z ? 1 : 0;
            top[i] = z == m ? slope.at_maximum(row[g], weight, target, e) : kNaN;
        }
        using V = Pack<double>;
        for (std::int64_t i = 0; i < n && raw; i += V::kLanes)
            (V::load_part(bend + i, n - i, 0) * cap.slope(V::load_part(raw + from + i, n - i, 0))).store_part(bend + i, n - i);
    }
    void subtract(std::int64_t n, T* out) const {
        const double *mass = scratch(kTerms).get<double>(3 * kBlock), *bend = mass + kBlock, *top = bend + kBlock;
        for (std::int64_t i = 0; i < n; ++i) {
            const double slope = top[i] == top[i] ? top[i] : static_cast<double>(out[i]) - mass[i];
            out[i] = static_cast<T>(bend[i] == 0 ? 0 : slope * bend[i]);
        }
    }

    void run() {
        fold_rows();
        put_losses();
        for (std::int64_t b = 0; b < group.blocks() && job.out; ++b) {
            if (group.blocks() > 1 || (plain && !job.folds)) load(b);
            gradient(b);
        }
    }
};

template <class T> void run_as(const LossJob& job) {
    if (rows_are_adjacent(job, job.z)) each_group<T, kGroup>(Frame<T>(job, kGroup), [&](Group<T, kGroup>& g) { Rows<T, kGroup>(g, job).run(); });
    else each_group<T, 1>(Frame<T>(job, 1), [&](Group<T, 1>& g) { Rows<T, 1>(g, job).run(); });
}

}  // namespace

void run_loss(const LossJob& job) {
    const FloatEnvironment environment;
    if (Rows<double, 1>::is_plain(job) && job.z.type != Type::f64) run_as<float>(job);
    else run_as<double>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
