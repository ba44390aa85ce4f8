// The room's operations over all rows of a job. Compiled once for each instruction set.
//
// Every operation has two halves: fold the blocks of a row into its state, merged from left to right, then apply the
// state to each block. Rows go to threads in groups; few long rows are split by the same blocks, so that neither
// threads nor pieces change a bit.
#include "core/native/deal.hpp"
#include "normalize/short_rows.hpp"
#include "normalize/sums.hpp"

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
    if constexpr (sizeof(T) == 4 && Size == 1)
        if (fits_lanes(frame)) {
            parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
                if (frame.scale.beta.unit()) short_rows<true>(frame, begin, end);
                else short_rows<false>(frame, begin, end);
            });
            return;
        }
    if (is_bare<T, Size>(frame)) {
        parallel_for(job.threads, frame.groups.total,
                     [&](std::int64_t begin, std::int64_t end) { bare_rows(frame, begin, end); });
        return;
    }
    if (!few_long_rows(frame) || any_flat(job))
        return each_group<T, Size>(frame, [](Group<T, Size>& group) { whole_group(group); });
    const std::int64_t blocks = blocks_of(job);
    auto pieces = one_each<State, Size>(frame.groups.total * blocks), rows = one_each<State, 1>(job.rows.total);
    if (folds(job.op))
        each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t unit) {
            for (int g = 0; g < group.count; ++g)
                pieces[static_cast<std::size_t>(unit * Size + g)] = group.fold_row(g, block);
        });
    for (std::int64_t i = 0; i < frame.groups.total; ++i) {
        Group<T, Size> group(frame, i);
        for (int g = 0; g < group.count; ++g) {
            start(group, g);
            for (std::int64_t b = 0; b < blocks && folds(job.op); ++b)
                group.state[g] =
                    merge(group.state[g], pieces[static_cast<std::size_t>((i * blocks + b) * Size + g)], group.beta(g));
            finish(group, g);
            rows[static_cast<std::size_t>(group.first + g)] = group.state[g];
        }
    }
    if (job.op == Op::logsumexp || job.op == Op::fold) return;
    each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t) {
        for (int g = 0; g < group.count; ++g) group.state[g] = rows[static_cast<std::size_t>(group.first + g)];
        apply_block(group, block);
    });
}

// ---- sums under the softmax ---------------------------------------------------------------------------------------

template <class T, int Size> void under_softmax(const Job& job) {
    const Frame<T> frame(job, Size);
    const auto merge_into = [](Group<T, Size>& group, int g, States& s, const States& piece) {
        s = {merge(s.p, piece.p, group.beta(g)), merge(s.q, piece.q, Scale{})};
    };
    if (!few_long_rows(frame))
        return each_group<T, Size>(frame, [&](Group<T, Size>& group) {
            States states[Size];
            Twofold sum[Size] = {};
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) merge_into(group, g, states[g], fold_both(group, b, g));
            }
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                if (group.blocks() > 1) group.load(b);
                for (int g = 0; g < group.count; ++g) add_to(sum[g], block_part(group, b, g, states[g]));
            }
            for (int g = 0; g < group.count; ++g) put_sum(group, g, states[g], sum[g]);
        });
    const std::int64_t blocks = blocks_of(job);
    auto pieces = one_each<States, Size>(frame.groups.total * blocks),
         rows = one_each<States, Size>(frame.groups.total);
    auto parts = one_each<Twofold, Size>(frame.groups.total * blocks);
    const auto at = [](std::int64_t unit, int g) { return static_cast<std::size_t>(unit * Size + g); };
    each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t unit) {
        for (int g = 0; g < group.count; ++g) pieces[at(unit, g)] = fold_both(group, block, g);
    });
    const auto each_row = [&](auto body) {
        for (std::int64_t i = 0; i < frame.groups.total; ++i) {
            Group<T, Size> group(frame, i);
            for (int g = 0; g < group.count; ++g) body(group, i, g);
        }
    };
    each_row([&](Group<T, Size>& group, std::int64_t i, int g) {
        for (std::int64_t b = 0; b < blocks; ++b) merge_into(group, g, rows[at(i, g)], pieces[at(i * blocks + b, g)]);
    });
    each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t unit) {
        for (int g = 0; g < group.count; ++g)
            parts[at(unit, g)] = block_part(group, block, g, rows[at(unit / blocks, g)]);
    });
    each_row([&](Group<T, Size>& group, std::int64_t i, int g) {
        Twofold sum{};
        for (std::int64_t b = 0; b < blocks; ++b) add_to(sum, parts[at(i * blocks + b, g)]);
        put_sum(group, g, rows[at(i, g)], sum);
    });
}

