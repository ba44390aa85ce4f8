// Attention of up to 12 queries to a block of keys: scores, their exponentials, and the weighted sums of values.
//
//     m = max_j rint(S_j log2 e)       p_j = e^(S_j - m ln 2)       l = sum p_j       o = sum p_j v_j
#pragma once

#include "attend/args.hpp"
#include "core/cpp/elementwise.hpp"
#include "core/cpp/matmul.hpp"
#include "core/cpp/philox.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::attend {

// ---- positions, visible keys and memory of a query ------------------------------------------------------------

// Returns the offset of one row of an operand, for an entry of the batch and a head.
inline std::int64_t offset(const Args& args, const Operand& x, std::int64_t entry, std::int64_t head,
                           std::int64_t row) {
    const std::int64_t* stride = x.row + args.batch.dims;
    return offset_of(entry, args.batch, x.row) + head * stride[0] + row * stride[1];
}
// Reads `count` numbers of one row, starting at column `first`, and converts them to T.
template <class T>
void read(const Operand& x, std::int64_t at, std::int64_t first, std::int64_t count, T* to) {
    with_type(x.type, x.data, [&](auto* base) {
        const auto* from = base + at + first * x.col[0];
        if (x.col[0] == 1) convert(from, count, to);
        else
            for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(from[i * x.col[0]]);
    });
}
// Prefetches the row of the same head four rows after the one at `at`. In models, these are far apart, because the
// numbers of the other heads lie between them, and the hardware prefetcher does not follow. Without this prefetch, the
// gradients of 2048 queries with a window of 128 spent 12% of their time on these reads, and 3% with it (the Xeon of
// docs/speed.md).
inline void prefetch_row(const Args& args, const Operand& x, std::int64_t at, std::int64_t count) {
    const std::int64_t bytes = kTypeBytes[static_cast<int>(x.type)];
    const char* const its = x.data + (at + 4 * x.row[args.batch.dims + 1]) * bytes;
    for (std::int64_t i = 0; i < count * bytes; i += 64) __builtin_prefetch(its + i);
}

// Writes one row of `count` numbers in the operand's type.
template <class T> void write(const Operand& x, std::int64_t at, std::int64_t count, const T* from) {
    with_real_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        if (x.col[0] == 1) convert(from, count, base + at);
        else
            for (std::int64_t j = 0; j < count; ++j) base[at + j * x.col[0]] = convert<S>(from[j]);
    });
}
template <class T> SOFTARGMAX_CALLED bool all_finite(const T* x, std::int64_t n) {
    // Count in integers of T's size: compilers vectorize this loop, but not a loop with a bool.
    std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t> others = 0;
    for (std::int64_t i = 0; i < n; ++i) others += std::fabs(x[i]) < std::numeric_limits<T>::infinity() ? 0 : 1;
    return others == 0;
}
// Replaces nonfinite numbers by 0. Otherwise their product with p = 0 would be NaN.
template <class T> SOFTARGMAX_CALLED void make_finite(T* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = std::fabs(x[i]) < std::numeric_limits<T>::infinity() ? x[i] : T{0};
}

// The keys, or the queries, from `begin` to `end` - 1.
struct Range {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
    bool empty() const { return end <= begin; }
    void include(Range other) {
        if (!other.empty()) *this = {std::min(begin, other.begin), std::max(end, other.end)};
    }
    // The range relative to `first`, clipped to the numbers from 0 to `count`.
    Range within(std::int64_t first, std::int64_t count) const {
        return {std::max<std::int64_t>(begin - first, 0), std::min(end - first, count)};
    }
    // The range, widened so that it begins and ends at panel boundaries.
    template <class T> Range panels() const {
        constexpr std::int64_t step = kPanelCols<T>;
        return {begin / step * step, (end + step - 1) / step * step};
    }
};

