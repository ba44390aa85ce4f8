// The losses of rows and their gradients: formulas, then the passes over blocks.
//
// The formulas are those of docs/design.md:
//
//     loss = -sum m_k log p_k + c lse^2        d loss / d x_k = (tau + 2 c lse) p_k - m_k
//     m_k = w_k ((1 - e) t_k + e / n)          tau = sum m_k
//
// n is the number of scores in the support. All sums run over the support, except that tau also includes m_k outside
// the support. A positive m_k outside the support makes the loss +inf.
#pragma once

#include "core/cpp/parallel_rows.hpp"
#include "loss/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::loss {

// The sums for targets with more than one class. `far` is beta (m - z_k). The sums of `far` are scaled by kFar = 2^-64,
// because they may overflow even if the weighted mean of `far` does not.
constexpr double kFar = 0x1p-64;
struct Sums {
    double n = 0;  // number of scores in the support
    Twofold w{}, w_far{};  // sum w_k, kFar sum w_k far
    Twofold t{}, t_far{};  // sum w_k t_k, kFar sum w_k t_k far
    Twofold beyond{};  // sum w_k t_k outside the support
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
    double at_y = 0;  // the score of y
    double w_y = 1;
};

inline bool is_limit(const State& s, Scale beta) { return std::isinf(s.m) || std::isinf(beta.hi); }

// Returns beta (m - z). If m or beta is infinite, only scores equal to m have a probability above 0. The distance is
// then 0 for these scores and infinite for all others.
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

// ---- passes over rows -----------------------------------------------------------------------------------------
//
// The first pass folds the blocks of a row into the state of the row. The loss is computed from the state and the score
// of the target. The second pass computes the gradient: the softmax of the blocks minus the target. These two passes
// are enough for a `plain` loss, which has classes as targets and neither label smoothing nor a soft-cap. All other
// losses are computed in double, because p minus a smoothed target cancels. If the target has more than one class, as
// with label smoothing, an extra pass over the blocks computes `Sums`.

inline bool is_plain(const Args& args) { return args.target && args.label_smoothing == 0 && args.softcap == 0; }

// Returns the weight of a row's class y. If rows are spread over processes, another process may have it.
inline double weight_of(const Args& args, std::int64_t row, std::int64_t y) {
    if (args.weights_of_targets) return args.weights_of_targets[row];
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
inline Sums look(const Strip& x, const State& s, Scale beta) {
    using V = Pack<double>;
    // Here `far` is kFar beta (m - z): kFar times the `far` of `Sums`. It is computed so that m - z cannot overflow.
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
inline void less_masses(const Strip& x, std::int64_t y, const State& s, const Slope& slope, double softcap,
                        const double* p, const Target<double>& to) {
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
    const std::int64_t first_class = args.shards.first();
    // The class weights, targets and raw scores of the loaded block, as in Strip.
    const double *w = nullptr, *t = nullptr, *raw = nullptr;

    using Base::Base;
    std::int64_t size(std::int64_t block) const { return end(block) - begin(block); }
    const T* row(int g) const { return scores + g * pitch; }
    // The place of class y in a block. It may be outside of the block.
    std::int64_t place(std::int64_t y, std::int64_t block) const { return y - first_class - begin(block); }
    bool holds(std::int64_t y, std::int64_t block) const {
        return place(y, block) >= 0 && place(y, block) < size(block);
    }

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
        if (piece.holds) piece.at_y = static_cast<double>(row(g)[place(y, block)]);
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
            const std::int64_t n = size(block), y = place(of.y, block);
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
    fold_rows<Row, Group<T, Size>>(frame, splits_rows(frame), [&](auto& rows) {
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
    if (takes_groups(args)) run_groups<T, kGroup>(args);
    else run_groups<T, 1>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::loss
