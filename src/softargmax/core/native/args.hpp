// What the bindings of the rooms hand to their kernels: plain data, no Python and no vectors.
#pragma once

#include <cstdint>

#include "kernel.hpp"

namespace softargmax {

enum class Type : std::uint8_t { f16, bf16, f32, f64, boolean, i64 };
constexpr int kTypeBytes[] = {2, 2, 4, 8, 1, 8};

// Scores to a block: 16 KiB of float32, half of the smallest first-level cache. Rows are cut at multiples of it.
constexpr std::int64_t kBlock = 4096;

constexpr int kMaxDims = 64;  // NumPy's own limit

struct Shape {
    int dims = 0;
    std::int64_t size[kMaxDims];
    std::int64_t total = 1;
};

struct Operand {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t row[kMaxDims];  // strides in elements; 0 where the operand is broadcast
    std::int64_t col[kMaxDims];
    explicit operator bool() const { return data != nullptr; }
};

// `rows` rows of `cols` scores. Every operand is a pointer with one stride for each dimension of the rows and of the
// columns, so any axis, any tuple of axes and any strides are the same to a kernel.
struct RowArgs {
    Shape rows, cols;
    // Segments: the rows are `segments` times `heads`; segment s has the scores from offsets[s] to offsets[s + 1].
    const std::int64_t* offsets = nullptr;
    std::int64_t segments = 0, heads = 1;
    Operand z, other, where, weights, out;
    Operand hi, lo;  // beta, double
    int threads = 1;
    bool streaming = false;  // whether non-temporal stores pay on this processor, for a result of this size
};

}  // namespace softargmax

// ---- core's own kernels -----------------------------------------------------------------------------------------

namespace softargmax::core {

// A product of matrices, out = A B + bias, or out + A B; out is float64 where A or B is, else float32, its rows
// contiguous.
struct Factor2D {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t row = 0, col = 0;  // strides in elements
};
struct ProductArgs {
    Factor2D a, b;
    std::int64_t rows = 0, cols = 0, depth = 0;
    char* out = nullptr;
    std::int64_t pitch = 0;  // from one row of `out` to the next, in elements
    const char* bias = nullptr;  // `cols` numbers of out's type
    bool adds = false;
    bool sparse = false;  // A has many zeros, and B is finite: tiles of zeros are left out
    int threads = 1;
};

constexpr int kMultiplyAdds = 16;  // to a round
struct MultiplyAddsArgs {
    std::int64_t rounds = 0;
    double sum = 0;  // written
};

}  // namespace softargmax::core

SOFTARGMAX_KERNEL(core, product, const ProductArgs)
SOFTARGMAX_KERNEL(core, multiply_adds, MultiplyAddsArgs)