// A head of keys and values, and the queries of all heads that share it. These queries are numbered as rows, one head
// of queries after another: row r is query r % args.queries of head r / args.queries, counted from the first of them.
struct Shared {
    const Args& args;
    std::int64_t entry, group, heads, keys;
    Shared(const Args& j, std::int64_t index)
        : args(j),
          entry(index / j.groups),
          group(index % j.groups),
          heads(j.heads / j.groups),
          keys(j.lengths ? j.lengths[index / j.groups] : j.all_keys()) {}
    std::int64_t rows() const { return heads * args.queries; }
    // The branch for `heads == 1` avoids about a dozen divisions per query. A division takes as long as ten
    // multiplications.
    std::int64_t head(std::int64_t row) const { return group * heads + (heads == 1 ? 0 : row / args.queries); }
    std::int64_t query(std::int64_t row) const { return heads == 1 ? row : row % args.queries; }
    std::int64_t at(const Operand& x, std::int64_t row) const { return offset(args, x, entry, head(row), query(row)); }
    // Reads the first `count` numbers of one row of queries, or of an operand like them.
    template <class T> SOFTARGMAX_CALLED void read_row(const Operand& x, std::int64_t row, std::int64_t count,
                                                       T* to) const {
        const std::int64_t from = at(x, row);
        prefetch_row(args, x, from, count);
        read(x, from, 0, count, to);
    }
    std::int64_t number(std::int64_t row) const { return (entry * args.heads + head(row)) * args.queries + query(row); }
    std::int64_t query_of_all(std::int64_t row) const { return args.query_of_all(query(row)); }
    // The last query is at the position of the last key.
    std::int64_t place(std::int64_t row) const { return query_of_all(row) + keys - args.length(); }
    Range visible(std::int64_t row) const {
        return {args.left < 0 ? 0 : std::max<std::int64_t>(0, place(row) - args.left),
                args.right < 0 ? keys : std::min(keys, place(row) + args.right + 1)};
    }
    // The offset of the key or value number `key`.
    std::int64_t offset_of_key(const Operand& x, std::int64_t key) const {
        if (!args.table) return offset(args, x, entry, group, key - args.first_key);
        const std::int64_t page = args.table[entry * args.pages + key / args.page];
        return page * x.row[0] + group * x.row[1] + key % args.page * x.row[2];
    }
    // Copies `count` keys or values that start at `first`. The copies are `pitch` numbers apart, with zeros in between.
    template <class T> void copy_rows(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count,
                                      std::int64_t pitch, T* to) const {
        for (std::int64_t i = 0; i < count; ++i, to += pitch) {
            read(x, offset_of_key(x, first + i), 0, width, to);
            std::fill(to + width, to + pitch, T{0});
        }
    }
    // Calls f(pointer, row stride, column stride) for `count` keys or values that start at `first`. Rows in pages are
    // first copied to contiguous memory.
    template <class T, class F>
    void with_rows(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count, F f) const {
        if (!args.table) {
            with_type(x.type, x.data,
                      [&](auto* base) { f(base + offset_of_key(x, first), x.row[args.batch.dims + 1], x.col[0]); });
            return;
        }
        T* const lines = scratch(kMask).get<T>(kKeys * width);
        copy_rows(x, width, first, count, width, lines);
        f(lines, width, std::int64_t{1});
    }
    // `pack_keys` and `pack_columns` pack `count` keys or values of width `width`. A panel of `pack_keys` holds
    // kPanelCols keys: the first number of each key, then the second number of each key, and so on. A panel of
    // `pack_columns` holds kPanelCols columns of all keys: these columns of the first key, then of the second key, and
    // so on.
    template <class T> void pack_keys(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count,
                                      T* to) const {
        with_rows<T>(x, width, first, count, [&](auto* from, std::int64_t row, std::int64_t col) {
            pack<kPanelCols<T>>(Matrix<std::remove_pointer_t<decltype(from)>>{from, count, width, row, col}, to);
        });
    }
    template <class T> void pack_columns(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count,
                                         T* to) const {
        with_rows<T>(x, width, first, count, [&](auto* from, std::int64_t row, std::int64_t col) {
            pack<kPanelCols<T>>(Matrix<std::remove_pointer_t<decltype(from)>>{from, width, count, col, row}, to);
        });
    }
};

