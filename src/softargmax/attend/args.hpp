// Arguments of this room's kernels: plain data without Python objects and vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::attend {

// A number per query, and the array for its gradient, one number per query. Null: absent.
struct Learned {
    Operand value;
    double* gradient = nullptr;
};

// Attention. Every entry of the batch has `heads` heads of queries; heads / groups adjacent ones share a head of keys
// and values. The `row` strides of an operand run over the batch, the heads and the queries or keys, its `col` stride
// over the rest.
struct Args {
    Shape batch;
    std::int64_t heads = 0, groups = 0, queries = 0, keys = 0, width = 0, values = 0;
    Operand q, k, v, out;
    Learned scale;  // double
    Operand mask, bias;  // added to scores; absent: none
    Learned slopes;  // multiplied by the distance of query and key and subtracted; absent: none
    Operand sink;  // a score without a value, one per query; absent: none
    const std::int64_t* lengths = nullptr;  // number of keys, one per entry of the batch; null: all
    // Pages: key j of entry e is row j % page of page table[e * pages + j / page] of k and v, whose first `row` stride
    // runs over pages.
    const std::int64_t* table = nullptr;
    std::int64_t pages = 0, page = 0;
    std::int64_t left = -1, right = -1;  // number of visible keys on each side of the query's position; -1: all
    double softcap = 0;  // 0: none
    double* lse = nullptr;  // one per query; null: not requested
    double dropout = 0;  // the probability to drop an entry
    const std::int64_t* seeds =
        nullptr;  // seeds of the dropout: two words of 32 bits per entry and head, the lower one first
    // Flags, one per query: 1 if a number was not finite, so that its result is invalid. For gradients 1 if the query
    // was left out, 2 if it is already in the sums of keys; then one flag per key: 1 if its sums overflowed.
    std::uint8_t* nonfinite = nullptr;
    bool any_nonfinite = false;
    int threads = 1;
};

// The gradients of attention, from its output and lse.
struct GradientArgs : Args {
    Operand seed;  // the gradient with respect to the output
    const double* to_lse = nullptr;  // the gradient with respect to lse; null: none
    Operand dq, dk, dv;
    Operand dbias;  // in the type of the computation; added to, with strides of 0 along broadcast axes
    double* delta = nullptr;  // <seed, out> - to_lse, one per query
};

}  // namespace softargmax::attend

SOFTARGMAX_KERNEL(attend, run, Args)
SOFTARGMAX_KERNEL(attend, run_gradient, GradientArgs)
