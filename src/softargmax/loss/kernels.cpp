// The losses of all rows of a call, their sum or mean, and the losses of a last layer. This file is compiled once for
// each instruction set.
#include <memory>

#include "loss/last_layer.hpp"
#include "loss/loss_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::loss {
namespace {

// Returns the number by which the sum of the losses of the rows [begin, end) is divided. For a sum it is 1. For a mean
// it is the total weight of the rows, or infinity if the total weight is 0, so that the mean is 0.
double divisor(const Args& args, std::int64_t begin, std::int64_t end) {
    if (!args.mean) return 1;
    if (args.divisor != 0) return args.divisor;  // NaN if the weight of a class is NaN
    std::int64_t counted = end - begin;
    Twofold weights{};
    for (std::int64_t i = begin; i < end && args.target; ++i)
        if (args.target[i] == args.ignore_index) --counted;
        else if (args.weight) weights = plus(weights, Twofold{weight_of(args, i, args.target[i]), 0});
    const double count = args.target && args.weight ? rounded(weights) : static_cast<double>(counted);
    return count == 0 ? kInf : count;
}
double sum_of_losses(const Args& args, std::int64_t begin, std::int64_t end) {
    using V = Pack<double>;
    Sum<double> sum;
    for (std::int64_t i = begin; i < end; i += V::kLanes) sum.add({V::load_part(args.losses + i, end - i, 0)});
    const double found = rounded(sum.total());
    if (found - found == 0) return found;
    double plain = 0;  // for losses that are not all finite, a plain sum is enough
    for (std::int64_t i = begin; i < end; ++i) plain += args.losses[i];
    return plain;
}
void reduce(const Args& args) {
    with_real_type(args.loss.type, args.loss.data, [&](auto* loss) {
        using S = std::remove_reference_t<decltype(*loss)>;
        for (std::int64_t group = 0; group < args.loss.count; ++group) {
            const std::int64_t begin = group * args.each, end = begin + args.each;
            const double found = sum_of_losses(args, begin, end) / divisor(args, begin, end);
            if constexpr (!std::is_same_v<S, std::uint8_t>) loss[group] = convert<S>(found);
        }
    });
}

// Returns the weight of each row's class, which one of the processes has. Ignored rows have weight 0.
std::unique_ptr<double[]> weights_of_targets(const Args& args) {
    const std::int64_t rows = args.rows.total, first = args.shards.first();
    const auto numbers = [](std::int64_t n) { return new double[static_cast<std::size_t>(n)](); };
    const std::unique_ptr<double[]> mine(numbers(rows)), all(numbers(rows * args.shards.count));
    std::unique_ptr<double[]> found(numbers(rows));
    for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t y = args.target[i] - first;
        if (args.target[i] != args.ignore_index && y >= 0 && y < args.cols.total) mine[i] = weight_of(args, i, y);
    }
    args.shards.gather(args.shards, mine.get(), 0, rows * static_cast<std::int64_t>(sizeof(double)), all.get());
    for (std::int64_t p = 0; p < args.shards.count; ++p)
        for (std::int64_t i = 0; i < rows; ++i) found[i] += all[p * rows + i];
    return found;
}

// Returns one number for each row of all processes, in their order. `mine` has those of this process.
std::unique_ptr<double[]> of_all_rows(const Shards& shards, const double* mine) {
    const auto numbers = [](std::int64_t n) { return new double[static_cast<std::size_t>(n)](); };
    std::int64_t most = 0;
    for (std::int64_t p = 0; p < shards.count; ++p) most = std::max(most, shards.sizes[p]);
    const std::unique_ptr<double[]> sent(numbers(most)), received(numbers(most * shards.count));
    std::unique_ptr<double[]> all(numbers(shards.length()));
    std::copy_n(mine, shards.sizes[shards.rank], sent.get());
    shards.gather(shards, sent.get(), 0, most * static_cast<std::int64_t>(sizeof(double)), received.get());
    for (std::int64_t p = 0, row = 0; p < shards.count; row += shards.sizes[p++])
        std::copy_n(received.get() + p * most, shards.sizes[p], all.get() + row);
    return all;
}
// Returns the divisor of a mean over the rows of all processes.
double divisor_of_all(const LinearArgs& args) {
    Args all = args;
    all.rows.total = args.row_shards.length();
    if (!args.target) return divisor(all, 0, all.rows.total);
    const std::int64_t rows = args.rows.total;
    const std::unique_ptr<double[]> mine(new double[static_cast<std::size_t>(rows)]);
    for (std::int64_t i = 0; i < rows; ++i) {
        const bool counts = args.target[i] != args.ignore_index;
        mine[i] = !counts ? 0 : args.weight ? weight_of(args, i, args.target[i]) : 1;
    }
    const std::unique_ptr<double[]> weights = of_all_rows(args.row_shards, mine.get());
    Twofold total{};
    for (std::int64_t i = 0; i < all.rows.total; ++i) total = plus(total, Twofold{weights[i], 0});
    return rounded(total) == 0 ? kInf : rounded(total);
}
// Computes the loss of all rows of all processes, in each of them.
void reduce_all(const LinearArgs& args) {
    const std::unique_ptr<double[]> losses = of_all_rows(args.row_shards, args.losses);
    Args all = args;
    all.losses = losses.get();
    all.each = args.row_shards.length();
    reduce(all);
}

