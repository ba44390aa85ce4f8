// Splits rows among threads. Computes reduce(merge, map(lift, blocks)) of every row, and then a function of the row's
// result and each block.
//
// Threads get groups of rows, or blocks if there are few long rows. In both cases the results of a row's blocks are
// merged from left to right, so the number of threads changes no bit.
#pragma once

#include <vector>

#include "elementwise.hpp"
#include "strided_tiles.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- groups of rows: where their scores are, and how the formulas read them -----------------------------------

inline double at(const Operand& x, const RowArgs& args, std::int64_t row) {
    double value = 0;
    with_type(x.type, x.data, [&](auto* base) { value = convert<double>(base[offset_of(row, args.rows, x.row)]); });
    return value;
}
inline std::int64_t& integer_at(const Operand& x, const RowArgs& args, std::int64_t row) {
    return reinterpret_cast<std::int64_t*>(x.data)[offset_of(row, args.rows, x.row)];
}
inline void put(const Operand& x, const RowArgs& args, std::int64_t row, double value) {
    with_real_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        base[offset_of(row, args.rows, x.row)] = convert<S>(value == value ? value : kNaN);
    });
}

// How the scores of a row are read. If beta < 0, they are negated. If beta = 0, all finite scores are read as equal.
struct RowScale {
    Scale beta;
    bool negate = false, flat = false, undefined = false;
    // Pads the struct to a multiple of 8 bytes. Without the padding, a copy has 19 bytes and needs overlapping stores.
    // These stores wait for all earlier stores of the row, which took 5% of the time of a loss.
    bool whole_words[5] = {};
};
inline RowScale scale_of(const RowArgs& args, std::int64_t row) {
    RowScale s;
    if (!args.hi) return s;
    const double hi = at(args.hi, args, row), lo = at(args.lo, args, row);
    if (hi != hi) s.undefined = true;
    else if (hi == 0) s.flat = true;
    else s.beta = hi < 0 ? Scale{-hi, -lo} : Scale{hi, lo};
    s.negate = hi < 0;
    return s;
}

// The contents of z: scores or probabilities. With both_scores, `other` also contains scores. Scores are multiplied by
// beta, and are -inf outside of `where`.
enum class Reads { scores, both_scores, probabilities };

// Decisions that are the same for all groups of a call. They are made once per call, because making them takes as long
// as a short row.
template <class A, class T> struct FrameOf {
    const A& args;
    Groups groups;
    bool z_direct, other_direct, out_direct;  // true if the memory can be used directly, without a tile
    bool both, one_scale, changed;
    RowScale scale;

    FrameOf(const A& a, int size, Reads reads = Reads::scores)
        : args(a),
          groups(a, size),
          z_direct(size == 1 && is_contiguous<T>(a.z, a.cols)),
          other_direct(size == 1 && a.other && is_contiguous<T>(a.other, a.cols)),
          out_direct(size == 1 && a.out && is_contiguous<T>(a.out, a.cols)),
          both(reads == Reads::both_scores),
          one_scale(reads == Reads::probabilities || (is_constant(a.hi) && is_constant(a.lo))),
          changed(a.where || a.weights) {
        if (!one_scale || reads == Reads::probabilities || a.rows.total == 0) return;
        scale = scale_of(a, 0);
        changed = changed || scale.negate || scale.flat;
    }
    bool is_constant(const Operand& x) const {
        bool constant = true;
        for (int d = 0; x && d < args.rows.dims; ++d) constant = constant && x.row[d] == 0;
        return constant;
    }
};

