// Which rows are short, and how they are dealt out: bare ones without a Group, float32 ones of up to 64 scores to
// sixteen lanes. Nothing of this changes a bit.
#pragma once

#include "normalize/groups.hpp"
#include "normalize/lanes.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// Whether all that is asked for is the softmax of rows of one block, from memory to memory as they lie.
template <class T, int Size> bool is_bare(const Frame<T>& frame) {
    const Args& args = frame.args;
    return Size == 1 && args.op == Op::softmax && !args.offsets && args.cols.total <= kBlock && frame.z_direct &&
           frame.out_direct && !frame.changed && frame.one_scale && !frame.scale.undefined && !args.lse;
}
// Such rows need no Group (10 ns, which a row of 1024 takes 240).
template <class T> void bare_rows(const Frame<T>& frame, std::int64_t begin, std::int64_t end) {
    const Args& args = frame.args;
    T* store = scratch(kTerms).get<T>(2 * kBlock);
    for (std::int64_t i = begin; i < end; ++i) {
        const RowOf row{args, i};
        const T* z = reinterpret_cast<const T*>(row.start(args.z));
        softmax_short(z, args.cols.total, frame.scale.beta, store,
                      {reinterpret_cast<T*>(row.start(args.out)), z + args.cols.total, args.streaming});
    }
}

// Sixteen rows or fewer of at most `columns` scores, one to a lane (lanes.hpp).
template <bool Unit> void side_by_side(const Frame<float>& frame, const std::int64_t* rows, int count, int columns,
                                       Ahead& ahead) {
    const Args& args = frame.args;
    const bool read_there = frame.z_direct && !frame.changed, written_there = frame.out_direct && !args.lse;
    Lanes<Unit> lanes(frame.scale.beta, columns);
    for (int g = 0; g < kSide; ++g) {
        const RowOf row{args, rows[g < count ? g : 0]};
        if (read_there) {
            lanes.put(g, reinterpret_cast<const float*>(row.start(args.z)), row.length());
            continue;
        }
        Group<float, 1> group(frame, row.index);
        group.load(0);
        lanes.put(g, group.scores, group.length);
    }
    lanes.fold(ahead);
    if (args.op == Op::softmax) lanes.softmax();
    else if (args.op == Op::log_softmax) lanes.log_softmax();
    for (int g = 0; g < count; ++g) {
        if (written_there && args.op != Op::logsumexp && lanes.plain(g)) {
            lanes.take(g, reinterpret_cast<float*>(RowOf{args, rows[g]}.start(args.out)));
            continue;
        }
        Group<float, 1> group(frame, rows[g]);
        if (!lanes.plain(g)) {
            whole_group(group);
            continue;
        }
        State s = lanes.state(g);
        finish(group, 0, s);
        if (args.op == Op::logsumexp) continue;
        lanes.take(g, group.target(0, 0, lanes.row(g)).out);
        group.flush(0);
    }
}

// The lines that short rows will want, if they lie one after the other.
inline Ahead ahead_of(const Frame<float>& frame, std::int64_t begin, std::int64_t end) {
    const Args& args = frame.args;
    const auto dense = [&](const Operand& x) { return args.rows.dims == 1 && x.row[0] == args.cols.total; };
    const bool packed = args.offsets ? args.heads == 1 : dense(args.z) && dense(args.out);
    if (!packed || !frame.z_direct || !frame.out_direct || begin == end) return {};
    const RowOf first{args, begin}, last{args, end - 1};
    return {first.start(args.z), last.start(args.z), first.start(args.out)};
}

// Rows [begin, end): those of about one length side by side, those too long for a lane one by one.
template <bool Unit> void short_rows(const Frame<float>& frame, std::int64_t begin, std::int64_t end) {
    constexpr int kSizes = kShort / kSide + 1;
    Ahead ahead = ahead_of(frame, begin, end);
    std::int64_t waiting[kSizes][kSide];
    int count[kSizes] = {};
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t n = RowOf{frame.args, row}.length();
        if (n == 0 || n > kShort) {
            Group<float, 1> group(frame, row);
            whole_group(group);
            continue;
        }
        const int size = static_cast<int>((n + kSide - 1) / kSide);
        waiting[size][count[size]++] = row;
        if (count[size] < kSide) continue;
        ahead.reach(RowOf{frame.args, row}.start(frame.args.z));
        side_by_side<Unit>(frame, waiting[size], kSide, size * kSide, ahead);
        count[size] = 0;
    }
    for (int size = 1; size < kSizes; ++size)
        if (count[size] > 0) side_by_side<Unit>(frame, waiting[size], count[size], size * kSide, ahead);
}

// Whether the rows of a call are worth sixteen lanes.
inline bool fits_lanes(const Frame<float>& frame) {
    const Args& args = frame.args;
    const bool is_short = args.offsets ? args.cols.total <= kShort * args.segments / 2 : args.cols.total <= kShort;
    return folds(args.op) && args.op != Op::fold && !args.m && is_short && frame.one_scale &&
           frame.groups.total >= kSide && !frame.scale.undefined && !frame.scale.flat &&
           std::isfinite(frame.scale.beta.hi);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
