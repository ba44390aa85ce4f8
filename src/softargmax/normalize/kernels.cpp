// The softmax kernels, which process all rows of a call. They are compiled once for each instruction set.
//
// An operation has at most two passes over the blocks of a row (core/cpp/parallel_rows.hpp). The first pass folds the
// blocks from left to right. The second pass applies the folded result to each block or, for sums under the softmax,
// folds the blocks again.
#include "normalize/short_rows.hpp"
#include "normalize/sums.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {
namespace {

// ---- softmax, log_softmax, logsumexp, fold and apply --------------------------------------------------------------

template <class T, int Size> void normalize(const Args& args) {
    const Frame<T> frame(args, Size);
    if (splits_rows(frame)) {
        RowsByBlock<Folded, Group<T, Size>, Frame<T>> rows(frame);
        return fold_and_apply(args, rows);
    }
    if constexpr (sizeof(T) == 4 && Size == 1)
        if (fits_lanes(frame)) {
            parallel_for(args.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
                if (frame.scale.beta.unit()) short_rows<true>(frame, begin, end);
                else short_rows<false>(frame, begin, end);
            });
            return;
        }
    if (is_bare<T, Size>(frame)) {
        parallel_for(args.threads, frame.groups.total,
                     [&](std::int64_t begin, std::int64_t end) { bare_rows(frame, begin, end); });
        return;
    }
    each_group<Group<T, Size>>(frame, [](Group<T, Size>& group) { whole_group(group); });
}

// ---- sums under the softmax ---------------------------------------------------------------------------------------

template <class T, int Size> void under_softmax(const Args& args) {
    const Frame<T> frame(args, Size, args.sum == SumOf::kl_divergence ? Reads::both_scores : Reads::scores);
    struct Row {
        States states;
        Twofold sum{};
    };
    fold_rows<Row, Group<T, Size>>(frame, splits_rows(frame), [](auto& rows) {
        rows.fold([](const auto& group, std::int64_t block, int g, const Row&) { return fold_both(group, block, g); },
                  [](const auto& group, int g, Row& row, const States& piece) {
            row.states = merge_both(group, g, row.states, piece);
        });
        rows.fold([](const auto& group, std::int64_t block, int g, const Row& row) {
            return block_part(group, block, g, row.states);
        }, [](const auto&, int, Row& row, Twofold piece) { add_to(row.sum, piece); });
        rows.each([](const auto& group, int g, const Row& row) { put_sum(group, g, row.states, row.sum); });
    });
}

// ---- derivatives --------------------------------------------------------------------------------------------------

struct Number {  // a struct, because RowsByBlock must not get a type from outside this namespace (parallel_rows.hpp)
    double value = 0;
};
// Returns the sum over a loaded block: <p, g> for softmax_vjp, and the sum of g in the support for log_softmax_vjp.
template <class T, int Size> Number block_sum(const Group<T, Size>& group, std::int64_t block, int g) {
    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
    const std::int64_t n = group.end(block) - group.begin(block);
    return {group.args.op == Op::log_softmax_vjp ? sum_in_support(x, y, n) : inner_product(x, y, n).hi};
}
// Returns beta, or 0 if the softmax of the row is constant: for lse = +inf and for T = 0. Returns 1 if lse is NaN, so
// that the derivative is NaN even if beta is 0 or T is 0.
inline double slope_of(const Args& args, std::int64_t row) {
    const double beta = args.hi ? at(args.hi, args, row) : 1, lse = args.lse ? at(args.lse, args, row) : 0;
    if (lse != lse) return 1;
    return lse == kInf || std::isinf(beta) ? 0 : beta;
}
template <class T, int Size> void vjp_block(Group<T, Size>& group, std::int64_t block, const Number* sums) {
    for (int g = 0; g < group.count; ++g) {
        const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const double beta = slope_of(group.args, group.first + g);
        const auto to = group.target(g, block, x);
        if (beta == 0) std::fill_n(to.out, n, T{0});
        else if (group.args.op == Op::log_softmax_vjp) log_softmax_vjp(x, y, n, sums[g].value, beta, to);
        else softmax_vjp(x, y, n, sums[g].value, beta, to);
    }
    group.flush(block);
}

template <class T, int Size> void vjp(const Args& args) {
    const Frame<T> frame(args, Size, Reads::probabilities);
    fold_rows<Number, Group<T, Size>>(frame, splits_rows(frame), [](auto& rows) {
        rows.fold([](const auto& group, std::int64_t block, int g, Number) { return block_sum(group, block, g); },
                  [](const auto&, int, Number& sum, Number piece) { sum.value += piece.value; });
        rows.apply([](auto& group, std::int64_t block, const Number* sums) { vjp_block(group, block, sums); });
    });
}

