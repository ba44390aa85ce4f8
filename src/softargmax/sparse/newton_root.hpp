// Finds the root of a row (entmax.hpp). The candidates of a row are the
// scores that may have p > 0. They are stored in a list, and every step of the search drops some of them. Short rows
// are solved sixteen at a time.
#pragma once

#include "core/cpp/parallel_rows.hpp"
#include "sparse/args.hpp"
#include "sparse/entmax.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

// ---- candidates: above order 1, the scores above m - 1 / (alpha - 1), where m is the maximum ------------------

template <class T> using Frame = FrameOf<Args, T>;
template <class T, int Size> using Group = GroupOf<Args, T, Size>;

constexpr std::int64_t kSlack = 2 * 16;  // `compress` writes up to this many numbers past the end of the list

// Calls f(pack of doubles, index) for each half of a pack of floats, or once for a pack of doubles. Callers add up each
// half separately, because the additions to a single sum would wait for each other.
template <class F> SOFTARGMAX_INLINE void each_half(Pack<float> v, F f) {
    const Wide w = widen(v);
    f(w.low, 0);
    f(w.high, 1);
}
template <class F> SOFTARGMAX_INLINE void each_half(Pack<double> v, F f) { f(v, 0); }

// Returns the largest number of type T that is not above x.
template <class T> T rounded_down(double x) {
    const T y = static_cast<T>(x);
    return static_cast<double>(y) > x ? next_below(y) : y;
}

// Returns the pack of scores at i, padded with -inf past the end of the row.
template <class T> SOFTARGMAX_INLINE Pack<T> scores_at(const T* z, std::int64_t i, std::int64_t n) {
    return Pack<T>::load_part(z + i, n - i, -std::numeric_limits<T>::infinity());
}

// Appends the scores above `cut` to the list that ends at `to`, and returns the new end. Sets `nan` if a score is NaN.
template <class T> T* append_above(const T* z, std::int64_t n, T cut, T* to, bool& nan) {
    using V = Pack<T>;
    const V low = V::all(cut);
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const V v = scores_at(z, i, n);
        const auto in = above(v, low);
        if (!any(in)) continue;
        nan = nan || any(above(v, v));
        to = compress(in, v, to);
    }
    return to;
}

// The scores of a row that may have p > 0. Each step reads the whole row until these scores fit into the list.
template <class T> struct Candidates {
    Group<T, 1>* group;  // may be null if the list has room for the whole row
    T* list;
    std::int64_t length, capacity, count = 0;
    bool listed = true;

    // Calls body(scores, count, destination) for all candidates: once for the list, or once per block of the row. The
    // body moves the destination past the scores that it keeps. If the kept scores fit, they become the list.
    template <class Body> void each(Body body) {
        T* to = list;
        if (listed) {
            body(list, count, to);
        } else {
            listed = true;
            for (std::int64_t b = 0; b < group->blocks(); ++b) {
                group->load(b);
                add(group->scores, group->end(b) - group->begin(b), to, body);
            }
        }
        count = to - list;
    }
    template <class Body> void add(const T* z, std::int64_t n, T*& to, Body body) {
        listed = listed && to - list + n <= capacity;
        T* spare = scratch(kWeights).get<T>(kBlock + kSlack);
        body(z, n, listed ? to : spare);
    }
};

struct Found {  // the solution of a row
    Twofold a{0, 0};  // alpha - 1
    Scale beta;
    Twofold at;  // the root, if `ordinary`
    State limit;  // m is the maximum; without a root, r is NaN or one less than the number of p > 0
    bool ordinary = false;  // true if the row has a root; false with +inf, NaN, an empty support or infinite beta
    double others = -1;  // 1 - p of the target class, or -1 if the class is not in the support
};

