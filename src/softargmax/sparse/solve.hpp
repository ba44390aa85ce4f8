// The root of sum p = 1 for one row, whose candidates shrink with every step.
#pragma once

#include "sparse/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

constexpr int kMostSteps = 200;
struct Sums {
    double p = 0, slope = 0;
};
// Adds the rough sums over the scores above `cut`, which are written to `to` one after the other (it may be z itself).
template <class T, class F> void rough_sums(const T* z, std::int64_t n, const F& map, T cut, T*& to, Sums& sums) {
    using V = Pack<T>;
    constexpr std::int64_t stretch = 32 * V::kLanes;  // so many packs at most are added in T
    const F here = map;  // whose numbers stay in registers, since `to` may not point at them
    const V low = V::all(cut), zero = V::all(0);
    const Doubles none = Doubles::all(0);
    T* end = to;
    Doubles p[2] = {none, none}, slope[2] = {none, none};
    for (std::int64_t from = 0; from < n; from += stretch) {
        Rough<V> sum{zero, zero};
        for (std::int64_t i = from; i < n && i < from + stretch; i += V::kLanes) {
            const V v = scores_at(z, i, n);
            const auto in = above(v, low);
            if (!any(in)) continue;
            end = compress(in, v, end);
            const Rough<V> x = here.rough(v);
            sum = {sum.p + x.p, sum.slope + x.slope};
        }
        each_half(sum.p, [&](Doubles d, int half) SOFTARGMAX_LAMBDA { p[half] = p[half] + d; });
        each_half(sum.slope, [&](Doubles d, int half) SOFTARGMAX_LAMBDA { slope[half] = slope[half] + d; });
    }
    to = end;
    sums.p += sum_of(p[0] + p[1]);
    sums.slope += sum_of(slope[0] + slope[1]);
}

// The same in double with the curvature; in pairs, with every rounding error of p.
struct ExactSums {
    Twofold p{0, 0};
    double slope = 0, curve = 0;
    double nearest = kInf;  // the least |v|, where a map wants to know it
};
template <bool pairs, class T, class F>
void exact_sums(const T* z, std::int64_t n, const F& map, ExactSums& sums) {
    using V = Pack<T>;
    const F here = map;
    const Doubles zero = Doubles::all(0);
    std::conditional_t<pairs, Sum<double>, PlainSum> p[2];
    Doubles slope[2] = {zero, zero}, curve[2] = {zero, zero};
    Doubles nearest = Doubles::all(-kInf);  // negated
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        each_half(scores_at(z, i, n), [&](Doubles d, int half) SOFTARGMAX_LAMBDA {
            const Exact x = here.template exact<T, pairs>(d);
            p[half].add({x.p.hi});
            if constexpr (pairs) p[half].error = p[half].error + x.p.lo;
            slope[half] = slope[half] + x.slope;
            curve[half] = curve[half] + x.curve;
            if constexpr (F::kBeside > 0) nearest = max(zero - max(x.v, zero - x.v), nearest);
        });
    }
    sums.p = plus(sums.p, plus(p[0].total(), p[1].total()));
    sums.slope += sum_of(slope[0] + slope[1]);
    sums.curve += sum_of(curve[0] + curve[1]);
    sums.nearest = std::min(sums.nearest, -max_of(nearest));
}

// The step from nearby: the curvature makes its error the third power of itself.
template <class F> double nearer(const F& map, double rest, const ExactSums& sums) {
    if (std::fabs(rest) > 1e-3) return map.newton(rest, sums.slope);
    const double step = rest / sums.slope;
    return step + 0.5 * (1 - map.a()) * sums.curve * step * (step / sums.slope);
}

// Moves the map so near to the root that what is left of the way is a step.
template <class F, class From> void approach(F& map, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    constexpr double near = sizeof(T) == 4 ? 1e-5 : 1e-6;
    for (int i = 0; i < kMostSteps; ++i) {
        Sums sums;
        const T cut = rounded_down<T>(map.cut());
        from.each([&](const T* z, std::int64_t n, T*& to) { rough_sums(z, n, map, cut, to, sums); });
        if (map.move(map.newton(sums.p - 1, sums.slope), sums.p >= 1) < near) return;
    }
}
template <bool pairs, class F, class From> ExactSums sums_of(const F& map, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    ExactSums sums;
    from.each([&](const T* z, std::int64_t n, T*& to) {
        exact_sums<pairs>(z, n, map, sums);
        to += n;
    });
    return sums;
}

// How many scores have p > 0.
template <class F, class From> std::int64_t support_of(const F& map, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    const F here = map;
    Count<double> support;
    from.each([&](const T* z, std::int64_t n, T*& to) {
        for (std::int64_t i = 0; i < n; i += Pack<T>::kLanes)
            each_half(scores_at(z, i, n), [&](Doubles d, int) SOFTARGMAX_LAMBDA {
                support.add(above(here.template exact<T>(d).p.hi, Doubles::all(0)));
            });
        to += n;
    });
    return support.total();
}

