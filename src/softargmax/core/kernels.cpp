// What the kernels of all rooms share: matrix products, the pass that folds a row into a state, the pass that computes
// results from the state, and copies of tiles of scores. Also a measurement of the peak arithmetic rate for `softargmax
// bench`.

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
// at most 512 KiB. A product of 1024 x 32768 with depth 512, on two threads of an Intel Xeon, model 167 (2 MiB), takes
// 105 ms. With half this size it takes 120 ms, with twice this size 113 ms, and with four times this size 114 ms. The
// size changes no bit of the result.
inline std::int64_t block_bytes() {
    constexpr std::int64_t least = std::int64_t{128} << 10, most = std::int64_t{512} << 10;
    return std::clamp(second_level_cache() / 2, least, most);
}
template <class T> std::int64_t block_size() { return block_bytes() / static_cast<std::int64_t>(sizeof(T)); }

// The largest number of rows of A that are packed at once. They are multiplied by all blocks of B. If the rows were
// packed again for each block, a product of 1024 x 8192 with depth 768 would take 1.1 times as long with AVX-512, and
// 1.07 times with AVX2 (the same Xeon, one thread). With half as many rows, B is packed twice for 1024 rows of depth
// 512, which takes 5% of the time.
constexpr std::int64_t kPackedRows = 1024;

// The largest depth that is packed whole. Greater depths are packed in chunks of kDepth. With such chunks for all
// depths, a product of 114 x 50257 with depth 768 takes 1.03 times as long, because results leave the caches before the
// next chunk is added. With chunks of kPackedDepth for greater depths, one of 512 x 512 with depth 32768 does (the same
// Xeon, one thread).
constexpr std::int64_t kPackedDepth = 2 * kDepth;

// The largest number of columns for which contiguous rows of A are read where they are. Packing a number takes as long
// as multiplying it by 13 columns. The product of 20,000 x 10 with depth 784 takes 0.65 of the time, that of 2000 x 64
// with depth 4096 0.81. If rows are 128 KiB apart, 64 columns take 1.06 times as long, and 128 columns 1.13 times (the
// same Xeon, one thread).
constexpr std::int64_t kFewColumns = 64;

// The time of packing one number of A or B in multiply-adds, and the share of calls that wait for a piece whose thread
// has lost its core. Pieces of large products are packed from memory, which takes longer than from a cache.
constexpr double kPacking = 22, kDelayed = 0.1;

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

    // Compares ways to cut C, and returns the one with the shortest estimated time.
    template <class T> static Pieces of(const ProductArgs& args) {
        const std::int64_t most = args.threads == 1 ? 1 : kPiecesPerThread * args.threads;
        const std::int64_t most_down = std::min(most, (args.rows + kPanelRows - 1) / kPanelRows);
        const std::int64_t most_across = (args.cols + kPanelCols<T> - 1) / kPanelCols<T>;
        Pieces best = cut<T>(args, 1, 1);
        double shortest = best.time(args.threads);
        // Numbers above 16 grow by a quarter, because 64 threads have 3500 pairs of numbers.
        const auto step = [](std::int64_t n) { return n < 16 ? 1 : n / 4; };
        for (std::int64_t down = 1; down <= most_down; down += step(down))
            for (std::int64_t across = 1; across <= std::min(most / down, most_across); across += step(across)) {
                const Pieces other = cut<T>(args, across, down);
                const double time = other.time(args.threads);
                if (time < shortest) best = other, shortest = time;
            }
        return best;
    }
    template <class T> static Pieces cut(const ProductArgs& args, std::int64_t across, std::int64_t down) {
        Pieces p{};
        p.rows = part<kPanelRows>(args.rows, down);
        p.cols = part<kPanelCols<T>>(args.cols, across);
        p.across = (args.cols + p.cols - 1) / p.cols;
        p.count = p.across * ((args.rows + p.rows - 1) / p.rows);
        return p;
    }
    // Divides n into `count` equal parts, and returns the size of a part, rounded up to a multiple of Panel.
    template <std::int64_t Panel> static std::int64_t part(std::int64_t n, std::int64_t count) {
        return (n + Panel * count - 1) / (Panel * count) * Panel;
    }
    // The estimated time of a product per unit of depth, in multiply-adds. Many pieces take more time to pack. Few
    // pieces take more time if one is delayed.
    double time(int threads) const {
        const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
        const auto rounds = static_cast<double>((count + threads - 1) / threads);
        return (rounds + kDelayed) * (m * n + kPacking * (m + n));
    }
};

