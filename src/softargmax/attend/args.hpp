// Arguments of the attention kernels: plain data, without Python objects or vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::attend {

// An option with one number per query, and an array for its gradient with one number per query. Null: absent.
struct Learned {
    Operand value;
    double* gradient = nullptr;
};

// Attention. Every entry of the batch has `heads` heads of queries. heads / groups adjacent heads share a head of keys
// and values. The `row` strides of an operand are those of the batch axes, of the heads, and of the queries or keys.
// Its `col` stride is that of the last axis.
struct Args {
    Shape batch;
    std::int64_t heads = 0, groups = 0, queries = 0, keys = 0, width = 0, values = 0;
    Operand q, k, v, out;
    Learned scale;  // double
    Operand mask, bias;  // masked or added to the scores; absent: none
    Learned slopes;  // times the distance of query and key, subtracted from the score; absent: none
    Operand sink;  // a score without a value, one per query; absent: none
    const std::int64_t* lengths = nullptr;  // number of keys, one per entry of the batch; null: all
    // Pages: key j of entry e is row j % page of page table[e * pages + j / page] of k and v. The first `row` stride of
    // k and v is that of the pages.
    const std::int64_t* table = nullptr;
    std::int64_t pages = 0, page = 0;
    std::int64_t left = -1, right = -1;  // number of visible keys before and after the query's position; -1: all
    double softcap = 0;  // 0: none
    double* lse = nullptr;  // one per query; null: not requested
    double dropout = 0;  // the probability that an entry of p is dropped
    // Seeds of the dropout: two words of 32 bits per entry and head, the lower word first.
    const std::int64_t* seeds = nullptr;
    // One flag per query: 1 if a number was not finite, so that the query's result is invalid. For gradients: 1 if the
    // query was left out of all sums, 2 if it should have been, but is already in dk and dv. For gradients, one flag
    // per key follows: 1 if its sums overflowed.
    std::uint8_t* nonfinite = nullptr;
    bool any_nonfinite = false;
    int threads = 1;
};

// The gradients of attention, from its output and lse.
struct GradientArgs : Args {
    Operand seed;  // the gradient with respect to the output
    const double* to_lse = nullptr;  // the gradient with respect to lse; null: none
    Operand dq, dk, dv;
    Operand dbias;  // in the kernel's working type; the kernel adds to it; strides of broadcast axes are 0
    double* delta = nullptr;  // <seed, out> - to_lse, one per query
};

}  // namespace softargmax::attend

SOFTARGMAX_KERNEL(attend, run, Args)
SOFTARGMAX_KERNEL(attend, run_gradient, GradientArgs)
