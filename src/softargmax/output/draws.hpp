// Random words (bits.py), one block of Philox to a position, and draws from an alias table (alias.py) by them: 64 bits
// choose the bucket and 53 the side.
#pragma once

#include "core/native/philox.hpp"
#include "output/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::output {

constexpr std::int64_t kAtOnce = kChunk / 4;

// The draws kAtOnce begin .. kAtOnce end.
inline void draw(const DrawsArgs& args, std::int64_t begin, std::int64_t end) {
    const Philox philox(args.seed, args.stream, args.purpose);
    const auto n = static_cast<std::uint64_t>(args.classes);
    for (std::int64_t i = begin * kAtOnce; i < end * kAtOnce; i += kAtOnce) {
        std::uint32_t words[kChunk];
        philox.adjacent(4 * (args.first + i), 0, words);
        for (std::int64_t j = 0; j < kAtOnce && i + j < args.draws; ++j) {
            if (!args.threshold) {
                for (std::int64_t w = 0; w < 4; ++w) args.out[w * args.draws + i + j] = words[4 * j + w];
                continue;
            }
            const std::uint64_t high = words[4 * j], low = words[4 * j + 1], side = words[4 * j + 2];
            const auto bucket = static_cast<std::int64_t>((high * n + (low * n >> 32)) >> 32);
            const double u = static_cast<double>(side << 21 | words[4 * j + 3] >> 11) * 0x1p-53;
            args.out[i + j] = u < args.threshold[bucket] ? bucket : args.alias[bucket];
        }
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::output
