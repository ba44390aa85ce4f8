// Arguments of the kernels of the sparse maps, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::sparse {

// The loss saves five numbers of `Found` (newton_root.hpp) per row for its gradient: the m and r of `limit`, the root
// (2 numbers), and `others`. If the row has a root, kOrdinary is saved in place of r (`save_root` in kernels.cpp).
constexpr int kRootNumbers = 5;

// A map reads scores from `z` and writes p to `out`. The gradient of a map reads p from `z` and the incoming gradient
// from `other`. Pointers point to contiguous arrays with one number per row, unless their comments say otherwise.
struct Args : RowArgs {
    Operand alpha;                    // float64, one per row, above 0
    Operand tau;                      // written by a map unless absent; read by the gradient of a map
    std::int64_t* support = nullptr;  // the number of p > 0; null: not requested
    bool gradient = false;
    // With a target, the call writes the loss of each row to `loss`, or its gradient g (p - target) to `out`.
    const std::int64_t* target = nullptr;
    std::int64_t ignore_index = 0;
    double* roots = nullptr;        // kRootNumbers per row; null: not saved
    const double* found = nullptr;  // the roots that the loss saved; null: the kernel searches for them
    double* loss = nullptr;
    const double* g = nullptr;
};

}  // namespace softargmax::sparse

SOFTARGMAX_KERNEL(sparse, run, const Args)