// One piece of a product: rows [i, i + m) and columns [j, j + n) of C.
template <class T> struct Piece {
    const ProductArgs& args;
    std::int64_t i, m, j, n;

    // Computes the piece. The partial sums of an element of C are added in the order of their depth.
    void compute() const {
        const std::int64_t most = args.depth > kPackedDepth || reads_b_in_place() ? kDepth : kPackedDepth;
        const std::int64_t deepest = std::clamp<std::int64_t>(args.depth, 64, most);
        const std::int64_t width = block_size<T>() / deepest / kPanelCols<T> * kPanelCols<T>;
        const std::int64_t height = Pieces::part<kRowsAtOnce>(m, (m + kPackedRows - 1) / kPackedRows);
        // Always the size for the largest piece. Memory that is not touched costs nothing, but growing leaves the
        // former block in the heap. No caller holds kOther here.
        T* const b = scratch(kOther).get<T>(block_size<T>() + (kPackedRows + kRowsAtOnce) * kPackedDepth);
        T* const a = b + block_size<T>();
        for (std::int64_t row = i; row < i + m; row += height)
            for (std::int64_t d = 0; d == 0 || d < args.depth; d += most) {
                const std::int64_t count = std::min(height, i + m - row), depth = std::min(most, args.depth - d);
                const auto each_block = [&](auto multiply) {
                    for (std::int64_t col = j; col < j + n; col += width) {
                        const bool last = col + width >= j + n, deeper = last && d + depth < args.depth;
                        Upcoming next = upcoming(deeper ? j : col + width, width, deeper ? d + depth : d, depth);
                        multiply(Piece{args, row, count, col, std::min(width, j + n - col)}, next);
                    }
                };
                if constexpr (std::is_same_v<T, float>)
                    if (reads_b_in_place()) {
                        const auto few = packed<T, kPanelRows>(args.a, row, count, d, depth, a);
                        each_block(
                            [&](const Piece& piece, Upcoming& next) { piece.multiply_b_in_place(few, d, b, next); });
                        continue;
                    }
                const std::int64_t unpacked = reads_a_in_place() ? count / kTileRows * kTileRows : 0;
                const auto rest = packed<T, kTileRows>(args.a, row + unpacked, count - unpacked, d, depth, a);
                each_block(
                    [&](const Piece& piece, Upcoming& next) { piece.multiply_panels(unpacked, rest, d, b, next); });
            }
    }

  private:
    PanelsB<T> columns(std::int64_t col, std::int64_t count, std::int64_t d, std::int64_t depth, T* to) const {
        const Factor2D turned{args.b.data, args.b.type, args.b.col, args.b.row};
        return packed<T, kPanelCols<T>>(turned, col, count, d, depth, to);
    }
    Matrix<T> b_in_place(std::int64_t d, std::int64_t depth, std::int64_t count) const {
        const T* data = reinterpret_cast<const T*>(args.b.data) + d * args.b.row + j * args.b.col;
        return {data, depth, count, args.b.row, args.b.col};
    }
    // The memory of `count` columns of B, or none if B is in the second-level cache, or in no direction contiguous.
    Upcoming upcoming(std::int64_t col, std::int64_t count, std::int64_t d, std::int64_t depth) const {
        const Factor2D& x = args.b;
        const std::int64_t size = kTypeBytes[static_cast<int>(x.type)];
        if (args.depth * args.cols * size <= second_level_cache()) return {};
        count = std::min(count, args.cols - col);
        const char* data = x.data + (col * x.col + d * x.row) * size;
        if (x.row == 1) return {data, count, depth * size, x.col * size};
        if (x.col == 1) return {data, count > 0 ? depth : 0, count * size, x.row * size};
        return {};
    }
    Corner<T> corner(std::int64_t row, std::int64_t count, std::int64_t d, Upcoming* next) const {
        T* const c = reinterpret_cast<T*>(args.out) + row * args.pitch + j;
        Addend<T> addend{c, args.pitch};
        if (d == 0 && !args.adds)
            addend = args.bias ? Addend<T>{reinterpret_cast<const T*>(args.bias) + j, 0} : Addend<T>{};
        return {c, args.pitch, count, n, addend, next, args.streams};
    }
    // Multiplies the first rows, which are read where they are, and the other rows, which are packed.
    void multiply_panels(std::int64_t unpacked, Panels<T, kTileRows> rest, std::int64_t d, T* b, Upcoming& next) const {
        const auto block = columns(j, n, d, rest.depth, b);
        if constexpr (std::is_same_v<T, float>)
            if (unpacked > 0) {
                const T* data = reinterpret_cast<const T*>(args.a.data) + i * args.a.row + d;
                multiply_unpacked(Matrix<T>{data, unpacked, rest.depth, args.a.row, 1}, block,
                                  corner(i, unpacked, d, &next), args.sparse);
            }
        for (std::int64_t row = unpacked; row < m; row += kRowsAtOnce) {
            const std::int64_t count = std::min(kRowsAtOnce, m - row);
            multiply(rest.part(row - unpacked, count), block, corner(i + row, count, d, &next), args.sparse);
        }
    }
    // True if whole panels of A are not packed, because B has few columns.
    bool reads_a_in_place() const {
        return std::is_same_v<T, float> && n <= kFewColumns && args.a.col == 1 && args.a.type == Type::f32;
    }
    // True if reading B where it is, without packing, is possible and faster. The code for it is compiled only for
    // float: for double it would take 0.1 MB, and few output layers have float64 scores.
    bool reads_b_in_place() const {
        return args.b.type == Type::f32 && args.depth > 0 &&
               ((args.b.col == 1 && m <= kMostByRows) || (args.b.row == 1 && m <= kMostByColumns));
    }
    // If GCC 12 inlined it, the product of 3 x 137 with depth 38552 would take 1.6 times as long.
    SOFTARGMAX_CALLED void multiply_b_in_place(PanelsA<T> few, std::int64_t d, T* b, Upcoming& next) const {
        const std::int64_t depth = few.depth;
        const auto all = corner(i, m, d, &next);
        if (args.b.col == 1) {
            const bool in_cache = args.depth * n * static_cast<std::int64_t>(sizeof(T)) <= second_level_cache();
            return multiply_by_rows(few, b_in_place(d, depth, n), all, b, in_cache);
        }
        const std::int64_t whole = n / kColumnsAtOnce<T> * kColumnsAtOnce<T>;
        const auto part = b_in_place(d, depth, whole);
        multiply_by_columns(m, few.data, part, part.rows, all);
        if (whole == n) return;
        const auto rows = packed<T, kTileRows>(args.a, i, m, d, depth, b);
        multiply(rows, columns(j + whole, n - whole, d, depth, b + kPanelRows * depth), all.at(0, whole));
    }
};
// True if the product should be written past the caches: if no element is read again, and the rows are aligned.
bool streams(const ProductArgs& args) {
    return args.streams && !args.adds && !args.bias && args.depth <= kDepth && args.pitch % 16 == 0 &&
           reinterpret_cast<std::uintptr_t>(args.out) % 64 == 0;
}
template <class T> void product_as(ProductArgs args) {
    args.streams = std::is_same_v<T, float> && streams(args);
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
