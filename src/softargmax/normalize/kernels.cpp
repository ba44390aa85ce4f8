// The room's operations over all rows of a job. Compiled once for each instruction set.
//
// Every operation has two halves: fold the blocks of a row into its state, merged from left to right, then apply the
// state to each block. Rows go to threads in groups; few long rows are split by the same blocks, so that neither threads
// nor pieces change a bit.
#include <vector>

#include "core/native/threads.hpp"
#include "normalize/short_rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

// ---- softmax, log_softmax, logsumexp and their halves -------------------------------------------------------------

bool any_flat(const Job& job) {
    for (std::int64_t row = 0; row < job.rows.total; ++row)
        if (scale_of(job, row).flat) return true;
    return false;
}

template <class T, int Size> void normalize(const Job& job) {
    const Frame<T> frame(job, Size);
    const std::int64_t blocks = (job.cols.total + kBlock - 1) / kBlock;
    if constexpr (sizeof(T) == 4 && Size == 1)
        if (fits_lanes<T, Size>(frame)) {
            parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
                if (frame.scale.beta.unit()) short_rows<true>(frame, begin, end);
                else short_rows<false>(frame, begin, end);
            });
            return;
        }
    if (job.offsets || frame.groups.total >= job.threads || blocks < 2 || any_flat(job)) {
        parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
            if (is_bare<T, Size>(frame)) return bare_rows(frame, begin, end);
            for (std::int64_t i = begin; i < end; ++i) {
                Group<T, Size> group(frame, i);
                whole_group(group);
            }
        });
        return;
    }
    // Few long rows: blocks go to threads, their states are merged in order by one.
    std::vector<State> pieces(static_cast<std::size_t>(frame.groups.total * blocks * Size)), rows(static_cast<std::size_t>(job.rows.total));
    const auto each_block = [&](auto body) {
        parallel_for(job.threads, frame.groups.total * blocks, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t unit = begin; unit < end; ++unit) {
                Group<T, Size> group(frame, unit / blocks);
                group.load(unit % blocks);
                body(group, unit % blocks, pieces.data() + unit * Size);
            }
        });
    };
    if (folds(job.op))
        each_block([&](Group<T, Size>& group, std::int64_t block, State* piece) {
            for (int g = 0; g < group.count; ++g) piece[g] = group.fold_row(g, block);
        });
    for (std::int64_t i = 0; i < frame.groups.total; ++i) {
        Group<T, Size> group(frame, i);
        for (int g = 0; g < group.count; ++g) {
            start(group, g);
            for (std::int64_t b = 0; b < blocks && folds(job.op); ++b)
                group.state[g] = merge(group.state[g], pieces[static_cast<std::size_t>((i * blocks + b) * Size + g)], group.beta(g));
            finish(group, g);
            rows[static_cast<std::size_t>(group.first + g)] = group.state[g];
        }
    }
    if (job.op == Op::logsumexp || job.op == Op::fold) return;
    each_block([&](Group<T, Size>& group, std::int64_t block, State*) {
        for (int g = 0; g < group.count; ++g) group.state[g] = rows[static_cast<std::size_t>(group.first + g)];
        apply_block(group, block);
    });
}

// ---- derivatives --------------------------------------------------------------------------------------------------

template <class T, int Size> void vjp(const Job& job) {
    const bool log = job.op == Op::log_softmax_vjp;
    const Frame<T> frame(job, Size);
    parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            Group<T, Size> group(frame, i);
            double sum[Size] = {}, beta[Size] = {};
            const std::int64_t blocks = group.blocks();
            for (std::int64_t b = 0; b < blocks; ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
                    const std::int64_t n = group.end(b) - group.begin(b);
                    sum[g] += log ? sum_in_support(x, y, n) : inner_product(x, y, n);
                }
            }
            // Rows with infinities, and T = 0, are constant where they are differentiable at all; NaN stays NaN.
            for (int g = 0; g < group.count; ++g) {
                beta[g] = job.hi ? at(job.hi, job, group.first + g) : 1;
                const double lse = job.lse ? at(job.lse, job, group.first + g) : 0;
                if (lse != lse) beta[g] = 1;
                else if (lse == kInf || std::isinf(beta[g])) beta[g] = 0;
            }
            for (std::int64_t b = 0; b < blocks; ++b) {
                if (blocks > 1) group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
                    const std::int64_t n = group.end(b) - group.begin(b);
                    const auto to = group.target(g, b, x);
                    if (beta[g] == 0) std::fill_n(to.out, n, T{0});
                    else if (log) log_softmax_vjp(x, y, n, sum[g], beta[g], to);
                    else softmax_vjp(x, y, n, sum[g], beta[g], to);
                }
                group.flush(b);
            }
        }
    });
}

// ---- logcumsumexp ---------------------------------------------------------------------------------------------------

template <class T, int Size> void logcumsumexp(const Job& job) {
    const Frame<T> frame(job, Size);
    parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            Group<T, Size> group(frame, i);
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T* z = group.scores + g * group.pitch;
                    const auto to = group.target(g, b, z);
                    for (std::int64_t j = 0; j < group.end(b) - group.begin(b); ++j) {
                        group.state[g] = merge(group.state[g], State{static_cast<double>(z[j]), 0}, Scale{});
                        const double lse = finalize(group.state[g], Scale{});
                        to.out[j] = static_cast<T>(lse == lse ? lse : kNaN);
                    }
                }
                group.flush(b);
            }
        }
    });
}

template <class T, int Size> void run_in_groups(const Job& job) {
    switch (job.op) {
        case Op::softmax_vjp:
        case Op::log_softmax_vjp: return vjp<T, Size>(job);
        case Op::logcumsumexp: return logcumsumexp<T, Size>(job);
        default: return normalize<T, Size>(job);
    }
}
template <class T> void run_as(const Job& job) {
    if (rows_are_adjacent(job, job.z)) run_in_groups<T, kGroup>(job);
    else run_in_groups<T, 1>(job);
}

}  // namespace

// The entry of this instruction set. In float64 where that is asked for, and where there are weights: log w would cost
// float32 its accuracy.
void run(const Job& job) {
    const FloatEnvironment environment;
    if (job.z.type == Type::f64 || (job.out && job.out.type == Type::f64) || job.weights) run_as<double>(job);
    else run_as<float>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