template <class T> SOFTARGMAX_CALLED void mask_out(const T* mask, std::int64_t n, T* tile) {
    for (std::int64_t i = 0; i < n; ++i) tile[i] = mask[i] != 0 ? tile[i] : -std::numeric_limits<T>::infinity();
}
// A group of rows processed by one thread, one block at a time.
template <class A, class T, int Size> struct GroupOf {
    static constexpr int kSize = Size;
    const FrameOf<A, T>& frame;
    const A& args;
    std::int64_t first;
    int count;
    std::int64_t length;  // of each row
    bool changed;
    RowScale scale[Size];
    double mean[Size] = {};  // at beta = 0: the sum of w z over the finite scores of the loaded block
    const T* scores = nullptr;
    const T* other = nullptr;
    T* result = nullptr;
    std::int64_t pitch;  // padded distance between rows in a tile, so that rows do not share the same cache sets

    GroupOf(const FrameOf<A, T>& f, std::int64_t index)
        : frame(f),
          args(f.args),
          first(f.groups.first(index)),
          count(f.groups.count(index)),
          length(RowOf{f.args, first}.length()),
          changed(f.changed),
          pitch(std::min(kBlock, (length + kSide - 1) / kSide * kSide) + kSide) {
        for (int g = 0; g < count; ++g) {
            scale[g] = f.one_scale ? f.scale : scale_of(args, first + g);
            changed = changed || scale[g].negate || scale[g].flat;
        }
    }
    int rows() const { return Size == 1 ? 1 : count; }  // a compile-time constant for single rows
    std::int64_t blocks() const { return (length + kBlock - 1) / kBlock; }
    std::int64_t begin(std::int64_t block) const { return block * kBlock; }
    std::int64_t end(std::int64_t block) const { return std::min(length, (block + 1) * kBlock); }
    T* memory(const Operand& x, std::int64_t from) const {
        return reinterpret_cast<T*>(RowOf{args, first}.start(x)) + from;
    }

    void load(std::int64_t block) {
        const std::int64_t b = begin(block), e = end(block);
        scores = load(args.z, frame.z_direct, b, e, kScores);
        if (args.other) other = load(args.other, frame.other_direct, b, e, kOther);
        if (changed) transform(b, e);
    }
    const T* load(const Operand& x, bool direct, std::int64_t b, std::int64_t e, Slot slot) {
        if (direct) return memory(x, b);
        T* tile = scratch(slot).get<T>(Size * pitch);
        read(args, x, first, count, b, e, tile, pitch);
        return tile;
    }
    const T* load_if_there(const Operand& x, std::int64_t b, std::int64_t e, Slot slot) {
        return x ? load(x, false, b, e, slot) : nullptr;
    }
    // Makes a block writable by copying it to a tile. A block that is already in a tile is not copied.
    T* own(const T*& block, std::int64_t n, Slot slot) {
        T* tile = scratch(slot).get<T>(Size * pitch);
        if (block != tile) std::copy_n(block, n, tile);
        block = tile;
        return tile;
    }
    // Converts the scores to the form that the formulas need: beta > 0, and -inf outside the support.
    void transform(std::int64_t b, std::int64_t e) {
        T* tile = own(scores, e - b, kScores);
        const T* mask = load_if_there(args.where, b, e, kMask);
        T* other_tile = frame.both ? own(other, e - b, kOther) : nullptr;
        const T* weights = load_if_there(args.weights, b, e, kWeights);
        for (int g = 0; g < count; ++g) {
            mean[g] = 0;
            const std::int64_t from = g * pitch, to = from + e - b;
            for (T* x : {tile, other_tile}) {
                if (!x) continue;
                if (scale[g].negate)
                    for (std::int64_t i = from; i < to; ++i) x[i] = -x[i];
                if (weights || scale[g].flat)
                    for (std::int64_t i = from; i < to; ++i)
                        if (!mask || mask[i] != 0) weigh(x[i], weights ? weights[i] : T{1}, scale[g], mean[g]);
                if (mask) mask_out(mask + from, to - from, x + from);
            }
        }
    }
    // True if log w can be added to beta z. In the limit T = 0, and if beta z overflows, weights only decide which
    // scores are in the support.
    static bool has_room(Scale beta) { return beta.hi < 1e290; }
    // Replaces z by beta z + log w. Weights are factors of the exponentials, so beta does not scale log w. At beta = 0
    // finite scores are first set to 0, and infinite scores are kept.
    static void weigh(T& z, T w, const RowScale& s, double& mean) {
        if (w == 0) {
            z = -std::numeric_limits<T>::infinity();
            return;
        }
        if (s.flat && z - z == 0) {
            mean += static_cast<double>(w) * static_cast<double>(z);
            z = 0;
        }
        if (!has_room(s.beta) || (w == 1 && s.beta.unit())) return;
        const Twofold x = std::isinf(z) ? Twofold{static_cast<double>(z), 0} : times(static_cast<double>(z), s.beta);
        z = static_cast<T>(x.hi + (x.lo + log_scalar(static_cast<double>(w))));
    }
    // The beta by which the scores must still be multiplied after `transform`.
    Scale beta(int g) const { return args.weights && has_room(scale[g].beta) ? Scale{} : scale[g].beta; }

    // The address to prefetch. For a group of several rows it is z. For one row it is the address of column i, if rows
    // and columns are contiguous. If they are not, the address is useless, but a prefetch from it does no harm.
    Next source(const T* z, std::int64_t i) const {
        if (Size > 1) return z;
        const int width = kTypeBytes[static_cast<int>(args.z.type)];
        return {RowOf{args, first}.start(args.z) + i * width, width};
    }
    State fold_row(int g, std::int64_t block) const {
        const T* z = scores + g * pitch;
        return fold(z, end(block) - begin(block), beta(g), source(z, end(block)));
    }

    Target<T> target(int g, std::int64_t block, const T* z) {
        // If the scores were read into a tile, the tile is no longer needed and is reused for the result.
        if (frame.out_direct) result = memory(args.out, begin(block));
        else result = scratch(frame.z_direct ? kResult : kScores).template get<T>(Size * pitch);
        return {result + g * pitch, source(z, begin(block) + length), args.streaming && frame.out_direct};
    }
    void flush(std::int64_t block) {
        if (!frame.out_direct)
            write(args, args.out, first, count, begin(block), end(block), result, pitch, args.streaming);
    }
};

// ---- splitting among threads ----------------------------------------------------------------------------------

