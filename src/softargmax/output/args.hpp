// Arguments of the kernels of the output layers, as plain structs of pointers and numbers.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::output {

constexpr std::int64_t kUnknown = -1;  // the count is not known yet

// A matrix whose rows are contiguous and begin `pitch` numbers apart.
struct Table {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t pitch = 0, rows = 0;
};

// Scores <h, w> + b of pairs: out[p] is the score of row rows[p] of h and row nodes[p] of the table.
struct DotsArgs {
    Table h, weight, bias;  // h is float or double, the type of the computation; the bias may be absent
    std::int64_t width = kUnknown, pairs = kUnknown;
    const std::int64_t *rows = nullptr, *nodes = nullptr;
    char* out = nullptr;  // in the type of h
    int threads = 1;
};

// Weighted sums of a table's rows. Row i of `out` is the sum of factors[p] table[index[p]] over the positions p =
// order[j] with starts[i] <= j < starts[i + 1]. Without `order`, p = j. `totals` has the sums of the factors alone.
struct SumsArgs {
    Table table, out;
    std::int64_t width = kUnknown, sums = kUnknown, places = kUnknown;
    const std::int64_t *index = nullptr, *order = nullptr, *starts = nullptr;
    const char* factors = nullptr;  // in the type of `out`, float or double
    char* totals = nullptr;         // in the same type; null: not computed
    int threads = 1;
};

// Binary logistic losses: row r has the pairs from starts[r] to starts[r + 1], with the nodes nodes[p].
//
//     x_p = <h_r, w_p> + b_p + shift_p      loss_r = sum -log sigma(s_p x_p)      slope_p = d loss_r / d x_p
//
// The sign s_p is 1, -1, or 0 if there is no pair. dh_r = sum slope_p w_p.
struct CoinsArgs {
    Table h, weight, bias, dh;  // the bias and dh may be absent
    std::int64_t width = kUnknown, rows = kUnknown, pairs = kUnknown;
    const std::int64_t *starts = nullptr, *nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const char* shift = nullptr;  // in the type of h, as the next two; null: no shift
    char *loss = nullptr, *slopes = nullptr;  // slopes may be null
    int threads = 1;
};

// Gradient descent on both tables, by batches of rows (skipgram_sgd.hpp). Row r uses the vector inputs[r] and has the
// targets from starts[r] to starts[r + 1]. A target stands for the nodes on its path, or for itself and `samples`
// negatives.
struct StepsArgs {
    Table vectors, weight;  // of one type, float or double
    std::int64_t width = kUnknown, rows = kUnknown, targets = kUnknown, batch = 0;
    const std::int64_t *inputs = nullptr, *starts = nullptr, *target = nullptr;
    const std::int64_t* offsets = nullptr;  // of each class's path in `nodes`, and the end; null: negatives
    std::int64_t classes = kUnknown, path_nodes = kUnknown,
                 drawn = kUnknown;  // lengths of the next arrays
    const std::int32_t* nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const std::int64_t* negatives = nullptr;  // `samples` per target
    std::int64_t samples = 0;
    double rate = 0, last_rate = 0;  // the rate at the first row and after the last one; linear in between
    double loss = 0;  // written
    int threads = 1;
};

// The random words of positions first, first + 1, .. (philox_stream.py). With an alias table, the classes that
// `AliasTable.pick` returns for these words.
struct DrawsArgs {
    std::uint64_t seed = 0, stream = 0;
    std::uint32_t purpose = 0;
    std::int64_t first = 0, draws = kUnknown, classes = kUnknown;
    const double* threshold = nullptr;  // null: no table; `out` has four rows, one for each word of a position
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
