// Kernels of the output layers: scores of pairs, weighted sums of vectors, binary logistic losses, gradient descent and
// random numbers. The random numbers are Philox words, or draws from an alias table. This file is compiled once for
// each instruction set.
#include <memory>

#include "core/cpp/philox.hpp"
#include "output/skipgram_sgd.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::output {
namespace {

// The vectors of a table: vector i begins at data + i * pitch.
template <class S> struct Vectors {
    const S* data;
    std::int64_t pitch;
};
// A table of vectors w_i with biases b_i. Scores <h, w_i> + b_i are computed in type T.
template <class T, class S> struct Nodes {
    Vectors<S> vectors;
    const Table& bias;
    std::int64_t width;

    SOFTARGMAX_INLINE const S* at(std::int64_t i) const { return vectors.data + i * vectors.pitch; }
    // Returns <h, w_i> + b_i, and prefetches node `next`. `room` is scratch memory for one vector.
    SOFTARGMAX_INLINE T score(const T* h, std::int64_t i, std::int64_t next, T* room) const {
        double found = inner(h, as(at(i), width, room), width, at(next));
        if (bias.data)
            with_real_type(bias.type, bias.data, [&](auto* b) {
                __builtin_prefetch(b + next * bias.pitch);
                found += convert<double>(b[i * bias.pitch]);
            });
        return static_cast<T>(found);
    }
};

template <class T, class S> void dots(const DotsArgs& args, Vectors<S> weight) {
    const Nodes<T, S> nodes{weight, args.bias, args.width};
    const T* const h = reinterpret_cast<const T*>(args.h.data);
    T* const out = reinterpret_cast<T*>(args.out);
    parallel_for(args.threads, args.pairs, [&](std::int64_t begin, std::int64_t end) {
        T* const room = scratch(kScores).get<T>(args.width);
        for (std::int64_t p = begin; p < end; ++p) {
            const std::int64_t next = args.nodes[std::min(p + kAhead, end - 1)];
            out[p] = nodes.score(h + args.rows[p] * args.h.pitch, args.nodes[p], next, room);
        }
    });
}

// Calls body(i) for every i below n. Item i has the positions from starts[i] to starts[i + 1] - 1. The items are split
// into kPiecesPerThread pieces per thread, with about the same number of positions in each piece. The threads share the
// pieces.
template <class F> void each_with_places(int threads, const std::int64_t* starts, std::int64_t n, const F& body) {
    const std::int64_t pieces = threads > 1 ? threads * kPiecesPerThread : 1, places = starts[n];
    const auto first = [&](std::int64_t piece) {
        return piece == pieces ? n : std::lower_bound(starts, starts + n, places * piece / pieces) - starts;
    };
    parallel_each(threads, pieces, [&](std::int64_t piece) {
        for (std::int64_t i = first(piece), last = first(piece + 1); i < last; ++i) body(i);
    });
}

template <class T, class S> void sums(const SumsArgs& args, Vectors<S> table) {
    T* const out = reinterpret_cast<T*>(args.out.data);
    T* const totals = reinterpret_cast<T*>(args.totals);
    const T* const factors = reinterpret_cast<const T*>(args.factors);
    each_with_places(args.threads, args.starts, args.sums, [&](std::int64_t i) {
        const std::int64_t begin = args.starts[i], count = args.starts[i + 1] - begin, known = args.places - begin;
        Summands<T, S> terms{table.data, table.pitch, args.index, nullptr, factors, known};
        if (args.order) {
            terms.order = args.order + begin;
        } else {
            terms.index += begin;
            terms.factors += begin;
        }
        add_up(terms, count, args.width, out + i * args.out.pitch);
        if (!totals) return;
        double total = 0;
        for (std::int64_t j = 0; j < count; ++j) total += static_cast<double>(terms.factor(j));
        totals[i] = static_cast<T>(total);
    });
}

template <class T, class S> void coins(const CoinsArgs& args, Vectors<S> weight) {
    const Nodes<T, S> nodes{weight, args.bias, args.width};
    const T *const h = reinterpret_cast<const T*>(args.h.data), *const shift = reinterpret_cast<const T*>(args.shift);
    T *const loss = reinterpret_cast<T*>(args.loss), *const slopes = reinterpret_cast<T*>(args.slopes),
             *const dh = reinterpret_cast<T*>(args.dh.data);
    each_with_places(args.threads, args.starts, args.rows, [&](std::int64_t r) {
        const std::int64_t begin = args.starts[r], count = args.starts[r + 1] - begin;
        T* const x = slopes ? slopes + begin : scratch(kTerms).get<T>(count);
        T* const room = scratch(kScores).get<T>(args.width);
        for (std::int64_t j = 0, p = begin; j < count; ++j, ++p) {
            x[j] = nodes.score(h + r * args.h.pitch, args.nodes[p], args.nodes[std::min(p + kAhead, args.pairs - 1)],
                               room);
            if (shift) x[j] += shift[p];
        }
        const auto sign = [&](std::int64_t j) SOFTARGMAX_LAMBDA { return args.signs[begin + j]; };
        double total = 0;
        logistic_slopes(x, count, T{-1}, sign, [&](std::int64_t, double lost) SOFTARGMAX_LAMBDA { total += lost; });
        loss[r] = static_cast<T>(total);
        if (!dh) return;
        const Summands<T, S> terms{weight.data, weight.pitch, args.nodes + begin, nullptr, x, count};
        add_up(terms, count, args.width, dh + r * args.dh.pitch);
    });
}

// Calls f(zero, vectors) with the vectors of a table. The type of `zero` is T, the type of the computation. Vectors of
// type T or of the next smaller type are read where they are. Other tables (of half precision if T is double, of double
// if T is float) are converted as a whole in each call, on one thread. They are rare, and separate kernels for them
// would add 0.15 MB to the module.
template <class T, class F> void with_vectors(const Table& table, std::int64_t width, const F& f) {
    with_real_type(table.type, table.data, [&](const auto* data) {
        using S = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        if constexpr (sizeof(S) == sizeof(T) || 2 * sizeof(S) == sizeof(T)) {
            f(T{}, Vectors<S>{data, table.pitch});
        } else {
            // No std::vector: the linker would keep one copy of its functions, compiled for one instruction set.
            const std::unique_ptr<T[]> copy(new T[static_cast<std::size_t>(table.rows * width)]);
            for (std::int64_t i = 0; i < table.rows; ++i)
                convert(data + i * table.pitch, width, copy.get() + i * width);
            f(T{}, Vectors<T>{copy.get(), width});
        }
    });
}
template <class F> void with_table(Type type, const Table& table, std::int64_t width, const F& f) {
    if (type == Type::f64) with_vectors<double>(table, width, f);
    else with_vectors<float>(table, width, f);
}

}  // namespace

