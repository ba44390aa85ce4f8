// Rows while their maximum m is sought: the scores above m - 1 / (alpha - 1) are gathered, since no other can have p >
// 0.
#pragma once

#include "core/native/apply.hpp"
#include "core/native/deal.hpp"
#include "sparse/args.hpp"
#include "sparse/maps.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sparse {

template <class T> using Frame = FrameOf<Args, T>;
template <class T, int Size> using Group = GroupOf<Args, T, Size>;

// How far below the maximum p is 0, whatever alpha.
constexpr double kReach = -Limit<double>::least;
constexpr std::int64_t kSlack = 2 * 16;  // what `compress` may write behind the end

// A T's pack as packs of double, each with sums of its own: a chain of additions waits for itself.
template <class F> SOFTARGMAX_INLINE void each_half(Pack<float> v, F f) {
    const Wide w = widen(v);
    f(w.low, 0);
    f(w.high, 1);
}
template <class F> SOFTARGMAX_INLINE void each_half(Pack<double> v, F f) { f(v, 0); }

// As a T, not above x.
template <class T> T rounded_down(double x) {
    const T y = static_cast<T>(x);
    return static_cast<double>(y) > x ? next_below(y) : y;
}

// The pack of scores at i; behind the row's end those that have no p.
template <class T> SOFTARGMAX_INLINE Pack<T> scores_at(const T* z, std::int64_t i, std::int64_t n) {
    return Pack<T>::load_part(z + i, n - i, -std::numeric_limits<T>::infinity());
}

// Appends the scores above `cut`; `nan` where one of them is.
template <class T> T* gather(const T* z, std::int64_t n, T cut, T* to, bool& nan) {
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

// The scores of a row that may have p > 0: a list, once all of them fit into it; until then the row itself.
template <class T, int Size> struct Candidates {
    Group<T, Size>& group;
    int g;
    T* list;
    std::int64_t capacity, count = 0;
    bool listed = true;

    // body(scores, how many, where those that stay go) over all; they are a list afterwards if they fit.
    template <class Body> void each(Body body) {
        T* to = list;
        if (listed) {
            body(list, count, to);
        } else {
            listed = true;
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                group.load(b);
                add(group.scores, group.end(b) - group.begin(b), to, body);
            }
        }
        count = to - list;
    }
    template <class Body> void add(const T* z, std::int64_t n, T*& to, Body body) {
        listed = listed && to - list + n <= capacity;
        T* spilt = scratch(kWeights).get<T>(kBlock + kSlack);
        body(z, n, listed ? to : spilt);
    }
};

struct Found {  // what a row's results are made of
    double a = 0;
    Twofold at;             // the root, where there is one
    State limit;            // else the state that says what the row is: of infinities, empty, with a NaN
    bool ordinary = false;
    double others = -1;  // 1 - p of the class, where that is in the support
};

template <class T, int Size> void gather_rows(Group<T, Size>& group, Candidates<T, Size>* rows, Found* found) {
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
            const double far = found[g].a * kReach > 1 ? 1 / found[g].a : kReach;
            const T cut = std::min(rounded_down<T>(next_below(static_cast<double>(top[g]) - far)), next_below(top[g]));
            rows[g].add(z, n, to[g], [&](const T* from, std::int64_t count, T*& end) {
                end = gather(from, count, cut, end, nan[g]);
            });
        }
    }
    for (int g = 0; g < group.count; ++g) {
        rows[g].count = to[g] - rows[g].list;
        State& s = found[g].limit;
        s.m = static_cast<double>(top[g]);
        if (nan[g] || !(found[g].a >= 0 && found[g].a < kInf)) {
            s.r = kNaN;
        } else if (top[g] == std::numeric_limits<T>::infinity()) {
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

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sparse
