// Copies between contiguous tiles of scores and memory of any type and strides.
//
// A kernel reads one block of one row, contiguous, in float or double. If the scores in memory have this form, the
// kernel reads them directly. If not, they are first copied to a tile. If rows are adjacent in memory (a softmax along
// axis 0 of a C-ordered array), a tile has 128 or 64 rows. In memory, 128 adjacent rows have 128 contiguous floats per
// column, and each column is on another page. So a tile reads eight cache lines of each page, and every line once.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "state.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// The size of the second-level cache in bytes, or 2 MiB if it is unknown.
inline std::int64_t second_level_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    static const std::int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 or -1 if unknown
    if (bytes > 0) return bytes;
#endif
    return std::int64_t{2} << 20;
}

// ---- memory of one thread, kept between calls -----------------------------------------------------------------

class Scratch {
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    std::unique_ptr<void, Free> memory_;
    std::size_t bytes_ = 0;

  public:
    template <class T> T* get(std::int64_t count) {
        const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
        if (bytes > bytes_) grow(bytes);
        return static_cast<T*>(memory_.get());
    }

  private:
    SOFTARGMAX_CALLED void grow(std::size_t wanted) {
        const std::size_t bytes = (wanted + 4095) & ~std::size_t{4095};
        bytes_ = 0;
        memory_.reset(std::aligned_alloc(4096, bytes));
        if (!memory_) throw std::bad_alloc();
        bytes_ = bytes;
    }
};
enum Slot { kScores, kOther, kMask, kWeights, kTerms, kResult, kSlots };
inline Scratch& scratch(Slot slot) {
    thread_local Scratch slots[kSlots];
    return slots[slot];
}

// The largest number of rows per tile if rows are adjacent in memory. A call along axis 0 of 8192 x 4096 scores takes
// 99 ms with 16 rows per tile, 45 ms with 64, 39 ms with 128 and 41 ms with 256.
constexpr int kGroup = 128;
constexpr int kSide = 16;  // tiles are transposed in squares of 16 by 16, which stay in the first-level cache

// ---- types ----------------------------------------------------------------------------------------------------

struct Bfloat16 {
    std::uint16_t bits;
    operator float() const {
        const std::uint32_t u = static_cast<std::uint32_t>(bits) << 16;
        float x;
        std::memcpy(&x, &u, sizeof x);
        return x;
    }
    Bfloat16() = default;
    explicit Bfloat16(float x) {  // rounds to nearest, with ties to even, and keeps NaN
        std::uint32_t u;
        std::memcpy(&u, &x, sizeof u);
        // The choice between a number and a NaN is made in 32 bits, before the shift. After the shift, GCC would narrow
        // both values and the mask to 16 bits. With the choice in 32 bits, a softmax takes 8% less time with AVX2.
        const std::uint32_t rounded = u + 0x7FFF + ((u >> 16) & 1), chosen = x == x ? rounded : u | 0x400000;
        bits = static_cast<std::uint16_t>(chosen >> 16);
    }
};

