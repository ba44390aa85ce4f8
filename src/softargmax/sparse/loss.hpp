// The Fenchel-Young loss of a row with a class y, and what its gradient p - onehot(y) needs (Blondel, Martins & Niculae
// 2020): with x = z - m - lambda and v = 1 + a x, so that p^alpha = p v,
//
//     loss = (sum_k p_k v_k - 1) / alpha - x_y = sum_{k != y} p_k v_k / alpha + psi,   psi = (p_y v_y - 1) / alpha -
//     x_y
//
// and with e = 1 - p_y, the sum of the others, psi is the integral of (1 - t)^(a - 1) t from 0 to e. No term of the
// second form is negative: a confident row keeps its small loss.
#pragma once

#include "sparse/solve.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

// What the entries but one that equals z_y have: sum p and sum p v. Entries are told by their values.
struct Others {
    Twofold p{0, 0}, pv{0, 0};
    std::int64_t ties = 0;
};
template <class T, class F> void add_others(const T* z, std::int64_t n, const F& map, T z_y, Others& others) {
    using V = Pack<T>;
    const F here = map;
    const Doubles y = Doubles::all(static_cast<double>(z_y));
    Sum<double> p, pv;
    Count<double> ties;
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        each_half(scores_at(z, i, n), [&](Doubles d, int) SOFTARGMAX_LAMBDA {
            const Exact x = here.template exact<double>(d);
            const auto tie = equal(d, y), in = above(x.p.hi, Doubles::all(0)), counts = unless(in, tie);
            p.add({keep(counts, x.p.hi)});
            p.error = p.error + keep(counts, x.p.lo);
            pv.add({keep(counts, x.p.hi * x.v)});
            ties.add(unless(in, counts));
        });
    }
    others.p = plus(others.p, p.total());
    others.pv = plus(others.pv, pv.total());
    others.ties += ties.total();
}

// The integral of (1 - t)^(a - 1) t from 0 to e, for e < 1/2: (1 - (1 - e)^a (1 + a e)) / (a (a + 1)), by its series
// where that cancels.
inline double psi_of(double a, double e) {
    if (a > 1 && (a + 1) * e > 0.5) return (1 - exp_scalar(a * log1p_scalar(-e) + log1p_scalar(a * e))) / (a * (a + 1));
    double power = e * e, sum = 0;
    for (int k = 0; k < 200; ++k) {
        const double term = power / (k + 2);
        sum += term;
        if (std::fabs(term) <= 0x1p-60 * sum) break;
        power *= e * (k + 1 - a) / (k + 1);
    }
    return sum;
}

struct LossOf {
    double loss, others;  // others: 1 - p_y
};
template <class F, class From> LossOf loss_of(const F& map, From& from, double z_y) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    Others others;
    from.each([&](const T* z, std::int64_t n, T*& to) {
        add_others(z, n, map, static_cast<T>(z_y), others);
        to += n;
    });
    double own[2][Doubles::kLanes];
    const Exact y = map.template exact<double>(Doubles::all(std::max(z_y, map.cut())));
    y.p.hi.store(own[0]);
    y.v.store(own[1]);
    const double a = map.a(), ties = static_cast<double>(std::max<std::int64_t>(others.ties, 1) - 1);
    const double p = own[0][0], pv = p > 0 ? p * own[1][0] : 0, e = rounded(others.p) + ties * p;
    const double psi = e < 0.5 ? psi_of(a, e) : (pv - 1) / (1 + a) - map.x(z_y);
    return {(rounded(others.pv) + ties * pv) / (1 + a) + psi, e < 0.5 ? e : 1 - p};
}
// The same of k scores that share the row, which is H_alpha of the uniform distribution.
inline double loss_of_ties(double a, double k) {
    const double log = log_scalar(k), u = a * log;
    return log / (1 + a) * (u < 1e-6 ? 1 - u / 2 : (1 - exp_scalar(-u)) / u);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
