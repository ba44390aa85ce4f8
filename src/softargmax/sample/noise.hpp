// From words to Gumbel noise, in double: w = w1 2^32 + w2, V = (w + 1/2) / 2^64, g = -log(-log(1 - V)).
#pragma once

#include "core/native/log.hpp"
#include "core/native/philox.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

constexpr int kLanes = Pack<double>::kLanes;
// Noise lies between these: V is at least 2^-65 and at most 1 - 2^-65.
constexpr double kLeast = -3.82, kMost = 45.1;

// The noise of kLanes columns. 1 - V = (not w + 1/2) / 2^64 is an exact pair, and the logarithm of a pair near 1 keeps
// its digits: the error is that of rounding, in both tails (near g = 0 it is 2^-60).
SOFTARGMAX_INLINE Pack<double> gumbel(const std::uint32_t* w1, const std::uint32_t* w2) {
    using V = Pack<double>;
    double upper[kLanes], lower[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        upper[i] = static_cast<double>(~w1[i]);
        lower[i] = static_cast<double>(~w2[i]);
    }
    const V none = V::all(-0.0);
    const Two<V> log =
        log_pair(two_sum(V::load(upper) * V::all(0x1p-32), (V::load(lower) + V::all(0.5)) * V::all(0x1p-64)));
    const Two<V> g = log_pair(Two<V>{none - log.hi, none - log.lo});
    return none - (g.hi + g.lo);
}

// An upper bound of the noise from w1 alone, of 16 columns: -log(1 - V) >= V >= v / 2^31, v = w1 / 2 as a whole number,
// and log2 of a float is at least its bits as they are, / 2^23 - 127: the logarithm is above its chords. 0.06 too high
// at most on that account, for seven instructions. Rounding: below 1e-4.
SOFTARGMAX_INLINE Pack<float> noise_bound(const std::uint32_t* w1) {
    constexpr float ln2 = 0x1.62e430p-1f;
    std::int32_t bits[16];
    float v[16], bound[16];
    for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(static_cast<std::int32_t>(w1[i] >> 1));
    std::memcpy(bits, v, sizeof bits);
    for (int i = 0; i < 16; ++i) bound[i] = ln2 * (31 + 127) - (ln2 * 0x1p-23f) * static_cast<float>(bits[i]);
    return Pack<float>::load(bound);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
