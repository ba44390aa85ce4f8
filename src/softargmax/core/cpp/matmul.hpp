// Matrix products C = addend + A B. Every element is computed by the same sum:
//
//     c_ij = ((addend_ij + s_0) + s_1) + ..
//
//     s_p = 0;  s_p = fma(a_id, b_dj, s_p) for each d from p kDepth to (p + 1) kDepth - 1, in order
//
// The bits of an element depend only on its row of A, its column of B and its addend. They do not depend on the number
// of rows and columns, the strides, the instruction set or the position in C. Panels at the edges are padded with
// zeros, and results outside of C are not stored. So the elements at the edges are computed like all others.
//
// If A has few rows, `multiply_by_rows` and `multiply_by_columns` read B where it is. Otherwise `pack` copies operands
// of any type and strides into panels. `multiply` computes with panels. The caller splits large products, and splits
// the work among threads. Rows and columns can be split anywhere, and the depth at multiples of kDepth.
#pragma once

#include "strided_tiles.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// ---- operands -----------------------------------------------------------------------------------------------------

// An operand in the caller's memory. Element (i, j) is data[i * row + j * col], so a transpose only swaps the strides.
template <class S> struct Matrix {
    const S* data;
    std::int64_t rows, cols, row, col;
    Matrix part(std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n) const {
        return {data + i * row + j * col, m, n, row, col};
    }
};

// The layout of A: the element of row i at depth d is at i * row + d * col. Here it is known at compile time.
template <int row_, int col_> struct Layout {
    static constexpr int row = row_, col = col_;
};
// The layout of rows that are not packed.
struct RowMajor {
    std::int64_t row;
    static constexpr int col = 1;
};

// A packed operand: `count` rows of A or columns of B, in panels of Width rows or columns. The last panel is padded
// with zeros. Access is fastest if the panels are aligned to 64 bytes.
template <class T, int Width> struct Panels {
    const T* data;
    std::int64_t count, depth;
    const T* at(std::int64_t i) const { return data + i / Width * Width * depth + i % Width; }
    // `begin` is a multiple of Width.
    Panels part(std::int64_t begin, std::int64_t n) const { return {at(begin), n, depth}; }
};

// With 32 registers of 512 bits, a panel of A times a panel of B is one tile of C. It has 24 accumulators, and takes
// two loads and 12 broadcasts per 24 multiply-adds. This reaches 98% of the peak of a Zen 5 core, with B in the
// second-level cache. Tiles of 8 by 32 reach the same, with more memory traffic. With smaller registers, a tile has 6
// by 16 numbers, and 12 accumulators of 256 bits. Attention, and products with few rows, use panels of 12 rows
// (`PanelsA`, `Packed`). `multiply` uses panels of kTileRows rows, because 6 of 12 rows would bring the other 6 into
// the first-level cache, too: with panels of 6 rows and AVX2, products of depth 512 take 3% (512 x 512) and 5% (1024 x
// 8192) less time on an Intel Xeon, model 167.
constexpr int kPanelRows = 12, kTileRows = kRegisterBytes == 64 ? 12 : 6, kTilePacks = kRegisterBytes == 64 ? 2 : 1;
template <class T> constexpr int kPanelCols = 2 * Pack<T>::kLanes;
template <class T> constexpr int kTileCols = kTilePacks * Pack<T>::kLanes;
template <class T> using PanelsA = Panels<T, kPanelRows>;
template <class T> using PanelsB = Panels<T, kPanelCols<T>>;