// Calls f with a pointer of the given floating-point type.
template <class F> SOFTARGMAX_INLINE void with_real_type(Type type, char* data, F f) {
    switch (type) {
        case Type::f16: return f(reinterpret_cast<_Float16*>(data));
        case Type::bf16: return f(reinterpret_cast<Bfloat16*>(data));
        case Type::f32: return f(reinterpret_cast<float*>(data));
        case Type::f64: return f(reinterpret_cast<double*>(data));
        case Type::boolean:
        case Type::i64: return;
    }
}
// Calls f with a pointer of the given type, which is a floating-point type or that of masks. `integer_at` reads
// integers.
template <class F> SOFTARGMAX_INLINE void with_type(Type type, char* data, F f) {
    if (type == Type::boolean) f(reinterpret_cast<std::uint8_t*>(data));  // NumPy masks may contain any byte
    else with_real_type(type, data, f);
}
template <class T, class S> SOFTARGMAX_INLINE T convert(S x) {
    if constexpr (sizeof(S) == 2 || sizeof(T) == 2)
        return static_cast<T>(static_cast<float>(x));  // half precision converts via float
    else return static_cast<T>(x);
}
// Converts n contiguous numbers. Without the intrinsics, GCC 12 would convert one float16 number per instruction, and
// the conversion would take half of the time of a softmax.
template <class S, class T> SOFTARGMAX_INLINE void convert_inline(const S* from, std::int64_t n, T* to) {
    std::int64_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
    if constexpr (std::is_same_v<S, _Float16> && std::is_same_v<T, float>)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    if constexpr (std::is_same_v<S, float> && std::is_same_v<T, _Float16>)
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                             _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; ++i) to[i] = convert<T>(from[i]);
}
template <class S, class T> SOFTARGMAX_CALLED void convert_called(const S* from, std::int64_t n, T* to) {
    convert_inline(from, n, to);
}
// Inlined only where n is a constant. Inlining all of its 276 uses would make the module 0.13 MB larger.
template <class S, class T> SOFTARGMAX_INLINE void convert(const S* from, std::int64_t n, T* to) {
    if (__builtin_constant_p(n)) convert_inline(from, n, to);
    else convert_called(from, n, to);
}
// `convert` for results larger than the caches. The results are written past the caches, one cache line at a time.
template <class S, class T> SOFTARGMAX_INLINE void convert_past_caches(const S* from, std::int64_t n, T* to) {
    constexpr int L = 64 / sizeof(T);
    std::int64_t i = 0;
    if (reinterpret_cast<std::uintptr_t>(to) % 64 == 0)
        for (; i + L <= n; i += L) {
            alignas(64) T line[L];
            convert(from + i, L, line);
            Pack<float>::load(reinterpret_cast<const float*>(line)).stream(reinterpret_cast<float*>(to + i));
        }
    convert(from + i, n - i, to + i);
}
template <class T> constexpr Type kTypeOf = sizeof(T) == 4 ? Type::f32 : Type::f64;

// ---- offsets --------------------------------------------------------------------------------------------------

// The offset in memory, in elements, of the i-th element of a shape in row-major order.
SOFTARGMAX_INLINE std::int64_t offset_of(std::int64_t i, const Shape& shape, const std::int64_t* stride) {
    if (shape.dims == 1) return i * stride[0];
    std::int64_t offset = 0;
    for (int d = shape.dims - 1; d >= 0; --d) {
        offset += i % shape.size[d] * stride[d];
        i /= shape.size[d];
    }
    return offset;
}

// A row of an operand: where it starts, and how many scores it has.
struct RowOf {
    const RowArgs& args;
    std::int64_t index;
    SOFTARGMAX_INLINE std::int64_t length() const {
        if (!args.offsets) return args.cols.total;
        const std::int64_t s = segment();
        return args.offsets[s + 1] - args.offsets[s];
    }
    SOFTARGMAX_INLINE char* start(const Operand& x) const {
        std::int64_t at = offset_of(index, args.rows, x.row);
        if (args.offsets) at += args.offsets[segment()] * x.col[0];
        return x.data + at * kTypeBytes[static_cast<int>(x.type)];
    }
    SOFTARGMAX_INLINE std::int64_t segment() const { return args.heads == 1 ? index : index / args.heads; }
};

// Splits columns [begin, end) into runs with one stride each, and calls f(offset, stride, first, count) for each run.
// `offset` is the run's place in memory, and `first` is its first column, counted from `begin`.
template <class F>
SOFTARGMAX_INLINE void stretches(const Operand& x, const Shape& cols, std::int64_t begin, std::int64_t end, F f) {
    const int last = cols.dims - 1;
    if (last == 0) return f(begin * x.col[0], x.col[0], std::int64_t{0}, end - begin);
    for (std::int64_t i = begin; i < end;) {
        const std::int64_t run = std::min(end - i, cols.size[last] - i % cols.size[last]);
        f(offset_of(i, cols, x.col), x.col[last], i - begin, run);
        i += run;
    }
}

template <class T> bool is_contiguous(const Operand& x, const Shape& cols) {
    return x.type == kTypeOf<T> && cols.dims == 1 && (x.col[0] == 1 || cols.total <= 1);
}

