// Softmax and its derivatives (docs/design.md, Formulas). The first part of this file has the formulas for one row, or
// one block of a row, in contiguous memory. The second part has the two passes over rows. The first pass folds blocks
// into a state, and the second pass applies the state to the blocks.
#pragma once

#include "core/cpp/parallel_rows.hpp"
#include "normalize/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// ---- softmax --------------------------------------------------------------------------------------------------

// Computes the softmax of a row that fits in one block. The fold stores t, the expensive part of each exponential, in
// an array of kBlock numbers, which stays in the L1 cache. So no t is computed twice.
template <class T> State softmax_short(const T* z, std::int64_t n, Scale beta, T* store, const Target<T>& to) {
    const T m = maximum(z, n);
    if (std::isinf(m) || std::isinf(beta.hi) || (sizeof(T) == 4 && !fits_float(m, beta))) {
        const State s = fold(z, n, beta, to.next);
        apply<Log::no>(z, n, s, beta, to);
        return s;
    }
    // Prefetch the result's memory while the sum is computed: softmax of 4096 x 1024 on 2 threads takes 0.65 ms without
    // the prefetch and 0.57 ms with it. There is no prefetch before streaming stores, because they bypass the caches
    // and would evict the prefetched lines.
    for (std::int64_t i = 0; i < n && !to.streaming; i += Pack<T>::kLanes) __builtin_prefetch(to.out + i, 1);
    const Peak<T> peak(m, beta);
    const State s = fold_finite<Fold::kStore>(z, n, peak, beta, to.next, store);
    if (s.r != s.r) {
        apply_limit<Log::no>(z, n, s, to.out);
        return s;
    }
    softmax_stored(z, store, n, s, peak, beta, to);
    return s;
}

// ---- derivatives. Incoming gradients outside the support are ignored, even if they are NaN -----------------------

// Calls body(x, y) for every kUnroll packs of a row, where x are packs of p and y are packs of g. The last packs are
// padded with `fill` in x and with 0 in y.
template <class T, class Body> SOFTARGMAX_INLINE void steps(const T* p, const T* g, std::int64_t n, T fill, Body body) {
    using V = Pack<T>;
    constexpr std::int64_t step = kUnroll * V::kLanes;
    V x[kUnroll], y[kUnroll];
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
        for (int u = 0; u < kUnroll; ++u) {
            x[u] = V::load(p + i + u * V::kLanes);
            y[u] = V::load(g + i + u * V::kLanes);
        }
        body(x, y);
    }
    if (i == n) return;
    for (int u = 0; u < kUnroll; ++u) {
        x[u] = V::load_part(p + i + u * V::kLanes, n - i - u * V::kLanes, fill);
        y[u] = V::load_part(g + i + u * V::kLanes, n - i - u * V::kLanes, 0);
    }
    body(x, y);
}

// Returns the sum <p, g> over one block. Entries with p = 0 are left out.
template <class T> Twofold inner_product(const T* p, const T* g, std::int64_t n) {
    using V = Pack<T>;
    const V zero = V::all(0);
    Sum<T> sum;
    steps(p, g, n, T{0}, [&](const V(&x)[kUnroll], const V(&y)[kUnroll]) SOFTARGMAX_LAMBDA {
        V t[kUnroll];
        for (int u = 0; u < kUnroll; ++u) t[u] = keep(above(x[u], zero), x[u] * y[u]);
        sum.add(t);
    });
    return sum.total();
}

// Returns the sum of g over the entries of one block with log p > -inf.
template <class T> double sum_in_support(const T* log_p, const T* g, std::int64_t n) {
    using V = Pack<T>;
    const V none = V::all(-std::numeric_limits<T>::infinity());
    Sum<T> sum;
    steps(log_p, g, n, -std::numeric_limits<T>::infinity(),
          [&](const V(&x)[kUnroll], const V(&y)[kUnroll]) SOFTARGMAX_LAMBDA {
        V t[kUnroll];
        for (int u = 0; u < kUnroll; ++u) t[u] = keep(above(x[u], none), y[u]);
        sum.add(t);
    });
    return sum.total().hi;
}

// Computes beta p (g - <p, g>).
template <class T>
void softmax_vjp(const T* p, const T* g, std::int64_t n, double inner, double beta, const Target<T>& to) {
    using V = Pack<T>;
    const Split<T> mean(inner);
    const V zero = V::all(0), b = V::all(static_cast<T>(beta));
    map(p, g, n, to,
        [&](V x, V y) SOFTARGMAX_LAMBDA { return keep(above(x, zero), b * x * ((y - mean.hi) - mean.lo)); });
}

// Computes beta (g - p sum g) with p = exp(log p).
template <class T>
void log_softmax_vjp(const T* log_p, const T* g, std::int64_t n, double sum, double beta, const Target<T>& to) {
    using V = Pack<T>;
    const Terms<true, T> terms(Peak<T>(0, Scale{}), Scale{});
    const V none = V::all(-std::numeric_limits<T>::infinity()), b = V::all(static_cast<T>(beta));
    const V total = V::all(static_cast<T>(-sum)), lower = V::all(static_cast<T>(Reach<T>::lower));
    map(log_p, g, n, to, [&](V x, V y) SOFTARGMAX_LAMBDA {
        const V p = keep(terms.in(x), terms(x).value()) * lower;
        return keep(above(x, none), b * fma(p, total, y));
    });
}

// ---- passes over rows -----------------------------------------------------------------------------------------

template <class T> using Frame = FrameOf<Args, T>;
template <class T, int Size> using Group = GroupOf<Args, T, Size>;

