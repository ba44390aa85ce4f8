// What this room's bindings hand to its kernels: plain data, no Python and no vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::loss {

// Numbers of groups of rows: rows are in `count` groups of equally many that follow each other.
struct Grouped {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t count = 0;
    explicit operator bool() const { return data != nullptr; }
};

// A loss: scores, and what stands beside them.
struct Args : RowArgs {
    const std::int64_t* target = nullptr;  // a class per row; null: `other` holds probabilities
    std::int64_t ignore_index = 0;         // its class counts nothing
    Operand weight;                        // one per class
    double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
    double* states = nullptr;  // m, r, low of each row, written; null: not wanted
    const double* given = nullptr;  // the same; null: they are made of the scores
    Grouped loss;              // of each group the sum, or the mean, of its rows' losses; absent: not wanted
    bool mean = false;         // whose rows count w_y each, or 1 where targets are probabilities, or 0 if ignored
    double least = 0;          // probabilities of this and below are 0 to the gradient
    Grouped g;                 // double: what the gradient of a group's loss into `out` is multiplied by; absent: 1
    // Made by the kernel itself: the loss of each row, and by group what each row's gradient is multiplied by.
    double* losses = nullptr;
    const double* seeds = nullptr;
    std::int64_t each = 1, each_of_seed = 1;  // rows to a group
    // A division is as long as the loss of a row of three classes.
    double seed_of(std::int64_t row) const {
        return seeds[each_of_seed == 1 ? row : each_of_seed == rows.total ? 0 : row / each_of_seed];
    }
};

}  // namespace softargmax::loss

SOFTARGMAX_KERNEL(loss, run, Args)
