// Sums over a row, weighted by its softmax: entropies, expectation and divergence. They are computed in double for
// scores of every dtype, because terms may cancel.
//
//     expectation <p, v>      entropy -<p, log p>      divergence <p, log p - log q>
//     Renyi entropy log <1, p^a> / (1 - a)
//
// To add a sum, add a value to SumOf and a line to the table kSums. In `block_part`, compute the sum over one block. In
// `put_sum`, compute the result of a row from the sum over the row.
#pragma once

#include "normalize/args.hpp"

namespace softargmax::normalize {

enum class SumOf : std::uint8_t { entropy, expectation, kl_divergence, renyi_entropy };

// The name of a sum in Python, and the names of its arguments.
struct NamedSum {
    SumOf sum;
    const char *name, *text, *result;
    const char* z = "z";
    const char* other = nullptr;  // name of a second array: scores like z, or (if optional) values that broadcast
    bool optional = false;
    const char* parameter = nullptr;  // name of a parameter: one number for all rows, or one per row
};
inline constexpr NamedSum kSums[] = {
    {SumOf::entropy, "entropy", "<p, -log p>", "entropy"},
    {SumOf::expectation, "expectation", "<p, values>; the mean position if values is None", "mean", "z", "values",
     true},
    {SumOf::kl_divergence, "kl_divergence", "<p, log p - log q>", "divergence", "z_p", "z_q"},
    {SumOf::renyi_entropy, "renyi_entropy", "log sum p^order / (1 - order)", "entropy", "z", nullptr, false, "order"},
};

}  // namespace softargmax::normalize

#ifdef SOFTARGMAX_ISA_NAME  // The kernels need the code below. bind.cpp uses only the table.

#include "normalize/softmax_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// The state of a row's scores, and the state of q's scores if the sum has a second distribution q.
struct States {
    State p, q;
};
// Returns the order a of a Renyi entropy, and 1 for sums without an order. The second distribution of the Renyi entropy
// is q = p^a / sum p^a, which is the softmax of the scores times a.
template <int Size> double order_of(const Group<double, Size>& group, int g) {
    return group.args.parameter ? at(group.args.parameter, group.args, group.first + g) : 1;
}
// True if the Renyi entropy of this order needs q. Orders 1, inf and NaN do not need q. At a = 1 the entropy is
// <p, -log p>, and at a = inf it is -log max p. Orders above 2^60 are treated as inf.
inline bool has_q(double order) { return order != 1 && order <= 0x1p60; }
// Returns the scale of the scores of q: the order times beta. At T = 0 it is beta, because the q of the Renyi entropy
// is then equal to p.
template <int Size> Scale scale_of_q(const Group<double, Size>& group, int g) {
    const Scale beta = group.beta(g);
    if (std::isinf(beta.hi)) return beta;
    const Twofold product = times(Twofold{beta.hi, beta.lo}, order_of(group, g));
    return {product.hi, product.lo};
}
template <int Size> States fold_both(const Group<double, Size>& group, std::int64_t block, int g) {
    const State p = group.fold_row(g, block);
    const bool two_arrays = group.args.sum == SumOf::kl_divergence;
    if (!two_arrays && !has_q(order_of(group, g))) return {p, {}};
    const double* of_q = two_arrays ? group.other : group.scores;
    return {p, fold(of_q + g * group.pitch, group.end(block) - group.begin(block), scale_of_q(group, g), of_q)};
}
template <int Size> States merge_both(const Group<double, Size>& group, int g, const States& a, const States& b) {
    return {merge(a.p, b.p, group.beta(g)).state, merge(a.q, b.q, scale_of_q(group, g)).state};
}
SOFTARGMAX_INLINE void add_to(Twofold& sum, Twofold part) {
    const Twofold s = two_sum(sum.hi, part.hi);
    sum = {s.hi, std::isinf(s.hi) ? 0 : sum.lo + (s.lo + part.lo)};
}