// Packs one panel of rows. Packing a number from the second-level cache takes 0.1 ns, the same time as the 12
// multiply-adds that use it.
template <int Width, class S, class T> void pack_panel(Matrix<S> from, T* to) {
    // Products of half precision or float with double are rare. They take the general code at the end, because the
    // faster code for them would take 0.07 MB.
    constexpr bool has_faster_code = sizeof(S) == sizeof(T) || (sizeof(S) == 2 && sizeof(T) == 4);
    if (has_faster_code && from.col == 1) {
        T square[Width][kSide] = {}, transposed[kSide][Width];
        for (std::int64_t d = 0; d < from.cols; d += kSide, to += kSide * Width) {
            const S* at = from.data + d;
            const std::int64_t run = std::min<std::int64_t>(kSide, from.cols - d);
            const bool whole = run == kSide;
            // A panel has more rows than the hardware prefetcher follows, so the rows of the next panel are fetched
            // into the second-level cache. A product of 96 x 512 with 512 x 32768 takes 0.92 of the time that it takes
            // if the next numbers of the same rows are fetched, and one of 512 x 512 x 512 0.95 (Zen 4).
            for (std::int64_t i = 0; i < from.rows; ++i) __builtin_prefetch(at + (i + Width) * from.row, 0, 2);
            if constexpr (std::is_same_v<S, T>)
                if (whole && from.rows == Width) {
                    turn<Width>(at, from.row, to, Width);
                    continue;
                }
            // The constant size lets the copy use a few registers. With a variable size, `rep movs` took a seventh of
            // the time of attention with 16 keys.
            for (std::int64_t i = 0; whole && i < from.rows; ++i) convert(at + i * from.row, kSide, square[i]);
            for (std::int64_t i = 0; !whole && i < from.rows; ++i) convert(at + i * from.row, run, square[i]);
            turn<Width>(square[0], kSide, whole ? to : transposed[0], Width);
            if (!whole) std::copy_n(transposed[0], run * Width, to);
        }
        return;
    }
    for (std::int64_t d = 0; d < from.cols; ++d, to += Width) {
        const S* at = from.data + d * from.col;
        if (from.row == 1 && from.rows == Width) {
            convert(at, Width, to);
            continue;
        }
        for (std::int64_t i = 0; i < from.rows; ++i) {
            to[i] = convert<T>(at[i * from.row]);
            stay_scalar();
        }
        std::fill(to + from.rows, to + Width, T{0});
    }
}
// Packs whole panels of a matrix with contiguous columns, in the order of its memory. One panel after the other would
// read each line again for each panel: gradients of W (32768 x 96, depth 96) would take 1.03 times as long (Zen 4).
template <int Width, class T> std::int64_t pack_columns(Matrix<T> from, T* to) {
    constexpr int kAhead = 8;
    const std::int64_t whole = from.rows / Width * Width;
    for (std::int64_t d = 0; d < from.cols; ++d, to += Width) {
        const T* at = from.data + d * from.col;
        for (std::int64_t i = 0; i < whole; i += Width) {
            __builtin_prefetch(at + kAhead * from.col + i);
            std::memcpy(to + i * from.cols, at + i, Width * sizeof(T));
        }
    }
    return whole;
}
template <int Width, class S, class T> Panels<T, Width> pack(Matrix<S> from, T* to) {
    std::int64_t i = 0;
    if constexpr (std::is_same_v<S, T>)
        if (from.row == 1 && from.col != 1) i = pack_columns<Width>(from, to);
    for (; i < from.rows; i += Width)
        pack_panel<Width>(from.part(i, std::min<std::int64_t>(Width, from.rows - i), 0, from.cols), to + i * from.cols);
    return {to, from.rows, from.cols};
}

// ---- the product --------------------------------------------------------------------------------------------------

// The addend of a product: none, one row for all rows of C (a bias, with pitch 0), or a matrix, which may be C itself.
template <class T> struct Addend {
    const T* data = nullptr;
    std::int64_t pitch = 0;
};

// The numbers of B that are packed next: `runs` runs of `bytes` contiguous bytes. While a tile computes, it fetches 256
// of these bytes into the second-level cache for each kDepthsPerFetch depths, so that packing need not wait for memory.
// Scores of 96 rows and 32768 classes of width 512, and dh = dz W, then take 0.87 and 0.85 of the time (Zen 4).
constexpr std::int64_t kDepthsPerFetch = 16;
class Upcoming {
    const char* run_ = nullptr;
    std::int64_t runs_ = 0, bytes_ = 0, pitch_ = 0, at_ = 0;

  public:
    Upcoming() = default;
    Upcoming(const char* run, std::int64_t runs, std::int64_t bytes, std::int64_t pitch)
        : run_(run), runs_(runs), bytes_(bytes), pitch_(pitch) {}
    SOFTARGMAX_INLINE bool fetch() {
        if (runs_ <= 0) return false;
#pragma GCC unroll 4
        for (int k = 0; k < 256; k += 64) __builtin_prefetch(run_ + at_ + k, 0, 2);
        at_ += 256;
        if (at_ < bytes_) return true;
        at_ = 0;
        run_ += pitch_;
        --runs_;
        return true;
    }
};

