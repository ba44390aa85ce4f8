// The gradient of a sparse map, and the loss whose gradient is p - onehot(y).
#pragma once

#include "sparse/newton_root.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

// ---- the gradient with respect to the scores, from p and an incoming gradient g -------------------------------
//
//     dz = s (g - <s, g> / <s, 1>),   s = p^(2 - alpha) where p > 0, else 0        (Peters, Niculae & Martins 2019)
//
// Where p is 0, g is ignored. Above order 2 the smallest p has the largest s. At this entry g - <s, g> / <s, 1> would
// cancel, and at alpha = 20 lose all digits. Therefore the g of the smallest p is first subtracted from every g.

// Computes s for p > 0.
struct Slope {
    double a = 0;
    template <class T> SOFTARGMAX_FORMULA Doubles of(Doubles p) const {
        if (a == 1) return Doubles::all(1);
        if (a == 0.5) return sqrt(p);
        if (a == 0.25) {  // p^(3/4)
            const Doubles root = sqrt(p);
            return root * sqrt(root);
        }
        constexpr bool brief = sizeof(T) == 4;
        const Doubles log = log_of<brief ? 5 : kLogTerms<double>>(Two<Doubles>{p, Doubles::all(0)});
        // Above order 2, s grows as p falls. s is clipped at e^600, so that sums of s g do not overflow.
        const Doubles zero = Doubles::all(0), limit = Doubles::all(600);
        const Doubles y = zero - max(zero - max(log * Doubles::all(1 - a), zero - limit), zero - limit);
        return exp_of<brief ? 7 : kExpTerms<double>>(Two<Doubles>{y, Doubles::all(0)});
    }
};

// The smallest p > 0 and its g, which is subtracted from every g.
struct Origin {
    double p = kInf, g = 0;
    void add(const Origin& piece) {
        if (piece.p < p) *this = piece;
    }
};
// <s, g - origin> and <s, 1>, where `origin` is the g of the smallest p > 0.
struct Mean {
    Twofold sg{0, 0}, s{0, 0};
    bool nan = false;
    double value() const { return nan ? kNaN : (sg.hi + sg.lo) / (s.hi + s.lo); }
    void add(const Mean& piece) {
        sg = plus(sg, piece.sg);
        s = plus(s, piece.s);
        nan = nan || piece.nan;
    }
};

// Calls f(s, g, half) for each half of the packs. s is 0 where p is 0.
template <class T, class F> SOFTARGMAX_INLINE void each_slope(Pack<T> p, Pack<T> g, const Slope& slope, F f) {
    const Doubles zero = Doubles::all(0), smallest = Doubles::all(std::numeric_limits<double>::min());
    Doubles gs[2];
    each_half(g, [&](Doubles x, int half) SOFTARGMAX_LAMBDA { gs[half] = x; });
    each_half(p, [&](Doubles x, int half) SOFTARGMAX_LAMBDA {
        const auto in = above(x, zero);
        f(keep(in, slope.template of<T>(max(x, smallest))), keep(in, gs[half]), half);
    });
}

template <class T> Origin origin_of(const T* p, const T* g, std::int64_t n) {
    Origin found;
    for (std::int64_t i = 0; i < n; ++i)
        if (p[i] > 0) found.add({static_cast<double>(p[i]), static_cast<double>(g[i])});
    return found;
}

template <class T> Mean mean_of(const T* p, const T* g, std::int64_t n, const Slope& slope, const Origin& from) {
    using V = Pack<T>;
    const V zero = V::all(0);
    const Doubles origin = Doubles::all(from.g);
    bool nan = false;
    std::conditional_t<sizeof(T) == 8, Sum<double>, PlainSum> sg[2], s[2];
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const V x = V::load_part(p + i, n - i, 0);
        if (!any(above(x, zero))) continue;
        nan = nan || any(above(x, x));
        each_slope<T>(x, V::load_part(g + i, n - i, 0), slope,
                      [&](Doubles s_i, Doubles g_i, int half) SOFTARGMAX_LAMBDA {
            sg[half].add({s_i * (g_i - origin)});
            s[half].add({s_i});
        });
    }
    return {plus(sg[0].total(), sg[1].total()), plus(s[0].total(), s[1].total()), nan};
}

template <class T>
void write_gradient(const T* p, const T* g, std::int64_t n, const Slope& slope, const Origin& from, const Mean& mean,
                    const Target<T>& to) {
    using V = Pack<T>;
    const V zero = V::all(0);
    const Doubles origin = Doubles::all(from.g), center = Doubles::all(mean.value());
    map(p, n, to, [&, i = std::int64_t{0}](V x) SOFTARGMAX_MUTABLE_LAMBDA -> V {
        const std::int64_t from = i;
        i += V::kLanes;
        const auto in = above(x, zero);
        if (!any(in)) return zero;
        Doubles dz[2];
        each_slope<T>(x, V::load_part(g + from, n - from, 0), slope,
                      [&](Doubles s_i, Doubles g_i, int half)
                          SOFTARGMAX_LAMBDA { dz[half] = s_i * ((g_i - origin) - center); });
        if constexpr (sizeof(T) == 4) return keep(in, narrow({dz[0], dz[1]}));
        else return keep(in, dz[0]);
    });
}

// ---- the Fenchel-Young loss of a row with a class y -----------------------------------------------------------
//
// Let x = beta (z - m) - lambda and v = 1 + a x. Then p^alpha = p v (Blondel, Martins & Niculae 2020) and
//
//     loss = (sum_k p_k v_k - 1) / alpha - x_y = sum_{k != y} p_k v_k / alpha + psi
//     psi = (p_y v_y - 1) / alpha - x_y
//
// Let e = 1 - p_y, the sum of the other p. Then psi is the integral of (1 - t)^(a - 1) t from 0 to e. No term of the
// second form is negative, so the small loss of a confident row keeps its digits.

// The sums of p and of p v over all entries with z != z_y. `ties` counts the entries with z = z_y and p > 0.
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

// Returns the integral of (1 - t)^(a - 1) t from 0 to e, for e < 1/2. The closed form is (1 - (1 - e)^a (1 + a e)) /
// (a (a + 1)). Where the closed form would cancel, a series is used.
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
// Returns the loss for a target with p = 1 / k, in a row with +inf or at infinite beta: H_alpha of the uniform
// distribution over k classes.
inline double loss_of_ties(double a, double k) {
    const double log = log_scalar(k), u = a * log;
    return log / (1 + a) * (std::fabs(u) < 1e-6 ? 1 - u / 2 : (1 - exp_scalar(-u)) / u);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
