// Threads: calls of a function on several threads, and the number of threads. threads.cpp has the pool of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softargmax {

// The number of threads that set_num_threads requested; 0 for the default.
int& requested_threads();
// The default number of threads. If torch has loaded OpenMP, it is OpenMP's, which torch.set_num_threads sets.
// Otherwise it is OMP_NUM_THREADS, or the number of processors that this process may run on.
int default_threads();
// The largest number of threads of a call.
int most_threads();
// Uses the threads of GCC's OpenMP from now on, if another library has loaded it. Returns true if it has.
bool find_openmp();
// Creates the pool, and arranges that every forked child creates its own. It is called once.
void start_threads();

// The number of scores from which a call uses several threads. Waking a thread takes 5 to 50 us, and a kernel takes
// about 10 us for 2^15 scores.
constexpr std::int64_t kParallel = 1 << 15;

// Calls work(context) on the calling thread and on up to `threads` - 1 other threads, those that are free. `work` must
// return when no work is left. The function returns when all of these calls have returned.
void run_on_threads(int threads, void (*work)(void*), void* context);
// Calls work(context) on exactly `threads` threads at the same time, for threads that wait for each other. It starts
// new threads, which takes 20 us for each.
void run_together(int threads, void (*work)(void*), void* context);

// Sets rounding to nearest, and keeps subnormals. The caller may have set other modes, for example by
// torch.set_flush_denormal.
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

// Calls body() on several threads by `run`, one of the two functions above. If a body throws, for example because there
// is no memory for a tile, the exception is rethrown here after all bodies have returned.
template <class Body> void on_threads(decltype(run_on_threads)& run, int threads, const Body& body) {
    struct Call {
        const Body& body;
        std::atomic<bool> failed{false};
        std::exception_ptr failure{};
    } call{body};
    run(threads, [](void* context) {
        Call& to = *static_cast<Call*>(context);
        const FloatEnvironment environment;
        try {
            to.body();
        } catch (...) {
            if (!to.failed.exchange(true)) to.failure = std::current_exception();
        }
    }, &call);
    if (call.failure) std::rethrow_exception(call.failure);
}

// Calls body(i, team) on each thread i of a team of `threads` threads, all at the same time.
template <class Body> void on_team(int threads, const Body& body) {
    if (threads <= 1) return body(0, 1);  // the kernel has already set its floating-point environment
    std::atomic<int> next{0};
    on_threads(run_together, threads, [&] { body(next++, threads); });
}

// The share of one thread of a team: its pieces from `next` to `end`.
struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};
constexpr int kPieces = 8;  // number of pieces in a thread's share

// Calls body(begin, end) for disjoint ranges that cover 0 to n. A thread takes the pieces of its own share in order, so
// that its data stay in its cache. Then it takes pieces of other shares, so that a thread that loses its core delays
// only one piece.
template <class Body> void parallel_for(int threads, std::int64_t n, const Body& body) {
    if (threads <= 1 || n <= 1) return body(std::int64_t{0}, n);
    const int wanted = n < threads ? static_cast<int>(n) : threads;
    const std::int64_t pieces = std::min<std::int64_t>(n, std::int64_t{kPieces} * wanted);
    const std::unique_ptr<Share[]> shares(new Share[static_cast<std::size_t>(wanted)]);
    for (int i = 0; i < wanted; ++i) {
        shares[i].next = pieces * i / wanted;
        shares[i].end = pieces * (i + 1) / wanted;
    }
    std::atomic<int> joined{0};
    on_threads(run_on_threads, wanted, [&] {
        const int own = joined++;
        for (int k = 0; k < wanted; ++k) {
            Share& share = shares[(own + k) % wanted];
            for (std::int64_t piece; (piece = share.next++) < share.end;)
                body(n * piece / pieces, n * (piece + 1) / pieces);
        }
    });
}

// Calls body(i) for every i below n, each on the next free thread. This suits calls of unequal length.
template <class Body> void parallel_each(int threads, std::int64_t n, const Body& body) {
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
        for (std::int64_t i; (i = next++) < n;) body(i);
    };
    if (threads <= 1 || n <= 1) return work();
    on_threads(run_on_threads, static_cast<int>(std::min<std::int64_t>(n, threads)), work);
}

}  // namespace softargmax
