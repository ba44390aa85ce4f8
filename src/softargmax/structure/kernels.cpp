// The kernels of the log semiring and of linear chains, for all items of a batch. Compiled once for each instruction
// set.
#include "structure/best_paths.hpp"
#include "structure/chain_backward.hpp"
#include "structure/term_sums.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {
namespace {

// beta of one item, with its sign apart.
struct Signed {
    Scale beta;
    double sign = 1;
    Signed(const Args& args, std::int64_t item) {
        const std::int64_t at = args.each ? item : 0;
        sign = args.hi[at] < 0 ? -1 : 1;
        beta = {sign * args.hi[at], sign * args.lo[at]};
    }
};

// Calls body(item, threads) for all items: one after another with all threads, or, if there are many, on one thread
// each.
template <class F> void each_item(const Args& args, const F& body) {
    if (args.items >= 2 * args.threads) parallel_each(args.threads, args.items, [&](std::int64_t i) { body(i, 1); });
    else
        for (std::int64_t i = 0; i < args.items; ++i) body(i, args.threads);
}

template <class T> void multiply_as(const Args& args) {
    each_item(args, [&](std::int64_t item, int threads) {
        const Signed by(args, item);
        const Matrix2D a = matrix(args.a, item, args.rows, args.depth, by.sign);
        const Matrix2D b = matrix(args.b, item, args.depth, args.cols, by.sign);
        T* const c = matrix(args.c, item, args.rows, args.cols).template at<T>(0, 0);
        const Matrix2D wide = matrix(args.wide, item, args.rows, args.cols);
        LogProduct<T>(a, b, by.beta, threads, c, wide.at<double>(0, 0)).compute();
    });
}
template <class T> void sum_terms_as(const Args& args) {
    each_item(args, [&](std::int64_t item, int threads) {
        const Signed by(args, item);
        TermSums<T>(args, item, by.beta, by.sign, threads)
            .compute(matrix(args.to_c, item, args.rows, args.cols), matrix(args.to_a, item, args.rows, args.depth),
                     matrix(args.to_b, item, args.depth, args.cols));
    });
}

// The gradient of transitions that several sequences share is a sum over groups of sequences, in order. The number of
// groups does not depend on the number of threads.
constexpr std::int64_t kGroups = 16;

template <class T> void marginals_as(const ChainArgs& args) {
    const std::int64_t groups = std::min(args.items, kGroups), square = args.tags * args.tags;
    const std::int64_t size = args.transition_steps * square, count = args.items * args.length * args.tags;
    const bool own = args.transition_items != 1 || args.items == 1, each_step = args.transition_steps > 1;
    T* const to = reinterpret_cast<T*>(args.to_transitions.data);
    const Matrix2D emissions = matrix(args.to_emissions, 0, args.items * args.length, args.tags);
    std::fill_n(reinterpret_cast<T*>(args.to_emissions.data), count, T{0});
    std::fill_n(to, args.transition_items * size, T{0});
    const std::int64_t sums = own ? 0 : groups * size;
    const auto shared = numbers<double>(sums + 1);
    std::fill_n(shared.get(), sums, 0.0);
    parallel_each(args.threads, groups, [&](std::int64_t group) {
        Transitions transitions(args.tags);
        const std::int64_t padded = args.tags * whole_packs(args.tags);
        const auto pairs = numbers<double>(padded);
        std::fill_n(pairs.get(), padded, 0.0);
        for (std::int64_t item = group; item < args.items; item += groups) {
            const auto move = [&](std::int64_t t) {
                if (own) move_pairs(pairs.get(), args.tags, to + item * size + t * square);
                else move_pairs(pairs.get(), args.tags, shared.get() + group * size + t * square);
            };
            const Sequence sequence{args, item};
            Marginals marginals(sequence, transitions);
            const bool any_path = args.log_z[item] != -kInf;
            for (std::int64_t t = sequence.length - 1; any_path && t >= 0; --t) {
                convert(marginals.at(t, pairs.get()), args.tags, emissions.at<T>(item * args.length + t, 0));
                if (each_step && t + 1 < sequence.length) move(t);
            }
            if (!each_step && size > 0) move(0);
        }
    });
    for (std::int64_t k = 0; !own && k < size; ++k) {
        double sum = 0;
        for (std::int64_t group = 0; group < groups; ++group) sum += shared[group * size + k];
        to[k] = static_cast<T>(sum);
    }
}

}  // namespace

void multiply(const Args& args) {
    const FloatEnvironment environment;
    if (args.a.type == Type::f64) multiply_as<double>(args);
    else multiply_as<float>(args);
}
void sum_terms(const Args& args) {
    const FloatEnvironment environment;
    if (args.a.type == Type::f64) sum_terms_as<double>(args);
    else sum_terms_as<float>(args);
}

void forward_chain(const ChainArgs& args) {
    const FloatEnvironment environment;
    parallel_for(args.threads, args.items, [&](std::int64_t begin, std::int64_t end) {
        Transitions transitions(args.tags);
        for (std::int64_t item = begin; item < end; ++item) forward({args, item}, transitions);
    });
}
void chain_marginals(const ChainArgs& args) {
    const FloatEnvironment environment;
    if (args.emissions.type == Type::f64) marginals_as<double>(args);
    else marginals_as<float>(args);
}
void best_paths(const ChainArgs& args) {
    const FloatEnvironment environment;
    parallel_each(args.threads, args.items, [&](std::int64_t item) { BestPaths({args, item}).compute(); });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