// Computes p times `weight`, the incoming gradient of the row. Outside the support the result is 0, even if `weight` is
// infinite or NaN.
template <class T, int Size> void weigh_block(Group<T, Size>& group, std::int64_t block) {
    for (int g = 0; g < group.count; ++g) {
        const T* p = group.scores + g * group.pitch;
        const double weight = at(group.args.lse, group.args, group.first + g);
        const Pack<T> zero = Pack<T>::all(0), w = Pack<T>::all(static_cast<T>(weight));
        const std::int64_t n = group.end(block) - group.begin(block);
        const auto to = group.target(g, block, p);
        if (std::isfinite(weight)) map(p, n, to, [&](Pack<T> x) SOFTARGMAX_LAMBDA { return x * w; });
        else map(p, n, to, [&](Pack<T> x) SOFTARGMAX_LAMBDA { return keep(above(x, zero), x * w); });
    }
    group.flush(block);
}
template <class T, int Size> void logsumexp_vjp(const Args& args) {
    const Frame<T> frame(args, Size, Reads::probabilities);
    fold_rows<Number, Group<T, Size>>(frame, splits_rows(frame), [](auto& rows) {
        rows.apply([](auto& group, std::int64_t block, const Number*) { weigh_block(group, block); });
    });
}

// ---- prefixes -------------------------------------------------------------------------------------------------------

// Returns -log of the probability of a score in the softmax of its prefix, which has the state `s`. Returns inf outside
// the support.
inline double surprisal(double z, const State& s, Scale beta) {
    if (z == -kInf) return kInf;
    if (z == s.m) return log_l(s);
    const Twofold d = two_sum(s.m, -z), x = times(d.hi, beta);
    return std::isinf(x.hi) ? x.hi : x.hi + (x.lo + d.lo * beta.hi + log_l(s));
}

// Writes value(score, state) for every score of a block, where the state is that of all scores up to this one. On
// return, `s` is the state after the block.
template <class T, class F> void accumulate(const T* z, std::int64_t n, Scale beta, State& s, T* out, F value) {
    for (std::int64_t j = 0; j < n; ++j) {
        const double score = static_cast<double>(z[j]);
        s = merge(s, state_of(score), beta).state;
        const double result = value(score, s);
        out[j] = static_cast<T>(result == result ? result : kNaN);
    }
}

template <class T, int Size> void over_prefixes(const Args& args) {
    each_group<Group<T, Size>>(Frame<T>(args, Size), [&](Group<T, Size>& group) {
        State states[Size];
        for (int g = 0; g < group.count; ++g) {
            RowScale& scale = group.scale[g];
            if (scale.undefined) states[g].r = kNaN;
            // For beta = 0 use the smallest beta above 0. All scores of a prefix then have the same weight, and
            // the result for a prefix of one score is this score.
            if (scale.flat) scale.beta = {std::numeric_limits<double>::denorm_min(), 0};
            scale.flat = false;
        }
        for (std::int64_t b = 0; b < group.blocks(); ++b) {
            group.load(b);
            for (int g = 0; g < group.count; ++g) {
                const T* z = group.scores + g * group.pitch;
                const std::int64_t n = group.end(b) - group.begin(b);
                const Scale beta = group.scale[g].beta;
                const double sign = group.scale[g].negate ? -1 : 1;
                T* const out = group.target(g, b, z).out;
                if (args.op == Op::prefix_surprisals)
                    accumulate(z, n, beta, states[g], out,
                               [&](double score, const State& s) { return surprisal(score, s, beta); });
                else
                    accumulate(z, n, beta, states[g], out,
                               [&](double, const State& s) { return sign * smooth_maximum(s, beta); });
            }
            group.flush(b);
        }
    });
}

template <class T, int Size> void run_in_groups(const Args& args) {
    switch (args.op) {
        case Op::softmax_vjp:
        case Op::log_softmax_vjp: return vjp<T, Size>(args);
        case Op::logsumexp_vjp: return logsumexp_vjp<T, Size>(args);
        case Op::logcumsumexp:
        case Op::prefix_surprisals: return over_prefixes<T, Size>(args);
        default: break;
    }
    if constexpr (sizeof(T) == 8) {
        if (args.op == Op::sum) return under_softmax<T, Size>(args);
    }
    normalize<T, Size>(args);
}
template <class T> void run_as(const Args& args) {
    if (takes_groups(args)) run_in_groups<T, kGroup>(args);
    else run_in_groups<T, 1>(args);
}

}  // namespace

// Entry point of this instruction set. It computes in float64 if the scores or the result are float64, for sums under
// the softmax (their terms may cancel), and with weights (adding log w in float32 would lose accuracy).
void run(const Args& args) {
    const FloatEnvironment environment;
    if (args.z.type == Type::f64 || (args.out && args.out.type == Type::f64) || args.weights || args.op == Op::sum)
        run_as<double>(args);
    else run_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
