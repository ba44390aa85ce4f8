// Short float32 rows, sixteen at a time, one to a lane: what a row by itself waits for at every step, the sums across
// its lanes and what follows from them, is done for all of them at once (8 scores a row, one thread: 740 ns, so 140).
// A row that has settled stays where it is, whatever the others do.
#pragma once

#include "sparse/solve.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

constexpr int kShort = 64;  // the longest such row

class Lanes {
    static constexpr int kHalf = Doubles::kLanes, kHalves = kSide / kHalf;
    int columns_;
    alignas(64) float row_[kSide][kShort] = {};
    alignas(64) float lane_[kShort][kSide];
    alignas(64) double z_[kHalves][kShort][kHalf];
    alignas(64) double top_[kSide], tau_[kSide];  // top_ is NaN in a row that has no root

    // Brings the map of all rows near to their roots.
    template <class F> void approach(F& map) const {
        using V = Pack<float>;
        const V zero = V::all(0), one = V::all(1), near = V::all(1e-5f);
        auto active = equal(map.m, map.m);
        for (int i = 0; i < kMostSteps && any(active); ++i) {
            Rough<V> sum{zero, zero};
            for (int j = 0; j < columns_; ++j) {
                const Rough<V> x = map.rough(V::load(lane_[j]));
                sum = {sum.p + x.p, sum.slope + x.slope};
            }
            const V step = keep(active, map.newton(sum.p - one, sum.slope));
            map.at = plus(map.at, Two<V>{step, zero});
            active = unless(active, above(near, max(step, zero - step)));
        }
    }
    // And the map of eight of them to their roots.
    template <class F> void land(F& map, const double (*z)[kHalf]) const {
        const auto size_of = [](Doubles x) SOFTARGMAX_LAMBDA { return max(x, Doubles::all(0) - x); };
        const Doubles zero = Doubles::all(0), one = Doubles::all(1), half = Doubles::all(0.5 * (1 - map.a())),
                      near = Doubles::all(1e-3), tolerance = Doubles::all(map.tolerance()), short_ = Doubles::all(1e-5),
                      a = Doubles::all(map.a()), share = Doubles::all(F::kBeside);
        auto active = equal(map.m, map.m);
        for (int i = 0; i < kMostSteps && any(active); ++i) {
            Sum<double> p;
            Doubles slope = zero, curve = zero, nearest = Doubles::all(-kInf);  // negated
            for (int j = 0; j < columns_; ++j) {
                const Exact x = map.template exact<float>(Doubles::load(z[j]));
                p.add({x.p.hi});
                p.error = p.error + x.p.lo;
                slope = slope + x.slope;
                curve = curve + x.curve;
                nearest = max(zero - size_of(x.v), nearest);
            }
            const Doubles rest = (p.sum - one) + p.error, straight = rest / slope,
                          bent = fma(half * curve * straight, straight / slope, straight);
            const auto far = above(size_of(rest), near);
            const Doubles step = keep(active, keep(far, map.newton(rest, slope)) + keep(unless(active, far), bent)),
                          moved = size_of(step), of_v = zero - moved * a;  // negated
            map.at = plus(map.at, Two<Doubles>{step, zero});
            // As has_landed has it, of each lane.
            const auto held = unless(active, above(Doubles::all(0.5) * nearest, of_v));
            active = unless(active, unless(held, above(moved, tolerance)));
            active = unless(active, unless(unless(held, above(moved, short_)), above(share * nearest, of_v)));
        }
    }
    template <class F> void finish(F map, int h) {
        land(map, z_[h]);
        const Two<Doubles> tau = map.tau();
        (tau.hi + tau.lo).store(tau_ + h * kHalf);
        for (int j = 0; j < columns_; ++j) map.template result<float>(Doubles::load(z_[h][j])).store(z_[h][j]);
    }

  public:
    explicit Lanes(int columns) : columns_(columns) {}
    void put(int g, const float* z) { std::copy_n(z, columns_, row_[g]); }
    void take(int g, float* p) const { std::copy_n(row_[g], columns_, p); }
    bool has_root(int g) const { return top_[g] == top_[g]; }
    double tau(int g) const { return tau_[g]; }

    // p of all rows that have a root, at the order 1 + a.
    void solve(double a) {
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
        const auto widely = [](const V& x, double* to) SOFTARGMAX_LAMBDA {
            each_half(x, [&](Doubles d, int h) SOFTARGMAX_LAMBDA { d.store(to + h * kHalf); });
        };
        alignas(64) double at[2][kSide];
        widely(V::load(top), top_);
        with_gentle_map(V::load(top), a, [&](auto map) {
            approach(map);
            widely(map.at.hi, at[0]);
            widely(map.at.lo, at[1]);
        });
        for (int j = 0; j < columns_; ++j)
            each_half(V::load(lane_[j]), [&](Doubles d, int h) SOFTARGMAX_LAMBDA { d.store(z_[h][j]); });
        for (int h = 0; h < kHalves; ++h)
            with_gentle_map(Doubles::load(top_ + h * kHalf), a, [&](auto map) {
                map.at = two_sum(Doubles::load(at[0] + h * kHalf), Doubles::load(at[1] + h * kHalf));
                finish(map, h);
            });
        for (int j = 0; j < columns_; ++j) narrow({Doubles::load(z_[0][j]), Doubles::load(z_[1][j])}).store(lane_[j]);
        for (int j = 0; j < columns_; j += kSide) turn(lane_[j], kSide, row_[0] + j, kShort);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
