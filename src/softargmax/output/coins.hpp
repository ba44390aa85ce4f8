// Coins: log sigma and its slope, the same bits on every instruction set.
#pragma once

#include "core/native/log.hpp"
#include "output/vectors.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::output {

// -log sigma(x), and sigma(-x), which is minus its slope. Both are NaN where x is. e^-|x| is 0 below the normal
// numbers.
template <class V> struct Coin {
    V loss, slope;
};
template <class V> SOFTARGMAX_INLINE Coin<V> coin(V x) {
    using T = typename V::Scalar;
    const V zero = V::all(0), one = V::all(1), least = V::all(sizeof(T) == 4 ? T(-87) : T(-708));
    const auto all = equal(zero, zero), negative = above(zero, x);
    const V strange = keep(unless(all, equal(x, x)), x);
    const V minus = zero - max(x, zero - x);
    const V e = keep(unless(all, above(least, minus)), exp_of(Two<V>{max(minus, least), zero})), u = one + e;
    const V log = log_of<kLogTerms<T>>(Two<V>{u, e - (u - one)});
    return {max(zero - x, zero) + log + strange, (keep(unless(all, negative), e) + keep(negative, one)) / u + strange};
}

// x (n scores) becomes minus their slopes times `factor`, of signs s; lost(j, loss) for every one whose sign is not 0.
template <class T, class Sign, class Lost>
SOFTARGMAX_INLINE void toss(T* x, std::int64_t n, T factor, const Sign& sign, const Lost& lost) {
    using V = Pack<T>;
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const std::int64_t count = std::min<std::int64_t>(V::kLanes, n - i);
        T y[V::kLanes] = {}, loss[V::kLanes], slope[V::kLanes];
        for (std::int64_t j = 0; j < count; ++j) y[j] = sign(i + j) < 0 ? -x[i + j] : x[i + j];
        const Coin<V> found = coin(V::load(y));
        found.loss.store(loss);
        found.slope.store(slope);
        for (std::int64_t j = 0; j < count; ++j) {
            const int s = sign(i + j);
            x[i + j] = s == 0 ? T{0} : (s < 0 ? -slope[j] : slope[j]) * factor;
            if (s != 0) lost(i + j, static_cast<double>(loss[j]));
        }
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::output
