// Kernels for all rooms: matrix products, the shared instances of row templates, and the peak arithmetic rate of an
// instruction set, which `softargmax bench` compares its times with.
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

// n rounds of kMultiplyAdds fused multiply-adds of 16 floats, each on its own accumulator: enough accumulators to hide
// the latency, few enough to stay in registers. The sum is returned so that the work cannot be optimised away.
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

// A block of B has up to kBlockCols columns, 2 MiB, which all threads share. A block of up to kNearCols columns stays
// in a second-level cache; then A is processed panel by panel, along rows of C (dW of 32768 x 512, depth 96: 104 ms
// against 120 ms).
constexpr std::int64_t kBlockCols = 1024, kNearCols = 256;

template <class T, int Width> Panels<T, Width> packed(const Factor2D& x, std::int64_t i, std::int64_t m, std::int64_t j,
                                                      std::int64_t n, T* to) {
    with_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        pack<Width>(Matrix<S>{base + i * x.row + j * x.col, m, n, x.row, x.col}, to);
    });
    return {to, m, n};
}

// The outer loop runs over the depth, in the order of the sums. The columns of B are cut into blocks that all threads
// share, and the panels of A are split among threads. If there are fewer panels than threads, the block is split too.
template <class T> void product_as(const ProductArgs& args) {
    constexpr int width = kPanelCols<T>;
    T* const b = scratch(kOther).get<T>(kBlockCols * kDepth);
    T* const out = reinterpret_cast<T*>(args.out);
    const Factor2D columns{args.b.data, args.b.type, args.b.col, args.b.row};
    const std::int64_t panels = (args.rows + kPanelRows - 1) / kPanelRows,
                       pieces = (args.threads + panels - 1) / panels;
    for (std::int64_t d = 0; d == 0 || d < args.depth; d += kDepth)
        for (std::int64_t j = 0; j < args.cols; j += kBlockCols) {
            const std::int64_t depth = std::min(kDepth, args.depth - d), n = std::min(kBlockCols, args.cols - j);
            parallel_for(args.threads, (n + width - 1) / width, [&](std::int64_t begin, std::int64_t end) {
                const std::int64_t from = begin * width, count = std::min(n, end * width) - from;
                packed<T, width>(columns, j + from, count, d, depth, b + from * depth);
            });
            const std::int64_t few = n * depth <= kNearCols * kDepth ? 1 : kFewPanels,
                               piece = ((n + pieces - 1) / pieces + width - 1) / width * width;
            parallel_for(args.threads, panels * pieces, [&](std::int64_t begin, std::int64_t end) {
                T* const a = scratch(kScores).get<T>(kFewPanels * kPanelRows * kDepth);
                for (std::int64_t unit = begin, count; unit < end; unit += count) {
                    const std::int64_t p = unit % panels, i = p * kPanelRows, from = unit / panels * piece;
                    count = std::min({end - unit, panels - p, few});
                    if (from >= n) return;
                    T* const c = out + i * args.pitch + j + from;
                    Addend<T> addend{c, args.pitch};
                    if (d == 0 && !args.adds)
                        addend =
                            args.bias ? Addend<T>{reinterpret_cast<const T*>(args.bias) + j + from, 0} : Addend<T>{};
                    const auto rows =
                        packed<T, kPanelRows>(args.a, i, std::min(count * kPanelRows, args.rows - i), d, depth, a);
                    multiply(rows, PanelsB<T>{b, n, depth}.part(from, std::min(piece, n - from)), c, args.pitch, addend,
                             args.sparse);
                }
            });
        }
}

}  // namespace

void product(const ProductArgs& args) {
    const FloatEnvironment environment;
    if (args.a.type == Type::f64 || args.b.type == Type::f64) product_as<double>(args);
    else product_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::core