// The part of C from one element to the last row and column of C, with its addends.
template <class T> struct Corner {
    T* c;
    std::int64_t pitch, rows, cols;
    Addend<T> addend;
    Upcoming* upcoming;
    bool streams;
    Corner at(std::int64_t i, std::int64_t j) const {
        const T* from = addend.data ? addend.data + i * addend.pitch + j : nullptr;
        return {c + i * pitch + j, pitch, rows - i, cols - j, {from, addend.pitch}, upcoming, streams};
    }
    // Adds the sum of a chunk to the addend. For the second chunk and later ones, the addend is C. No sum is -0, which
    // products that underflow can leave: otherwise it would matter whether `multiply` skips a later panel of zeros.
    template <class V> SOFTARGMAX_INLINE void operator()(V sum, std::int64_t i, std::int64_t j, bool /*first*/) const {
        if (i >= rows) return;
        const std::int64_t n = cols - j;
        sum = sum + V::all(0);
        if (addend.data) sum = V::load_part(addend.data + i * addend.pitch + j, n, 0) + sum;
        sum.store_part(c + i * pitch + j, n);
    }
    // The same for a tile of sums. Tiles inside of C need no tests for each pack: without them, a product of depth 2
    // takes 0.8 of the time. Tiles at the edges of C share one function.
    template <class V, int Rows, int Packs> SOFTARGMAX_INLINE void add(const V (&sum)[Rows][Packs]) const {
        alignas(64) T copy[Rows][Packs * V::kLanes];
        const bool whole = Rows <= rows && Packs * V::kLanes <= cols;
#pragma GCC unroll 12
        for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < Packs; ++j) {
                const std::int64_t k = j * V::kLanes;
                const V found = sum[i][j] + V::all(0);
                if (!whole) found.store(copy[i] + k);
                else if (addend.data) (V::load(addend.data + i * addend.pitch + k) + found).store(c + i * pitch + k);
                else if (streams) found.stream(c + i * pitch + k);
                else found.store(c + i * pitch + k);
            }
        if (!whole) add_part<V>(copy[0], Rows, Packs * V::kLanes);
    }

  private:
    template <class V>
    SOFTARGMAX_CALLED void add_part(const T* sums, std::int64_t tile_rows, std::int64_t tile_cols) const {
        for (std::int64_t i = 0; i < std::min(tile_rows, rows); ++i)
            for (std::int64_t j = 0; j < std::min(tile_cols, cols); j += V::kLanes)
                (*this)(V::load(sums + i * tile_cols + j), i, j, true);
    }
};

// Panels of kPanelRows rows.
using Packed = Layout<1, kPanelRows>;

// The depth of a product, cut into chunks with separate sums, because shorter chains of multiply-adds accumulate fewer
// roundings. The first chunk has chunk - phase indices, and each other chunk has `chunk` indices.
struct Depth {
    std::int64_t size, chunk, phase = 0;
    Depth(std::int64_t n) : size(n), chunk(std::max<std::int64_t>(n, 1)) {}
    Depth(std::int64_t n, std::int64_t each, std::int64_t begin = 0) : size(n), chunk(each), phase(begin % each) {}
    std::int64_t end_of_chunk(std::int64_t d) const {
        return std::min(size, (d + phase) / chunk * chunk + chunk - phase);
    }
};

