// What the kernels of all rooms share: matrix products, the pass that folds a row into a state, the pass that computes
// results from the state, and copies of tiles of scores. Also a measurement of the peak arithmetic rate for `softargmax
// bench`.
#include <unistd.h>

#include "core/cpp/elementwise.hpp"
#include "core/cpp/matmul.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

template State fold(const float*, std::int64_t, Scale, const Next&);
template State fold(const double*, std::int64_t, Scale, const Next&);
template void apply_limit<Log::no>(const float*, std::int64_t, const State&, float*, double);
template void apply_limit<Log::no>(const double*, std::int64_t, const State&, double*, double);
template void apply<Log::no>(const float*, std::int64_t, const State&, Scale, const Target<float>&, Twofold, double);
template void apply<Log::no>(const double*, std::int64_t, const State&, Scale, const Target<double>&, Twofold, double);
template void read(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, float*, std::int64_t);
template void read(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, double*,
                   std::int64_t);
template void write(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, const float*,
                    std::int64_t, bool);
template void write(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, const double*,
                    std::int64_t, bool);

}  // namespace softargmax::SOFTARGMAX_ISA_NAME

namespace softargmax::SOFTARGMAX_ISA_NAME::core {

// Runs args.rounds rounds of kMultiplyAdds fused multiply-adds of 16 floats, on several accumulators. There are enough
// accumulators to hide the latency, and few enough to stay in registers. The sum is returned so that the work cannot be
// optimised away.
void multiply_adds(MultiplyAddsArgs& args) {
    using V = Pack<float>;
    constexpr int kInRegisters = kRegisterBytes == 64 ? 16 : 4;
    const V a = V::all(0.999F), b = V::all(0.001F);
    V x[kInRegisters];
    for (int i = 0; i < kInRegisters; ++i) x[i] = V::all(static_cast<float>(i));
    for (std::int64_t round = 0; round < args.rounds; ++round)
        for (int again = 0; again < kMultiplyAdds; again += kInRegisters)
            for (V& each : x) each = fma(each, a, b);
    V sum = V::all(0);
    for (const V& each : x) sum = sum + each;
    args.sum = static_cast<double>(max_of(sum));
}

namespace {

// The number of bytes in a block of B: half of the second-level cache, where it stays while the rows of A are read, but
// at most 512 KiB. A product of 1024 x 32768 with depth 512, on two threads of the Xeon of docs/speed.md (2 MiB), takes
// 105 ms. With half this size it takes 120 ms, with twice this size 113 ms, and with four times this size 114 ms. The
// size changes no bit of the result.
inline std::int64_t block_bytes() {
    constexpr std::int64_t least = std::int64_t{128} << 10, most = std::int64_t{512} << 10;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    static const std::int64_t cache = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 or -1 if unknown
    if (cache > 0) return std::clamp(cache / 2, least, most);
#endif
    return most;
}
template <class T> std::int64_t block_size() { return block_bytes() / static_cast<std::int64_t>(sizeof(T)); }
constexpr std::int64_t kRowsAtOnce = kFewPanels * kPanelRows;

// The depth of panels: two chunks of kDepth, so that a tile of C is loaded from memory once for both. In sparse
// products a panel has one chunk, because zeros are skipped by whole panels. With few rows, B may be read without
// panels. The depth is then also one chunk: with two chunks, the pieces of C would be narrower, and narrow pieces read
// the rows of B in parts.
constexpr std::int64_t kPanelDepth = 2 * kDepth;
inline std::int64_t panel_depth(const ProductArgs& args) {
    return args.sparse || args.rows <= kMostByRows ? kDepth : kPanelDepth;
}

// kPiecesPerThread is the largest number of pieces per thread. A piece should have at least kPieceWork multiply-adds
// and kPieceSize elements of C, because smaller pieces spend too much time on packing. For 96 x 512 with depth 32768 on
// two threads, 4 pieces take 14.2 ms, 8 take 19.0 ms and 16 take 19.4 ms. Packing one number of A or B takes as long as
// kPacking multiply-adds.
constexpr double kPiecesPerThread = 8, kPieceWork = 1 << 23, kPieceSize = 12800, kPacking = 17;

template <class T, int Width> Panels<T, Width> packed(const Factor2D& x, std::int64_t i, std::int64_t m, std::int64_t j,
                                                      std::int64_t n, T* to) {
    with_real_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        pack<Width>(Matrix<S>{base + i * x.row + j * x.col, m, n, x.row, x.col}, to);
    });
    return {to, m, n};
}

// C cut into pieces. Threads take one piece after another, so a thread that loses its core delays only one piece.
struct Pieces {
    std::int64_t rows, cols;  // rows and columns of a piece: multiples of the size of a panel
    std::int64_t across, count;