template <class G, class Frame, class F> void each_group(const Frame& frame, F body) {
    parallel_for(frame.args.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            G group(frame, i);
            body(group);
        }
    });
}
// True if rows are processed in groups of kGroup. Rows that are spread over processes are not, because all processes
// need the same groups, but may have different strides.
inline bool takes_groups(const RowArgs& args) { return rows_are_adjacent(args, args.z) && !args.shards; }
inline std::int64_t blocks_of(const RowArgs& args) { return (args.cols.total + kBlock - 1) / kBlock; }

// True if the blocks of each row should be split among threads: rows have several blocks, and there are fewer groups
// than threads. Rows that are spread over processes are always split.
template <class Frame> bool splits_rows(const Frame& frame) {
    const bool few = frame.groups.total < frame.args.threads && blocks_of(frame.args) > 1;
    return !frame.args.offsets && (few || frame.args.shards);
}

// The rows of one group, processed by one thread.
template <class Row, class G> class RowsOfGroup {
    G& group_;
    Row rows_[G::kSize];
    std::int64_t loaded_ = -1;

    void load(std::int64_t block) {
        if (loaded_ != block) group_.load(loaded_ = block);
    }

  public:
    explicit RowsOfGroup(G& group) : group_(group) {}

    // lift(group, block, g, row) returns the result of one block of row g of the group. merge(group, g, row, result)
    // merges it into the result of the row.
    template <class Lift, class Merge> void fold(Lift lift, Merge merge) {
        for (std::int64_t b = 0; b < group_.blocks(); ++b) {
            load(b);
            for (int g = 0; g < group_.rows(); ++g) merge(group_, g, rows_[g], lift(group_, b, g, rows_[g]));
        }
    }
    // Calls body(group, g, row) for every row.
    template <class F> void each(F body) {
        for (int g = 0; g < group_.rows(); ++g) body(group_, g, rows_[g]);
    }
    // Calls body(group, block, rows of the group).
    template <class F> void apply(F body) {
        for (std::int64_t b = 0; b < group_.blocks(); ++b) {
            load(b);
            body(group_, b, rows_);
        }
    }
};

// All rows, with their blocks split among threads, and perhaps spread over processes. Row and the result of `lift` must
// be types of this namespace. The functions of std::vector<double>, for example, have the same names in the code of
// every instruction set. The linker would keep one copy of them, compiled for one of the instruction sets.
template <class Row, class G, class Frame> class RowsByBlock {
    const Frame& frame_;
    const std::int64_t groups_ = frame_.groups.total, blocks_ = blocks_of(frame_.args);
    std::vector<Row> rows_ = several<Row>(groups_);

    template <class X> static std::vector<X> several(std::int64_t groups) {
        return std::vector<X>(static_cast<std::size_t>(groups * G::kSize));
    }
    // Loads each block, then calls body(group, block, index of the block among all blocks, rows of the group).
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

    // Merges the pieces of some blocks of each row, from left to right, into the row.
    template <class Piece, class Merge> void merge_pieces(const Piece* pieces, std::int64_t blocks, Merge merge) {
        each_group_in_order([&](G& group, std::int64_t i, Row* rows) {
            for (int g = 0; g < group.rows(); ++g)
                for (std::int64_t b = 0; b < blocks; ++b)
                    merge(group, g, rows[g], pieces[(i * blocks + b) * G::kSize + g]);
        });
    }
    // Merges the pieces of all processes, one process after the other.
    template <class Piece, class Merge> void merge_gathered(const std::vector<Piece>& pieces, Merge merge) {
        static_assert(std::is_trivially_copyable_v<Piece>);
        const Shards& shards = frame_.args.shards;
        std::int64_t blocks = 0;
        for (std::int64_t p = 0; p < shards.count; ++p) blocks += shards.blocks(p);
        std::vector<Piece> all = several<Piece>(groups_ * blocks);
        shards.gather(shards, pieces.data(), groups_ * static_cast<std::int64_t>(sizeof(Piece)), 0, all.data());
        const Piece* of_process = all.data();
        for (std::int64_t p = 0; p < shards.count; ++p) {
            merge_pieces(of_process, shards.blocks(p), merge);
            of_process += groups_ * shards.blocks(p);
        }
    }

  public:
    explicit RowsByBlock(const Frame& frame) : frame_(frame) {}

    template <class Lift, class Merge> void fold(Lift lift, Merge merge) {
        using Piece = decltype(lift(std::declval<G&>(), std::int64_t{}, int{}, rows_.front()));
        std::vector<Piece> pieces = several<Piece>(groups_ * blocks_);
        if (!frame_.args.shards || !frame_.args.shards.is_known(frame_.args.shards))
            each_block([&](G& group, std::int64_t block, std::int64_t unit, const Row* rows) {
                for (int g = 0; g < group.rows(); ++g)
                    pieces[static_cast<std::size_t>(unit * G::kSize + g)] = lift(group, block, g, rows[g]);
            });
        if constexpr (G::kSize == 1)
            if (frame_.args.shards) return merge_gathered(pieces, merge);
        merge_pieces(pieces.data(), blocks_, merge);
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

// Calls body(rows) for all rows of a call: once per group, or, if `split`, once for all groups.
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
