// Rows dealt out to threads: reduce(merge, map(lift, blocks)) of every row, and what that gives applied to its blocks.
//
// Groups of rows go to threads; of few long rows the blocks do. Either way the pieces of a row are merged from left to
// right, so that threads change no bit.
#pragma once

#include <vector>

#include "group.hpp"
#include "threads.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

template <class G, class Frame, class F> void each_group(const Frame& frame, F body) {
    parallel_for(frame.args.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            G group(frame, i);
            body(group);
        }
    });
}
inline std::int64_t blocks_of(const RowArgs& args) { return (args.cols.total + kBlock - 1) / kBlock; }

// Whether there are fewer groups than threads, so that rows are better split.
template <class Frame> bool few_long_rows(const Frame& frame) {
    return !frame.args.offsets && frame.groups.total < frame.args.threads && blocks_of(frame.args) > 1;
}

// The rows of a group in the hands of one thread.
template <class Row, class G> class RowsOfGroup {
    G& group_;
    Row rows_[G::kSize];
    std::int64_t loaded_ = -1;

    void load(std::int64_t block) {
        if (loaded_ != block) group_.load(loaded_ = block);
    }

  public:
    explicit RowsOfGroup(G& group) : group_(group) {}

    // lift(group, block, g, row) gives the piece of a block; merge(group, g, row, piece) brings it into the row.
    template <class Lift, class Merge> void fold(Lift lift, Merge merge) {
        for (std::int64_t b = 0; b < group_.blocks(); ++b) {
            load(b);
            for (int g = 0; g < group_.rows(); ++g) merge(group_, g, rows_[g], lift(group_, b, g, rows_[g]));
        }
    }
    // body(group, g, row)
    template <class F> void each(F body) {
        for (int g = 0; g < group_.rows(); ++g) body(group_, g, rows_[g]);
    }
    // body(group, block, rows of the group)
    template <class F> void apply(F body) {
        for (std::int64_t b = 0; b < group_.blocks(); ++b) {
            load(b);
            body(group_, b, rows_);
        }
    }
};

// All rows, whose blocks are dealt out to threads. Row and what `lift` returns are types of this namespace:
// std::vector<double> would be one function for all instruction sets.
template <class Row, class G, class Frame> class RowsByBlock {
    const Frame& frame_;
    const std::int64_t groups_ = frame_.groups.total, blocks_ = blocks_of(frame_.args);
    std::vector<Row> rows_ = several<Row>(groups_);

    template <class X> static std::vector<X> several(std::int64_t groups) {
        return std::vector<X>(static_cast<std::size_t>(groups * G::kSize));
    }
    // body(group, block, which of all blocks, rows of the group) with the block loaded.
    template <class F> void each_block(F body) {
        parallel_for(frame_.args.threads, groups_ * blocks_, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t unit = begin; unit < end; ++unit) {
                G group(frame_, unit / blocks_);
                group.load(unit % blocks_);
                body(group, unit % blocks_, unit, rows_.data() + unit / blocks_ * G::kSize);
            }
        });
    }
    template <class F> void each_group_in_order(F body) {
        for (std::int64_t i = 0; i < groups_; ++i) {
            G group(frame_, i);
            body(group, i, rows_.data() + i * G::kSize);
        }
    }

  public:
    explicit RowsByBlock(const Frame& frame) : frame_(frame) {}

    template <class Lift, class Merge> void fold(Lift lift, Merge merge) {
        using Piece = decltype(lift(std::declval<G&>(), std::int64_t{}, int{}, rows_.front()));
        std::vector<Piece> pieces = several<Piece>(groups_ * blocks_);
        each_block([&](G& group, std::int64_t block, std::int64_t unit, const Row* rows) {
            for (int g = 0; g < group.rows(); ++g)
                pieces[static_cast<std::size_t>(unit * G::kSize + g)] = lift(group, block, g, rows[g]);
        });
        each_group_in_order([&](G& group, std::int64_t i, Row* rows) {
            for (int g = 0; g < group.rows(); ++g)
                for (std::int64_t b = 0; b < blocks_; ++b)
                    merge(group, g, rows[g], pieces[static_cast<std::size_t>((i * blocks_ + b) * G::kSize + g)]);
        });
    }
    template <class F> void each(F body) {
        each_group_in_order([&](G& group, std::int64_t, Row* rows) {
            for (int g = 0; g < group.rows(); ++g) body(group, g, rows[g]);
        });
    }
    template <class F> void apply(F body) {
        each_block([&](G& group, std::int64_t block, std::int64_t, const Row* rows) { body(group, block, rows); });
    }
};

// body(rows) over all rows of a call: of one group after the other, or where they are `split` of all at once.
template <class Row, class G, class Frame, class Body> void fold_rows(const Frame& frame, bool split, Body body) {
    if (split) {
        RowsByBlock<Row, G, Frame> rows(frame);
        body(rows);
    } else {
        each_group<G>(frame, [&](G& group) {
            RowsOfGroup<Row, G> rows(group);
            body(rows);
        });
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
