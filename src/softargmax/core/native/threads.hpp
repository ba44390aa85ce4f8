// Threads from OpenMP's pool (torch's CPU wheel brings the same library under the same name, so both share one pool),
// asked for by num_threads clauses, never by changing anybody's setting.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softargmax {

// Inside: rounding to nearest, subnormals kept, whatever the caller (torch.set_flush_denormal, say) has set.
class FloatEnvironment {
#if defined(__x86_64__)
    unsigned saved_ = _mm_getcsr();

  public:
    FloatEnvironment() { _mm_setcsr(0x1F80); }
    ~FloatEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
    std::uint64_t saved_;

  public:
    FloatEnvironment() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
    }
    ~FloatEnvironment() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  public:
    FloatEnvironment() {}
#endif
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

// body(begin, end) over disjoint ranges that cover 0 to n. What a body throws (there may be no memory for a tile) is
// thrown here, when all are done: OpenMP would end the process.
template <class Body> void parallel_for(int threads, std::int64_t n, const Body& body) {
    if (threads <= 1 || n <= 1) return body(std::int64_t{0}, n);  // the caller has set its own environment
    const int wanted = n < threads ? static_cast<int>(n) : threads;
    std::atomic<bool> failed{false};
    std::exception_ptr failure;
#pragma omp parallel num_threads(wanted)
    {
        const FloatEnvironment environment;
        const std::int64_t team = omp_get_num_threads(), i = omp_get_thread_num();
        try {
            body(n * i / team, n * (i + 1) / team);
        } catch (...) {
            if (!failed.exchange(true)) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

// body(i) for every i below n, each given to the thread that is free: for work of unequal size.
template <class Body> void parallel_each(int threads, std::int64_t n, const Body& body) {
    std::atomic<std::int64_t> next{0};
    parallel_for(threads, std::min<std::int64_t>(n, threads), [&](std::int64_t, std::int64_t) {
        for (std::int64_t i; (i = next++) < n;) body(i);
    });
}

}  // namespace softargmax