template <class T> std::int64_t whole_panels(std::int64_t n) {
    return (n + kPanelCols<T> - 1) / kPanelCols<T> * kPanelCols<T>;
}

// ---- a panel of queries ---------------------------------------------------------------------------------------

// The distance between consecutive rows of scores. Its 16 extra numbers keep rows from sharing cache sets.
constexpr int kPitch = kKeys + 16;
using InPlace = Layout<kPitch, 1>;
// Sums over the width are split into chunks of kWidthChunk terms, and sums over keys or queries into chunks of kChain
// terms. Without chunks, a call with few queries of width 128 had three times the error of torch.
constexpr std::int64_t kWidthChunk = 16, kChain = 32;
// Adds the sum of a chunk to the total `to`. The sum of the first chunk replaces the total.
template <class V> SOFTARGMAX_INLINE void add_chunk(V sum, typename V::Scalar* to, bool first) {
    (first ? sum : V::load(to) + sum).store(to);
}

// For scores below this magnitude, the exponent m of the state is exact.
template <class T> constexpr T kLargest = sizeof(T) == 4 ? T(0x1p20) : T(0x1p30);

// Sets scores of z to -inf: those in the range `all` but outside of the range `in`. Returns the largest of the others.
// The bounds of `all` are multiples of the length of two packs.
template <class T> T hide_outside(T* z, Range all, Range in) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    std::fill(z + all.begin, z + std::min(in.begin, all.end), lowest);
    std::fill(z + std::max(in.end, all.begin), z + all.end, lowest);
    return maximum(z + all.begin, all.end - all.begin);
}
// Replaces the scores in the range `all` of z, whose maximum is `top`, by p, and returns their state. Sets `nonfinite`
// if the maximum is too large in magnitude, or if some scores are NaN and all others are -inf. A NaN among finite
// scores makes the state NaN. Unless `may_be_empty` is true, also sets `nonfinite` if all scores are -inf: without a
// mask or bias this means overflow.
template <class T> PowerState<T> exponentials(T* z, Range all, T top, bool may_be_empty, bool& nonfinite) {
    if (top == -std::numeric_limits<T>::infinity()) {  // all scores are -inf or NaN
        nonfinite = nonfinite || !may_be_empty;
        for (std::int64_t i = all.begin; i < all.end; ++i) nonfinite = nonfinite || z[i] != z[i];
        std::fill(z + all.begin, z + all.end, T{0});
        return {};
    }
    if (!(top < kLargest<T> && top > -kLargest<T>)) {
        nonfinite = true;
        return {};
    }
    return fold_in_place(z + all.begin, all.end - all.begin, top);
}

// True if the product of the query and a key in the range `in` is -inf, although neither mask nor bias hides the key.
template <class T> bool overflown(const Shared& head, std::int64_t row, std::int64_t begin, Range in, const T* z) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    const Args& args = head.args;
    const std::int64_t n = in.end - in.begin;
    bool low[kKeys], any = false;
    for (std::int64_t i = in.begin; i < in.end; ++i) any |= z[i] == lowest;
    if (!any) return false;
    for (std::int64_t i = 0; i < n; ++i) low[i] = z[in.begin + i] == lowest;
    T* const line = scratch(kMask).get<T>(kKeys);
    for (const Operand* x : {&args.mask, &args.bias}) {
        if (!any || !*x) continue;
        read(*x, head.at(*x, row), begin + in.begin - args.first_key, n, line);
        const T out = x == &args.mask ? T{0} : lowest;
        any = false;
        for (std::int64_t i = 0; i < n; ++i) any |= low[i] = low[i] && line[i] != out;
    }
    return any;
}