// Memory for the loss of each row, the factor of the gradient of each row or group of rows, and weights of targets.
struct RowNumbers {
    std::unique_ptr<double[]> losses, seeds, weights;
    explicit RowNumbers(Args& args, bool gradients) {
        args.least /= static_cast<double>(std::max<std::int64_t>(args.length(), 1));
        const std::int64_t rows = args.rows.total, groups = args.loss ? args.loss.count : rows;
        if (args.shards && args.weight && args.target) weights = weights_of_targets(args);
        args.weights_of_targets = weights.get();
        const std::int64_t count = args.g ? args.g.count : groups;
        args.each = rows / std::max<std::int64_t>(groups, 1);  // a process may have none of the rows
        args.each_of_seed = rows / std::max<std::int64_t>(count, 1);
        if (args.loss) losses.reset(new double[static_cast<std::size_t>(rows)]());
        if (gradients) seeds.reset(new double[static_cast<std::size_t>(count)]);
        for (std::int64_t k = 0; gradients && k < count; ++k) {
            const double g = args.g ? reinterpret_cast<const double*>(args.g.data)[k] : 1;
            seeds[k] = g / divisor(args, k * args.each_of_seed, (k + 1) * args.each_of_seed);
        }
        args.losses = losses.get();
        args.seeds = seeds.get();
    }
};
void run_rows(const Args& args) {
    if (is_plain(args) && args.z.type != Type::f64) run_as<float>(args);
    else run_as<double>(args);
}

// Returns the arguments for a part of the rows, whose scores are in `z`. All pointers move to the first row of the
// part, except the pointer to a seed that all rows share.
Args part_of(const LinearArgs& args, std::int64_t begin, std::int64_t end, char* z) {
    Args part = args;
    const auto move = [&](Operand& x) {
        if (x) x.data += begin * x.row[0] * kTypeBytes[static_cast<int>(x.type)];
    };
    for (Operand* x : {&part.other, &part.where, &part.hi, &part.lo, &part.weight}) move(*x);
    part.rows.size[0] = part.rows.total = end - begin;
    part.z.data = z;
    if (part.target) part.target += begin;
    if (part.weights_of_targets) part.weights_of_targets += begin;
    if (part.losses) part.losses += begin;
    if (part.each_of_seed == 1) part.seeds += begin;
    else part.each_of_seed = end - begin;
    if ((end - begin) * part.cols.total < kParallel) part.threads = 1;
    return part;
}
template <class T> void linear_as(LinearArgs& args) {
    const bool gradients = args.dh || args.dw || args.db;
    if (args.row_shards && args.mean) args.divisor = divisor_of_all(args);
    const RowNumbers numbers(args, gradients);
    LastLayer<T> layer(args);
    layer.expect();
    T* const z = reinterpret_cast<T*>(args.z.data);
    for (std::int64_t begin = 0, end = 0; begin < args.rows.total; begin = end) {
        end = end_of_part(begin, args.rows.total, args.rows_at_once);
        layer.scores(begin, end, z);
        if (gradients) layer.finite_layer(end - begin, z);
        layer.add_late_biases(end - begin, z);
        Args part = part_of(args, begin, end, args.z.data);
        if (gradients) part.out = part.z;
        run_rows(part);
        if (gradients) layer.add_gradients(begin, end, z);
    }
    layer.finish();
    if (!args.loss) return;
    if (args.row_shards && !args.per_row) reduce_all(args);
    else reduce(args);
}

}  // namespace

void run(Args& args) {
    const FloatEnvironment environment;
    const RowNumbers numbers(args, static_cast<bool>(args.out));
    run_rows(args);
    if (args.loss) reduce(args);
}

void run_linear(LinearArgs& args) {
    const FloatEnvironment environment;
    if (args.z.type == Type::f64) linear_as<double>(args);
    else linear_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::loss
