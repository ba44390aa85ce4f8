// The arguments of this room's kernels: plain data, without Python or vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::sample {

// Draws from the softmax of rows; where no index is asked for, 1 in `out` where the filters leave a score and 0 where
// not; without scores, Gumbel noise into `out`, or the random words themselves.
struct Args : RowArgs {
    Operand top_k, top_p, min_p, typical_p, epsilon, eta;  // one per row or one for all; absent: no such filter
    bool joint = false;  // each filter sees the whole row, not what the one before has left
    Operand seed;              // one per row or one for all
    Operand stream;            // one per row; absent: its index
    std::int64_t draws = 1;  // of each row; of noise: which one
    bool replace = true;
    Operand index;             // of each draw; -1 in a row that cannot be drawn from
    Operand logprob;           // of each draw, float or double; absent: not wanted
    Operand support_size;      // how many could be drawn; absent: not wanted
    std::uint8_t* status = nullptr;  // of each row, 0 if all is well
    std::uint64_t* words = nullptr;  // of noise: written if there is no `out`, else what it is made of
    std::int64_t first = 0;  // the column that the words start at
};

}  // namespace softargmax::sample

SOFTARGMAX_KERNEL(sample, run, const Args)
