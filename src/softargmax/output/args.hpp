// Arguments of the kernels of the output layers, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::output {

constexpr std::int64_t kUnknown = -1;  // marks a count that is not set yet

// A matrix whose rows are contiguous and begin `pitch` numbers apart.
struct Table {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t pitch = 0, rows = 0;
};

// Scores <h, w> + b of pairs: out[p] is the score of row rows[p] of h and row nodes[p] of weight.
struct DotsArgs {
    Table h, weight, bias;  // h: float or double, the type of the computation. bias: optional
    std::int64_t width = kUnknown, pairs = kUnknown;
    const std::int64_t *rows = nullptr, *nodes = nullptr;
    char* out = nullptr;  // type of h
    int threads = 1;
};

// Weighted sums of a table's rows. Row i of `out` is the sum of factors[p] * table[index[p]], where p = order[j] and j
// runs from starts[i] to starts[i + 1] - 1. Without `order`, p = j. totals[i] is the sum of these factors[p].
struct SumsArgs {
    Table table, out;
    std::int64_t width = kUnknown, sums = kUnknown, places = kUnknown;
    const std::int64_t *index = nullptr, *order = nullptr, *starts = nullptr;
    const char* factors = nullptr;  // type of `out`, float or double
    char* totals = nullptr;         // type of `out`; null if not requested
    int threads = 1;
};

// Binary logistic losses. Row r has the pairs p from starts[r] to starts[r + 1] - 1. The node of pair p is nodes[p].
//
//     x_p = <h_r, w_p> + b_p + shift_p      loss_r = sum -log sigma(s_p x_p)      slope_p = d loss_r / d x_p
//
// The sign s_p is 1 or -1, or 0 for an unused pair, which adds nothing. dh_r = sum slope_p w_p.
struct CoinsArgs {
    Table h, weight, bias, dh;  // the bias and dh are optional
    std::int64_t width = kUnknown, rows = kUnknown, pairs = kUnknown;
    const std::int64_t *starts = nullptr, *nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const char* shift = nullptr;  // shift, loss and slopes have the type of h
    char *loss = nullptr, *slopes = nullptr;  // slopes may be null
    int threads = 1;
};

// Gradient descent on the tables `vectors` and `weight`, in batches of rows (skipgram_sgd.hpp). Row r has the vector
// vectors[inputs[r]] and the targets target[t] for t from starts[r] to starts[r + 1] - 1. With a tree, a target
// contributes the nodes on its path. Without a tree, it contributes itself and `samples` negatives.
struct StepsArgs {
    Table vectors, weight;  // both float or both double
    std::int64_t width = kUnknown, rows = kUnknown, targets = kUnknown, batch = 0;
    const std::int64_t *inputs = nullptr, *starts = nullptr, *target = nullptr;
    const std::int64_t* offsets = nullptr;  // where each class's path begins in `nodes`; null without a tree
    std::int64_t classes = kUnknown, path_nodes = kUnknown,
                 drawn = kUnknown;  // the counts of paths, of nodes on all paths, and of negatives
    const std::int32_t* nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const std::int64_t* negatives = nullptr;  // `samples` per target
    std::int64_t samples = 0;
    double rate = 0, last_rate = 0;  // learning rates at the first row and after the last row; linear in between
    double loss = 0;  // result: the sum of the losses
    int threads = 1;
};

// Random words (32 bits each) of the positions from `first` on (philox_stream.py). With an alias table, `out` receives
// one class per position: the class that `AliasTable.pick` (alias.py) chooses by the position's words. Without an alias
// table, `out` receives the words themselves, as four rows with one column per position.
struct DrawsArgs {
    std::uint64_t seed = 0, stream = 0;
    std::uint32_t purpose = 0;
    std::int64_t first = 0, draws = kUnknown, classes = kUnknown;
    const double* threshold = nullptr;  // the alias table, or null without one
    const std::int64_t* alias = nullptr;
    std::int64_t* out = nullptr;
    int threads = 1;
};

}  // namespace softargmax::output

SOFTARGMAX_KERNEL(output, run_dots, const DotsArgs)
SOFTARGMAX_KERNEL(output, run_sums, const SumsArgs)
SOFTARGMAX_KERNEL(output, run_coins, const CoinsArgs)
SOFTARGMAX_KERNEL(output, run_steps, StepsArgs)
SOFTARGMAX_KERNEL(output, run_draws, const DrawsArgs)
