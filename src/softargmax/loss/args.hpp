// Arguments of this room's kernels: plain data without Python objects and vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::loss {

// Groups of rows: the rows form `count` groups of equally many consecutive rows.
struct Grouped {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t count = 0;
    explicit operator bool() const { return data != nullptr; }
};

// A loss: scores, targets and options.
struct Args : RowArgs {
    const std::int64_t* target = nullptr;  // a class per row; null: `other` holds probabilities
    std::int64_t ignore_index = 0;         // rows of this class are ignored
    Operand weight;                        // one per class
    double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
    double* states = nullptr;  // m, r, low of each row, written; null: not requested
    const double* given = nullptr;  // the same, read; null: computed from the scores
    Grouped loss;              // the sum or mean of the losses of each group; absent: not requested
    bool mean = false;         // mean: rows weigh w_y, or 1 if targets are probabilities, or 0 if ignored
    double least = 0;          // probabilities of at most this count as 0 in the gradient
    Grouped g;                 // double: factor of the gradient of each group's loss in `out`; absent: 1
    // Set by the kernel: the loss of each row, and the factor of the gradients of each group's rows.
    double* losses = nullptr;
    const double* seeds = nullptr;
    std::int64_t each = 1, each_of_seed = 1;  // rows per group
    // A division takes as long as the loss of a row of three classes.
    double seed_of(std::int64_t row) const {
        return seeds[each_of_seed == 1 ? row : each_of_seed == rows.total ? 0 : row / each_of_seed];
    }
};

}  // namespace softargmax::loss

SOFTARGMAX_KERNEL(loss, run, Args)
