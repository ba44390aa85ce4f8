// Arguments of this room's kernels: plain data without Python objects and vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::output {

constexpr std::int64_t kUnknown = -1;  // a count that no argument has set yet

// Vectors of contiguous numbers, `pitch` numbers apart.
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
    char* out = nullptr;  // of h's type
    int threads = 1;
};

// Sums of a table's rows: vector i of `out` is the sum of factors[p] table[index[p]] over the positions p in `order`
// (absent: 0, 1, ..) from starts[i] to starts[i + 1]; `totals` is the sum of the factors.
struct SumsArgs {
    Table table, out;
    std::int64_t width = kUnknown, sums = kUnknown, places = kUnknown;
    const std::int64_t *index = nullptr, *order = nullptr, *starts = nullptr;
    const char* factors = nullptr;  // of out's type, float or double
    char* totals = nullptr;         // the same type; null: not requested
    int threads = 1;
};

// Binary logistic losses: row r has the pairs from starts[r] to starts[r + 1], with the nodes nodes[p].
//
//     x_p = <h_r, w_p> + b_p + shift_p      loss_r = sum -log sigma(s_p x_p)      slope_p = d loss_r / d x_p
//
// with a sign s_p of 1, -1, or 0 for no pair. dh_r = sum slope_p w_p.
struct CoinsArgs {
    Table h, weight, bias, dh;  // the bias and dh may be absent
    std::int64_t width = kUnknown, rows = kUnknown, pairs = kUnknown;
    const std::int64_t *starts = nullptr, *nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const char* shift = nullptr;  // of h's type, as are these; null: none
    char *loss = nullptr, *slopes = nullptr;  // slopes may be null
    int threads = 1;
};

// Gradient descent on the tables, batch by batch of rows (skipgram_sgd.hpp). Row r is vector inputs[r]. Its targets are
// those from starts[r] to starts[r + 1], each with the nodes on its path, or with itself and `samples` negatives.
struct StepsArgs {
    Table vectors, weight;  // of one type, float or double
    std::int64_t width = kUnknown, rows = kUnknown, targets = kUnknown, batch = 0;
    const std::int64_t *inputs = nullptr, *starts = nullptr, *target = nullptr;
    const std::int64_t* offsets = nullptr;  // offsets of the paths, one per class and the end; null: negatives
    std::int64_t classes = kUnknown, path_nodes = kUnknown,
                 drawn = kUnknown;  // the number of these and of the next ones
    const std::int32_t* nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const std::int64_t* negatives = nullptr;  // one per target
    std::int64_t samples = 0;
    double rate = 0, last_rate = 0;  // the rate at the first row and after the last one; linear in between
    double loss = 0;  // written
    int threads = 1;
};

// The random words of positions first, first + 1, .. (philox_stream.py), or with a table the classes that
// `AliasTable.pick` returns for them.
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
