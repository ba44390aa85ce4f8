// What this room's bindings hand to its kernels: plain data, no Python and no vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::attend {

// A number for each query, and where the gradient to it goes: one per query, in order. Null: there is none.
struct Learned {
    Operand value;
    double* gradient = nullptr;
};

// Attention: of every entry of a batch, `heads` heads of queries, of which heads / groups beside each other share one
// of keys and values. An operand's `row` strides run over the batch, the heads and the queries or keys, its `col` over
// the rest.
struct Args {
    Shape batch;
    std::int64_t heads = 0, groups = 0, queries = 0, keys = 0, width = 0, values = 0;
    Operand q, k, v, out;
    Learned scale;  // double
    Operand mask, bias;  // of scores; absent: none
    Learned slopes;  // times the distance of query and key, taken from scores; absent: none
    Operand sink;  // a score without a value, one per query; absent: none
    const std::int64_t* lengths = nullptr;  // of keys, one per entry of the batch; null: all
    // Pages of keys: entry e has its key j in row j % page of page table[e * pages + j / page] of k and v, whose first
    // `row` stride runs over pages.
    const std::int64_t* table = nullptr;
    std::int64_t pages = 0, page = 0;
    std::int64_t left = -1, right = -1;  // how many keys a query sees beside its own place; -1: all
    double softcap = 0;  // 0: none
    double* lse = nullptr;  // one per query, in order; null: not asked for
    double dropout = 0;  // the share of p that is dropped
    const std::int64_t* seeds = nullptr;  // by which, two words of 32 bits per entry and head, the lower one first
    // Written, one per query: 1 where a number was not finite, so that what was written is not to be used. And whether
    // there is any. Of gradients 1 where a query was left out from the beginning, 2 where it is in sums of others; and
    // behind those of queries one per key: 1 where its sums have overflown.
    std::uint8_t* strange = nullptr;
    bool any_strange = false;
    int threads = 1;
};

// Its gradients, from its output and lse.
struct GradientArgs : Args {
    Operand seed;  // into the output
    const double* to_lse = nullptr;  // into lse; null: none
    Operand dq, dk, dv;
    Operand dbias;  // of the kernels' own type; strides are 0 where one number is for many scores: added to
    double* delta = nullptr;  // <seed, out> - to_lse, one per query
};

}  // namespace softargmax::attend

SOFTARGMAX_KERNEL(attend, run, Args)
SOFTARGMAX_KERNEL(attend, run_gradient, GradientArgs)
