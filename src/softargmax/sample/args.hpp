// The arguments of this room's kernels: plain data, without Python or vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::sample {

// Draws from the softmax of rows. Without an index: `out` is 1 where the filters keep a score and 0 elsewhere. Without
// scores: Gumbel noise in `out`, or the random words.
struct Args : RowArgs {
    Operand top_k, top_p, min_p, typical_p, epsilon, eta;  // one per row or one for all; absent: no such filter
    bool joint = false;  // true: each filter sees the whole row; false: only the scores that the previous filters kept
    Operand seed;  // one per row or one for all
    Operand stream;  // one per row; absent: the row's index
    std::int64_t draws = 1;  // draws per row; for noise: the number of the draw
    bool replace = true;
    Operand index;  // one per draw; -1 in a row that cannot be drawn from
    Operand logprob;  // one per draw, float or double; absent: not requested
    Operand support_size;  // the number of remaining classes; absent: not requested
    std::uint8_t* status = nullptr;  // error code of each row, 0 for none
    std::uint64_t* words = nullptr;  // for noise: written without `out`, otherwise read
    std::int64_t first = 0;  // the first column of the words
};

}  // namespace softargmax::sample

SOFTARGMAX_KERNEL(sample, run, const Args)
