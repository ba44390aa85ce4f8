// v^(1/a), in packs, roughly, for sums, and as a result; and scores less a threshold that is known as a pair.
#pragma once

#include "core/native/log.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

using Doubles = Pack<double>;
template <class V> struct Rough {
    V p, slope;
};
struct Exact {
    Two<Doubles> p;  // its second part is 0, or not looked at, where no pairs are wanted
    Doubles slope, curve, v;  // v matters where p > 0
};

// A map's numbers are doubles, for a row, or packs, for a row to each lane.
template <class V> SOFTARGMAX_INLINE V all(double x) { return V::all(static_cast<typename V::Scalar>(x)); }
template <class V> SOFTARGMAX_INLINE V all(V x) { return x; }
template <class N> SOFTARGMAX_INLINE N as(double x) {
    if constexpr (std::is_same_v<N, double>) return x;
    else return all<N>(x);
}
template <class N> SOFTARGMAX_INLINE Two<Doubles> spread(Two<N> x) { return {all<Doubles>(x.hi), all<Doubles>(x.lo)}; }
// z - c, its first part rounded once; NaN for infinite z, and where it is beyond the range. What is made of it begins
// with max(.., 0), which passes over NaN: of a score so far away p is 0.
template <class N> SOFTARGMAX_INLINE Two<Doubles> less(Doubles z, Two<N> c) {
    const Two<Doubles> by = spread(c), d = two_sum(z, Doubles::all(0) - by.hi);
    const Doubles low = d.lo - by.lo, hi = d.hi + low;
    return {hi, low - (hi - d.hi)};
}
// The same rounded; where z is a float, what lies near c is z - c.hi exactly.
template <class T, class N> SOFTARGMAX_INLINE Doubles beyond(Doubles z, Two<N> c) {
    if constexpr (sizeof(T) == 4) return (z - all<Doubles>(c.hi)) - all<Doubles>(c.lo);
    else return less(z, c).hi;
}

// The least v, and the least logarithm of p, that are not taken for 0.
template <class T> struct Limit;
template <> struct Limit<float> {
    static constexpr double tiny = 0x1p-120, least = -86;
};
template <> struct Limit<double> {
    static constexpr double tiny = 0x1p-1000, least = -708.396;
};

// How well a power is wanted: to come near the root; for sums that land on it, which have to be good to the digits of
// double; as one of the results.
enum class Power { kRough, kSummed, kResult };

// e^y, 0 where it is no normal number. A float32 result is good to 2e-10.
template <Power how, class T, class V> SOFTARGMAX_INLINE V exp_or_zero(Two<V> y) {
    constexpr bool brief = how == Power::kResult && sizeof(T) == 4;
    const V least = all<V>(Limit<typename V::Scalar>::least), hi = max(y.hi, least);
    constexpr int terms = brief ? 7 : kExpTerms<typename V::Scalar>;
    return keep(above(hi, least), exp_of<terms>(Two<V>{hi, y.lo}));
}

// v^(1/a), 0 where v is.
struct Root {
    Twofold inverse_a;
    explicit Root(double a) : inverse_a(inverse(Twofold{a, 0})) {}
    template <Power how, class T, class V> SOFTARGMAX_INLINE V of(Two<V> v) const {
        const V tiny = all<V>(Limit<typename V::Scalar>::tiny), hi = max(v.hi, tiny);
        const auto in = above(hi, tiny);
        const Two<V> positive{hi, keep(in, v.lo)};
        if constexpr (sizeof(T) == 8 && how != Power::kRough) {
            return keep(in, exp_or_zero<how, T>(times(log_pair(positive), spread(inverse_a))));
        } else {
            constexpr int terms = how == Power::kResult ? 5 : kLogTerms<typename V::Scalar>;
            const V y = log_of<terms>(positive) * all<V>(inverse_a.hi);
            return keep(in, exp_or_zero<how, T>(Two<V>{y, V::all(0)}));
        }
    }
    template <class V> SOFTARGMAX_INLINE Rough<V> rough(Two<V> v) const {
        const V p = of<Power::kRough, typename V::Scalar>(v);
        return {p, p / max(v.hi, all<V>(Limit<typename V::Scalar>::tiny))};
    }
    template <class T> SOFTARGMAX_INLINE Exact exact(Two<Doubles> v) const {
        const Doubles p = of<Power::kSummed, T>(v),
                      part = Doubles::all(1) / max(v.hi, Doubles::all(Limit<double>::tiny));
        return {{p, Doubles::all(0)}, p * part, p * part * part, v.hi};
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