// Whether a step was the last: no score entered or left the support by it, and what it misses is not seen.
template <class T, class F> bool has_landed(double moved, double of_v, double nearest, double tolerance) {
    const bool unseen = sizeof(T) == 4 && moved < 1e-5 && of_v <= F::kBeside * nearest;
    return of_v <= 0.5 * nearest && (moved <= tolerance || unseen);
}

// The map of a row at the root, to f. Floats do without pairs (half the time of a row with a full support) unless a
// score is so near to the threshold that the roundings of the sum, n 2^-57 in sixteen chains, would be seen in its p.
template <class F, class From, class Then> void solved(F map, From& from, Then then) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    approach(map, from);
    bool pairs = sizeof(T) == 8 || F::kPairs;
    for (int i = 0;; ++i) {
        const ExactSums sums = pairs ? sums_of<true>(map, from) : sums_of<false>(map, from);
        const double rest = (sums.p.hi - 1) + sums.p.lo, step = nearer(map, rest, sums);
        const double moved = map.move(step, rest >= 0), of_v = moved * map.a();
        const double n = static_cast<double>(from.listed ? from.count : from.group.length),
                     doubt = pairs ? 0 : (0x1p-50 + n * 0x1p-57) / sums.slope * map.a();
        const bool landed = has_landed<T, F>(moved, of_v, sums.nearest, map.tolerance());
        if ((landed && doubt <= 0x1p-36 * sums.nearest) || i >= kMostSteps) return then(map);
        pairs = pairs || landed;
    }
}

// The scores next to o.
struct Beside {
    double below = -kInf, above = kInf;
};
template <class From> Beside beside(double o, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    Doubles below = Doubles::all(-kInf), above_o = below;  // the second one negated
    from.each([&](const T* z, std::int64_t n, T*& to) {
        const Doubles origin = Doubles::all(o), lowest = Doubles::all(-kInf), zero = Doubles::all(0);
        for (std::int64_t i = 0; i < n; i += Pack<T>::kLanes)
            each_half(scores_at(z, i, n), [&](Doubles d, int) SOFTARGMAX_LAMBDA {
                const auto less = above(origin, d), more = above(d, origin);
                const auto other = [&](auto in, Doubles x) SOFTARGMAX_LAMBDA {  // x in the mask, else -inf
                    return keep(in, x) + keep(unless(equal(zero, zero), in), lowest);
                };
                below = max(other(less, d), below);
                above_o = max(other(more, zero - d), above_o);
            });
        to += n;
    });
    return {max_of(below), -max_of(above_o)};
}
// Halfway between two numbers as floats are counted, so that 64 halvings come from any to any other.
inline double middle(double low, double high) {
    const auto place = [](double x) {
        std::int64_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return bits < 0 ? std::numeric_limits<std::int64_t>::min() - bits : bits;
    };
    const std::int64_t a = place(low), b = place(high), half = (a & b) + ((a ^ b) >> 1),
                       bits = half < 0 ? std::numeric_limits<std::int64_t>::min() - half : half;
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
// o is the least score at which the others' sum, with q = 0, is below 1: next to where the search ended, or between a
// score at which it is (the maximum is one) and one at which it is not.
template <class From, class Fits> double least_that_fits(double o, double top, From& from, Fits fits) {
    double low = -kInf, high = o;
    if (!fits(o)) {
        low = o;
        high = beside(o, from).above;
        if (!fits(high)) {
            low = high;
            high = top;
        }
    }
    for (;;) {
        const double next = beside(high, from).below;
        if (!(next > low) || !fits(next)) return high;
        high = next;
        const double half = beside(middle(low, high), from).above;
        (fits(half) ? high : low) = half;
    }
}
// With o, the sum is convex in q, and Newton's method comes down from 1 over the number of ties.
template <class From, class Then> void solved(SteepSearch search, From& from, Then then) {
    approach(search, from);
    const auto fits = [&](double origin) {
        const ExactSums sums = sums_of<true>(Steep(search.a_, origin, 0), from);
        return sums.p.hi - 1 + sums.p.lo < 0;
    };
    const double o = least_that_fits(beside(search.threshold(), from).above, search.m, from, fits);
    double q = 1 / sums_of<true>(Steep(search.a_, o, 0), from).slope;  // ties alone have a slope there
    for (int i = 0;; ++i) {
        const ExactSums sums = sums_of<true>(Steep(search.a_, o, q), from);
        const double step = ((sums.p.hi - 1) + sums.p.lo) / sums.slope;
        q = std::max(q - step, 0.0);
        if (std::fabs(step) <= 1e-9 * q || i == kMostSteps) return then(Steep(search.a_, o, q));
    }
}

// then(the map at the root), of a row with maximum m.
template <class From, class Then> void with_solution(double m, double a, From& from, Then then) {
    if (a > 1) solved(SteepSearch(m, a, static_cast<double>(from.group.length)), from, then);
    else with_gentle_map(m, a, [&](auto map) { solved(map, from, then); });
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
