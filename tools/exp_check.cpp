// Checks the exp of the kernels on every float32 of its domain, of both signs. Prints a line of JSON per beta and sign.
//
// The kernels compute 2^k exp(beta x), where k keeps the value within the normal numbers. softmax later removes the
// factor 2^k exactly. This program compares the value of the kernels with 2^k times the C library's exp(beta x)
// in double. exp_check.py compiles and runs the program for each instruction set, and compares the checksums of the
// bits.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "core/cpp/math.hpp"

namespace {

using namespace softargmax::SOFTARGMAX_ISA_NAME;

float float_of(std::uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}
std::uint32_t bits_of(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

struct Found {
    double worst = 0, sum = 0;
    float at = 0;
    std::uint64_t count = 0, bits = 0;  // bits: a checksum of all pairs of x and the kernel's value
    void add(float x, float actual, double truth) {
        int e;
        std::frexp(truth, &e);
        const double error = std::fabs(std::ldexp(static_cast<double>(actual) - truth, 24 - e));
        if (!(error <= worst)) {
            worst = error;
            at = x;
        }
        sum += error;
        ++count;
        bits += (bits_of(actual) + 1ULL) * (2ULL * bits_of(x) + 1ULL);
    }
    void add(const Found& other) {
        if (!(other.worst <= worst)) {
            worst = other.worst;
            at = other.at;
        }
        sum += other.sum;
        count += other.count;
        bits += other.bits;
    }
};

// Checks every float32 x of one sign with -104 <= beta x <= 88.73. Below -104, exp(beta x) is under half the smallest
// subnormal. Above 88.73, exp(beta x) is beyond the largest float32.
template <bool Unit> Found check(Scale beta, bool negative) {
    using V = Pack<float>;
    const int exponent = negative ? 62 : -62;
    const ScaleIn<float> scale(beta);
    const V magic = V::all(magic_of<float>(exponent));
    const double end = (negative ? 104.0 : 88.73) / beta.hi;
    const std::uint32_t sign = negative ? 0x80000000u : 0u;
    const auto last = static_cast<std::int64_t>(bits_of(static_cast<float>(end)));
    constexpr std::int64_t chunk = 1 << 20;
    Found all;
#pragma omp parallel
    {
        Found mine;
#pragma omp for schedule(dynamic)
        for (std::int64_t start = 0; start <= last; start += chunk) {
            for (std::int64_t u = start; u < start + chunk && u <= last; u += V::kLanes) {
                float x[V::kLanes], y[V::kLanes];
                for (int i = 0; i < V::kLanes; ++i) x[i] = float_of(static_cast<std::uint32_t>(u + i) | sign);
                exp_term<Unit>(V::load(x), scale, magic).value().store(y);
                for (int i = 0; i < V::kLanes && u + i <= last; ++i) {
                    const double d = x[i];
                    const double truth = std::ldexp(std::exp(d * beta.hi) * (1.0 + d * beta.lo), exponent);
                    mine.add(x[i], y[i], truth);
                }
            }
        }
#pragma omp critical
        all.add(mine);
    }
    return all;
}

template <bool Unit> void report(const char* name, Scale beta) {
    for (bool negative : {true, false}) {
        const Found f = check<Unit>(beta, negative);
        std::printf(
            "{\"beta\": \"%s\", \"sign\": \"%s\", \"values\": %llu, \"max_ulp\": %.4f, \"mean_ulp\": %.4f, "
            "\"worst_at\": %.9g, \"bits\": \"%016llx\"}\n",
            name, negative ? "-" : "+", static_cast<unsigned long long>(f.count), f.worst,
            f.sum / static_cast<double>(f.count), static_cast<double>(f.at), static_cast<unsigned long long>(f.bits));
        std::fflush(stdout);
    }
}

}  // namespace

int main() {
    report<true>("1", {1.0, 0.0});
    report<false>("1 / 3.7", {0x1.14c1bacf914c1p-2, 0x1.fbe2d40e363acp-56});
    report<false>("ln 2", {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56});
    return 0;
}