// What is known of a row or of a block: the state, and at beta = 0 the sum of w z over the finite scores.
struct Folded : State {
    double mean = 0;
};
template <class T, int Size> void merge_into(const Group<T, Size>& group, int g, Folded& row, const Folded& block) {
    row = {merge<State>(row, block, group.beta(g)).state, row.mean + block.mean};
}

// Returns a row's initial state: the state that was passed in, or the empty state.
template <class T, int Size> Folded start(const Group<T, Size>& group, int g) {
    const Args& args = group.args;
    if (!args.m) return {};
    const std::int64_t row = group.first + g;
    return {{at(args.m, args, row), at(args.r, args, row), at(args.low, args, row)}};
}

// Writes the results that have one value per row: the state, lse and the smooth maximum.
template <class T, int Size> void finish(const Group<T, Size>& group, int g, Folded& s) {
    const Args& args = group.args;
    const std::int64_t row = group.first + g;
    const RowScale& scale = group.scale[g];
    if (scale.undefined) s.r = kNaN;
    if (args.op == Op::fold) {
        put(args.m, args, row, s.m);
        put(args.r, args, row, s.r);
        put(args.low, args, row, s.low);
    }
    if (args.lse) put(args.lse, args, row, finalize(s, group.beta(g)));
    if (args.op != Op::logsumexp) return;
    const double lse = scale.flat || args.weights ? finalize(s, Scale{}) : 0;
    double value;
    if (scale.flat) value = lse != 0 ? lse * kInf : s.mean;  // the limit of lse / beta
    else if (args.weights && group.has_room(scale.beta))
        value = lse / scale.beta.hi * (1.0 - scale.beta.lo / scale.beta.hi);
    else value = smooth_maximum(s, scale.beta);
    put(args.out, args, row, scale.negate ? -value : value);
}

template <class T, int Size> void apply_block(Group<T, Size>& group, std::int64_t block, const Folded* states) {
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const auto to = group.target(g, block, z);
        if (is_log(group.args.op)) apply<Log::yes>(z, n, states[g], group.beta(g), to);
        else apply<Log::no>(z, n, states[g], group.beta(g), to);
    }
    group.flush(block);
}

// Folds the blocks into states, then applies the states to the blocks.
template <class Rows> void fold_and_apply(const Args& args, Rows& rows) {
    rows.each([](const auto& group, int g, Folded& s) { s = start(group, g); });
    if (folds(args.op))
        rows.fold([](const auto& group, std::int64_t block, int g, const Folded&) {
            return Folded{group.fold_row(g, block), group.mean[g]};
        }, [](const auto& group, int g, Folded& s, const Folded& piece) { merge_into(group, g, s, piece); });
    rows.each([](const auto& group, int g, Folded& s) { finish(group, g, s); });
    if (is_reduction(args.op)) return;
    rows.apply([](auto& group, std::int64_t block, const Folded* states) { apply_block(group, block, states); });
}

// The size in bytes of the longest row for which softmax_of_blocks stores t. The stored t stay in the L2 cache.
constexpr std::int64_t kStoredBytes = std::int64_t{256} << 10;

// Computes the softmax of a row of several blocks with beta = 1. A term is power * (1 + t), where power is a power of
// two. The fold stores t, so that the second pass computes only the power of each term. If t depends on the maximum of
// a block, because the scores of the block are shifted, the second pass computes all terms again.
template <class T> void softmax_of_blocks(Group<T, 1>& group) {
    T* const store = scratch(kTerms).get<T>(group.blocks() * kBlock);
    const Scale beta = group.beta(0);
    const auto is_plain = [&](T m) { return std::isfinite(m) && Peak<T>::shift_of(m, beta) == 0; };
    Folded s = start(group, 0);
    bool stored = true;
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        group.load(b);
        const T* z = group.scores;
        const std::int64_t n = group.end(b) - group.begin(b);
        const T m = maximum(z, n);
        const Next next = group.source(z, group.begin(b) + group.length);
        State piece;
        if (is_plain(m)) piece = fold_finite<Fold::kStore>(z, n, Peak<T>(m, beta), beta, next, store + group.begin(b));
        else {
            piece = fold(z, n, beta, next);
            stored = stored && m == -std::numeric_limits<T>::infinity();  // a block outside the support needs no t
        }
        merge_into(group, 0, s, {piece});
    }
    finish(group, 0, s);
    stored = stored && s.r == s.r && is_plain(static_cast<T>(s.m));
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        group.load(b);
        if (!stored) {
            apply_block(group, b, &s);
            continue;
        }
        const T* z = group.scores;
        const std::int64_t n = group.end(b) - group.begin(b);
        const Peak<T> peak(static_cast<T>(s.m), beta);
        softmax_stored(z, store + group.begin(b), n, s, peak, beta, group.target(0, b, z));
        group.flush(b);
    }
}

template <class T, int Size> void whole_group(Group<T, Size>& group) {
    if constexpr (Size == 1)
        if (group.args.op == Op::softmax && group.blocks() > 1 && group.beta(0).unit() &&
            group.length * static_cast<std::int64_t>(sizeof(T)) <= kStoredBytes)
            return softmax_of_blocks(group);
    if (group.args.op != Op::softmax || group.blocks() != 1) {
        RowsOfGroup<Folded, Group<T, Size>> rows(group);
        return fold_and_apply(group.args, rows);
    }
    group.load(0);
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        T* store = scratch(kTerms).get<T>(kBlock);
        const auto to = group.target(g, 0, z);
        Folded s{softmax_short(z, group.length, group.beta(g), store, to)};
        finish(group, g, s);
        if (group.scale[g].undefined) apply_limit<Log::no>(z, group.length, s, to.out);
    }
    group.flush(0);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
