// What this room's bindings hand to its kernels: plain data, no Python and no vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::sparse {

// What was found stays between the loss and its gradient: m, r (kOrdinary where there is a root), the root, `others`.
constexpr int kRootNumbers = 5;

// A sparse map: scores to `out`, or p in `z` and an incoming gradient in `other` to that of the scores. Numbers per row
// lie one after the other.
struct Args : RowArgs {
    Operand alpha;                    // one per row, double, above 0
    Operand tau;                      // written where wanted, read by the gradient
    std::int64_t* support = nullptr;  // so are the numbers of p > 0
    bool gradient = false;
    // Its loss, where there is a target: then `out` is g (p - target).
    const std::int64_t* target = nullptr;
    std::int64_t ignore_index = 0;
    double* roots = nullptr;        // kRootNumbers, written where wanted
    const double* found = nullptr;  // the same, read in place of the search
    double* loss = nullptr;
    const double* g = nullptr;
};

}  // namespace softargmax::sparse

SOFTARGMAX_KERNEL(sparse, run, const Args)