    // Compares ways to cut C into about `wanted` pieces, and returns the one with the shortest estimated `time`.
    template <class T> static Pieces of(const ProductArgs& args) {
        const double size = static_cast<double>(args.rows) * static_cast<double>(args.cols),
                     by_size = size * std::min(static_cast<double>(args.depth) / kPieceWork, 1 / kPieceSize);
        const auto wanted = static_cast<std::int64_t>(
            args.threads == 1 ? 1
                              : std::clamp<double>(std::round(by_size), args.threads, kPiecesPerThread * args.threads));
        Pieces best = cut<T>(args, 1, wanted);
        for (std::int64_t across = 2; across <= wanted; ++across) {
            const Pieces other = cut<T>(args, across, wanted / across);
            if (other.time(args.threads) < best.time(args.threads)) best = other;
        }
        return best;
    }
    template <class T> static Pieces cut(const ProductArgs& args, std::int64_t across, std::int64_t down) {
        constexpr std::int64_t width = kPanelCols<T>;
        const std::int64_t most =
            block_size<T>() / std::clamp<std::int64_t>(args.depth, 64, panel_depth(args)) / width * width;
        Pieces p{};
        p.rows = part<kPanelRows>(args.rows, down);
        p.cols = std::min(most, part<width>(args.cols, across));
        p.across = (args.cols + p.cols - 1) / p.cols;
        p.count = p.across * ((args.rows + p.rows - 1) / p.rows);
        return p;
    }
    // Divides n into `count` equal parts, and returns the size of a part, rounded up to whole panels.
    template <int Panel> static std::int64_t part(std::int64_t n, std::int64_t count) {
        return (n + Panel * count - 1) / (Panel * count) * Panel;
    }
    // The estimated time of a product per unit of depth, in multiply-adds. Packing the rows of A and the columns of B
    // for every piece is included.
    double time(int threads) const {
        const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
        return static_cast<double>((count + threads - 1) / threads) * (m * n + kPacking * (m + n));
    }
};

// One piece of a product: rows [i, i + m) and columns [j, j + n) of C.
template <class T> struct Piece {
    const ProductArgs& args;
    std::int64_t i, m, j, n;

    // Computes the piece. The outer loop runs over the depth, because the partial sums of an element of C are added in
    // the order of their depth.
    void compute() const {
        T* const a = scratch(kScores).get<T>(std::max(kRowsAtOnce, kMostByRows) * kPanelDepth);
        T* const b = scratch(kOther).get<T>(block_size<T>());
        const std::int64_t step = reads_in_place() ? kDepth : panel_depth(args);
        for (std::int64_t d = 0; d == 0 || d < args.depth; d += step) {
            const std::int64_t depth = std::min(step, args.depth - d);
            if (reads_in_place()) multiply_in_place(d, depth, a, b);
            else multiply_panels(d, depth, a, b);
        }
    }

  private:
    PanelsA<T> rows(std::int64_t row, std::int64_t count, std::int64_t d, std::int64_t depth, T* to) const {
        return packed<T, kPanelRows>(args.a, row, count, d, depth, to);
    }
    PanelsB<T> columns(std::int64_t col, std::int64_t count, std::int64_t d, std::int64_t depth, T* to) const {
        const Factor2D turned{args.b.data, args.b.type, args.b.col, args.b.row};
        return packed<T, kPanelCols<T>>(turned, col, count, d, depth, to);
    }
    Matrix<T> in_place(std::int64_t d, std::int64_t depth, std::int64_t count) const {
        const T* data = reinterpret_cast<const T*>(args.b.data) + d * args.b.row + j * args.b.col;
        return {data, depth, count, args.b.row, args.b.col};
    }
    Corner<T> corner(std::int64_t row, std::int64_t count, std::int64_t d) const {
        T* const c = reinterpret_cast<T*>(args.out) + row * args.pitch + j;
        Addend<T> addend{c, args.pitch};
        if (d == 0 && !args.adds)
            addend = args.bias ? Addend<T>{reinterpret_cast<const T*>(args.bias) + j, 0} : Addend<T>{};
        return {c, args.pitch, count, n, addend};
    }
    void multiply_panels(std::int64_t d, std::int64_t depth, T* a, T* b) const {
        const auto block = columns(j, n, d, depth, b);
        for (std::int64_t row = i; row < i + m; row += kRowsAtOnce) {
            const std::int64_t count = std::min(kRowsAtOnce, i + m - row);
            multiply(rows(row, count, d, depth, a), block, corner(row, count, d), args.sparse);
        }
    }
    // True if reading B where it is, without packing, is possible and faster. The code for it is compiled only for
    // float: for double it would take 0.1 MB, and few output layers have float64 scores.
    bool reads_in_place() const {
        return std::is_same_v<T, float> && args.b.type == Type::f32 && args.depth > 0 &&
               ((args.b.col == 1 && m <= kMostByRows) || (args.b.row == 1 && m <= kMostByColumns));
    }
    void multiply_in_place(std::int64_t d, std::int64_t depth, T* a, T* b) const {
        if constexpr (std::is_same_v<T, float>) {
            const auto few = rows(i, m, d, depth, a);
            const auto all = corner(i, m, d);
            if (args.b.col == 1) return multiply_by_rows(few, in_place(d, depth, n), all, b);
            const std::int64_t whole = n / kColumnsAtOnce<T> * kColumnsAtOnce<T>;
            const auto part = in_place(d, depth, whole);
            multiply_by_columns(m, few.data, part, part.rows, all);
            if (whole < n) multiply(few, columns(j + whole, n - whole, d, depth, b), all.at(0, whole));
        }
    }
};
template <class T> void product_as(const ProductArgs& args) {
    const auto pieces = Pieces::of<T>(args);
    parallel_each(args.threads, pieces.count, [&](std::int64_t k) {
        const std::int64_t i = k / pieces.across * pieces.rows, j = k % pieces.across * pieces.cols;
        Piece<T>{args, i, std::min(pieces.rows, args.rows - i), j, std::min(pieces.cols, args.cols - j)}.compute();
    });
}

}  // namespace

void product(const ProductArgs& args) {
    const FloatEnvironment environment;
    if (args.a.type == Type::f64 || args.b.type == Type::f64) product_as<double>(args);
    else product_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::core
