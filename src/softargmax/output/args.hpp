// What this room's bindings hand to its kernels: plain data, no Python and no vectors.
#pragma once

#include "core/cpp/kernel.hpp"

namespace softargmax::output {

constexpr std::int64_t kUnknown = -1;  // how many, before an argument has said it

// Vectors of contiguous numbers; the next one begins `pitch` numbers further on.
struct Table {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t pitch = 0, rows = 0;
};

// The scores <h, w> + b of pairs of a row of h and a row of a table: out[p] is that of h's row rows[p] and row
// nodes[p].
struct DotsArgs {
    Table h, weight, bias;  // h is float or double, which all is computed in; the bias may be absent
    std::int64_t width = kUnknown, pairs = kUnknown;
    const std::int64_t *rows = nullptr, *nodes = nullptr;
    char* out = nullptr;  // of h's type
    int threads = 1;
};

// Sums of a table's rows: vector i of `out` is the sum of factors[p] table[index[p]] over the places p that stand in
// `order` (absent: 0, 1, ..) from starts[i] to starts[i + 1]; `totals` is that of the factors alone.
struct SumsArgs {
    Table table, out;
    std::int64_t width = kUnknown, sums = kUnknown, places = kUnknown;
    const std::int64_t *index = nullptr, *order = nullptr, *starts = nullptr;
    const char* factors = nullptr;  // of out's type, float or double
    char* totals = nullptr;         // so are these; null: not wanted
    int threads = 1;
};

// Coins on the nodes that a row meets: pairs from starts[r] to starts[r + 1] are row r's, with the nodes nodes[p].
//
//     x_p = <h_r, w_p> + b_p + shift_p      loss_r = sum -log sigma(s_p x_p)      slope_p = d loss_r / d x_p
//
// with a sign s_p of 1, -1, or 0: no coin. dh_r = sum slope_p w_p.
struct CoinsArgs {
    Table h, weight, bias, dh;  // the bias and dh may be absent
    std::int64_t width = kUnknown, rows = kUnknown, pairs = kUnknown;
    const std::int64_t *starts = nullptr, *nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const char* shift = nullptr;  // of h's type, as are these; null: none
    char *loss = nullptr, *slopes = nullptr;  // slopes may be null
    int threads = 1;
};

// Descent: batch by batch of rows, the gradients of their coins' losses, as the tables are before it, are taken from
// the tables. Row r is vector inputs[r]; it meets the targets from starts[r] to starts[r + 1], each by the nodes on its
// path or by itself and `samples` negatives.
struct StepsArgs {
    Table vectors, weight;  // of one type, float or double
    std::int64_t width = kUnknown, rows = kUnknown, targets = kUnknown, batch = 0;
    const std::int64_t *inputs = nullptr, *starts = nullptr, *target = nullptr;
    const std::int64_t* offsets = nullptr;  // of paths, one per class and one more; null: negatives
    std::int64_t classes = kUnknown, path_nodes = kUnknown, drawn = kUnknown;  // how many those and the next ones are
    const std::int32_t* nodes = nullptr;
    const std::int8_t* signs = nullptr;
    const std::int64_t* negatives = nullptr;  // of each target
    std::int64_t samples = 0;
    double rate = 0, last_rate = 0;  // of the first row and behind the last one, linear in between
    double loss = 0;  // written
    int threads = 1;
};

// The random words of positions first, first + 1, .. (philox_stream.py), or with a table what `AliasTable.pick` gives
// for them.
struct DrawsArgs {
    std::uint64_t seed = 0, stream = 0;
    std::uint32_t purpose = 0;
    std::int64_t first = 0, draws = kUnknown, classes = kUnknown;
    const double* threshold = nullptr;  // null: no table, and `out` has the four words of a position in as many rows
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
