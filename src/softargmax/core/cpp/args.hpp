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

// A product adds up sums over so many indices of its depth, in their order (matmul.hpp).
constexpr std::int64_t kDepth = 512;

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

// How rows are spread over the processes of a group. Each process has whole blocks of every row, in the order of the
// processes, and the last block of a row may be shorter.
struct Shards {
    std::int64_t count = 0;                // number of processes; 0: the rows are in this process alone
    const std::int64_t* sizes = nullptr;   // scores per row in each process
    std::int64_t rank = 0;                 // of this process
    void* processes = nullptr;             // of core/processes.py, for the functions below
    // True if the next `gather` does not read `mine`, because an earlier call has computed it.
    bool (*is_known)(const Shards&) = nullptr;
    // Sends `mine` to all processes, and writes to `all` what the processes have sent, in their order. A process sends
    // `per_block` bytes for each of its blocks, and `per_process` bytes more. It throws if a process does not answer.
    void (*gather)(const Shards&, const void* mine, std::int64_t per_block, std::int64_t per_process,
                   void* all) = nullptr;
    // A result that processes compute one after the other, in parts of `count` numbers each (Type::boolean: of bytes).
    // A part goes from each process to the next, and from the last one back to all others. So it may not be freed or
    // changed between `to_next` and `all_back`. Parts that are named by `expect`, in their order, are sent by the
    // process before this one without waiting for `from_previous`. They may not be freed or changed until then.
    enum class Pass : std::uint8_t { expect, from_previous, to_next, all_back };
    void (*pass)(const Shards&, Pass, Type, void* part, std::int64_t count) = nullptr;

    explicit operator bool() const { return count > 0; }
    bool is_first() const { return rank == 0; }
    std::int64_t blocks(std::int64_t process) const { return (sizes[process] + kBlock - 1) / kBlock; }
    // The number of scores of a row in the first processes.
    std::int64_t length(std::int64_t processes) const {
        std::int64_t total = 0;
        for (std::int64_t p = 0; p < processes; ++p) total += sizes[p];
        return total;
    }
    std::int64_t length() const { return length(count); }
    // The place of this process's first score in the row.
    std::int64_t first() const { return length(rank); }
};

// `rows` rows of `cols` scores. Every operand is a pointer with one stride per dimension of the rows and of the
// columns. So a kernel has the same code for all axes, tuples of axes and strides.
struct RowArgs {
    static constexpr bool kSpreads = false;  // true in a room whose kernels support `shards`
    Shape rows, cols;
    // Segments: there are `segments` times `heads` rows. Segment s has the scores [offsets[s], offsets[s + 1]).
    const std::int64_t* offsets = nullptr;
    std::int64_t segments = 0, heads = 1;
    Operand z, other, where, weights, out;
    Operand hi, lo;  // beta = hi + lo, in double
    Shards shards;
    int threads = 1;
    bool streaming = false;  // true if non-temporal stores are faster for a result of this size

    // The number of scores of a row, in all processes.
    std::int64_t length() const { return shards ? shards.length() : cols.total; }
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
    bool streams = false;  // writes `out` past the caches where that is possible, because it is large and not read soon
};

constexpr int kMultiplyAdds = 16;  // per round
struct MultiplyAddsArgs {
    std::int64_t rounds = 0;
    double sum = 0;  // written by the kernel
};

}  // namespace softargmax::core

SOFTARGMAX_KERNEL(core, product, const ProductArgs)
SOFTARGMAX_KERNEL(core, multiply_adds, MultiplyAddsArgs)
