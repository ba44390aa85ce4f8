// Arguments of the sampling kernels, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::sample {

// With `index`, the kernel draws from the softmax of each row. Without `index`, it writes 1 to `out` where the filters
// keep a score, and 0 elsewhere. Without scores, it writes Gumbel noise to `out`, or random words of 64 bits to
// `words`.
struct Args : RowArgs {
    static constexpr bool kSpreads = true;  // for draws with replacement, without filters and log-probabilities
    Operand top_k, top_p, min_p, typical_p, epsilon, eta;  // one per row or one for all; absent: no such filter
    bool joint = false;  // true: each filter sees the whole row; false: only the scores that the previous filters kept
    Operand seed;  // one per row or one for all
    Operand stream;  // one per row; absent: the row's index
    std::int64_t draws = 1;  // draws per row; for noise: the index of the draw
    bool replace = true;
    Operand index;  // one per draw; -1 in a row that cannot be drawn from
    Operand logprob;  // one per draw, float or double; absent: not requested
    Operand support_size;  // one per row: the number of classes that can be drawn; absent: not requested
    std::uint8_t* status = nullptr;  // one error code per row (kernels.cpp); 0: no error
    std::uint64_t* words = nullptr;  // for noise: the output if there is no `out`, else the input
    std::int64_t first = 0;  // the first column of the words
};

}  // namespace softargmax::sample

SOFTARGMAX_KERNEL(sample, run, const Args)