// Applies soft-cap, added terms and mask to the scores in the range `in` of a block that starts at key `begin`. Writes
// the derivative of the soft-cap to `slope` unless `slope` is null. `add_to_terms` computes the gradients of the terms.
// Sets `nonfinite` if a product is -inf and its key is not hidden: the product overflowed, or the key is not finite.
template <class T>
void cap_and_mask(const Shared& head, std::int64_t row, std::int64_t begin, Range in, T* z, bool& nonfinite,
                  T* slope = nullptr) {
    const Args& args = head.args;
    const std::int64_t n = in.end - in.begin;
    if (n <= 0) return;
    if (args.softcap > 0 || args.bias || args.mask) nonfinite = overflown(head, row, begin, in, z) || nonfinite;
    if (args.softcap > 0) Softcap<T>(args.softcap).bend(z + in.begin, n);
    if (slope) {
        const T inverse = static_cast<T>(1 / args.softcap);
        for (std::int64_t i = in.begin; i < in.end; ++i) slope[i] = (1 - z[i] * inverse) * (1 + z[i] * inverse);
    }
    T* const line = scratch(kMask).get<T>(kKeys) - in.begin;
    if (args.bias) {
        read(args.bias, head.at(args.bias, row), begin + in.begin - args.first_key, n, line + in.begin);
        for (std::int64_t i = in.begin; i < in.end; ++i) z[i] += line[i];
    }
    if (const Operand& slopes = args.slopes.value) {
        const T place = static_cast<T>(head.place(row) - begin);
        T its = 0;
        read(slopes, head.at(slopes, row), 0, 1, &its);
        for (std::int64_t i = in.begin; i < in.end; ++i) z[i] -= its * std::fabs(place - static_cast<T>(i));
    }
    if (args.mask) {
        read(args.mask, head.at(args.mask, row), begin + in.begin - args.first_key, n, line + in.begin);
        for (std::int64_t i = in.begin; i < in.end; ++i)
            z[i] = line[i] != 0 ? z[i] : -std::numeric_limits<T>::infinity();
    }
}

// Adds the contribution of one query to the gradients of bias and slopes, the terms that `cap_and_mask` adds to scores.
// g holds the gradients of the query's scores in the range `in` of a block that starts at key `begin`.
template <class T>
void add_to_terms(const Shared& head, const GradientArgs& args, std::int64_t row, std::int64_t begin, Range in,
                  const T* g) {
    if (args.dbias) {
        T* const to = reinterpret_cast<T*>(args.dbias.data) + head.at(args.dbias, row) +
                      (begin - args.first_key) * args.dbias.col[0];
        for (std::int64_t j = in.begin; j < in.end; ++j) to[j * args.dbias.col[0]] += g[j];
    }
    if (args.slopes.gradient) {
        const std::int64_t place = head.place(row) - begin;
        double sums[8] = {};  // several partial sums, so that additions do not wait for one another
        for (std::int64_t j = in.begin; j < in.end; ++j)
            sums[j % 8] -= static_cast<double>(g[j]) * static_cast<double>(std::abs(place - j));
        for (const double sum : sums) args.slopes.gradient[head.number(row)] += sum;
    }
}

// Writes the dropout factor of each entry of a query's p (dropout.py): 0 if it is dropped, else 1 / (1 - rate).
template <class T> void dropout_factors(const Shared& head, std::int64_t row, std::int64_t first, Range all, T* to) {
    const Args& args = head.args;
    const std::int64_t* const words_of_seed = args.seeds + 2 * (head.entry * args.heads + head.head(row));
    const std::uint64_t seed =
        static_cast<std::uint64_t>(words_of_seed[0]) | static_cast<std::uint64_t>(words_of_seed[1]) << 32;
    const Philox philox(seed, static_cast<std::uint64_t>(head.query_of_all(row)), 0);
    const std::uint32_t low = static_cast<std::uint32_t>(args.dropout * 0x1p32);
    const T share = static_cast<T>(1 / (1 - args.dropout));
    std::uint32_t words[kChunk];
    for (std::int64_t i = all.begin; i < all.end; i += kChunk) {
        philox.adjacent(first + i, 0, words);
        for (std::int64_t j = i; j < std::min(i + kChunk, all.end); ++j) to[j] = words[j - i] >= low ? share : T{0};
    }
}