// True if adjacent rows are one element apart and adjacent columns are further apart. Then tiles have many rows.
inline bool rows_are_adjacent(const RowArgs& args, const Operand& x) {
    return !args.offsets && args.rows.dims > 0 && x.row[args.rows.dims - 1] == 1 && args.cols.dims == 1 &&
           args.cols.total > 1 && x.col[0] != 1 && args.rows.size[args.rows.dims - 1] > 1;
}

// The number of rows per tile, at most `most`. Half as many are faster if a whole tile is larger than the second-level
// cache: on a Zen 4 with 1 MiB, a call along axis 0 of 8192 x 4096 scores takes 31 ms with 64 rows, and 38 with 128.
inline int rows_per_tile(const RowArgs& args, int most) {
    const std::int64_t row = std::min(kBlock, args.cols.total) * static_cast<std::int64_t>(sizeof(float));
    return most > 1 && most * row > second_level_cache() ? most / 2 : most;
}

// Groups of `size` adjacent rows. No group crosses the end of the innermost row dimension.
struct Groups {
    int size;
    std::int64_t inner, in_inner;
    Groups(const RowArgs& args, int most)
        : size(rows_per_tile(args, most)),
          inner(size == 1 ? 1 : args.rows.size[args.rows.dims - 1]),
          in_inner((inner + size - 1) / size),
          total(inner ? args.rows.total / inner * in_inner : 0) {}
    std::int64_t total;
    std::int64_t first(std::int64_t i) const { return size == 1 ? i : i / in_inner * inner + i % in_inner * size; }
    int count(std::int64_t i) const {
        if (size == 1) return 1;
        const std::int64_t rest = inner - i % in_inner * size;
        return rest < size ? static_cast<int>(rest) : size;
    }
};

// ---- tiles ----------------------------------------------------------------------------------------------------

// Registers of Bytes bytes, as blocks of 16 bytes. `load_blocks` loads blocks that are `step` numbers apart. `low` and
// `high` interleave the lower and the upper halves of the blocks of two registers, in units of U.
template <class T, int Bytes> struct BlocksOf {
    typedef T Type __attribute__((vector_size(Bytes)));
};
template <int Bytes, class T> using Blocks = typename BlocksOf<T, Bytes>::Type;

template <int Bytes, class T> SOFTARGMAX_INLINE Blocks<Bytes, T> load_blocks(const T* from,
                                                                             [[maybe_unused]] std::int64_t step) {
    Blocks<Bytes, T> x;
    if constexpr (Bytes == 16) std::memcpy(&x, from, 16);
#if defined(__AVX2__)
    else if constexpr (Bytes == 32)
        x = (Blocks<32, T>)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)load_blocks<16>(from, step)),
                                                (__m128)load_blocks<16>(from + step, step), 1);
#endif
#if defined(__AVX512F__)
    else
        x = (Blocks<64, T>)_mm512_insertf32x4(
            _mm512_insertf32x4(_mm512_castps256_ps512((__m256)load_blocks<32>(from, step)),
                               (__m128)load_blocks<16>(from + 2 * step, step), 2),
            (__m128)load_blocks<16>(from + 3 * step, step), 3);
#endif
    return x;
}
template <class U, int Bytes, bool High, int... I>
SOFTARGMAX_INLINE Blocks<Bytes, float> interleaved(Blocks<Bytes, float> a, Blocks<Bytes, float> b,
                                                   std::integer_sequence<int, I...>) {
    constexpr int n = 16 / sizeof(U);
    return (Blocks<Bytes, float>)__builtin_shufflevector(
        (Blocks<Bytes, U>)a, (Blocks<Bytes, U>)b,
        (I / n * n + (High ? n / 2 : 0) + I % n / 2 + I % 2 * static_cast<int>(sizeof...(I)))...);
}
template <class U, int Bytes> using LaneIndices = std::make_integer_sequence<int, Bytes / static_cast<int>(sizeof(U))>;
template <class U, int Bytes>
SOFTARGMAX_INLINE Blocks<Bytes, float> low(Blocks<Bytes, float> a, Blocks<Bytes, float> b) {
    return interleaved<U, Bytes, false>(a, b, LaneIndices<U, Bytes>{});
}
template <class U, int Bytes>
SOFTARGMAX_INLINE Blocks<Bytes, float> high(Blocks<Bytes, float> a, Blocks<Bytes, float> b) {
    return interleaved<U, Bytes, true>(a, b, LaneIndices<U, Bytes>{});
}

