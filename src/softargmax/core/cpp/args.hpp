// Arguments of kernels, as plain data: no Python objects and no SIMD types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cpp/instruction_sets.hpp"
#include "core/cpp/threads.hpp"

namespace softargmax {

enum class Type : std::uint8_t { f16, bf16, f32, f64, boolean, i64 };
constexpr int kTypeBytes[] = {2, 2, 4, 8, 1, 8};

// Scores per block: 16 KiB of float32, half of the smallest first-level cache. Rows are cut at multiples of it.
constexpr std::int64_t kBlock = 4096;

constexpr int kMaxDims = 64;  // NumPy's limit

struct Shape {
    int dims = 0;
    std::int64_t size[kMaxDims];
    std::int64_t total = 1;
};

struct Operand {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t row[kMaxDims];  // strides in elements, and 0 where the operand is broadcast
    std::int64_t col[kMaxDims];
    explicit operator bool() const { return data != nullptr; }
};

// `rows` rows of `cols` scores. Every operand is a pointer with one stride per dimension of the rows and of the
// columns. So a kernel has the same code for all axes, tuples of axes and strides.
struct RowArgs {
    Shape rows, cols;
    // Segments: there are `segments` times `heads` rows. Segment s has the scores [offsets[s], offsets[s + 1]).
    const std::int64_t* offsets = nullptr;
    std::int64_t segments = 0, heads = 1;
    Operand z, other, where, weights, out;
    Operand hi, lo;  // beta = hi + lo, in double
    int threads = 1;
    bool streaming = false;  // true if non-temporal stores are faster for a result of this size
};

}  // namespace softargmax

// ---- kernels of core ------------------------------------------------------------------------------------------

namespace softargmax::core {

// A matrix product: out = A B + bias, or out += A B. `out` is float64 if A or B is float64, and float32 otherwise. The
// rows of `out` are contiguous.
struct Factor2D {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t row = 0, col = 0;  // strides in elements
};
struct ProductArgs {
    Factor2D a, b;
    std::int64_t rows = 0, cols = 0, depth = 0;
    char* out = nullptr;
    std::int64_t pitch = 0;  // distance from one row of `out` to the next, in elements
    const char* bias = nullptr;  // `cols` numbers of out's type
    bool adds = false;
    bool sparse = false;  // skips panels of A that are all 0; use if A has many zeros and B is finite
    int threads = 1;
};

constexpr int kMultiplyAdds = 16;  // per round
struct MultiplyAddsArgs {
    std::int64_t rounds = 0;
    double sum = 0;  // written by the kernel
};

}  // namespace softargmax::core

SOFTARGMAX_KERNEL(core, product, const ProductArgs)
SOFTARGMAX_KERNEL(core, multiply_adds, MultiplyAddsArgs)
