// Which instruction set serves, and how many threads.
#pragma once

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "compiled.hpp"

namespace softargmax {

struct Isa {
    const char* name;  // what SOFTARGMAX_ISA says
    bool usable;
};

// Those that were compiled, the best first.
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

// The place of the best usable one, or of the one that SOFTARGMAX_ISA names. Throws std::invalid_argument with a
// sentence for the user.
inline std::size_t chosen_isa() {
    static const std::size_t chosen = [] {
        const char* asked = std::getenv("SOFTARGMAX_ISA");
        const std::string name = asked ? asked : "";
        std::string usable;
        for (std::size_t i = 0; i < isas().size(); ++i) {
            if (!isas()[i].usable) continue;
            if (name.empty() || name == isas()[i].name) return i;
            usable += (usable.empty() ? "" : ", ") + std::string(isas()[i].name);
        }
        throw std::invalid_argument("SOFTARGMAX_ISA: expected one of " + usable + " on this processor, got " + name);
    }();
    return chosen;
}

// ---- threads ----------------------------------------------------------------------------------------------------

inline int& asked_threads() {
    static int threads = 0;  // 0: what OpenMP says (OMP_NUM_THREADS, torch.set_num_threads)
    return threads;
}
// A forked child has no pool of its own yet believes in its parent's: OpenMP would wait for threads that are not there.
// It runs serially.
inline bool& forked() {
    static bool value = false;
    return value;
}
// OpenMP ends the process where it cannot have the threads it is asked for.
inline int most_threads() { return std::max(64, 4 * omp_get_num_procs()); }
inline int threads_now() {
    if (forked()) return 1;
    return asked_threads() > 0 ? std::min(asked_threads(), most_threads()) : omp_get_max_threads();
}
inline void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] { forked() = true; });
}

// ---- stores -----------------------------------------------------------------------------------------------------

// Whether results larger than the caches should be written past them. Measured on 512 x 32768 float32: Zen 5 2.6 ms
// against 3.2; Zen 4 9.3 against 5.1. So on Zen 5 (family 0x1A) alone.
inline bool streaming_pays() {
#if defined(__x86_64__)
    static const bool pays = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!__get_cpuid(0, &a, &b, &c, &d) || b != 0x68747541) return false;  // "Auth" of AuthenticAMD
        __get_cpuid(1, &a, &b, &c, &d);
        return ((a >> 8) & 0xF) + ((a >> 20) & 0xFF) == 0x1A;
    }();
    return pays;
#else
    return false;
#endif
}

}  // namespace softargmax
