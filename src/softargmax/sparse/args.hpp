// The arguments of this room's kernels: plain data, without Python or vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::sparse {

// The numbers kept between the loss and its gradient: m, r (kOrdinary if the row has a root), the root (2), `others`.
constexpr int kRootNumbers = 5;

// A sparse map writes p of the scores to `out`. A gradient reads p from `z` and the incoming gradient from `other`.
// Arrays with one number per row are contiguous.
struct Args : RowArgs {
    Operand alpha;                    // one per row, double, above 0
    Operand tau;                      // written if given; read by the gradient
    std::int64_t* support = nullptr;  // the number of p > 0: written if given
    bool gradient = false;
    // The loss, if there is a target. Then `out` is g (p - target).
    const std::int64_t* target = nullptr;
    std::int64_t ignore_index = 0;
    double* roots = nullptr;        // kRootNumbers per row: written if given
    const double* found = nullptr;  // kRootNumbers per row: read in place of the search
    double* loss = nullptr;
    const double* g = nullptr;
};

}  // namespace softargmax::sparse

SOFTARGMAX_KERNEL(sparse, run, const Args)