// Transposes a block with as many rows as a register of Bytes bytes has lanes. Each row has 16 bytes.
template <int Bytes, class T>
SOFTARGMAX_INLINE void turn_block(const T* from, std::int64_t pitch, Blocks<Bytes, float>* y) {
    constexpr int n = 16 / sizeof(T);
    Blocks<Bytes, float> x[n];
#pragma GCC unroll 4
    for (int k = 0; k < n; ++k) x[k] = (Blocks<Bytes, float>)load_blocks<Bytes>(from + k * pitch, n * pitch);
    if constexpr (n == 4) {
        const auto a = low<float, Bytes>(x[0], x[1]), b = high<float, Bytes>(x[0], x[1]);
        const auto c = low<float, Bytes>(x[2], x[3]), d = high<float, Bytes>(x[2], x[3]);
        y[0] = low<double, Bytes>(a, c);
        y[1] = high<double, Bytes>(a, c);
        y[2] = low<double, Bytes>(b, d);
        y[3] = high<double, Bytes>(b, d);
    } else {
        y[0] = low<double, Bytes>(x[0], x[1]);
        y[1] = high<double, Bytes>(x[0], x[1]);
    }
}
template <class T> SOFTARGMAX_INLINE void turn_block(const T* from, std::int64_t pitch, One<T>* to) {
    constexpr int n = 16 / sizeof(T);
    Blocks<kRegisterBytes, float> y[n];
    turn_block<kRegisterBytes>(from, pitch, y);
#pragma GCC unroll 4
    for (int k = 0; k < n; ++k) to[k].r = (Register<T>)y[k];
}

// Transposes the upper `Rows` rows of a square of kSide by kSide: to[j][i] = from[i][j]. It uses the widest registers
// that the rows fill.
template <int Rows = kSide, int Bytes = kRegisterBytes, class T>
SOFTARGMAX_INLINE void turn(const T* from, std::int64_t from_pitch, T* to, std::int64_t to_pitch) {
    constexpr int lanes = Bytes / sizeof(T), n = 16 / sizeof(T), whole = Rows / lanes * lanes;
    for (int i = 0; i < whole; i += lanes)
        for (int j = 0; j < kSide; j += n) {
            Blocks<Bytes, float> y[n];
            turn_block<Bytes>(from + i * from_pitch + j, from_pitch, y);
#pragma GCC unroll 4
            for (int k = 0; k < n; ++k) std::memcpy(to + (j + k) * to_pitch + i, &y[k], Bytes);
        }
    if constexpr (Rows > whole && Bytes > 16)
        turn<Rows - whole, Bytes / 2>(from + whole * from_pitch, from_pitch, to + whole, to_pitch);
    else if constexpr (Rows > whole)  // transposes some rows again
        turn<lanes, Bytes>(from + (Rows - lanes) * from_pitch, from_pitch, to + Rows - lanes, to_pitch);
}

// True if a group of rows is transposed as a whole, and not copied row by row.
inline bool is_turned(const RowArgs& args, const Operand& x, int count) {
    return count > 1 && rows_are_adjacent(args, x);
}

// Reads columns [begin, end) of `count` adjacent rows into a tile. Row `first` becomes the tile's first row. The rows
// of the tile are `pitch` numbers apart.
template <class T>
void read(const RowArgs& args, const Operand& x, std::int64_t first, int count, std::int64_t begin, std::int64_t end,
          T* tile, std::int64_t pitch) {
    const std::int64_t n = end - begin;
    if (is_turned(args, x, count)) {
        T strip[kSide][kGroup] = {}, transposed[kSide][kSide];
        char* const memory = RowOf{args, first}.start(x);
        for (std::int64_t i = 0; i < n; i += kSide) {
            const int width = static_cast<int>(std::min<std::int64_t>(kSide, n - i));
            with_type(x.type, memory, [&](auto* base) {
                for (int j = 0; j < width; ++j) {
                    const auto* from = base + (begin + i + j) * x.col[0];
                    for (int g = 0; g < count; g += kSide) __builtin_prefetch(from + kSide * x.col[0] + g);
                    convert(from, count, strip[j]);
                }
            });
            for (int s = 0; s < count; s += kSide) {
                T* to = tile + s * pitch + i;
                if (width == kSide && count - s >= kSide) {
                    turn(strip[0] + s, kGroup, to, pitch);
                    continue;
                }
                turn(strip[0] + s, kGroup, transposed[0], kSide);
                for (int g = 0; g < kSide && s + g < count; ++g) std::copy_n(transposed[g], width, to + g * pitch);
            }
        }
        return;
    }
    for (int g = 0; g < count; ++g)
        with_type(x.type, RowOf{args, first + g}.start(x), [&](auto* base) {
            T* to = tile + g * pitch;
            stretches(x, args.cols, begin, end,
                      [&](std::int64_t at, std::int64_t stride, std::int64_t to_at, std::int64_t run) {
                const auto* from = base + at;
                if (stride == 1) convert(from, run, to + to_at);
                else
                    for (std::int64_t i = 0; i < run; ++i) to[to_at + i] = convert<T>(from[i * stride]);
            });
        });
}

