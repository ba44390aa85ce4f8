// Arguments of the loss kernels, as plain data: no Python objects and no SIMD types.
#pragma once

#include "core/cpp/args.hpp"

namespace softargmax::loss {

// One number for each of `count` groups of rows. Each group has the same number of consecutive rows.
struct Grouped {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t count = 0;
    explicit operator bool() const { return data != nullptr; }
};

// The arguments of a loss: scores, targets and options.
struct Args : RowArgs {
    static constexpr bool kSpreads = true;
    const std::int64_t* target = nullptr;  // one class per row; null: `other` has probabilities
    std::int64_t ignore_index = 0;         // rows of this class are ignored
    Operand weight;                        // one per class
    double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
    double* states = nullptr;  // output: m, r and low (core/cpp/state.hpp) of each row; null: not requested
    const double* given = nullptr;  // input: `states` of an earlier call; null: computed from the scores
    Grouped loss;              // the sum or mean of the losses of each group; absent: not requested
    bool mean = false;         // divide by the total weight; a row weighs w_y, 1 for probabilities, or 0 if ignored
    double divisor = 0;        // of a mean, if rows are spread over processes; 0: computed from the rows
    double least = 0;          // probabilities of at most `least` / (number of classes) count as 0 in the gradient
    Grouped g;                 // float64: incoming gradient of each group's loss; absent: 1
    // Set by the kernel: the loss of each row, and the seed (the factor of the gradient) of each row or group of rows.
    double* losses = nullptr;
    const double* seeds = nullptr;
    // The weight of each row's class, if rows are spread over processes and classes have weights.
    const double* weights_of_targets = nullptr;
    std::int64_t each = 1, each_of_seed = 1;  // rows per group of `loss`, and rows that share a seed
    // Returns the seed of a row. If each row has its own seed, or all rows share one, no division is needed. A division
    // would take as long as the loss of a row of three classes.
    double seed_of(std::int64_t row) const {
        return seeds[each_of_seed == 1 ? row : each_of_seed == rows.total ? 0 : row / each_of_seed];
    }
};

// The loss of a last layer's scores z = h W^T + bias, and its gradients.
struct LinearArgs : Args {
    core::Factor2D h, w, bias;  // (N, D), (K, D) and (K,); without a bias, bias.data is null
    std::int64_t width = 0;  // D
    char *dh = nullptr, *dw = nullptr, *db = nullptr;  // contiguous, of the scores' type; null: not requested
    bool streams_dw = false;  // dW is large, and written past the caches
    std::int64_t rows_at_once = 0;  // number of rows whose scores fit in the memory of `z`
    // How the rows are spread over processes, if they are, in the order of the processes. All of them have all of W and
    // of its gradient. To have the bits of one process, each has multiples of kDepth rows. The last row is where it is.
    Shards row_shards;
    bool per_row = false;  // if rows are spread: each has a loss of its own, so there is none of all rows
};

// The rows are computed in parts. The scores of one part are in memory at a time. dW is a sum over rows: a product adds
// up sums of kDepth rows each. So a part has a multiple of kDepth rows, or it is a part of kDepth rows. Then a process
// that has multiples of kDepth rows of a batch has the same parts of them as a process that has all of its rows.
//
// Returns the number of rows of a part. A part has at most 1/parts of all rows. It has more rows if its scores would
// take less than 8 MiB in float32, or less than an eighth of the memory of W. Every part reads all of W, which takes as
// long as computing the scores of about 20 rows: with 4 MiB, a step of 357 x 326 x 11675 takes 1.06 times as long
// (Intel Xeon, model 167). Most parts have the same number of rows, because a short part would read W for few rows.
inline std::int64_t rows_at_once(std::int64_t rows, std::int64_t width, std::int64_t classes, std::int64_t parts) {
    constexpr std::int64_t kLeastScores = 1 << 21;
    const auto ratio = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };  // rounded up
    const auto evenly = [&](std::int64_t n, std::int64_t most) {
        return ratio(n, std::max<std::int64_t>(ratio(n, most), 1));
    };
    const std::int64_t most =
        std::max({ratio(rows, parts), kLeastScores / std::max<std::int64_t>(classes, 1), width / 8, std::int64_t{1}});
    if (most < kDepth) return evenly(std::min(rows, kDepth), most);
    return std::min(evenly(ratio(rows, kDepth), most / kDepth) * kDepth, rows);
}
// Returns the end of the part that starts at row `begin`. It is static, as the next one: kernels call it, and the
// copies of all instruction sets must stay apart.
static inline std::int64_t end_of_part(std::int64_t begin, std::int64_t rows, std::int64_t rows_at_once) {
    const std::int64_t most = rows_at_once < kDepth ? kDepth - begin % kDepth : rows_at_once;
    return std::min(begin + std::min(rows_at_once, most), rows);
}
// Returns the number of classes whose rows of dW are passed from process to process at once, if rows are spread.
// Shorter messages would take as long as these.
static inline std::int64_t classes_at_once(std::int64_t classes, std::int64_t width) {
    constexpr std::int64_t kLeastNumbers = 1 << 16, kMessages = 11;
    const std::int64_t least = kLeastNumbers / std::max<std::int64_t>(width, 1);
    return std::max({(classes + kMessages - 1) / kMessages, least, std::int64_t{1}});
}
// Eleven parts, not eight, so that the scores of a part, in whole huge pages, and the packed rows and columns of
// products together take less than 1/8 of the memory of all scores, for 128 MiB of scores or more.
constexpr std::int64_t kParts = 11;

}  // namespace softargmax::loss

SOFTARGMAX_KERNEL(loss, run_linear, LinearArgs)
SOFTARGMAX_KERNEL(loss, run, Args)
