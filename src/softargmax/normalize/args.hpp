// Arguments of the normalize kernels, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::normalize {

enum class Op : std::uint8_t {
    softmax,
    log_softmax,
    logsumexp,        // the smooth maximum lse / beta
    fold,             // computes only the state, starting from the state in `m`, `r` and `low`
    apply_softmax,    // computes the softmax from the state that is passed in
    apply_log_softmax,
    sum,              // computes an expectation, entropy or divergence of the softmax (sums.hpp)
    softmax_vjp,      // z = p, other = g:      out = beta p (g - <p, g>)
    log_softmax_vjp,  // z = log p, other = g:  out = beta (g - p sum g)
    logsumexp_vjp,    // z = p, lse = g:        out = p g
    logcumsumexp,
    prefix_surprisals,  // for each score: -log of its probability in the softmax of this score and those before it
};

// True for the operations that the function `normalize` (kernels.cpp) computes by folding the scores into a state. The
// apply operations read a state, and all other operations have their own passes.
constexpr bool folds(Op op) {
    switch (op) {
        case Op::softmax:
        case Op::log_softmax:
        case Op::logsumexp:
        case Op::fold: return true;
        default: return false;
    }
}
constexpr bool is_log(Op op) {
    switch (op) {
        case Op::log_softmax:
        case Op::apply_log_softmax: return true;
        default: return false;
    }
}
// True if the result has one number (or state) per row, also for an empty row.
constexpr bool is_reduction(Op op) {
    switch (op) {
        case Op::logsumexp:
        case Op::fold:
        case Op::sum: return true;
        default: return false;
    }
}

enum class SumOf : std::uint8_t;  // defined in sums.hpp

struct Args : RowArgs {
    static constexpr bool kSpreads = true;
    Op op;
    SumOf sum;          // which sum, for Op::sum
    Operand m, r, low;  // the state as doubles: read by apply_softmax, apply_log_softmax and fold; written by fold
    Operand parameter;  // parameter of a sum, such as the order of a Renyi entropy; one double per row
    Operand lse;        // one lse per row, in nats: written by softmax and log_softmax unless null, read by their
                        // vjps. For logsumexp_vjp: one incoming gradient g per row
};

}  // namespace softargmax::normalize

SOFTARGMAX_KERNEL(normalize, run, const Args)
