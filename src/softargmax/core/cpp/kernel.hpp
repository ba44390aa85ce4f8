// Kernels: functions that are compiled once per instruction set, their arguments (plain data without Python objects and
// vector types), and the threads that they run on.
//
//     SOFTARGMAX_KERNEL(room, run, const Args)
//
// declares softargmax::v4::room::run(const softargmax::room::Args&) and the same function for every other instruction
// set. It defines softargmax::room::run, which calls the function of the instruction set in use. A kernel's source file
// is compiled for one instruction set at a time and contains no dispatch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#ifndef SOFTARGMAX_ISA_NAME
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "compiled.hpp"
#endif

namespace softargmax {

// ---- arguments ------------------------------------------------------------------------------------------------

enum class Type : std::uint8_t { f16, bf16, f32, f64, boolean, i64 };
constexpr int kTypeBytes[] = {2, 2, 4, 8, 1, 8};

// Scores per block: 16 KiB of float32, half of the smallest first-level cache. Rows are cut at multiples of it.
constexpr std::int64_t kBlock = 4096;

constexpr int kMaxDims = 64;  // NumPy's limit

struct Shape {
    int dims = 0;
    std::int64_t size[kMaxDims];
    std::int64_t total = 1;
};

struct Operand {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t row[kMaxDims];  // strides in elements, and 0 where the operand is broadcast
    std::int64_t col[kMaxDims];
    explicit operator bool() const { return data != nullptr; }
};

// `rows` rows of `cols` scores. Every operand is a pointer with one stride per dimension of the rows and of the
// columns. So a kernel has the same code for all axes, tuples of axes and strides.
struct RowArgs {
    Shape rows, cols;
    // Segments: there are `segments` times `heads` rows. Segment s has the scores from offsets[s] to offsets[s + 1].
    const std::int64_t* offsets = nullptr;
    std::int64_t segments = 0, heads = 1;
    Operand z, other, where, weights, out;
    Operand hi, lo;  // beta = hi + lo, in double
    int threads = 1;
    bool streaming = false;  // true if non-temporal stores are faster for a result of this size
};

// ---- threads --------------------------------------------------------------------------------------------------
//
// threads.cpp has the pool of threads.

// The number of scores from which a call uses several threads. Waking a thread takes 5 to 50 us, and a kernel takes about
// 10 us for 2^15 scores.
constexpr std::int64_t kParallel = 1 << 15;

// Calls work(context) on the calling thread and on up to `threads` - 1 other threads, those that are free. `work` must
// return when no work is left. The function returns when all of these calls have returned.
void run_on_threads(int threads, void (*work)(void*), void* context);
// Calls work(context) on exactly `threads` threads at the same time, for threads that wait for each other. It starts new
// threads, which takes 20 us for each.
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

#ifdef SOFTARGMAX_ISA_NAME

#define SOFTARGMAX_KERNEL(room, name, Args)           \
    namespace softargmax::SOFTARGMAX_ISA_NAME::room { \
    using namespace softargmax::room;                 \
    void name(Args& args);                            \
    }

#else

// ---- dispatch by instruction set ------------------------------------------------------------------------------

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
        throw std::invalid_argument("SOFTARGMAX_ISA: expected one of " + usable + " on this processor, got " + name);
    }();
    return chosen;
}

// ---- the number of threads ------------------------------------------------------------------------------------

// The number of threads that set_num_threads requested; 0 for the default.
int& requested_threads();
// The default number of threads. If torch has loaded OpenMP, it is OpenMP's, which torch.set_num_threads sets. Otherwise
// it is OMP_NUM_THREADS, or the number of processors that this process may run on.
int default_threads();
// The largest number of threads of a call.
int most_threads();
// Uses the threads of GCC's OpenMP from now on, if another library has loaded it. Returns true if it has.
bool find_openmp();
// Creates the pool, and arranges that every forked child creates its own. It is called once.
void start_threads();

// ---- stores -----------------------------------------------------------------------------------------------------

// True if results larger than the caches should be written past the caches. This is the case on Zen 5 (family 0x1A)
// only. For 512 x 32768 float32 on Zen 5, plain stores take 3.2 ms and stores past the caches 2.6 ms. On Zen 4 they
// take 5.1 ms and 9.3 ms.
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

// ---- kernels of core ------------------------------------------------------------------------------------------

namespace softargmax::core {

// A matrix product: out = A B + bias, or out += A B. `out` is float64 if A or B is float64, and float32 otherwise. The
// rows of `out` are contiguous.
struct Factor2D {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t row = 0, col = 0;  // strides in elements
};
struct ProductArgs {
    Factor2D a, b;
    std::int64_t rows = 0, cols = 0, depth = 0;
    char* out = nullptr;
    std::int64_t pitch = 0;  // distance from one row of `out` to the next, in elements
    const char* bias = nullptr;  // `cols` numbers of out's type
    bool adds = false;
    bool sparse = false;  // skips tiles of zeros; use if A has many zeros and B is finite
    int threads = 1;
};

constexpr int kMultiplyAdds = 16;  // per round
struct MultiplyAddsArgs {
    std::int64_t rounds = 0;
    double sum = 0;  // written
};

}  // namespace softargmax::core

SOFTARGMAX_KERNEL(core, product, const ProductArgs)
SOFTARGMAX_KERNEL(core, multiply_adds, MultiplyAddsArgs)
