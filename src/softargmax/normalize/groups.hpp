// From scores to results: the blocks of a row are folded into its state, which is then applied to them.
#pragma once

#include "core/native/deal.hpp"
#include "normalize/args.hpp"
#include "normalize/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

template <class T> using Frame = FrameOf<Args, T>;
template <class T, int Size> using Group = GroupOf<Args, T, Size>;

// The state that a row starts from.
template <class T, int Size> State start(const Group<T, Size>& group, int g) {
    const Args& args = group.args;
    if (!args.m) return {};
    const std::int64_t row = group.first + g;
    return {at(args.m, args, row), at(args.r, args, row), at(args.low, args, row)};
}

// What a folded row gives apart from probabilities.
template <class T, int Size> void finish(const Group<T, Size>& group, int g, State& s) {
    const Args& args = group.args;
    const std::int64_t row = group.first + g;
    const RowScale& scale = group.scale[g];
    if (scale.undefined) s.r = kNaN;
    if (args.op == Op::fold) {
        put(args.m, args, row, s.m);
        put(args.r, args, row, s.r);
        put(args.low, args, row, s.low);
    }
    if (args.lse) put(args.lse, args, row, finalize(s, group.beta(g)));
    if (args.op != Op::logsumexp) return;
    const double lse = scale.flat || args.weights ? finalize(s, Scale{}) : 0;
    double value;
    if (scale.flat) value = lse != 0 ? lse * kInf : group.mean[g];  // the limit of lse / beta
    else if (args.weights && group.has_room(scale.beta))
        value = lse / scale.beta.hi * (1.0 - scale.beta.lo / scale.beta.hi);
    else value = smooth_maximum(s, scale.beta);
    put(args.out, args, row, scale.negate ? -value : value);
}

template <class T, int Size> void apply_block(Group<T, Size>& group, std::int64_t block, const State* states) {
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const auto to = group.target(g, block, z);
        if (is_log(group.args.op)) apply<Log::yes>(z, n, states[g], group.beta(g), to);
        else apply<Log::no>(z, n, states[g], group.beta(g), to);
    }
    group.flush(block);
}

// The blocks folded into states, and the states applied to the blocks.
template <class Rows> void fold_and_apply(const Args& args, Rows& rows) {
    rows.each([](const auto& group, int g, State& s) { s = start(group, g); });
    if (folds(args.op))
        rows.fold([](const auto& group, std::int64_t block, int g, const State&) {
            return group.fold_row(g, block);
        }, [](const auto& group, int g, State& s, const State& piece) { s = merge(s, piece, group.beta(g)).state; });
    rows.each([](const auto& group, int g, State& s) { finish(group, g, s); });
    if (is_reduction(args.op)) return;
    rows.apply([](auto& group, std::int64_t block, const State* states) { apply_block(group, block, states); });
}

template <class T, int Size> void whole_group(Group<T, Size>& group) {
    if (group.args.op != Op::softmax || group.blocks() != 1) {
        RowsOfGroup<State, Group<T, Size>> rows(group);
        return fold_and_apply(group.args, rows);
    }
    group.load(0);
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        T* store = scratch(kTerms).get<T>(2 * kBlock);
        const auto to = group.target(g, 0, z);
        State s = softmax_short(z, group.length, group.beta(g), store, to);
        finish(group, g, s);
        if (group.scale[g].undefined) apply_limit<Log::no>(z, group.length, s, to.out);
    }
    group.flush(0);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