// A block of keys packed by `pack_keys`, and of values in the layout of `pack_columns`. Consecutive panels of values
// are `panel` numbers apart. Within a panel, the values of consecutive keys are `pitch` numbers apart. The first
// `unpacked.cols` keys of the block are not packed: they are the columns of `unpacked`.
template <class T> struct Block {
    const T *keys, *values;
    std::int64_t panel, pitch;
    Matrix<T> unpacked = {};
    const bool* nonfinite = nullptr;  // flags of keys whose nonfinite values became 0; null: no such keys
};

// Memory for a copy of a block's values in which nonfinite numbers are replaced by 0.
template <class T> class FiniteBlock {
    Scratch values_;  // not std::vector: the linker would share its functions between instruction sets
    bool nonfinite_[kKeys] = {};

  public:
    Block<T> of(const Block<T>& block, std::int64_t keys, std::int64_t width) {
        constexpr std::int64_t each = kPanelCols<T>;
        T* const values = values_.get<T>(keys * whole_panels<T>(width));
        std::fill(nonfinite_, nonfinite_ + keys, false);
        T* to = values;
        for (std::int64_t j = 0; j < width; j += each)
            for (std::int64_t i = 0; i < keys; ++i, to += each) {
                std::copy_n(block.values + j / each * block.panel + i * block.pitch, each, to);
                nonfinite_[i] |= !all_finite(to, each);
                make_finite(to, each);
            }
        return {block.keys, values, keys * each, each, block.unpacked, nonfinite_};
    }
};