// Writes a tile to columns [begin, end) of `count` adjacent rows, the reverse of `read`.
template <class T>
void write(const RowArgs& args, const Operand& x, std::int64_t first, int count, std::int64_t begin, std::int64_t end,
           const T* tile, std::int64_t pitch, bool streaming = false) {
    const std::int64_t n = end - begin;
    if (is_turned(args, x, count)) {
        T square[kSide][kSide] = {}, strip[kSide][kGroup];
        char* const memory = RowOf{args, first}.start(x);
        // Softmax of 8192 x 4096 along axis 0 takes 38 ms with stores past the caches, and 48 ms with plain stores (an
        // Intel Xeon, model 167). If not all columns begin at cache lines, plain stores with a prefetch are faster.
        const std::int64_t step = x.col[0] * kTypeBytes[static_cast<int>(x.type)];
        const auto start = reinterpret_cast<std::uintptr_t>(memory + begin * step);
        const bool past_caches = streaming && step % 64 == 0 && start % 64 == 0;
        for (std::int64_t i = 0; i < n; i += kSide) {
            const int width = static_cast<int>(std::min<std::int64_t>(kSide, n - i));
            for (int s = 0; s < count; s += kSide) {
                const T* from = tile + s * pitch + i;
                if (width == kSide && count - s >= kSide) {
                    turn(from, pitch, strip[0] + s, kGroup);
                    continue;
                }
                for (int g = 0; g < kSide && s + g < count; ++g) std::copy_n(from + g * pitch, width, square[g]);
                turn(square[0], kSide, strip[0] + s, kGroup);
            }
            with_type(x.type, memory, [&](auto* base) {
                for (int j = 0; j < width; ++j) {
                    auto* to = base + (begin + i + j) * x.col[0];
                    if (past_caches) {
                        convert_past_caches(strip[j], count, to);
                        continue;
                    }
                    for (int g = 0; g < count; g += kSide) __builtin_prefetch(to + kSide * x.col[0] + g, 1);
                    convert(strip[j], count, to);
                }
            });
        }
        return;
    }
    for (int g = 0; g < count; ++g)
        with_type(x.type, RowOf{args, first + g}.start(x), [&](auto* base) {
            using S = std::remove_reference_t<decltype(*base)>;
            const T* from = tile + g * pitch;
            stretches(x, args.cols, begin, end,
                      [&](std::int64_t at, std::int64_t stride, std::int64_t from_at, std::int64_t run) {
                auto* to = base + at;
                if (stride == 1 && streaming) convert_past_caches(from + from_at, run, to);
                else if (stride == 1) convert(from + from_at, run, to);
                else
                    for (std::int64_t i = 0; i < run; ++i) to[i * stride] = convert<S>(from[from_at + i]);
            });
        });
}

// Used by the kernels of all rooms, and compiled once, in core/kernels.cpp.
extern template void read(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, float*,
                          std::int64_t);
extern template void read(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, double*,
                          std::int64_t);
extern template void write(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, const float*,
                           std::int64_t, bool);
extern template void write(const RowArgs&, const Operand&, std::int64_t, int, std::int64_t, std::int64_t, const double*,
                           std::int64_t, bool);

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
