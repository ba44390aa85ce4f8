// Prints one line per test case: a hash of the bits of the states and lse of many kinds of rows. test_arm.py compiles
// this program for each instruction set and compares the lines. Rows are computed from integers, so they do not depend
// on a library's exp or random numbers.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "core/cpp/state.hpp"

namespace {

using namespace softargmax;
using namespace softargmax::SOFTARGMAX_ISA_NAME;

struct Numbers {  // xorshift64*
    std::uint64_t state;
    double next() {  // in [-1, 1)
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>(static_cast<std::int64_t>(state * 0x2545F4914F6CDD1DULL) >> 11) * 0x1p-52;
    }
};

struct Hash {  // FNV-1a over the bits of doubles
    std::uint64_t value = 0xCBF29CE484222325ULL;
    void add(double x) {
        std::uint64_t u;
        if (x != x) x = std::numeric_limits<double>::quiet_NaN();  // the payload of a NaN is unspecified
        std::memcpy(&u, &x, sizeof u);
        if (x != x) u = 0x7FF8000000000000ULL;
        for (int i = 0; i < 8; ++i) value = (value ^ ((u >> (8 * i)) & 0xFF)) * 0x100000001B3ULL;
    }
};

template <class T> void rows(const char* type) {
    const double spreads[] = {0.0, 1.0, 10.0, 40.0, 87.0, 1e4, 1e30};
    const Scale betas[] = {{1.0, 0.0}, {0.1, -5.5511151231257827e-18}, {3.7, 1e-17}, {1e-3, 2e-20}};
    const std::int64_t lengths[] = {1, 2, 7, 16, 63, 64, 65, 1000, 4095, 4096, 4097, 10000};
    std::vector<T> z(10000);
    for (double spread : spreads) {
        for (const Scale& beta : betas) {
            Hash hash;
            for (std::int64_t n : lengths) {
                for (int kind = 0; kind < 5; ++kind) {
                    Numbers numbers{0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(n * 8 + kind)};
                    for (std::int64_t i = 0; i < n; ++i)
                        z[static_cast<std::size_t>(i)] = static_cast<T>(spread * numbers.next());
                    const auto at = [&](std::int64_t i) -> T& { return z[static_cast<std::size_t>(i)]; };
                    if (kind == 1) at(n / 2) = -std::numeric_limits<T>::infinity();
                    if (kind == 2) at(n / 3) = std::numeric_limits<T>::infinity();
                    if (kind == 3) at(n - 1) = std::numeric_limits<T>::quiet_NaN();
                    if (kind == 4) at(n / 2) = static_cast<T>(4 * spread + 40);  // a confident row
                    State state;
                    for (std::int64_t i = 0; i < n; i += kBlock) {
                        const State piece = fold<T>(z.data() + i, n - i < kBlock ? n - i : kBlock, beta, z.data() + i);
                        state = merge(state, piece, beta).state;
                    }
                    const double lse = finalize(state, beta);
                    for (double x : {state.m, state.r, lse, smooth_maximum(state, beta)}) hash.add(x);
                }
            }
            std::printf("%s spread %g beta %g: %016llx\n", type, spread, beta.hi,
                        static_cast<unsigned long long>(hash.value));
        }
    }
}

}  // namespace

int main() {
    rows<float>("float32");
    rows<double>("float64");
    return 0;
}