// Multiplies `Rows` rows of A by `Packs` adjacent packs of columns of B. The sums of a chunk start at start(i, j).
// Calls put(sum, i, j, first) for every pack of the product, once per chunk. `first` is true for the first chunk. If
// put is a Corner, the depth is one chunk, and put.add(sum) is called once. Adjacent depths of B are `pitch` numbers
// apart.
template <class A, int Rows, int Packs = kTilePacks, class T, class Put, class Start>
SOFTARGMAX_INLINE void tile(A layout, const T* a, const T* b, std::int64_t pitch, const Depth& depth, const Put& put,
                            const Start& start) {
    using V = Pack<T>;
    std::int64_t d = 0;
#pragma GCC unroll 1
    do {
        const bool first = d == 0;
        const std::int64_t end = depth.end_of_chunk(d);
        free_registers();
        V sum[Rows][Packs];
#pragma GCC unroll 12
        for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < Packs; ++j) sum[i][j] = start(i, j * V::kLanes);
#pragma GCC unroll 1
        while (d < end) {
            std::int64_t stop = end;
            if constexpr (std::is_same_v<Put, Corner<T>>) {
                if (put.upcoming->fetch()) stop = std::min(end, d + kDepthsPerFetch);
            }
#pragma GCC unroll 1
            for (; d < stop; ++d, a += layout.col, b += pitch) {
                V y[Packs];
#pragma GCC unroll 4
                for (int j = 0; j < Packs; ++j) y[j] = V::load(b + j * V::kLanes);
#pragma GCC unroll 12
                for (int i = 0; i < Rows; ++i) {
                    const V x = V::all(a[i * layout.row]);
#pragma GCC unroll 4
                    for (int j = 0; j < Packs; ++j) sum[i][j] = fma(x, y[j], sum[i][j]);
                }
            }
        }
        if constexpr (std::is_same_v<Put, Corner<T>>) {
            put.add(sum);
        } else {
#pragma GCC unroll 12
            for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < Packs; ++j) put(sum[i][j], i, j * V::kLanes, first);
        }
    } while (d < depth.size);
}
// The sums of most products start at 0.
template <class V> struct Zero {
    SOFTARGMAX_INLINE V operator()(int, int) const { return V::all(0); }
};
// Computes a tile of at most `Rows` rows. If fewer rows are left, it uses a smaller tile, because a full tile takes
// as long for 1 row as for all of its rows. `put` must ignore rows beyond `rows`.
template <class A, int Rows = kTileRows, class T, class Put, class Start = Zero<Pack<T>>>
void lowest_tile(A layout, std::int64_t rows, const T* a, const T* b, std::int64_t pitch, const Depth& depth,
                 const Put& put, const Start& start = {}) {
    constexpr int step = kTileRows / 3, fewer = Rows > step ? Rows - step : step / 2;
    if constexpr (Rows > fewer)
        if (rows <= fewer) return lowest_tile<A, fewer>(layout, rows, a, b, pitch, depth, put, start);
    tile<A, Rows>(layout, a, b, pitch, depth, put, start);
}

// True if all n numbers are 0. Reading stops at the first pack with a nonzero number, so the check of a dense panel
// usually reads one pack.
template <class T> bool all_zero(const T* x, std::int64_t n) {
    using V = Pack<T>;
    const V zero = V::all(0);
    const auto every = equal(zero, zero);
    for (std::int64_t i = 0; i < n; i += V::kLanes)
        if (any(unless(every, equal(V::load_part(x + i, n - i, 0), zero)))) return false;
    return true;
}

// Computes C = addend + A B. A has at most kRowsAtOnce rows, which stay in the first- or second-level cache while B is
// read, as the rows of C do between two chunks of the depth. If A is `sparse`, panels of zeros are skipped. This
// changes no bit of a finite product, because the sums of such panels would be +0. If B is small, C is written in the
// order of its memory. With AVX2, the product of 256 x 374 with depth 2 then takes 0.75 of the time (Zen 4).
constexpr std::int64_t kRowsAtOnce = kRegisterBytes == 64 ? 12 : 48;
constexpr std::int64_t kInFirstCache = 4096;  // numbers of B that leave room for A and C in the first-level cache
template <class T>
void multiply_chunk(Panels<T, kTileRows> a, PanelsB<T> b, std::int64_t begin, const Corner<T>& all, bool sparse) {
    const std::int64_t depth = std::min(kDepth, a.depth - begin);
    bool zeros[kRowsAtOnce / kTileRows] = {};
    for (int p = 0; sparse && p * kTileRows < a.count; ++p)
        zeros[p] = all_zero(a.at(p * kTileRows) + begin * kTileRows, kTileRows * depth);
    const auto compute = [&](std::int64_t i, std::int64_t j) {
        const bool zero = zeros[i / kTileRows];
        if (zero && all.addend.data == all.c) return;
        lowest_tile(Layout<1, kTileRows>{}, a.count - i, a.at(i) + begin * kTileRows, b.at(j) + begin * kPanelCols<T>,
                    kPanelCols<T>, Depth(zero ? 0 : depth), all.at(i, j));
    };
    if (b.count * b.depth <= kInFirstCache) {
        for (std::int64_t i = 0; i < a.count; i += kTileRows)
            for (std::int64_t j = 0; j < b.count; j += kTileCols<T>) compute(i, j);
        return;
    }
    for (std::int64_t j = 0; j < b.count; j += kTileCols<T>)
        for (std::int64_t i = 0; i < a.count; i += kTileRows) {
            // Prefetches the tile of C, which is written after its sums are computed. With this prefetch, a product of
            // 1024 x 32768 with depth 512 takes 0.99 of the time of torch's sgemm on an Intel Xeon, model 167, and
            // 1.06 of it without the prefetch.
            for (std::int64_t r = i; !all.streams && r < std::min<std::int64_t>(i + kTileRows, a.count); ++r)
                for (int k = 0; k < kTileCols<T>; k += Pack<T>::kLanes)
                    __builtin_prefetch(all.c + r * all.pitch + j + k, 1);
            compute(i, j);
        }
}
template <class T> void multiply(Panels<T, kTileRows> a, PanelsB<T> b, Corner<T> all, bool sparse = false) {
    multiply_chunk(a, b, 0, all, sparse);
    all.addend = {all.c, all.pitch};
    for (std::int64_t d = kDepth; d < a.depth; d += kDepth) multiply_chunk(a, b, d, all, sparse);
}

