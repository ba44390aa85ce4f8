// Arguments of the kernels of the log semiring, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::structure {

constexpr std::int64_t kUnknown = -1;

// Contiguous matrices of float or double, one per item of a batch. `data` is null if they are absent.
struct Matrices {
    char* data = nullptr;
    Type type = Type::f32;
};

// Each item has the matrices a (rows x depth), b (depth x cols) and c (rows x cols). w has the shape of c, x that of a,
// and y that of b. `wide` has the numbers of c in double. All other matrices have the type of a.
struct Args {
    std::int64_t items = kUnknown, rows = kUnknown, depth = kUnknown, cols = kUnknown;
    Matrices a, b, c, wide;
    const double *hi = nullptr, *lo = nullptr;  // beta = hi + lo of each item, or of all items
    bool each = false;  // true if every item has its own beta
    Matrices w, x, y;  // weights; an absent weight is 1
    Matrices to_c, to_a, to_b;  // written unless absent
    int threads = 1;
};

// Linear chains: `items` sequences of at most `length` positions with `tags` tags. `emissions` has items x length x
// tags numbers, and `transitions` has tags x tags numbers for each item and step, or for all. `start` and `end` are
// added to the emissions of the first and of the last position of each sequence.
struct ChainArgs {
    std::int64_t items = kUnknown, length = kUnknown, tags = kUnknown;
    Matrices emissions, transitions;
    std::int64_t transition_items = kUnknown, transition_steps = kUnknown;  // each may be 1
    const double *start = nullptr, *end = nullptr;  // one number per tag
    const std::int64_t* lengths = nullptr;  // positions of each item
    double* alpha = nullptr;  // items x length x tags: the forward sums, in logarithms
    double* log_z = nullptr;  // one per item
    const double* g = nullptr;  // the incoming gradient of each log_z
    Matrices to_emissions, to_transitions;  // g times the marginals, in the shapes of emissions and transitions
    std::int64_t paths = 1;  // number of best paths
    double* scores = nullptr;  // items x paths: the largest scores
    std::int64_t* best = nullptr;  // items x paths x length: the tags of the best paths, and -1 beyond the end
    int threads = 1;
};

}  // namespace softargmax::structure

SOFTARGMAX_KERNEL(structure, multiply, const Args)
SOFTARGMAX_KERNEL(structure, sum_terms, const Args)
SOFTARGMAX_KERNEL(structure, forward_chain, const ChainArgs)
SOFTARGMAX_KERNEL(structure, chain_marginals, const ChainArgs)
SOFTARGMAX_KERNEL(structure, best_paths, const ChainArgs)
