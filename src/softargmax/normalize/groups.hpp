// One group of rows from scores to results: fold its blocks into states, merged from left to right, then apply the
// states.
#pragma once

#include "core/native/group.hpp"
#include "normalize/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

inline bool folds(Op op) { return op <= Op::fold; }
inline bool is_log(Op op) { return op == Op::log_softmax || op == Op::apply_log_softmax; }

template <class T, int Size> void start(Group<T, Size>& group, int g) {
    const Job& job = group.job;
    State& s = group.state[g];
    s = State{};
    if (!job.m) return;
    s.m = at(job.m, job, group.first + g);
    s.r = at(job.r, job, group.first + g);
    s.low = at(job.low, job, group.first + g);
}

// What a folded row gives apart from probabilities.
template <class T, int Size> void finish(Group<T, Size>& group, int g) {
    const Job& job = group.job;
    const std::int64_t row = group.first + g;
    const RowScale& scale = group.scale[g];
    State& s = group.state[g];
    if (scale.undefined) s.r = kNaN;
    if (job.op == Op::fold) {
        put(job.m, job, row, s.m);
        put(job.r, job, row, s.r);
        put(job.low, job, row, s.low);
    }
    if (job.lse) put(job.lse, job, row, finalize(s, group.beta(g)));
    if (job.op != Op::logsumexp) return;
    const double lse = scale.flat || job.weights ? finalize(s, Scale{}) : 0;
    double value;
    if (scale.flat) value = lse != 0 ? lse * kInf : group.mean[g];  // the limit of lse / beta
    else if (job.weights && group.has_room(scale.beta))
        value = lse / scale.beta.hi * (1.0 - scale.beta.lo / scale.beta.hi);
    else value = smooth_maximum(s, scale.beta);
    put(job.out, job, row, scale.negate ? -value : value);
}

template <class T, int Size> void apply_block(Group<T, Size>& group, std::int64_t block) {
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const auto to = group.target(g, block, z);
        if (is_log(group.job.op)) apply<Log::yes>(z, n, group.state[g], group.beta(g), to);
        else apply<Log::no>(z, n, group.state[g], group.beta(g), to);
    }
    group.flush(block);
}

template <class T, int Size> void whole_group(Group<T, Size>& group) {
    const Job& job = group.job;
    const std::int64_t blocks = group.blocks();
    for (int g = 0; g < group.count; ++g) start(group, g);
    if (job.op == Op::softmax && blocks == 1) {
        group.load(0);
        for (int g = 0; g < group.count; ++g) {
            const T* z = group.scores + g * group.pitch;
            T* store = scratch(kTerms).get<T>(2 * kBlock);
            const auto to = group.target(g, 0, z);
            group.state[g] = softmax_short(z, group.length, group.beta(g), store, to);
            finish(group, g);
            if (group.scale[g].undefined) apply_limit<Log::no>(z, group.length, group.state[g], to.out);
        }
        return group.flush(0);
    }
    for (std::int64_t b = 0; b < blocks && folds(job.op); ++b) {
        group.load(b);
        for (int g = 0; g < group.count; ++g)
            group.state[g] = merge(group.state[g], group.fold_row(g, b), group.beta(g));
    }
    for (int g = 0; g < group.count; ++g) finish(group, g);
    if (job.op == Op::logsumexp || job.op == Op::fold) return;
    for (std::int64_t b = 0; b < blocks; ++b) {
        if (blocks > 1 || !folds(job.op)) group.load(b);
        apply_block(group, b);
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
