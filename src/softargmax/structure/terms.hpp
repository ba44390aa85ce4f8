// The terms of single elements, computed one by one in float64: for elements whose products of exponentials would
// underflow or lose digits, for infinite scores and NaN, and for the limits beta = 0 and beta = inf.
//
//     z_k = a_ik + b_kj      c_ij = log(sum_k e^(beta z_k)) / beta      p_k = e^(beta (z_k - c_ij))
//
// A term is left out if a_ik or b_kj is -inf, whatever the other one is.
#pragma once

#include "structure/exponentials.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

// The scores z_k for one row of a and kLanes adjacent columns of b, and the state of each lane.
class Terms {
    const std::int64_t depth_;
    const Scale beta_;
    const Numbers<double> row_, z_, z_low_;  // z = z_ + z_low_; z_low_ is 0 for floats, whose sums have enough digits
    double largest_[kLanes];  // before the scores are flattened
    double m_[kLanes], r_[kLanes], low_[kLanes];
    V top_ = V::all(0);

    bool flat() const { return beta_.hi == 0; }
    // At beta = 0, all finite scores count as 0.
    void flatten() {
        for (std::int64_t k = 0; k < depth_ * kLanes; ++k) z_[k] = z_[k] - z_[k] == 0 ? 0 : z_[k];
        top_ = V::all(-kInf);
        for (std::int64_t k = 0; k < depth_; ++k) top_ = max(z(k), top_);
    }
    // e^(beta (z_k - shift)), with the rounding errors of z_k and of the difference.
    V exponential(std::int64_t k, V shift) const {
        const Two<V> d = two_sum(z(k), V::all(0) - shift);
        const Parts<V> x = parts_of(d.hi, beta_);
        const V rest = fma(x.e, V::all(beta_.hi) * (d.lo + V::load(z_low_.get() + k * kLanes)), x.e_low);
        return (x.e + or_zero(rest)) * power_of_two(x.k + V::all(magic_of<double>(0)));
    }
    // The distance below the largest score from which terms change no result: e^-60, or e^-700 if the largest score is
    // near 0, because the result may then be as small as the sum of all other terms.
    V reach() const {
        double m[kLanes];
        top_.store(m);
        for (double& x : m) x = flat() ? 1 : (std::fabs(x) * beta_.hi > 0x1p-10 ? 60 : 700) / beta_.hi;
        return V::load(m);
    }

  public:
    Terms(std::int64_t depth, Scale beta)
        : depth_(depth),
          beta_(beta),
          row_(numbers<double>(depth + kLanes)),
          z_(numbers<double>(depth * kLanes)),
          z_low_(numbers<double>(depth * kLanes)) {
        std::fill_n(z_low_.get(), depth * kLanes, 0.0);
    }
    V z(std::int64_t k) const { return V::load(z_.get() + k * kLanes); }

    // Reads row i of a. `b` has depth x kLanes numbers.
    SOFTARGMAX_CALLED void load(const Matrix2D& a, std::int64_t i, const double* b) {
        a.read(i, 0, depth_, row_.get(), -kInf);
        top_ = V::all(-kInf);
        for (std::int64_t k = 0; k < depth_; ++k) {
            const double a_k = row_[k];
            double* const to = z_.get() + k * kLanes;
            const V x = V::all(a_k), y = V::load(b + k * kLanes);
            (x + y).store(to);
            if (a.type == Type::f64) or_zero(two_sum(x, y).lo).store(z_low_.get() + k * kLanes);
            for (std::int64_t g = 0; a_k - a_k != 0 && g < kLanes; ++g)
                if (a_k == -kInf || b[k * kLanes + g] == -kInf) to[g] = -kInf;
            top_ = max(V::load(to), top_);
        }
    }
    // Folds the scores into one state per lane. Scores equal to the maximum are counted, and the rounding errors of the
    // sum of all others are summed, too.
    SOFTARGMAX_CALLED void fold() {
        top_.store(largest_);
        if (flat()) flatten();
        const V low = top_ - reach();
        V ties = V::all(0), sum = ties, error = ties;
        for (std::int64_t k = 0; k < depth_; ++k) {
            const V z_k = z(k);
            const auto tie = equal(z_k, top_), in = above(z_k, low);
            ties = ties + keep(tie, V::all(1));
            if (!any(unless(in, tie))) continue;  // most terms, if scores differ by hundreds
            const V term = keep(unless(in, tie), exponential(k, top_));
            const Two<V> s = two_sum(sum, term);
            error = error + s.lo;
            sum = s.hi;
        }
        const V others = ties - V::all(1);
        const Two<V> r = two_sum(others, sum);
        top_.store(m_);
        r.hi.store(r_);
        (r.lo + error).store(low_);
    }
    // Returns c of a lane.
    double result(std::int64_t lane) const {
        const State s{m_[lane], r_[lane], low_[lane]};
        if (s.r != s.r) return kNaN;
        if (flat() && s.m == 0) return s.r > 0 ? kInf : largest_[lane];
        return smooth_maximum(s, beta_);
    }
    // Prepares `p` for lanes with results c. In the limits, and for an infinite c, the largest scores share p equally.
    struct Shares {
        V c, ties;  // `ties` is 1 / the number of largest scores where they share p, and 0 elsewhere
        typename std::decay<decltype(above(V{}, V{}))>::type shared;
    };
    SOFTARGMAX_CALLED Shares shares(const double* c) {
        double of_c[kLanes], ties[kLanes];
        bool some = false;
        for (std::int64_t g = 0; g < kLanes; ++g) some = some || std::isinf(c[g]);
        some = some || flat() || std::isinf(beta_.hi);
        if (some) fold();
        for (std::int64_t g = 0; g < kLanes; ++g) {
            const bool shared = c[g] == c[g] && (flat() || std::isinf(beta_.hi) || std::isinf(c[g]));
            ties[g] = shared ? 1 / (1 + std::rint(r_[g])) : 0;
            of_c[g] = c[g];
        }
        const V t = V::load(ties);
        return {V::load(of_c), t, above(t, V::all(0))};
    }
    V p(std::int64_t k, const Shares& s) const {
        const V z_k = z(k);
        const V found = keep(above(z_k, s.c - V::all(700 / beta_.hi)), exponential(k, s.c));
        const auto in = above(z_k, V::all(-kInf));
        return keep(in, keep(unless(in, s.shared), found) + keep(equal(z_k, top_), s.ties));
    }
    // Adds p w x_k to `sums`, for all k and the lanes for which `left` is above 0. Returns the sum of p x_k y_k. x and
    // y may be infinite or NaN where p is 0. `y` and `sums` have depth x kLanes numbers.
    SOFTARGMAX_CALLED V accumulate(const Shares& s, V left, V w, const double* x, const double* y, double* sums) const {
        const V zero = V::all(0);
        const auto lanes = above(left, zero);
        V total = zero;
        for (std::int64_t k = 0; k < depth_; ++k) {
            const V p_k = keep(lanes, p(k, s)), of = p_k * V::all(x[k]);
            const auto in = above(p_k, zero);
            double* const at = sums + k * kLanes;
            (V::load(at) + keep(in, of * w)).store(at);
            total = total + keep(in, of * V::load(y + k * kLanes));
        }
        return total;
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