// The same for whole tiles of rows that are not packed.
template <class T> void multiply_unpacked(Matrix<T> a, PanelsB<T> b, Corner<T> all, bool sparse) {
    for (std::int64_t d = 0; d == 0 || d < a.cols; d += kDepth, all.addend = {all.c, all.pitch})
        for (std::int64_t i = 0; i < a.rows; i += kTileRows) {
            const T* const rows = a.data + i * a.row + d;
            const std::int64_t depth = std::min(kDepth, a.cols - d);
            bool zero = sparse;
            for (int r = 0; zero && r < kTileRows; ++r) zero = all_zero(rows + r * a.row, depth);
            for (std::int64_t j = 0; j < b.count; j += kTileCols<T>)
                tile<RowMajor, kTileRows>({a.row}, rows, b.at(j) + d * kPanelCols<T>, kPanelCols<T>,
                                          Depth(zero ? 0 : depth), all.at(i, j), Zero<Pack<T>>{});
        }
}

// ---- few rows -----------------------------------------------------------------------------------------------------
//
// With few rows, packing B would take longer than the product. So B is read once, in the order of its memory, and not
// packed. For 3 x 38552 with depth 137, the product takes 1.0 ms instead of 2.0 ms if the columns of B are contiguous,
// and 1.1 ms instead of 1.8 ms if its rows are (the same Xeon, one thread). Reading B alone takes 0.9 ms.

// The largest numbers of rows for which this is faster.
constexpr std::int64_t kMostByRows = 24, kMostByColumns = kPanelRows;

// The product with a matrix B of at most kDepth contiguous rows. Each step computes with a few rows of B. Between
// steps, `sums` holds the partial sums. Its size is a.count by b.cols numbers, rounded up to whole panels of rows and
// whole tiles of columns. If B is in the second-level cache, steps are longer, and prefetch nothing: the product of
// 13 x 152 with depth 978 takes 0.83 of the time (Zen 4, both instruction sets).
template <int Packs, class T>
void multiply_by_rows(PanelsA<T> a, Matrix<T> b, const Corner<T>& all, T* sums, bool in_cache) {
    using V = Pack<T>;
    constexpr std::int64_t short_step = 16, long_step = 64, width = Packs * V::kLanes;
    const std::int64_t step = in_cache ? long_step : short_step;
    const std::int64_t sums_pitch = (b.cols + width - 1) / width * width;
    T edge[long_step * width] = {};
    for (std::int64_t d = 0; d < b.rows; d += step) {
        const std::int64_t n = std::min(step, b.rows - d);
        const bool starts = d == 0, ends = d + n == b.rows;
        for (std::int64_t j = 0; j < b.cols; j += width) {
            const T* from = b.data + d * b.row + j;
            std::int64_t pitch = b.row;
            for (std::int64_t k = step; !in_cache && k < step + n; ++k)  // the rows of the next step
                for (std::int64_t l = 0; l < width; l += V::kLanes) __builtin_prefetch(from + k * pitch + l);
            if (j + width > b.cols) {  // the tile would read beyond the end of the rows
                for (std::int64_t k = 0; k < n; ++k) std::copy_n(from + k * pitch, b.cols - j, edge + k * width);
                from = edge;
                pitch = width;
            }
            for (std::int64_t i = 0; i < a.count; i += kTileRows) {
                T* const sum = sums + i * sums_pitch + j;
                const T* const rows = a.at(i) + d * kPanelRows;
                const auto put = [&, out = all.at(i, j)](V x, std::int64_t r, std::int64_t k, bool) SOFTARGMAX_LAMBDA {
                    if (ends) out(x, r, k, true);
                    else x.store(sum + r * sums_pitch + k);
                };
                const auto start = [&](std::int64_t r, std::int64_t k) SOFTARGMAX_LAMBDA {
                    return starts ? V::all(0) : V::load(sum + r * sums_pitch + k);
                };
                if constexpr (Packs > kTilePacks)
                    tile<Packed, 2, Packs>(Packed{}, rows, from, pitch, Depth(n), put, start);
                else lowest_tile(Packed{}, a.count - i, rows, from, pitch, Depth(n), put, start);
            }
        }
    }
}
// One or two rows have tiles of twice as many columns, because the sums of a small tile wait for each other.
template <class T>
void multiply_by_rows(PanelsA<T> a, Matrix<T> b, const Corner<T>& all, T* sums, bool in_cache) {
    if (a.count <= 2) multiply_by_rows<2 * kTilePacks>(a, b, all, sums, in_cache);
    else multiply_by_rows<kTilePacks>(a, b, all, sums, in_cache);
}