// Returns h(r) = e^r - 1 - r without cancellation for |r| <= kNear. Let t(r) = e^r - 1. The function computes h and t
// at r / 4, then doubles the argument twice: h(2 x) = 2 h(x) + t(x)^2 and t(2 x) = t(x) (2 + t(x)). No term of these
// sums for h is negative.
constexpr double kNear = 1.36;  // so that |r / 4| is less than ln2 / 2, the range of exp_tail
SOFTARGMAX_INLINE Pack<double> beyond_linear(Pack<double> r) {
    using V = Pack<double>;
    const V x = r * V::all(0.25), u = x * x, two = V::all(2), tail = exp_tail<double>(x, u);
    const V t = fma(u, tail, x), h = u * tail, t2 = t * (two + t), h2 = fma(two, h, t * t);
    return fma(two, h2, t2 * t2);
}

// Returns sum (p delta - p + q), where delta = beta (x - y - top) - log_ratio = log p - log q. All terms are at
// least 0. For close distributions a term is computed as p h(-delta), with the h of `beyond_linear`. An error e in
// `top` or `log_ratio` then changes the sum by only about e^2 / 2. The part linear in e is e (sum p - sum q), and
// vanishes because p and q both sum to 1.
inline Twofold divergence(const double* x, const double* y, double beta, Twofold top, double log_ratio, const double* p,
                          const double* q, std::int64_t n) {
    using V = Pack<double>;
    constexpr int L = V::kLanes;
    const V zero = V::all(0), infinite = V::all(kInf), bound = V::all(kNear);
    const V hi = V::all(top.hi), lo = V::all(top.lo), rest = V::all(log_ratio), scale = V::all(beta);
    Sum<double> sum;
    for (std::int64_t i = 0; i < n; i += L) {
        const std::int64_t m = std::min<std::int64_t>(L, n - i);
        const V a = V::load_part(p + i, m, 0), b = V::load_part(q + i, m, 0);
        const Two<V> gap = two_sum(V::load_part(x + i, m, 0), zero - V::load_part(y + i, m, 0));
        const auto finite = above(infinite, gap.hi);  // if y is -inf, gap.hi is infinite and gap.lo is NaN
        const V d = scale * (gap.hi - hi) + (scale * (keep(finite, gap.lo) - lo) - rest), r = zero - d;
        const auto in = above(a, zero), near = unless(in, above(max(d, r), bound)), far = unless(in, near);
        sum.add({keep(near, a * beyond_linear(r)), keep(far, a * d - a), b - keep(near, b)});
    }
    return sum.total();
}

// The Renyi entropy has two formulas:
//
//     (a log l_p - log l_q) / (a - 1)        log1p((1 - a) E) / (1 - a)
//
// Here E is <p, p^(a-1) - 1> / (1 - a), and l_p and l_q are the sums of exponentials in the states of p and q.
//
// The first formula needs no maxima, because they cancel. It is used if the smaller of a log l_p and log l_q is at most
// half the larger. At most 1.6 bits then cancel. For a <= 1/2 and for a >= 2 this formula is used for every row. In the
// second formula no term of E is negative. At a = 1, E is the Shannon entropy.
inline bool logs_are_apart(const States& s, double order) {
    if (!has_q(order)) return order > 1;
    const double log_p = order * log_l(s.p), log_q = log_l(s.q);
    return std::min(log_p, log_q) <= 0.5 * std::max(log_p, log_q);
}
// Returns the sum of -p y phi((a - 1) y) over one block, with y = log p and phi(u) = (e^u - 1) / u. Summed over all
// blocks, it is E.
inline Twofold mean_of_powers(const double* p, const double* log_p, double order, std::int64_t n) {
    using V = Pack<double>;
    constexpr int L = V::kLanes;
    const V zero = V::all(0), one = V::all(1), minus_inf = V::all(-kInf), bound = V::all(kNear), lowest = V::all(-708);
    const V a = V::all(order), excess = V::all(order - 1);
    Sum<double> sum;
    for (std::int64_t i = 0; i < n; i += L) {
        const std::int64_t m = std::min<std::int64_t>(L, n - i);
        const V x = V::load_part(p + i, m, 0), log_x = V::load_part(log_p + i, m, -kInf);
        const auto in = above(log_x, minus_inf);
        const V y = keep(in, log_x), u = excess * y, hi = a * y;
        const auto far = above(max(u, zero - u), bound), some = unless(in, equal(u, zero));
        const V phi = one + keep(some, beyond_linear(u) / u);
        const V power = keep(above(hi, lowest), exp_of(Two<V>{hi, fma(a, y, zero - hi)}));
        sum.add({keep(unless(in, far), (zero - y) * x * phi), keep(far, (x - power) / excess)});
    }
    return sum.total();
}
inline double renyi_entropy(const States& s, double order, double mean) {
    if (!(order >= 0)) return kNaN;
    if (!logs_are_apart(s, order)) {
        const double rise = (1 - order) * mean;
        if (std::fabs(rise) < 0x1p-54) return mean;
        if (rise > -0.9) return log1p_scalar(rise) / (1 - order);
    }
    const double log_p = log_l(s.p);
    if (!has_q(order)) return log_p;
    return fma(order, log_p, -log_l(s.q)) / (order - 1) + 0.0;  // + 0.0 turns -0.0 into 0.0
}

