// Scores bent to stay between -s and s: s tanh(z / s), and its slope 1 - tanh^2.
#pragma once

#include "fold.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// With x = -2 |u| and q = e^x:  tanh |u| = (1 - q) / (1 + q),  1 - tanh^2 = 4 q / (1 + q)^2. Where x is small, q - 1 is
// formed without cancellation, from that of x / 4 by t(2 x) = t(x) (2 + t(x)).
template <class T> class Softcap {
    using V = Pack<T>;
    Terms<true, T> terms_{Peak<T>(0, Scale{}), Scale{}};
    V cap_, zero_ = V::all(0), one_ = V::all(1), two_ = V::all(2), lower_ = V::all(static_cast<T>(Reach<T>::lower));

    SOFTARGMAX_INLINE V exponent(V z) const { return V::all(-2) * (max(z, zero_ - z) / cap_); }
    SOFTARGMAX_INLINE Two<V> decay(V x) const {
        const auto in = terms_.in(x);
        const Term<T> term = terms_(keep(in, x));
        const V e = one_ + term.t, power = keep(in, term.power) * lower_;
        return {e * power, (term.t - (e - one_)) * power};
    }

  public:
    explicit Softcap(double cap) : cap_(V::all(static_cast<T>(cap))) {}
    SOFTARGMAX_INLINE V operator()(V z) const {
        const V x = exponent(z), q = decay(x).hi;
        const auto all = equal(zero_, zero_), near = above(x, V::all(T(-1.36))), far = unless(all, near);
        const V t = exp_less_one<T>(keep(near, x) * V::all(T(0.25))), t2 = t * (two_ + t), less = t2 * (two_ + t2);
        const V tanh = keep(near, (zero_ - less) / (two_ + less)) + keep(far, (one_ - q) / (one_ + q)), y = tanh * cap_;
        const auto nan = unless(all, equal(z, z)), negative = above(zero_, z);
        return keep(unless(all, negative), y) - keep(negative, y) + keep(nan, z);
    }
    // Twofold: rounded step by step it was 4 ulp off.
    SOFTARGMAX_INLINE Two<V> slope(V z) const {
        const Two<V> q = decay(exponent(z)), r = inverse(plus(Two<V>{one_, zero_}, q));
        return times(times(q, times(r, r)), V::all(4));
    }
    // Scores at -inf are out of the support and stay there.
    void bend(T* z, std::int64_t n) const {
        const V out = V::all(-std::numeric_limits<T>::infinity());
        for (std::int64_t i = 0; i < n; i += V::kLanes) {
            const V x = V::load_part(z + i, n - i, 0);
            const auto stays = equal(x, out);
            (keep(unless(equal(zero_, zero_), stays), (*this)(x)) + keep(stays, x)).store_part(z + i, n - i);
        }
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