template <class T, int Size> void find_candidates(Group<T, Size>& group, Candidates<T>* rows, Found* found) {
    T top[Size], *to[Size];
    bool nan[Size] = {};
    for (int g = 0; g < group.count; ++g) {
        top[g] = -std::numeric_limits<T>::infinity();
        to[g] = rows[g].list;
    }
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        group.load(b);
        const std::int64_t n = group.end(b) - group.begin(b);
        for (int g = 0; g < group.count; ++g) {
            const T* z = group.scores + g * group.pitch;
            const T here = maximum(z, n);
            top[g] = here > top[g] ? here : top[g];
            const double far = static_cast<double>(top[g]) - reach_of(found[g].a.hi) / found[g].beta.hi;
            const T cut = std::min(rounded_down<T>(cut_below(far)), next_below(top[g]));
            rows[g].add(z, n, to[g], [&](const T* from, std::int64_t count, T*& end) {
                end = append_above(from, count, cut, end, nan[g]);
            });
        }
    }
    for (int g = 0; g < group.count; ++g) {
        rows[g].count = to[g] - rows[g].list;
        State& s = found[g].limit;
        s.m = static_cast<double>(top[g]);
        if (nan[g] || group.scale[g].undefined || !(found[g].a.hi >= -1 && found[g].a.hi < kInf)) {
            s.r = kNaN;
        } else if (top[g] == std::numeric_limits<T>::infinity() || (std::isinf(found[g].beta.hi) && s.m > -kInf)) {
            std::int64_t ties = 0;
            rows[g].each([&](const T* z, std::int64_t n, T*& end) {
                end += n;
                for (std::int64_t i = 0; i < n; ++i) ties += z[i] == top[g];
            });
            s.r = static_cast<double>(ties - 1);
        } else {
            found[g].ordinary = s.m > -kInf;
        }
    }
}

// ---- the root of one row --------------------------------------------------------------------------------------

constexpr int kMaxSteps = 200;
struct Sums {
    double p = 0, slope = 0;
};
// Adds the approximate p and slope of each score above `cut` to `sums`, and writes these scores to `to`, which may be
// z.
template <class T, class F> void rough_sums(const T* z, std::int64_t n, const F& map, T cut, T*& to, Sums& sums) {
    using V = Pack<T>;
    constexpr std::int64_t stretch = 32 * V::kLanes;  // a sum of type T has at most 32 packs
    const F here = map;  // a copy stays in registers, because writes to `to` cannot change the copy
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

// The sums of p, slope and curve in double. With `pairs`, the sum of p is a pair that includes the rounding errors of
// each p.
struct ExactSums {
    Twofold p{0, 0};
    double slope = 0, curve = 0;
    double nearest = kInf;  // the smallest |v|, if kStepFraction > 0
};
template <bool pairs, class T, class F>
void exact_sums(const T* z, std::int64_t n, const F& map, ExactSums& sums) {
    using V = Pack<T>;
    const F here = map;
    const Doubles zero = Doubles::all(0);
    std::conditional_t<pairs, Sum<double>, PlainSum> p[2];
    Doubles slope[2] = {zero, zero}, curve[2] = {zero, zero};
    Doubles nearest = Doubles::all(-kInf);  // minus the smallest |v|, so that `max` can be used
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        each_half(scores_at(z, i, n), [&](Doubles d, int half) SOFTARGMAX_LAMBDA {
            const Exact x = here.template exact<T, pairs>(d);
            p[half].add({x.p.hi});
            if constexpr (pairs) p[half].error = p[half].error + x.p.lo;
            slope[half] = slope[half] + x.slope;
            curve[half] = curve[half] + x.curve;
            if constexpr (F::kStepFraction > 0) nearest = max(zero - max(x.v, zero - x.v), nearest);
        });
    }
    sums.p = plus(sums.p, plus(p[0].total(), p[1].total()));
    sums.slope += sum_of(slope[0] + slope[1]);
    sums.curve += sum_of(curve[0] + curve[1]);
    sums.nearest = std::min(sums.nearest, -max_of(nearest));
}

// Returns the next step near the root. Because it uses the curvature, its error is of the third order in the step.
template <class F> double third_order_step(const F& map, double rest, const ExactSums& sums) {
    if (std::fabs(rest) > 1e-3) return map.newton(rest, sums.slope);
    const double step = rest / sums.slope;
    return step + 0.5 * (1 - map.a()) * sums.curve * step * (step / sums.slope);
}

