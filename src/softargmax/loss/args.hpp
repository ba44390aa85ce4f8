// What this room's bindings hand to its kernels: plain data, no Python and no vectors.
#pragma once

#include "core/native/args.hpp"

namespace softargmax::loss {

// A loss: scores, and what stands beside them. Numbers per row lie one after the other, in double.
struct Args : RowArgs {
    const std::int64_t* target = nullptr;  // a class per row; null: `other` holds probabilities
    std::int64_t ignore_index = 0;         // its class counts nothing
    Operand weight;                        // one per class, broadcast along the rows
    double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
    bool folds = true;         // the states are made of the scores, and written; else they are given
    double* states = nullptr;  // m, r, low of each row
    double *loss = nullptr, *lse = nullptr;  // null: not wanted
    double least = 0;              // probabilities of this and below are 0 to the gradient
    const double* seed = nullptr;  // what the gradient into `out` is multiplied by
    std::int64_t seed_stride = 0;  // 0: one for all rows
};

}  // namespace softargmax::loss

SOFTARGMAX_KERNEL(loss, run, const Args)