// Returns the requested sum (args.sum) over one block of a row.
template <int Size> Twofold block_part(const Group<double, Size>& group, std::int64_t block, int g, const States& s) {
    const std::int64_t n = group.end(block) - group.begin(block);
    const double *z = group.scores + g * group.pitch, *other = group.other ? group.other + g * group.pitch : nullptr;
    double *p = scratch(kTerms).get<double>(4 * kBlock), *q = p + kBlock, *log_p = q + kBlock, *log_q = log_p + kBlock;
    const Scale beta = group.beta(g);
    const double order = order_of(group, g);
    if (order != 1 && logs_are_apart(s, order)) return {0, 0};
    apply<Log::no>(z, n, s.p, beta, {p, z, false});
    switch (group.args.sum) {
        case SumOf::expectation:
            for (std::int64_t i = 0; i < n && !other; ++i) q[i] = static_cast<double>(group.begin(block) + i);
            return inner_product(p, other ? other : q, n);
        case SumOf::entropy: {
            apply<Log::yes>(z, n, s.p, beta, {log_p, z, false});
            const Twofold sum = inner_product(p, log_p, n);
            return {0 - sum.hi, 0 - sum.lo};
        }
        case SumOf::renyi_entropy:
            apply<Log::yes>(z, n, s.p, beta, {log_p, z, false});
            return mean_of_powers(p, log_p, order, n);
        case SumOf::kl_divergence:
            apply<Log::no>(other, n, s.q, beta, {q, other, false});
            if (std::fabs(s.p.m) < 1e290 && std::fabs(s.q.m) < 1e290 && !std::isinf(beta.hi)) {
                const Twofold top = two_sum(s.p.m, -s.q.m);
                return divergence(z, other, beta.hi, top, log_l(s.p) - log_l(s.q), p, q, n);
            }
            apply<Log::yes>(z, n, s.p, beta, {log_p, z, false});
            apply<Log::yes>(other, n, s.q, beta, {log_q, other, false});
            return divergence(log_p, log_q, 1, {0, 0}, 0, p, q, n);
    }
    return {0, 0};
}

template <int Size> void put_sum(const Group<double, Size>& group, int g, const States& s, Twofold sum) {
    const double order = order_of(group, g);
    const bool nan = s.p.r != s.p.r || order != order || group.scale[g].undefined || (s.q.r != s.q.r && s.p.r > -1);
    double value = sum.hi + sum.lo;
    if (group.args.sum == SumOf::renyi_entropy) value = renyi_entropy(s, order, value);
    if (s.p.r == -1) value = 0;  // p has an empty support, so the sum has no terms, even if q has NaN
    put(group.args.out, group.args, group.first + g, nan ? kNaN : value);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize

#endif
