// Arguments of the attention kernels, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::attend {

// Number of keys per block. The sums of each block start at 0. Therefore the result of a query depends neither on the
// number of threads, nor on the number of queries, nor on how blocks are spread over processes.
constexpr std::int64_t kKeys = 512;

// An option with one number per query, and its gradient, also with one number per query. A null pointer means that the
// option or the gradient is absent.
struct Learned {
    Operand value;
    double* gradient = nullptr;
};

// Arguments of the forward pass. Every entry of the batch has `heads` heads of queries and `groups` heads of keys and
// values. Each head of keys and values serves (heads / groups) adjacent heads of queries. `width` is the width of
// queries and keys, `values` the width of values. The `row` strides of an operand belong to the batch axes, the heads,
// and the queries or keys, in this order. The `col` stride belongs to the last axis.
struct Args {
    Shape batch;
    std::int64_t heads = 0, groups = 0, queries = 0, keys = 0, width = 0, values = 0;
    Operand q, k, v, out;
    Learned scale;  // float64
    Operand mask, bias;  // `mask` is 0 for hidden keys, `bias` is added to the scores; each may be absent
    Learned slopes;  // slope times |i - j| is subtracted from the score; may be absent
    Operand sink;  // one more score for each query, whose value is a vector of zeros; may be absent
    const std::int64_t* lengths = nullptr;  // number of keys of each entry of the batch; null: all keys
    // How the keys are spread over processes, if they are: each process has whole blocks of `kKeys` keys, with their
    // values and their columns of mask and bias. `keys` is the number of keys here. Everywhere else keys have their
    // numbers among the keys of all processes, and `first_key` is that of the first key here.
    Shards shards;
    std::int64_t first_key = 0;
    // If `all_queries` is not 0, the queries here are some of that number: row r of a head of keys (`Shared`) is row
    // `first_row` + r of all. Parts of the keys visit this process one after the other, as if it were their process.
    std::int64_t first_row = 0, all_queries = 0;
    std::int64_t query_of_all(std::int64_t query) const {
        return all_queries ? (first_row + query) % all_queries : query;
    }
    std::int64_t length() const { return all_queries ? all_queries : queries; }
    bool starts = false;  // no part has visited before
    bool is_first() const { return starts || shards.is_first(); }
    std::int64_t all_keys() const { return shards ? shards.length() : keys; }
    std::int64_t end_key() const { return first_key + keys; }
    // Paged keys and values (null `table`: no pages). A page has `page` rows, and `table` has `pages` page indices per
    // entry of the batch. Key j of entry e is in page table[e * pages + j / page] of k, in row j % page of that page.
    // The key's value is in the same place of v. The first `row` stride of k and v belongs to the page index.
    const std::int64_t* table = nullptr;
    std::int64_t pages = 0, page = 0;
    std::int64_t left = -1, right = -1;  // number of visible keys before and after the query's position; -1: no limit
    double softcap = 0;  // 0: none
    double* lse = nullptr;  // one per query; null: not requested
    double dropout = 0;  // the probability that an entry of p is dropped
    // Seeds of the dropout. There is one per head of each batch entry: two numbers of 32 bits, the lower bits first.
    const std::int64_t* seeds = nullptr;
    // One flag per query. Forward pass: 1 if the query's result is invalid because a number was not finite. Backward
    // pass: 1 if the query was left out of all sums, 2 if it should have been left out but was already added to dk and
    // dv. In the backward pass, one flag per key follows: 1 if a sum of this key in dk or dv overflowed.
    std::uint8_t* nonfinite = nullptr;
    bool any_nonfinite = false;
    int threads = 1;
};

// Arguments of the backward pass, which computes the gradients from the output and lse of the forward pass.
struct GradientArgs : Args {
    Operand seed;  // the gradient with respect to the output
    const double* to_lse = nullptr;  // the gradient with respect to lse; null: none
    Operand dq, dk, dv;
    Operand dbias;  // in the kernel's working type; the kernel adds to it in place; broadcast axes have stride 0
    double* delta = nullptr;  // <seed, out> - to_lse, one per query
    // With `all_queries`: the sums for dk and dv of the queries before, in the kernel's working type, for each key the
    // numbers of dk and then those of dv. The kernel adds those of the queries here, and computes no dq. Null: it
    // computes dq only.
    char* key_sums = nullptr;
};

}  // namespace softargmax::attend

SOFTARGMAX_KERNEL(attend, run, Args)
SOFTARGMAX_KERNEL(attend, run_gradient, GradientArgs)
