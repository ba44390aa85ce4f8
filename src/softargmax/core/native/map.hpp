// Element by element: from rows of scores to a row of results.
#pragma once

#include "fold.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// Where results go: `next` is fetched alongside (512 x 32768 on Zen 5: 3.2 ms with, 3.8 without); `streaming` says to
// write past the caches (2.6 ms). Such stores are ordered before what others read next by the locked instructions at
// the end of a team, and of Python's lock.
template <class T> struct Target {
    T* out;
    Next next;
    bool streaming;
};

// target.out[i] = f(z[i]), a pack at a time.
template <class T, class F> SOFTARGMAX_INLINE void map(const T* z, std::int64_t n, const Target<T>& to, F f) {
    using V = Pack<T>;
    constexpr int L = V::kLanes;
    std::int64_t i = 0;
    if (to.streaming && reinterpret_cast<std::uintptr_t>(to.out) % 64 == 0) {
        for (; i + L <= n; i += L) {
            to.next.fetch(i);
            f(V::load(z + i)).stream(to.out + i);
        }
    } else {
        for (; i + L <= n; i += L) {
            to.next.fetch(i);
            f(V::load(z + i)).store(to.out + i);
        }
    }
    if (i == n) return;
    f(V::load_part(z + i, n - i, 0)).store_part(to.out + i, n - i);
}

// The same of two operands.
template <class T, class F> SOFTARGMAX_INLINE void map(const T* p, const T* g, std::int64_t n, const Target<T>& to,
                                                       F f) {
    constexpr int L = Pack<T>::kLanes;
    const std::int64_t whole = n - n % L;
    map(p, whole, to, [&, i = std::int64_t{0}](Pack<T> x) mutable SOFTARGMAX_LAMBDA {
        const Pack<T> y = Pack<T>::load(g + i);
        i += L;
        return f(x, y);
    });
    if (whole == n) return;
    const std::int64_t rest = n - whole;
    f(Pack<T>::load_part(p + whole, rest, 0), Pack<T>::load_part(g + whole, rest, 0)).store_part(to.out + whole, rest);
}

// x = hi + lo in the vectors of type T.
template <class T> struct Split {
    Pack<T> hi, lo;
    explicit SOFTARGMAX_INLINE Split(double x, double rest = 0)
        : hi(Pack<T>::all(static_cast<T>(x))),
          lo(Pack<T>::all(static_cast<T>((x - static_cast<double>(static_cast<T>(x))) + rest))) {}
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
