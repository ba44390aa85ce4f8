// A stable radix sort of indices, from the lowest digit to the highest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace softargmax::output {

// Sorts the positions p from 0 to `count` - 1 by index[p], stably. The numbers in `index` are from 0 to `most`, which
// is below 2^31. `order` receives the sorted positions, and `rows` the distinct numbers in increasing order. starts[i]
// receives the place in `order` where the positions of the number rows[i] begin. Returns m, the number of distinct
// numbers, and sets starts[m] to `count`. `order` and `rows` have room for `count` entries, and `starts` for one more.
inline std::int64_t sort_places(const std::int64_t* index, std::int64_t count, std::int64_t most, std::int64_t* order,
                                std::int64_t* rows, std::int64_t* starts) {
    constexpr int kMostBits = 11;  // at most this many bits per digit, so that the counts stay in the L1 cache
    int bits = 1;
    while (most >> bits) ++bits;
    const int passes = (bits + kMostBits - 1) / kMostBits, digit = (bits + passes - 1) / passes;
    const std::uint64_t mask = (std::uint64_t{1} << digit) - 1;
    const auto size = static_cast<std::size_t>(count);
    std::vector<std::uint64_t> items(size), next(size);  // upper 32 bits: the number; lower 32 bits: its position
    std::vector<std::uint32_t> ends(static_cast<std::size_t>(passes) << digit);
    for (std::size_t p = 0; p < size; ++p) {
        const auto number = static_cast<std::uint64_t>(index[p]);
        items[p] = number << 32 | p;
        for (int pass = 0; pass < passes; ++pass)
            ++ends[(static_cast<std::size_t>(pass) << digit) + ((number >> (pass * digit)) & mask)];
    }
    for (int pass = 0; pass < passes; ++pass) {
        std::uint32_t* const at = ends.data() + (static_cast<std::size_t>(pass) << digit);
        std::uint32_t sum = 0;
        for (std::size_t d = 0; d <= mask; ++d) {
            const std::uint32_t here = at[d];
            at[d] = sum;
            sum += here;
        }
        for (const std::uint64_t item : items) next[at[(item >> (32 + pass * digit)) & mask]++] = item;
        items.swap(next);
    }
    std::int64_t found = 0;
    for (std::size_t p = 0; p < size; ++p) {
        const auto number = static_cast<std::int64_t>(items[p] >> 32);
        order[p] = static_cast<std::int64_t>(items[p] & 0xFFFFFFFF);
        if (p == 0 || number != rows[found - 1]) {
            starts[found] = static_cast<std::int64_t>(p);
            rows[found++] = number;
        }
    }
    starts[found] = count;
    return found;
}

}  // namespace softargmax::output
