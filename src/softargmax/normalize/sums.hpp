// Sums under the softmax of a row, in double whatever its scores are: terms may cancel.
//
//     expectation <p, v>      entropy -<p, log p>      divergence <p, log p - log q>
#pragma once

#include "normalize/groups.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// The states of a row of scores, and of the scores of q where there are two softmaxes.
struct States {
    State p, q;
};
template <int Size> States fold_both(const Group<double, Size>& group, std::int64_t block, int g) {
    if (group.args.op != Op::kl_divergence) return {group.fold_row(g, block), {}};
    return {group.fold_row(g, block),
            fold(group.other + g * group.pitch, group.end(block) - group.begin(block), Scale{}, group.other)};
}
template <int Size> States merge_both(const Group<double, Size>& group, int g, const States& a, const States& b) {
    return {merge(a.p, b.p, group.beta(g)).state, merge(a.q, b.q, Scale{}).state};
}
SOFTARGMAX_INLINE void add_to(Twofold& sum, Twofold part) {
    const Twofold s = two_sum(sum.hi, part.hi);
    sum = {s.hi, std::isinf(s.hi) ? 0 : sum.lo + (s.lo + part.lo)};
}

// e^r - 1 - r without cancellation for |r| <= kNear. With h of a number and t = e^r - 1 of it, h(2 r) = 2 h(r) + t(r)^2
// and t(2 r) = t(r) (2 + t(r)): no term is negative where it is added.
constexpr double kNear = 1.36;  // four times what exp_tail serves
SOFTARGMAX_INLINE Pack<double> beyond_linear(Pack<double> r) {
    using V = Pack<double>;
    const V x = r * V::all(0.25), u = x * x, two = V::all(2), tail = exp_tail<double>(x, u);
    const V t = fma(u, tail, x), h = u * tail, t2 = t * (two + t), h2 = fma(two, h, t * t);
    return fma(two, h2, t2 * t2);
}

// sum p delta - p + q, all of whose terms are at least 0, with delta = (x - y) - top - log_ratio = log p - log q. An
// error of what is subtracted changes the sum by its square only, since p and q both sum to 1; so near distributions,
// too, keep their small divergence.
inline Twofold divergence(const double* x, const double* y, Twofold top, double log_ratio, const double* p,
                          const double* q, std::int64_t n) {
    using V = Pack<double>;
    constexpr int L = V::kLanes;
    const V zero = V::all(0), infinite = V::all(kInf), bound = V::all(kNear);
    const V hi = V::all(top.hi), lo = V::all(top.lo), rest = V::all(log_ratio);
    Sum<double> sum;
    for (std::int64_t i = 0; i < n; i += L) {
        const std::int64_t m = std::min<std::int64_t>(L, n - i);
        const V a = V::load_part(p + i, m, 0), b = V::load_part(q + i, m, 0);
        const Two<V> gap = two_sum(V::load_part(x + i, m, 0), zero - V::load_part(y + i, m, 0));
        const auto finite = above(infinite, gap.hi);  // where q has nothing, log q = -inf and the rounding error is NaN
        const V d = (gap.hi - hi) + ((keep(finite, gap.lo) - lo) - rest), r = zero - d;
        const auto in = above(a, zero), near = unless(in, above(max(d, r), bound)), far = unless(in, near);
        sum.add({keep(near, a * beyond_linear(r)), keep(far, a * d - a), b - keep(near, b)});
    }
    return sum.total();
}

// What one block adds to the sum of its row.
template <int Size> Twofold block_part(const Group<double, Size>& group, std::int64_t block, int g, const States& s) {
    const std::int64_t n = group.end(block) - group.begin(block);
    const double *z = group.scores + g * group.pitch, *other = group.other ? group.other + g * group.pitch : nullptr;
    double *p = scratch(kTerms).get<double>(4 * kBlock), *q = p + kBlock, *log_p = q + kBlock, *log_q = log_p + kBlock;
    const Scale beta = group.beta(g);
    apply<Log::no>(z, n, s.p, beta, {p, z, false});
    if (group.args.op == Op::expectation) {
        for (std::int64_t i = 0; i < n && !other; ++i) q[i] = static_cast<double>(group.begin(block) + i);
        return inner_product(p, other ? other : q, n);
    }
    if (group.args.op == Op::entropy) {
        apply<Log::yes>(z, n, s.p, beta, {log_p, z, false});
        const Twofold sum = inner_product(p, log_p, n);
        return {0 - sum.hi, 0 - sum.lo};
    }
    apply<Log::no>(other, n, s.q, beta, {q, other, false});
    if (std::fabs(s.p.m) < 1e290 && std::fabs(s.q.m) < 1e290) {
        const Twofold top = two_sum(s.p.m, -s.q.m);
        return divergence(z, other, top, log_l(s.p) - log_l(s.q), p, q, n);
    }
    apply<Log::yes>(z, n, s.p, beta, {log_p, z, false});
    apply<Log::yes>(other, n, s.q, beta, {log_q, other, false});
    return divergence(log_p, log_q, {0, 0}, 0, p, q, n);
}

template <int Size> void put_sum(const Group<double, Size>& group, int g, const States& s, Twofold sum) {
    const bool nan = s.p.r != s.p.r || group.scale[g].undefined || (s.q.r != s.q.r && s.p.r > -1);
    const double value = s.p.r == -1 ? 0 : sum.hi + sum.lo;  // an empty support has no terms, whatever q is
    put(group.args.out, group.args, group.first + g, nan ? kNaN : value);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
