// Losses of rows, and their gradients. This file is compiled once for each instruction set.
//
// The blocks of a row are folded into the state of the row. The loss is computed from the state and the score of the
// target. The gradient is the softmax of the blocks minus the target. These two passes are enough for a `plain` loss,
// which has classes as targets and neither label smoothing nor a soft-cap. All other losses are computed in double,
// because p minus a smoothed target cancels. If the target has more than one class, an extra pass over the blocks
// computes its sums.
#include <memory>

#include "core/cpp/parallel_rows.hpp"
#include "loss/last_layer.hpp"
#include "loss/loss_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::loss {
namespace {

bool is_plain(const Args& args) { return args.target && args.label_smoothing == 0 && args.softcap == 0; }

double weight_of(const Args& args, std::int64_t row, std::int64_t y) {
    double value = 0;
    const std::int64_t at = offset_of(row, args.rows, args.weight.row) + offset_of(y, args.cols, args.weight.col);
    with_real_type(args.weight.type, args.weight.data, [&](auto* base) { value = convert<double>(base[at]); });
    return value;
}

// A block of a row, for a loss that is not plain: the scores z, and if present the class weights w, the target
// probabilities t, and the scores before the soft-cap (raw).
struct Strip {
    const double *z, *w, *t, *raw;
    std::int64_t n;
};

// Returns the sums of one block. `s` must contain the maximum of the whole row.
Sums look(const Strip& x, const State& s, Scale beta) {
    using V = Pack<double>;
    // far = kFar beta (m - z), computed so that m - z cannot overflow.
    const double part = beta.hi < 1 || std::fabs(s.m) > 1e290 ? kFar : 1;
    const V top = V::all(s.m), m = V::all(part * s.m), minus_part = V::all(-part);
    const V rest_of_beta = V::all(beta.hi * (kFar / part));
    const V zero = V::all(0), one = V::all(1), out = V::all(-kInf);
    Count<double> count;
    Sum<double> w_sum, w_far, t_sum, t_far, beyond;
    for (std::int64_t i = 0; i < x.n; i += V::kLanes) {
        const V z = V::load_part(x.z + i, x.n - i, -kInf);
        const V weight = x.w ? V::load_part(x.w + i, x.n - i, 0) : one;
        const auto in = above(z, out);
        // far is 0 at the maximum, even if the maximum is infinite.
        const V far = keep(unless(in, equal(z, top)), fma(z, minus_part, m) * rest_of_beta);
        count.add(in);
        w_far.add({x.w ? keep(above(weight, zero), weight * far) : far});
        if (x.w) w_sum.add({keep(in, weight)});
        if (!x.t) continue;
        const V both = weight * V::load_part(x.t + i, x.n - i, 0), here = keep(in, both);
        t_sum.add({here});
        t_far.add({keep(above(here, zero), here * far)});
        beyond.add({both - here});
    }
    const Twofold rest = std::isinf(beta.hi) ? Twofold{1, 0} : Twofold{1, beta.lo / beta.hi};
    const double n_in = static_cast<double>(count.total());
    return {n_in,
            x.w ? w_sum.total() : Twofold{n_in, 0},
            times(w_far.total(), rest),
            t_sum.total(),
            times(t_far.total(), rest),
            beyond.total()};
}

// Computes the gradient of a block from `p`, which contains gain p_k (see Slope): subtracts scale m_k, multiplies by
// the slope of the soft-cap, and writes 0 outside the support.
void less_masses(const Strip& x, std::int64_t y, const State& s, const Slope& slope, double softcap, const double* p,
                 const Target<double>& to) {
    using V = Pack<double>;
    const V zero = V::all(0), one = V::all(1), m = V::all(s.m), out = V::all(-kInf);
    const Softcap<double> cap(softcap > 0 ? softcap : 1);
    map(x.z, p, x.n, Target<double>{to.out, p, to.streaming},
        [&, i = std::int64_t{0}](V z, V p_k) SOFTARGMAX_MUTABLE_LAMBDA {
        const V w_k = x.w ? V::load_part(x.w + i, x.n - i, 0) : one;
        const V t_k = x.t ? V::load_part(x.t + i, x.n - i, 0) : zero;
        Two<V> d = slope.off_maximum(p_k, w_k, t_k);
        if (any(equal(z, m)) || (i <= y && y < i + V::kLanes)) {
            double lanes[6][V::kLanes];
            const V parts[] = {z, p_k, w_k, t_k, d.hi, d.lo};
            for (int k = 0; k < 6; ++k) parts[k].store(lanes[k]);
            auto& [at, gain_p, w_at, t_at, hi, lo] = lanes;
            for (int k = 0; k < V::kLanes; ++k)
                if (at[k] == s.m || i + k == y) {
                    const Twofold d_k = slope.at(at[k] == s.m, gain_p[k], w_at[k], i + k == y ? 1 : t_at[k]);
                    hi[k] = d_k.hi;
                    lo[k] = d_k.lo;
                }
            d = {V::load(hi), V::load(lo)};
        }
        if (x.raw) {
            const Two<V> bend = cap.slope(V::load_part(x.raw + i, x.n - i, 0));
            const auto level = equal(bend.hi, zero);  // a slope of 0 gives 0, even times inf or NaN
            d = times(d, bend);
            d = {keep(unless(equal(zero, zero), level), d.hi), keep(unless(equal(zero, zero), level), d.lo)};
        }
        i += V::kLanes;
        return keep(above(z, out), d.hi + d.lo);
    });
}

// A group of rows, with the class weights, targets and scores that a loss reads.
template <class T, int Size> struct Group : GroupOf<Args, T, Size> {
    using Base = GroupOf<Args, T, Size>;
    using Base::args, Base::begin, Base::end, Base::first, Base::pitch, Base::scale, Base::scores;
    const bool plain = is_plain(args);
    // The class weights, targets and raw scores of the loaded block, as in Strip.
    const double *w = nullptr, *t = nullptr, *raw = nullptr;

    using Base::Base;
    std::int64_t size(std::int64_t block) const { return end(block) - begin(block); }
    const T* row(int g) const { return scores + g * pitch; }
    bool holds(std::int64_t y, std::int64_t block) const { return y >= begin(block) && y < end(block); }

    void load(std::int64_t block) {
        Base::load(block);
        if (plain) return;
        if constexpr (sizeof(T) == 8) {
            const std::int64_t b = begin(block), e = end(block);
            w = this->load_if_there(args.weight, b, e, kWeights);
            t = this->other;
            if (args.softcap == 0) return;
            T* bent = this->own(scores, e - b, kScores);
            T* kept = scratch(kMask).template get<T>(Size * pitch);
            std::copy_n(bent, Size * pitch, kept);
            raw = kept;
            const Softcap<double> cap(args.softcap);
            for (int g = 0; g < this->count; ++g) {
                double* row_bent = bent + g * pitch;
                cap.bend(row_bent, e - b);
                // At beta = 0, every score that is finite after the soft-cap counts as 0. This includes infinite scores
                // that the soft-cap has made finite.
                for (std::int64_t i = 0; i < e - b && scale[g].flat; ++i)
                    row_bent[i] = row_bent[i] - row_bent[i] == 0 ? 0 : row_bent[i];
            }
        }
    }

    // Sets the values of a row that are known before its scores are read.
    void start(int g, Row& to) const {
        if (args.given) {
            const double* given = args.given + 3 * (first + g);
            to.state = {given[0], given[1], given[2]};
        }
        if (!args.target) return;
        to.y = args.target[first + g];
        to.ignored = to.y == args.ignore_index;
        if (to.ignored) to.y = 0;
        else if (args.weight) to.w_y = weight_of(args, first + g, to.y);
    }
    // The state of one block of a row, and the score of the target class if the block contains it.
    struct Piece {
        State state;
        bool holds = false;
        double at_y = 0;
    };
    Piece fold(std::int64_t block, int g, std::int64_t y) const {
        Piece piece{this->fold_row(g, block)};
        piece.holds = holds(y, block);
        if (piece.holds) piece.at_y = static_cast<double>(row(g)[y - begin(block)]);
        return piece;
    }
    void finish(int g, Row& to) const {
        State& s = to.state;
        if (scale[g].undefined) s.r = kNaN;
        to.inside = to.at_y > -kInf;
        if (!args.states) return;
        double* kept = args.states + 3 * (first + g);
        kept[0] = s.m;
        kept[1] = s.r;
        kept[2] = s.low;
    }
    void put(int g, const Row& of) const {
        if (args.losses) args.losses[first + g] = loss_of(of, this->beta(g), args);
    }

    // Returns a block of one row.
    Strip strip(std::int64_t block, int g) const {
        const auto part = [&](const double* x) { return x ? x + g * pitch : nullptr; };
        return {scores + g * pitch, part(w), part(t), part(raw), size(block)};
    }

    void gradient(std::int64_t block, const Row* rows) {
        for (int g = 0; g < this->count; ++g) {
            const Row& of = rows[g];
            const double seed = args.seed_of(first + g);
            const Slope slope(of, this->beta(g), times(beta_to_scores(g), seed), args);
            const T* z = row(g);
            const std::int64_t n = size(block), y = of.y - begin(block);
            // In a row with NaN, the whole gradient is NaN, so class y needs no special treatment.
            const bool here = holds(of.y, block) && slope.gain.hi == slope.gain.hi;
            const auto to = this->target(g, block, z);
            if (slope.flat()) {
                std::fill_n(to.out, n, T{0});
            } else if (plain) {
                // Read the score of y now, because the gradient may overwrite the scores.
                const double at_y = here ? static_cast<double>(z[y]) : -kInf;
                probabilities(g, n, here ? y : -1, of.state, slope.gain, to);
                if (at_y > -kInf)
                    to.out[y] = static_cast<T>(rounded(slope.at(at_y == of.state.m, to.out[y], of.w_y, 1)));
            } else if constexpr (sizeof(T) == 8) {
                double* p = scratch(kTerms).get<double>(kBlock);
                apply<Log::no>(z, n, of.state, this->beta(g), {p, to.next, false}, slope.gain, args.least);
                less_masses(strip(block, g), here ? y : -1, of.state, slope, args.softcap, p, to);
            }
        }
        this->flush(block);
    }
    // Returns d x / d z: beta with its sign.
    Twofold beta_to_scores(int g) const {
        const RowScale& s = scale[g];
        const Scale beta = this->beta(g);
        return times(Twofold{beta.hi, beta.lo}, s.flat ? 0.0 : s.negate ? -1.0 : 1.0);
    }
    // Writes gain p. The cache line that contains class y is read again soon, so it is not written with streaming
    // stores. A gradient of 4096 x 1024 takes 0.4 ms this way, and 0.95 ms if all stores are streaming.
    void probabilities(int g, std::int64_t n, std::int64_t y, const State& s, Twofold gain, const Target<T>& to) const {
        const T* z = row(g);
        const std::int64_t line = 64 / sizeof(T);
        const bool cut = to.streaming && y >= 0;
        const std::int64_t near = cut ? y / line * line : n, far = std::min(n, near + line);
        const auto put = [&](std::int64_t from, std::int64_t end, bool streaming) {
            const Target<T> part{to.out + from, to.next.from(from), streaming};
            apply<Log::no>(z + from, end - from, s, this->beta(g), part, gain, args.least);
        };
        put(0, near, to.streaming);
        if (near == n) return;
        put(near, far, false);
        put(far, n, true);
    }
};

template <class T, int Size> void run_groups(const Args& args) {
    const FrameOf<Args, T> frame(args, Size);
    fold_rows<Row, Group<T, Size>>(frame, few_long_rows(frame), [&](auto& rows) {
        rows.each([](const auto& group, int g, Row& row) { group.start(g, row); });
        if (!args.given)
            rows.fold([](const auto& group, std::int64_t block, int g, const Row& row) {
                return group.fold(block, g, row.y);
            }, [](const auto& group, int g, Row& row, const auto& piece) {
                row.state = merge(row.state, piece.state, group.beta(g)).state;
                if (piece.holds) row.at_y = piece.at_y;
            });
        rows.each([](const auto& group, int g, Row& row) { group.finish(g, row); });
        if constexpr (sizeof(T) == 8)
            if (!args.target || args.label_smoothing > 0)
                rows.fold([](const auto& group, std::int64_t block, int g, const Row& row) {
                    return look(group.strip(block, g), row.state, group.beta(g));
                }, [](const auto&, int, Row& row, const Sums& piece) { row.add(piece); });
        rows.each([](const auto& group, int g, const Row& row) { group.put(g, row); });
        if (args.out) rows.apply([](auto& group, std::int64_t block, const Row* all) { group.gradient(block, all); });
    });
}
template <class T> void run_as(const Args& args) {
    if (rows_are_adjacent(args, args.z)) run_groups<T, kGroup>(args);
    else run_groups<T, 1>(args);
}

// Returns the number that divides the sum of the losses of the rows [begin, end): their total weight for a mean, or 1
// for a sum. If the total weight is 0 it returns infinity, so that the mean is 0.
double together(const Args& args, std::int64_t begin, std::int64_t end) {
    if (!args.mean) return 1;
    std::int64_t counted = end - begin;
    Twofold weights{};
    for (std::int64_t i = begin; i < end && args.target; ++i)
        if (args.target[i] == args.ignore_index) --counted;
        else if (args.weight) weights = plus(weights, Twofold{weight_of(args, i, args.target[i]), 0});
    const double count = args.target && args.weight ? rounded(weights) : static_cast<double>(counted);
    return count == 0 ? kInf : count;
}
double sum_of_losses(const Args& args, std::int64_t begin, std::int64_t end) {
    using V = Pack<double>;
    Sum<double> sum;
    for (std::int64_t i = begin; i < end; i += V::kLanes) sum.add({V::load_part(args.losses + i, end - i, 0)});
    const double found = rounded(sum.total());
    if (found - found == 0) return found;
    double plain = 0;  // for losses that are not all finite, a plain sum is enough
    for (std::int64_t i = begin; i < end; ++i) plain += args.losses[i];
    return plain;
}
void reduce(const Args& args) {
    with_real_type(args.loss.type, args.loss.data, [&](auto* loss) {
        using S = std::remove_reference_t<decltype(*loss)>;
        for (std::int64_t group = 0; group < args.loss.count; ++group) {
            const std::int64_t begin = group * args.each, end = begin + args.each;
            const double found = sum_of_losses(args, begin, end) / together(args, begin, end);
            if constexpr (!std::is_same_v<S, std::uint8_t>) loss[group] = convert<S>(found);
        }
    });
}

// Memory for the loss of each row, and the factor of the gradient of each row or group of rows.
struct RowNumbers {
    std::unique_ptr<double[]> losses, seeds;
    explicit RowNumbers(Args& args, bool gradients) {
        const std::int64_t rows = args.rows.total, groups = args.loss ? args.loss.count : rows;
        const std::int64_t count = args.g ? args.g.count : groups;
        args.each = rows / groups;
        args.each_of_seed = rows / count;
        if (args.loss) losses.reset(new double[static_cast<std::size_t>(rows)]());
        if (gradients) seeds.reset(new double[static_cast<std::size_t>(count)]);
        for (std::int64_t k = 0; gradients && k < count; ++k) {
            const double g = args.g ? reinterpret_cast<const double*>(args.g.data)[k] : 1;
            seeds[k] = g / together(args, k * args.each_of_seed, (k + 1) * args.each_of_seed);
        }
        args.losses = losses.get();
        args.seeds = seeds.get();
    }
};
void run_rows(const Args& args) {
    if (is_plain(args) && args.z.type != Type::f64) run_as<float>(args);
    else run_as<double>(args);
}

// Returns the arguments for a part of the rows, whose scores are in `z`. All pointers move to the first row of the
// part, except that of a seed which all rows share.
Args part_of(const LinearArgs& args, std::int64_t begin, std::int64_t end, char* z) {
    Args part = args;
    const auto move = [&](Operand& x) {
        if (x) x.data += begin * x.row[0] * kTypeBytes[static_cast<int>(x.type)];
    };
    for (Operand* x : {&part.other, &part.where, &part.hi, &part.lo, &part.weight}) move(*x);
    part.rows.size[0] = part.rows.total = end - begin;
    part.z.data = z;
    if (part.target) part.target += begin;
    if (part.losses) part.losses += begin;
    if (part.each_of_seed == 1) part.seeds += begin;
    else part.each_of_seed = end - begin;
    if ((end - begin) * part.cols.total < kParallel) part.threads = 1;
    return part;
}
template <class T> void linear_as(LinearArgs& args) {
    const bool gradients = args.dh || args.dw || args.db;
    const RowNumbers numbers(args, gradients);
    LastLayer<T> layer(args);
    T* const z = reinterpret_cast<T*>(args.z.data);
    for (std::int64_t begin = 0; begin < args.rows.total; begin += args.rows_at_once) {
        const std::int64_t end = std::min(begin + args.rows_at_once, args.rows.total);
        layer.scores(begin, end, z);
        Args part = part_of(args, begin, end, args.z.data);
        if (gradients) {
            layer.finite_layer(end - begin, z);
            part.out = part.z;
        }
        run_rows(part);
        if (gradients) layer.add_gradients(begin, end, z);
    }
    if (args.loss) reduce(args);
}

}  // namespace

void run(Args& args) {
    const FloatEnvironment environment;
    const RowNumbers numbers(args, static_cast<bool>(args.out));
    run_rows(args);
    if (args.loss) reduce(args);
}

void run_linear(LinearArgs& args) {
    const FloatEnvironment environment;
    if (args.z.type == Type::f64) linear_as<double>(args);
    else linear_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::loss