void run_dots(const DotsArgs& args) {
    const FloatEnvironment environment;
    with_table(args.h.type, args.weight, args.width,
               [&](auto zero, auto vectors) { dots<decltype(zero)>(args, vectors); });
}
void run_sums(const SumsArgs& args) {
    const FloatEnvironment environment;
    with_table(args.out.type, args.table, args.width,
               [&](auto zero, auto vectors) { sums<decltype(zero)>(args, vectors); });
}

void run_coins(const CoinsArgs& args) {
    const FloatEnvironment environment;
    with_table(args.h.type, args.weight, args.width,
               [&](auto zero, auto vectors) { coins<decltype(zero)>(args, vectors); });
}
void run_steps(StepsArgs& args) {
    const FloatEnvironment environment;
    if (args.weight.type == Type::f64) Steps<double>(args).run();
    else Steps<float>(args).run();
}

// Random words (philox_stream.py) or draws from an alias table (alias.py), with one Philox block per position. For a
// draw, 64 bits of the block choose the bucket, and 53 bits choose one of the bucket's two classes. The blocks of
// kAtOnce positions are computed together.
constexpr std::int64_t kAtOnce = kChunk / 4;

// Writes the results of the positions args.first + i for i from kAtOnce * begin to kAtOnce * end - 1. The result of a
// position is one draw, or its four random words if there is no alias table.
inline void draw(const DrawsArgs& args, std::int64_t begin, std::int64_t end) {
    const Philox philox(args.seed, args.stream, args.purpose);
    const auto n = static_cast<std::uint64_t>(args.classes);
    for (std::int64_t i = begin * kAtOnce; i < end * kAtOnce; i += kAtOnce) {
        std::uint32_t words[kChunk];
        philox.adjacent(4 * (args.first + i), 0, words);
        for (std::int64_t j = 0; j < kAtOnce && i + j < args.draws; ++j) {
            if (!args.threshold) {
                for (std::int64_t w = 0; w < 4; ++w) args.out[w * args.draws + i + j] = words[4 * j + w];
                continue;
            }
            const std::uint64_t high = words[4 * j], low = words[4 * j + 1], side = words[4 * j + 2];
            const auto bucket = static_cast<std::int64_t>((high * n + (low * n >> 32)) >> 32);
            const double u = static_cast<double>(side << 21 | words[4 * j + 3] >> 11) * 0x1p-53;
            args.out[i + j] = u < args.threshold[bucket] ? bucket : args.alias[bucket];
        }
    }
}

void run_draws(const DrawsArgs& args) {
    parallel_for(args.threads, (args.draws + kAtOnce - 1) / kAtOnce,
                 [&](std::int64_t begin, std::int64_t end) { draw(args, begin, end); });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::output