// Moves the map so close to the root that about one exact step remains.
template <class F, class From> void approach(F& map, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    constexpr double near = sizeof(T) == 4 ? 1e-5 : 1e-6;
    for (int i = 0; i < kMaxSteps; ++i) {
        Sums sums;
        const T cut = rounded_down<T>(map.cut());
        from.each([&](const T* z, std::int64_t n, T*& to) { rough_sums(z, n, map, cut, to, sums); });
        const double moved = map.move(map.newton(sums.p - 1, sums.slope), sums.p >= 1);
        // Below order 1 the steps approach the root from one side, so a step back is only rounding noise of the float
        // sums. If much of p is far from the maximum, the noise may stay above `near`. Therefore a step back ends the
        // loop.
        if (moved < near || (map.a() < 0 && sums.p <= 1)) return;
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

// Returns the number of scores with p > 0.
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

// True if no further step is needed: no score entered or left the support, and the remaining error is negligible.
template <class T, class F> bool has_converged(double moved, double of_v, double nearest, double tolerance) {
    const bool negligible = sizeof(T) == 4 && moved < 1e-5 && of_v <= F::kStepFraction * nearest;
    return of_v <= 0.5 * nearest && (moved <= tolerance || negligible);
}

// Finds the threshold of a map with alpha <= 2, and passes the map with this threshold to `then`. For float scores and
// maps without kLogarithm, p is summed in doubles instead of pairs, which saves half the time of a row with a full
// support. Rows with a score very near the threshold are an exception and use pairs. Without pairs, the rounding
// errors of the sum (n 2^-57 in sixteen partial sums) would visibly change the p of this score.
template <class F, class From, class Then> void solve(F map, From& from, Then then) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    approach(map, from);
    bool pairs = sizeof(T) == 8 || F::kLogarithm;
    for (int i = 0;; ++i) {
        const ExactSums sums = pairs ? sums_of<true>(map, from) : sums_of<false>(map, from);
        const double rest = (sums.p.hi - 1) + sums.p.lo, step = third_order_step(map, rest, sums);
        const double moved = map.move(step, rest >= 0), of_v = moved * map.a();
        const double n = static_cast<double>(from.listed ? from.count : from.length),
                     uncertainty = pairs ? 0 : (0x1p-50 + n * 0x1p-57) / sums.slope * map.a();
        const bool converged = has_converged<T, F>(moved, of_v, sums.nearest, map.tolerance());
        if ((converged && uncertainty <= 0x1p-36 * sums.nearest) || i >= kMaxSteps) return then(map);
        pairs = pairs || converged;
    }
}

// The largest score below o, and the smallest score above it.
struct Neighbours {
    double below = -kInf, above = kInf;
};
template <class From> Neighbours neighbours(double o, From& from) {
    using T = std::remove_pointer_t<decltype(from.list)>;
    Doubles below = Doubles::all(-kInf), above_o = below;  // above_o is negated
    from.each([&](const T* z, std::int64_t n, T*& to) {
        const Doubles origin = Doubles::all(o), lowest = Doubles::all(-kInf), zero = Doubles::all(0);
        for (std::int64_t i = 0; i < n; i += Pack<T>::kLanes)
            each_half(scores_at(z, i, n), [&](Doubles d, int) SOFTARGMAX_LAMBDA {
                const auto is_below = above(origin, d), is_above = above(d, origin);
                const auto other = [&](auto in, Doubles x) SOFTARGMAX_LAMBDA {  // x where the mask is true, else -inf
                    return keep(in, x) + keep(unless(equal(zero, zero), in), lowest);
                };
                below = max(other(is_below, d), below);
                above_o = max(other(is_above, zero - d), above_o);
            });
        to += n;
    });
    return {max_of(below), -max_of(above_o)};
}
// Returns the midpoint of two doubles, counted in representable numbers. Any interval then needs at most 64 halvings.
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
// Returns the smallest score with p > 0. `in_support(x)` is true if the p of the scores above x sum to less than 1 when
// the p of x is set to 0. The argument `o` is an estimate of the result. If the result is not near this estimate, a
// bisection finds it between a score outside the support and the maximum `top`, which is in the support.
template <class From, class InSupport> double search_smallest_in_support(double o, double top, From& from,
                                                                         InSupport in_support) {
    double low = -kInf, high = o;
    if (!in_support(o)) {
        low = o;
        high = neighbours(o, from).above;
        if (!in_support(high)) {
            low = high;
            high = top;
        }
    }
    for (;;) {
        const double next = neighbours(high, from).below;
        if (!(next > low) || !in_support(next)) return high;
        high = next;
        const double half = neighbours(middle(low, high), from).above;
        (in_support(half) ? high : low) = half;
    }
}
// Finds the threshold of a map with alpha > 2, and passes the map with this threshold to `then`. The variable is q, the
// smallest p above 0, and o is its score. For a known o the sum of p is convex in q, so Newton's method descends
// monotonically. It starts at q = 1 / n, where n is the number of scores equal to o.
template <class From, class Then> void solve(SteepEntmaxSearch search, From& from, Then then) {
    approach(search, from);
    const auto steep = [&](double o, double q) { return SteepEntmax(search.a_, search.beta, o, q); };
    const auto in_support = [&](double origin) {
        const ExactSums sums = sums_of<true>(steep(origin, 0), from);
        return sums.p.hi - 1 + sums.p.lo < 0;
    };
    const double o = search_smallest_in_support(neighbours(search.threshold(), from).above, search.m, from, in_support);
    double q = 1 / sums_of<true>(steep(o, 0), from).slope;  // at q = 0 only the scores equal to o have a slope, 1 each
    for (int i = 0;; ++i) {
        const ExactSums sums = sums_of<true>(steep(o, q), from);
        const double step = ((sums.p.hi - 1) + sums.p.lo) / sums.slope;
        q = std::max(q - step, 0.0);
        if (std::fabs(step) <= 1e-9 * q || i == kMaxSteps) return then(steep(o, q));
    }
}

// Finds the threshold of a row with maximum m, and passes the map with this threshold to `then`.
template <class From, class Then> void with_solution(double m, Twofold a, Scale beta, From& from, Then then) {
    if (a.hi > 1) solve(SteepEntmaxSearch(m, a.hi, beta, static_cast<double>(from.length)), from, then);
    else
        with_gentle_map<std::remove_pointer_t<decltype(from.list)>>(m, a, beta,
                                                                    [&](auto map) { solve(map, from, then); });
}

// ---- short float32 rows, sixteen at a time, one row per lane --------------------------------------------------
//
// A single row waits at every step for sums across lanes. With one row per lane there are no such sums: a row of 8
// scores takes 740 ns alone, and 140 ns in lanes (one thread). A row that has converged does not change while other
// rows continue.

constexpr int kShort = 64;  // the length of the longest row that fits into a lane

class Lanes {
    static constexpr int kHalf = Doubles::kLanes, kHalves = kSide / kHalf;
    int columns_;
    alignas(64) float row_[kSide][kShort] = {};
    alignas(64) float lane_[kShort][kSide];
    alignas(64) double z_[kHalves][kShort][kHalf];
    alignas(64) double top_[kSide], tau_[kSide];  // top_ is NaN in a row that has no root
    alignas(64) double beta_[2][kSide];

    // Moves the maps of all sixteen rows close to their roots.
    template <class F> void approach(F& map) const {
        using V = Pack<float>;
        const V zero = V::all(0), one = V::all(1), near = V::all(1e-5f);
        auto active = equal(map.m, map.m);
        for (int i = 0; i < kMaxSteps && any(active); ++i) {
            Rough<V> sum{zero, zero};
            for (int j = 0; j < columns_; ++j) {
                const Rough<V> x = map.rough(V::load(lane_[j]));
                sum = {sum.p + x.p, sum.slope + x.slope};
            }
            const V step = keep(active, map.newton(sum.p - one, sum.slope));
            map.shift(step);
            active = unless(active, above(near * map.scale(), map.a() < 0 ? step : max(step, zero - step)));
        }
    }
    // Moves the maps of one pack of doubles from near their roots to their roots.
    template <class F> void converge(F& map, const double (*z)[kHalf]) const {
        const auto size_of = [](Doubles x) SOFTARGMAX_LAMBDA { return max(x, Doubles::all(0) - x); };
        const Doubles zero = Doubles::all(0), one = Doubles::all(1), half = Doubles::all(0.5 * (1 - map.a())),
                      near = Doubles::all(1e-3), tolerance = Doubles::all(map.tolerance()), short_ = Doubles::all(1e-5),
                      a = Doubles::all(map.a()), share = Doubles::all(F::kStepFraction);
        auto active = equal(map.m, map.m);
        for (int i = 0; i < kMaxSteps && any(active); ++i) {
            Sum<double> p;
            Doubles slope = zero, curve = zero, nearest = Doubles::all(-kInf);  // nearest is negated
            for (int j = 0; j < columns_; ++j) {
                const Exact x = map.template exact<float>(Doubles::load(z[j]));
                p.add({x.p.hi});
                p.error = p.error + x.p.lo;
                slope = slope + x.slope;
                curve = curve + x.curve;
                nearest = max(zero - size_of(x.v), nearest);
            }
            const Doubles rest = (p.sum - one) + p.error, linear = rest / slope,
                          corrected = fma(half * curve * linear, linear / slope, linear);
            const auto far = above(size_of(rest), near);
            const Doubles step =
                              keep(active, keep(far, map.newton(rest, slope)) + keep(unless(active, far), corrected)),
                          moved = size_of(step) / map.scale(), of_v = zero - moved * a;  // of_v is negated
            map.shift(step);
            // `active` becomes false in the lanes for which `has_converged` would return true.
            const auto held = unless(active, above(Doubles::all(0.5) * nearest, of_v));
            active = unless(active, unless(held, above(moved, tolerance)));
            active = unless(active, unless(unless(held, above(moved, short_)), above(share * nearest, of_v)));
        }
    }
    template <class F> void finish(F map, int h) {
        converge(map, z_[h]);
        const Two<Doubles> tau = map.tau();
        (tau.hi + tau.lo).store(tau_ + h * kHalf);
        for (int j = 0; j < columns_; ++j) map.template result<float>(Doubles::load(z_[h][j])).store(z_[h][j]);
    }

  public:
    explicit Lanes(int columns) : columns_(columns) {}
    void put(int g, const float* z, Scale beta) {
        std::copy_n(z, columns_, row_[g]);
        beta_[0][g] = beta.hi;
        beta_[1][g] = beta.lo;
    }
    void take(int g, float* p) const { std::copy_n(row_[g], columns_, p); }
    bool has_root(int g) const { return top_[g] == top_[g]; }
    double tau(int g) const { return tau_[g]; }

    // Computes p of order 1 + a for all rows that have a root. `scaled` is true if each row has its own beta, which
    // only maps with a closed form allow.
    void solve(Twofold a, bool scaled) {
        using V = Pack<float>;
        for (int j = 0; j < columns_; j += kSide) turn(row_[0] + j, kShort, lane_[j], kSide);
        float top[kSide];
        V::all(-INFINITY).store(top);
        bool nan[kSide] = {};
        for (int j = 0; j < columns_; ++j)
            for (int g = 0; g < kSide; ++g) {
                top[g] = lane_[j][g] > top[g] ? lane_[j][g] : top[g];
                nan[g] = nan[g] || lane_[j][g] != lane_[j][g];
            }
        for (int g = 0; g < kSide; ++g) top[g] = std::isfinite(top[g]) && !nan[g] ? top[g] : NAN;
        const auto store_as_double = [](const V& x, double* to) SOFTARGMAX_LAMBDA {
            each_half(x, [&](Doubles d, int h) SOFTARGMAX_LAMBDA { d.store(to + h * kHalf); });
        };
        alignas(64) double at[2][kSide];
        store_as_double(V::load(top), top_);
        const auto with_map = [&](auto m, auto beta, auto f) SOFTARGMAX_LAMBDA {
            if (scaled) with_closed_map<true>(m, a.hi, beta, f);
            else with_gentle_map<float>(m, a, Scale{}, f);
        };
        const auto float_beta = narrow({Doubles::load(beta_[0]), Doubles::load(beta_[0] + kSide - kHalf)});
        with_map(V::load(top), Two<V>{float_beta, V::all(0)}, [&](auto map) {
            approach(map);
            store_as_double(map.at.hi, at[0]);
            store_as_double(map.at.lo, at[1]);
        });
        for (int j = 0; j < columns_; ++j)
            each_half(V::load(lane_[j]), [&](Doubles d, int h) SOFTARGMAX_LAMBDA { d.store(z_[h][j]); });
        for (int h = 0; h < kHalves; ++h)
            with_map(Doubles::load(top_ + h * kHalf),
                     Two<Doubles>{Doubles::load(beta_[0] + h * kHalf), Doubles::load(beta_[1] + h * kHalf)},
                     [&](auto map) {
                map.at = two_sum(Doubles::load(at[0] + h * kHalf), Doubles::load(at[1] + h * kHalf));
                finish(map, h);
            });
        for (int j = 0; j < columns_; ++j) narrow({Doubles::load(z_[0][j]), Doubles::load(z_[1][j])}).store(lane_[j]);
        for (int j = 0; j < columns_; j += kSide) turn(lane_[j], kSide, row_[0] + j, kShort);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
