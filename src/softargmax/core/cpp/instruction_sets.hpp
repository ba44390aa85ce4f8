// The instruction sets: which of them are compiled, which of them this processor has, and which one is in use. Kernels
// are functions that are compiled once for each instruction set.
//
//     SOFTARGMAX_KERNEL(room, run, const Args)
//
// declares softargmax::v4::room::run(const softargmax::room::Args&) and the same function for every other instruction
// set. It defines softargmax::room::run, which calls the function of the instruction set in use. A kernel's source file
// is compiled for one instruction set at a time and contains no dispatch.
#pragma once

#ifdef SOFTARGMAX_ISA_NAME

#define SOFTARGMAX_KERNEL(room, name, Args)           \
    namespace softargmax::SOFTARGMAX_ISA_NAME::room { \
    using namespace softargmax::room;                 \
    void name(Args& args);                            \
    }

#else

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "compiled.hpp"

namespace softargmax {

struct Isa {
    const char* name;  // the name that SOFTARGMAX_ISA accepts
    bool usable;
};

// The compiled instruction sets, starting with the best.
inline const std::vector<Isa>& isas() {
    static const std::vector<Isa> table = [] {
        const auto isa = [](const std::string& compiled) -> Isa {
#if defined(__x86_64__)
            __builtin_cpu_init();
            if (compiled == "v4") return {"x86-64-v4", __builtin_cpu_supports("x86-64-v4") != 0};
            if (compiled == "v3") return {"x86-64-v3", __builtin_cpu_supports("x86-64-v3") != 0};
#endif
            return {compiled == "neon" ? "neon" : "baseline", true};
        };
#define SOFTARGMAX_NAMED(name, make) make(#name),
        return std::vector<Isa>{SOFTARGMAX_EACH_ISA(SOFTARGMAX_NAMED, isa)};
#undef SOFTARGMAX_NAMED
    }();
    return table;
}

// The index of the best usable instruction set, or of the one that SOFTARGMAX_ISA names. Throws std::invalid_argument
// with a message for the user.
inline std::size_t chosen_isa() {
    static const std::size_t chosen = [] {
        const char* requested = std::getenv("SOFTARGMAX_ISA");
        const std::string name = requested ? requested : "";
        std::string usable;
        for (std::size_t i = 0; i < isas().size(); ++i) {
            if (!isas()[i].usable) continue;
            if (name.empty() || name == isas()[i].name) return i;
            usable += (usable.empty() ? "" : ", ") + std::string(isas()[i].name);
        }
        if (usable.empty()) throw std::invalid_argument("this build has no instruction set of this processor");
        throw std::invalid_argument("SOFTARGMAX_ISA: expected one of " + usable + " on this processor, got " + name);
    }();
    return chosen;
}

// ---- stores -----------------------------------------------------------------------------------------------------

// The smallest result, in bytes, that should be written past the caches. This pays on Zen 4 (family 0x19 with AVX-512)
// and Zen 5 (family 0x1A), and on Intel processors with AVX512-FP16 (Sapphire Rapids and later). The limit is higher on
// Intel, because the caches are larger. For 512 x 32768 float32 on two threads, plain stores take 7.5 ms on Zen 4,
// 3.2 ms on Zen 5 and 5.6 ms on an Intel Xeon of family 6, model 167. Stores past the caches take 5.7, 2.6 and 4.7 ms.
// For 4096 x 1024 they take 1.2 ms in place of 1.5 on Zen 4, and 1.4 in place of 1.0 on the Xeon. On Zen 5 both take
// equally long for this shape, but stores past the caches are faster if other processes use the last-level cache. The
// limits are no fixed part of this cache, which has 32 MiB on the Zen 4 and 480 MiB on the Xeon.
inline std::int64_t streaming_bytes() {
    constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
#if defined(__x86_64__)
    static const std::int64_t bytes = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!__get_cpuid(0, &a, &b, &c, &d)) return never;
        const bool amd = b == 0x68747541, intel = b == 0x756E6547;  // "Auth" of AuthenticAMD, "Genu" of GenuineIntel
        __get_cpuid(1, &a, &b, &c, &d);
        const unsigned family = ((a >> 8) & 0xF) + ((a >> 20) & 0xFF);
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return never;
        const bool avx512 = ((b >> 16) & 1) != 0, fp16 = ((d >> 23) & 1) != 0;
        if (amd && (family == 0x1A || (family == 0x19 && avx512))) return std::int64_t{16} << 20;
        return intel && fp16 ? std::int64_t{32} << 20 : never;
    }();
    return bytes;
#else
    return never;
#endif
}

}  // namespace softargmax

#define SOFTARGMAX_DECLARE(isa, room, name, Args) \
    namespace softargmax::isa::room {             \
    using namespace softargmax::room;             \
    void name(Args& args);                        \
    }
#define SOFTARGMAX_ENTRY(isa, room, name) softargmax::isa::room::name,
#define SOFTARGMAX_KERNEL(room, name, Args)                                                              \
    SOFTARGMAX_EACH_ISA(SOFTARGMAX_DECLARE, room, name, Args)                                            \
    namespace softargmax::room {                                                                         \
    inline void name(Args& args) {                                                                       \
        static constexpr void (*kernels[])(Args&) = {SOFTARGMAX_EACH_ISA(SOFTARGMAX_ENTRY, room, name)}; \
        kernels[chosen_isa()](args);                                                                     \
    }                                                                                                    \
    }

#endif