// ---- derivatives --------------------------------------------------------------------------------------------------

// <p, g> or, from log p, the sum of g: of a block that is loaded.
template <class T, int Size> double block_sum(const Group<T, Size>& group, std::int64_t block, int g) {
    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
    const std::int64_t n = group.end(block) - group.begin(block);
    return group.job.op == Op::log_softmax_vjp ? sum_in_support(x, y, n) : inner_product(x, y, n).hi;
}
// Rows with infinities, and T = 0, are constant where they are differentiable at all; NaN stays NaN.
inline double slope_of(const Job& job, std::int64_t row) {
    const double beta = job.hi ? at(job.hi, job, row) : 1, lse = job.lse ? at(job.lse, job, row) : 0;
    if (lse != lse) return 1;
    return lse == kInf || std::isinf(beta) ? 0 : beta;
}
template <class T, int Size> void vjp_block(Group<T, Size>& group, std::int64_t block, const Number* sum) {
    for (int g = 0; g < group.count; ++g) {
        const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const double beta = slope_of(group.job, group.first + g);
        const auto to = group.target(g, block, x);
        if (beta == 0) std::fill_n(to.out, n, T{0});
        else if (group.job.op == Op::log_softmax_vjp) log_softmax_vjp(x, y, n, sum[g].value, beta, to);
        else softmax_vjp(x, y, n, sum[g].value, beta, to);
    }
    group.flush(block);
}

template <class T, int Size> void vjp(const Job& job) {
    const Frame<T> frame(job, Size);
    if (!few_long_rows(frame))
        return each_group<T, Size>(frame, [](Group<T, Size>& group) {
            Number sum[Size];
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) sum[g].value += block_sum(group, b, g);
            }
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                if (group.blocks() > 1) group.load(b);
                vjp_block(group, b, sum);
            }
        });
    const std::int64_t blocks = blocks_of(job);
    auto pieces = one_each<Number, Size>(frame.groups.total * blocks),
         sums = one_each<Number, Size>(frame.groups.total);
    each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t unit) {
        for (int g = 0; g < group.count; ++g)
            pieces[static_cast<std::size_t>(unit * Size + g)].value = block_sum(group, block, g);
    });
    for (std::size_t i = 0; i < pieces.size(); ++i)
        sums[i / static_cast<std::size_t>(blocks * Size) * Size + i % Size].value += pieces[i].value;
    each_block<T, Size>(frame, [&](Group<T, Size>& group, std::int64_t block, std::int64_t unit) {
        vjp_block(group, block, sums.data() + unit / blocks * Size);
    });
}

// ---- logcumsumexp ---------------------------------------------------------------------------------------------------

template <class T, int Size> void logcumsumexp(const Job& job) {
    each_group<T, Size>(Frame<T>(job, Size), [](Group<T, Size>& group) {
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
    });
}

template <class T, int Size> void run_in_groups(const Job& job) {
    switch (job.op) {
        case Op::softmax_vjp:
        case Op::log_softmax_vjp: return vjp<T, Size>(job);
        case Op::logcumsumexp: return logcumsumexp<T, Size>(job);
        default: break;
    }
    if constexpr (sizeof(T) == 8) {
        if (is_sum(job.op)) return under_softmax<T, Size>(job);
    }
    normalize<T, Size>(job);
}
template <class T> void run_as(const Job& job) {
    if (rows_are_adjacent(job, job.z)) run_in_groups<T, kGroup>(job);
    else run_in_groups<T, 1>(job);
}

}  // namespace

// The entry of this instruction set. In float64 where that is asked for, where sums may cancel, and where there are
// weights: log w would cost float32 its accuracy.
void run(const Job& job) {
    const FloatEnvironment environment;
    if (job.z.type == Type::f64 || (job.out && job.out.type == Type::f64) || job.weights || is_sum(job.op))
        run_as<double>(job);
    else run_as<float>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
