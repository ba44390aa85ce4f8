// Threads: calls of a function on several threads, and the number of threads. threads.cpp has the pool of threads.
#pragma once

#include <atomic>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softargmax {

// The number of threads that set_num_threads requested; 0 for the default.
std::atomic<int>& requested_threads();
// The value of OMP_NUM_THREADS, or 0 if it is not a number above 0.
int omp_num_threads();
// The default number of threads in a process without torch: OMP_NUM_THREADS, or the number of processors that this
// process may run on.
int default_threads();
// The largest number of threads of a call.
int most_threads();
// If another library has loaded GCC's OpenMP, uses its threads from now on.
void find_openmp();
// Creates the pool, and arranges that every forked child creates its own pool. A second call has no effect.
void start_threads();

// The smallest number of scores for which a call uses several threads. A kernel takes about as long for them as waking
// a thread takes.
constexpr std::int64_t kParallel = 1 << 15;
// The smallest number of multiply-adds for which a matrix product uses several threads. Their product also takes about
// as long.
constexpr std::int64_t kParallelProduct = 1 << 19;
// The number of pieces into which a thread's share of the work is cut. A thread that loses its core delays one piece.
constexpr std::int64_t kPiecesPerThread = 8;

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

// The body of a loop, called on ranges [begin, end) through a function pointer. So the functions that take a Work
// are not templates, and the code of each body exists only once.
struct Work {
    void (*call)(const void* body, std::int64_t begin, std::int64_t end);
    const void* body;
    template <class Body> static Work of(const Body& body) {
        return {[](const void* b, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(b))(begin, end); },
                &body};
    }
    void operator()(std::int64_t begin, std::int64_t end) const { call(body, begin, end); }
};
// These three functions return when all calls of `work` have returned. If a call throws, for example because there is
// no memory for a tile, the exception is rethrown.
void share_ranges(int threads, std::int64_t n, Work work);
void share_indices(int threads, std::int64_t n, Work work);
void run_together(int threads, Work work);

// Calls body(begin, end) for disjoint ranges that cover 0 to n. A thread takes the pieces of its own share in order, so
// that its data stay in its cache. Then it takes pieces of other shares, so that a thread that loses its core delays
// only one piece.
template <class Body> void parallel_for(int threads, std::int64_t n, const Body& body) {
    share_ranges(threads, n, Work::of(body));
}
// Calls body(i) for every i below n, each on the next free thread. This suits calls of unequal length.
template <class Body> void parallel_each(int threads, std::int64_t n, const Body& body) {
    share_indices(threads, n, Work::of([&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) body(i);
    }));
}
// Calls body(i, team) on each thread i of a team, all at the same time. `team` is the number of threads in the team:
// `threads`, or fewer if the system refuses to start them.
template <class Body> void on_team(int threads, const Body& body) {
    run_together(threads, Work::of([&](std::int64_t i, std::int64_t team) {
        body(static_cast<int>(i), static_cast<int>(team));
    }));
}

}  // namespace softargmax