// Up to 12 queries, processed by one thread.
template <class T> struct QueryTile {
    static constexpr int kRows = kPanelRows;
    const Shared& head;
    std::int64_t first;
    int rows;
    Range visible[kRows], any;
    T* q;           // the queries times the scale, packed as one panel
    T* o;           // sum of p v of each query; consecutive queries are `pitch` numbers apart
    std::int64_t pitch;
    PowerState<T> state[kRows];  // together with o: the state of the keys processed so far
    bool nonfinite[kRows] = {};

    static std::int64_t size(const Args& args) { return kRows * (args.width + whole_panels<T>(args.values)) + 64; }
    SOFTARGMAX_CALLED QueryTile(const Shared& h, std::int64_t row, std::int64_t count, T* memory)
        : head(h),
          first(row),
          rows(static_cast<int>(count)),
          q(memory),
          o(memory + kRows * h.args.width),
          pitch(whole_panels<T>(h.args.values)) {
        const Args& args = head.args;
        T* const lines = scratch(kWeights).get<T>(kRows * args.width);
        clear();
        for (int i = 0; i < rows; ++i) {
            T* const line = lines + i * args.width;
            head.read_row(args.q, first + i, args.width, line);
            T scale = 0;
            read(args.scale.value, head.at(args.scale.value, first + i), 0, 1, &scale);
            for (std::int64_t d = 0; d < args.width; ++d) line[d] *= scale;
            visible[i] = head.visible(first + i);
            any.include(visible[i]);
        }
        pack<kRows>(Matrix<T>{lines, rows, args.width, args.width, 1}, q);
    }

    // Makes the states empty.
    void clear() {
        std::fill(o, o + kRows * pitch, T{0});
        std::fill(state, state + kRows, PowerState<T>{});
        std::fill(nonfinite, nonfinite + kRows, false);
    }

    // Computes the scores of the keys in `all`, which begins and ends at panel boundaries.
    void scores(const Block<T>& block, Range all, T* z) const {
        const std::int64_t width = head.args.width, in_place = std::min(block.unpacked.cols, all.end) - all.begin;
        std::int64_t j = all.begin;
        if constexpr (std::is_same_v<T, float>)
            if (in_place > 0) {
                multiply_by_columns(rows, q, block.unpacked.part(0, width, j, in_place), Depth(width, kWidthChunk),
                                    [to = z + j](One<T> sum, std::int64_t r, std::int64_t c, bool first)
                                        SOFTARGMAX_LAMBDA { add_chunk(sum, to + r * kPitch + c, first); });
                j += in_place;
            }
        for (; j < all.end; j += kTileCols<T>) {
            const T* columns = block.keys + j / kPanelCols<T> * kPanelCols<T> * width + j % kPanelCols<T>;
            for (int i = 0; i < rows; i += kTileRows)
                lowest_tile(Packed{}, rows - i, q + i, columns, kPanelCols<T>, Depth(width, kWidthChunk),
                            [to = z + i * kPitch + j](Pack<T> sum, int r, int c, bool first)
                                SOFTARGMAX_LAMBDA { add_chunk(sum, to + r * kPitch + c, first); });
        }
    }
    // Adds the block of keys that starts at `begin` to the output and state of each query.
    void fold(std::int64_t begin, const Block<T>& block) {
        const Range in = any.within(begin, kKeys);
        if (in.empty()) return;
        const Range all = in.panels<T>();
        T* z = scratch(kScores).get<T>(kRows * kPitch);
        scores(block, all, z);
        // Each maximum and each sum ends in a chain of operations that wait for one another. The maxima of all rows are
        // therefore computed first, and then all exponentials, so that the processor overlaps the chains of the rows.
        T top[kRows], weight[kRows] = {};
        bool may_be_empty[kRows];
        for (int i = 0; i < rows; ++i) {
            const Range its{std::max(all.begin, visible[i].begin - begin), std::min(all.end, visible[i].end - begin)};
            T* row = z + i * kPitch;
            cap_and_mask<T>(head, first + i, begin, its, row, nonfinite[i]);
            for (std::int64_t j = its.begin; block.nonfinite && j < its.end; ++j)
                nonfinite[i] |= block.nonfinite[j] && row[j] != -std::numeric_limits<T>::infinity();
            may_be_empty[i] = head.args.mask || head.args.bias || its.empty();
            top[i] = hide_outside(row, all, its);
        }
        for (int i = 0; i < rows; ++i) {
            T* row = z + i * kPitch;
            weight[i] = merge_into(i, exponentials(row, all, top[i], may_be_empty[i], nonfinite[i]));
            if (head.args.dropout > 0) {
                T* const keep = scratch(kMask).get<T>(kKeys);
                dropout_factors(head, first + i, begin, all, keep);
                for (std::int64_t j = all.begin; j < all.end; ++j) row[j] *= keep[j];
            }
        }
        add_weighted_values(z, in, block, weight);
    }
    // For each query i, adds weight[i] p v to row i of o. A chunk of keys is used for all columns before the next
    // chunk, so that values that are not packed are read in the order of their memory. With the loops in the
    // other order, decoding with 8192 keys of width 128 took 1.7 times as long with AVX2 (an Intel Xeon, model 167).
    void add_weighted_values(const T* z, Range in, const Block<T>& block, const T* weight) {
        T* const sums = scratch(kWeights).get<T>(kRows * pitch);
        for (std::int64_t k = in.begin; k < in.end; k = (k / kChain + 1) * kChain) {
            const std::int64_t n = std::min((k / kChain + 1) * kChain, in.end) - k;
            for (std::int64_t j = 0; j < pitch; j += kTileCols<T>) {
                const T* columns = block.values + j / kPanelCols<T> * block.panel + j % kPanelCols<T> + k * block.pitch;
                if (block.pitch > kPanelCols<T>)  // values that are not packed
                    prefetch_values(block, k + n + n * j / pitch, k + n + n * (j + kTileCols<T>) / pitch);
                for (int i = 0; i < rows; i += kTileRows)
                    lowest_tile(
                        InPlace{}, rows - i, z + i * kPitch + k, columns, block.pitch, n,
                        [to = sums + i * pitch + j, starts = k == in.begin, this](Pack<T> sum, int r, int c, bool)
                            SOFTARGMAX_LAMBDA { add_chunk(sum, to + r * pitch + c, starts); });
            }
        }
        for (int i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < pitch; j += Pack<T>::kLanes) {
                T* const at = o + i * pitch + j;
                fma(Pack<T>::load(sums + i * pitch + j), Pack<T>::all(weight[i]), Pack<T>::load(at)).store(at);
            }
    }
    // Prefetches the values of the keys from `begin` to `end` - 1 in the order of memory, which the hardware prefetcher
    // can follow. In the order of use, decoding with 32 heads of 2048 keys and width 64 takes 1.05 times as long (the
    // same Xeon).
    void prefetch_values(const Block<T>& block, std::int64_t begin, std::int64_t end) const {
        for (const T* its = block.values + begin * block.pitch; its < block.values + end * block.pitch;
             its += block.pitch)
            for (std::int64_t c = 0; c < pitch; c += 64 / sizeof(T)) __builtin_prefetch(its + c);
    }
    // Merges a block into the state of query i. Returns the factor by which to multiply the block's o.
    T merge_into(int i, const PowerState<T>& block) {
        const Merged<PowerState<T>> both = merge(state[i], block);
        // Copy field by field. A copy of the whole struct would wait for the two preceding stores.
        state[i].m = both.state.m;
        state[i].l = both.state.l;
        if (both.first != 1)
            for (T* its = o + i * pitch; its < o + (i + 1) * pitch; ++its) *its *= both.first;
        return both.second;
    }

    // Merges the state of the same queries over later keys into this state.
    SOFTARGMAX_CALLED void add(const QueryTile& later) {
        for (int i = 0; i < rows; ++i) {
            const T weight = merge_into(i, later.state[i]);
            nonfinite[i] = nonfinite[i] || later.nonfinite[i];
            const T* const from = later.o + i * pitch;
            for (std::int64_t j = 0; j < pitch; j += Pack<T>::kLanes) {
                T* const at = o + i * pitch + j;
                fma(Pack<T>::load(from + j), Pack<T>::all(weight), Pack<T>::load(at)).store(at);
            }
        }
    }

    // Writes the output and lse, both including the sink. Returns true if some numbers are not finite.
    bool finish() {
        const Args& args = head.args;
        bool any_nonfinite = false;
        for (int i = 0; i < rows; ++i) {
            const std::int64_t row = first + i;
            double inverse = state[i].empty() ? 0 : 1 / state[i].l;
            // If lse is not requested, check `inverse`: it is NaN in the same cases as lse, and needs no logarithm.
            double lse = args.lse || args.sink ? finalize(state[i]) : inverse;
            if (args.sink) {
                const double own = lse;
                double sink = 0;
                read(args.sink, head.at(args.sink, row), 0, 1, &sink);
                lse = finalize(merge(state_of(own), state_of(sink), Scale{}).state, Scale{});
                inverse *= share(own, lse);
            }
            if (args.lse) args.lse[head.number(row)] = lse;
            T* its = o + i * pitch;
            for (std::int64_t j = 0; j < args.values; ++j)
                its[j] = static_cast<T>(static_cast<double>(its[j]) * inverse);
            nonfinite[i] = nonfinite[i] || lse != lse || !all_finite(its, args.values);
            args.nonfinite[head.number(row)] = nonfinite[i];
            any_nonfinite = any_nonfinite || nonfinite[i];
            write(args.out, head.at(args.out, row), args.values, its);
        }
        return any_nonfinite;
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::attend