template <class T> constexpr int kColumnsAtOnce = 2 * One<T>::kLanes;
// Prefetches the share number `part` of the next columns, which start at `next`. A share has `each` columns, and all
// shares together follow the order of memory, as the hardware prefetcher does. If each step prefetches its own depths
// of all columns, decoding with 8192 keys of width 64 and 128 takes 1.2 times as long (the same Xeon, one thread).
template <class T>
SOFTARGMAX_INLINE void prefetch_columns(const T* next, const Matrix<T>& b, std::int64_t part, std::int64_t each) {
    const std::int64_t end = std::min((part + 1) * each, std::int64_t{kColumnsAtOnce<T>});
    for (std::int64_t j = part * each; j < end; ++j)
        for (std::int64_t i = 0; i < b.rows; i += 64 / sizeof(T)) __builtin_prefetch(next + j * b.col + i);
}
// The product with a matrix B whose columns are contiguous, for `Rows` rows of A. Blocks of B are transposed in
// registers. b.cols is a multiple of kColumnsAtOnce. Calls put(sum, i, j, first) as `tile` does. The function is not
// inlined, because in a large caller the loop can lack registers. Inlined, it takes 1.3 ms instead of 1.0 ms for
// 3 x 38552 with depth 137.
template <int Rows, class T, class Put>
SOFTARGMAX_CALLED void multiply_by_columns(const T* a, Matrix<T> b, const Depth& depth, const Put& put) {
    using V = One<T>;
    constexpr int n = 16 / sizeof(T);
    const std::int64_t parts = std::max<std::int64_t>(b.rows / kSide, 1),
                       each = (kColumnsAtOnce<T> + parts - 1) / parts;
    for (std::int64_t j = 0; j < b.cols; j += kColumnsAtOnce<T>) {
        const T* from[2] = {b.data + j * b.col, b.data + (j + V::kLanes) * b.col};
        std::int64_t d = 0;
        do {
            const bool first = d == 0;
            const std::int64_t end = depth.end_of_chunk(d);
            V sum[2][Rows];
            for (V(&half)[Rows] : sum)
                for (V& x : half) x = V::all(0);
            for (; d + n <= end; d += n) {
                if (d % kSide == 0) prefetch_columns(from[0] + kColumnsAtOnce<T> * b.col, b, d / kSide, each);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    V y[n];
                    turn_block(from[half] + d, b.col, y);
#pragma GCC unroll 4
                    for (int k = 0; k < n; ++k)
#pragma GCC unroll 12
                        for (int r = 0; r < Rows; ++r)
                            sum[half][r] = fma(V::all(a[(d + k) * kPanelRows + r]), y[k], sum[half][r]);
                }
            }
            for (; d < end; ++d)
                for (int half = 0; half < 2; ++half) {
                    T y[V::kLanes];
                    for (int k = 0; k < V::kLanes; ++k) y[k] = from[half][k * b.col + d];
                    for (int r = 0; r < Rows; ++r)
                        sum[half][r] = fma(V::all(a[d * kPanelRows + r]), V::load(y), sum[half][r]);
                }
            for (int half = 0; half < 2; ++half)
                for (int r = 0; r < Rows; ++r) put(sum[half][r], r, j + half * V::kLanes, first);
        } while (d < depth.size);
    }
}
// The same for at most kMostByColumns rows.
template <class T, class Put>
void multiply_by_columns(std::int64_t rows, const T* a, Matrix<T> b, const Depth& depth, const Put& put) {
    if (rows <= 2) multiply_by_columns<2>(a, b, depth, put);
    else if (rows <= 4) multiply_by_columns<4>(a, b, depth, put);
    else multiply_by_columns<kMostByColumns>(a, b, depth, put);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
