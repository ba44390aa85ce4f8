// The threads that kernels run on. If torch has loaded OpenMP, they are OpenMP's, and otherwise those of a pool of our
// own.
//
// After a call, OpenMP's threads spin for some milliseconds. In this time threads of our own would have to share the
// cores with them. But OpenMP waits for every thread of its team. If another process uses a core, a short call waits
// until the system gives the core to OpenMP's thread, often for ticks of 4 ms. Our own pool only waits for threads that
// have started to work. So if regions have waited for late threads, the callers of the next ones start alone, and after
// long waits they run on our own pool. Eight processes with two threads each then finish 0.86 of the calls that they
// finish with one thread each (two cores of a Zen 4). With a pool that took over for 50 ms after a late thread they
// finished 0.73 to 0.81.
#include "core/cpp/threads.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace softargmax {
namespace {

// Work for several threads, in the memory of the calling thread. Each thread calls `work(context)`, which returns when
// no work is left.
struct Job {
    void (*work)(void*);
    void* context;
    int most;  // the number of threads of the pool that may work on it
    std::atomic<int> running{0};  // the number of threads of the pool that are working on it
};

using Clock = std::chrono::steady_clock;

// Waits until done() is true, at most for kSpin. Returns done(). Waking a sleeping thread takes about as long as kSpin.
constexpr std::chrono::microseconds kSpin{30};
template <class Done> bool spin(const Done& done) {
    const auto end = Clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
#if defined(__x86_64__)
            _mm_pause();
#elif defined(__aarch64__)
            asm volatile("yield");
#endif
        }
    } while (Clock::now() < end);
    return done();
}

// Locks a mutex that no thread holds for long. It spins first, because std::mutex::lock would put this thread to sleep
// if the mutex is held.
std::unique_lock<std::mutex> locked(std::mutex& mutex) {
    std::unique_lock lock(mutex, std::defer_lock);
    if (!spin([&] { return lock.try_lock(); })) lock.lock();
    return lock;
}

// Waits until done() is true. It calls pthread_cond_wait, because std::condition_variable::wait has a new symbol
// version since GCC 12 (GLIBCXX_3.4.30): a module that calls the new version does not load with an older libstdc++.
template <class Done> void wait(std::condition_variable& woken, std::unique_lock<std::mutex>& lock, const Done& done) {
    while (!done()) pthread_cond_wait(woken.native_handle(), lock.mutex()->native_handle());
}

// Starts `count` threads by calls of start(), or fewer if the system refuses. The new threads block all signals
// except those that report an error of the thread itself. So the program's own threads handle all other signals.
template <class Start> void start_up_to(int count, const Start& start) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int error : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, error);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    try {
        for (int i = 0; i < count; ++i) start();
    } catch (...) {}
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

class ThreadPool {
    std::mutex mutex_;  // protects all members but posts_
    std::condition_variable posted_, finished_;
    std::vector<Job*> jobs_;  // the jobs that threads may join
    std::atomic<std::uint64_t> posts_{0};  // the number of jobs so far
    int threads_ = 0, sleeping_ = 0;

    void close(const Job* job) { jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end()); }

    void grow(int wanted) {
        if (threads_ >= wanted) return;
        start_up_to(wanted - threads_, [this] {
            std::thread([this] { serve(); }).detach();
            ++threads_;
        });
    }

    Job* next_job() const {
        const auto job = std::find_if(jobs_.begin(), jobs_.end(), [](Job* j) { return j->running < j->most; });
        return job == jobs_.end() ? nullptr : *job;
    }
    [[noreturn]] void serve() {
        for (;;) {
            const std::uint64_t seen = posts_;
            auto lock = locked(mutex_);
            if (Job* job = next_job()) {
                ++job->running;
                const bool more = sleeping_ > 0 && next_job();
                lock.unlock();
                if (more) posted_.notify_one();  // each thread wakes the next, so the caller wakes only one
                job->work(job->context);
                leave(*job);
                continue;
            }
            lock.unlock();
            if (!spin([&] { return posts_ != seen; })) sleep();
        }
    }
    void leave(Job& job) {
        const auto lock = locked(mutex_);
        close(&job);  // no work is left
        if (--job.running == 0) finished_.notify_all();  // from here on the job may no longer exist
    }
    void sleep() {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        wait(posted_, lock, [&] { return next_job(); });
        --sleeping_;
    }

  public:
    void run(Job& job) {
        auto lock = locked(mutex_);
        grow(job.most);
        jobs_.push_back(&job);
        const bool sleeper = sleeping_ > 0;
        lock.unlock();
        ++posts_;
        if (sleeper) posted_.notify_one();
        job.work(job.context);
        lock = locked(mutex_);
        close(&job);
        lock.unlock();
        const auto is_done = [&] { return job.running == 0; };
        if (spin(is_done)) return;
        lock.lock();
        wait(finished_, lock, is_done);
    }
};

// The pool is never deleted, because its threads run until the process ends. A forked child has none of its parent's
// threads, so it creates a new pool. It does not use OpenMP, which would wait for the missing threads forever.
ThreadPool* pool = nullptr;
bool is_forked = false;

// The number of processors that this process may run on.
int processors() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // not Linux, or over 1024 processors
}

// The function of GCC's OpenMP that calls work(context) on several threads. Null until `find_openmp` has found it.
using Region = void (*)(void (*work)(void*), void* context, unsigned threads, unsigned flags);
std::atomic<Region> openmp{nullptr};

// How long a region is expected to wait for late threads: an average over the regions before it. Regions are counted,
// and not time: torch's calls between two of ours take any time. Callers may overwrite each other's notes.
class ExpectedWait {
    static constexpr int kRegions = 8;  // over which the average is taken, roughly
    // A longer wait counts as this: a process that was stopped once says nothing about the next regions.
    static constexpr std::chrono::milliseconds kMost{20};
    std::atomic<Clock::duration> wait_{Clock::duration::zero()};

  public:
    Clock::duration get() const { return wait_; }
    void note(Clock::duration waited) {
        const Clock::duration before = wait_;
        wait_ = before + (std::min<Clock::duration>(waited, kMost) - before) / kRegions;
    }
} expected_wait;

// Calls work(context) on the calling thread and on up to `threads` - 1 other threads, those that are free. If a wait of
// kLate is expected, they are not OpenMP's. A thread is late if the caller waits for it for longer than it has worked
// since `start`. (If calls of `work` are unequal, the last one may count as late, too.)
constexpr std::chrono::microseconds kLate{500};
void run_on_threads(Clock::time_point start, int threads, void (*work)(void*), void* context) {
    struct Call {
        void (*work)(void*);
        void* context;
        Clock::time_point start;
        std::thread::id caller = std::this_thread::get_id();
        Clock::duration worked{0};
    } call{work, context, start};
    Job job{[](void* of) {
        Call& to = *static_cast<Call*>(of);
        to.work(to.context);
        if (std::this_thread::get_id() == to.caller) to.worked = Clock::now() - to.start;
    }, &call, threads - 1};
    const Region region = is_forked ? nullptr : openmp.load();
    if (region && expected_wait.get() < kLate) region(job.work, job.context, static_cast<unsigned>(threads), 0);
    else pool->run(job);
    const Clock::duration waited = Clock::now() - start - call.worked;
    expected_wait.note(waited > call.worked ? waited : Clock::duration::zero());
}

// Calls body() on each thread that takes part, in the floating-point environment of kernels. Rethrows an exception.
template <class Run, class Body> void on_threads(const Run& run, int threads, const Body& body) {
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

// Calls step(i) for each of `pieces` pieces of work, and until it returns false because none is left: on the calling
// thread, where i is 0, and on up to `threads` - 1 others, which have the next numbers. If the others are expected to
// be late, by more than the time in which a thread wakes, the caller starts alone for as long as it would wait, but at
// most for kLongest. So a short region does not wait. A region of few pieces would lose too much by that.
constexpr std::chrono::microseconds kShort{10}, kLongest{1000};
template <class Step> void on_free_threads(int threads, std::int64_t pieces, const Step& step) {
    const auto start = Clock::now();
    const auto alone = std::min<Clock::duration>(expected_wait.get(), kLongest);
    if (alone > kShort && pieces >= kPiecesPerThread * threads) {
        do {
            if (!step(0)) return expected_wait.note(Clock::duration::zero());
        } while (Clock::now() < start + alone);
    }
    const auto caller = std::this_thread::get_id();
    std::atomic<int> joined{1};
    const auto run = [&](int most, void (*work)(void*), void* context) { run_on_threads(start, most, work, context); };
    on_threads(run, threads, [&] {
        // The caller is always the first: the next call may read data that are still in its cache.
        const int own = std::this_thread::get_id() == caller ? 0 : joined++;
        while (step(own)) {}
    });
}

// The share of one thread of a call: its pieces from `next` to `end`.
struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};

}  // namespace

std::atomic<int>& requested_threads() {
    static std::atomic<int> threads{0};
    return threads;
}
int most_threads() { return std::max(64, 4 * processors()); }
int omp_num_threads() {
    const char* const given = std::getenv("OMP_NUM_THREADS");
    const long number = given ? std::strtol(given, nullptr, 10) : 0;
    return static_cast<int>(std::clamp<long>(number, 0, most_threads()));
}
int default_threads() {
    const int given = omp_num_threads();
    return given > 0 ? given : processors();
}

void find_openmp() {
    void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library) openmp = reinterpret_cast<Region>(dlsym(library, "GOMP_parallel"));
}
void start_threads() {
    if (pool) return;
    pool = new ThreadPool;
    pthread_atfork(nullptr, nullptr, [] {
        pool = new ThreadPool;
        is_forked = true;
    });
}

void share_ranges(int threads, std::int64_t n, Work work) {
    if (threads <= 1 || n <= 1) return work(0, n);  // the kernel has already set its floating-point environment
    const int wanted = n < threads ? static_cast<int>(n) : threads;
    const std::int64_t pieces = std::min<std::int64_t>(n, kPiecesPerThread * wanted);
    const std::unique_ptr<Share[]> shares(new Share[static_cast<std::size_t>(wanted)]);
    for (int i = 0; i < wanted; ++i) {
        shares[i].next = pieces * i / wanted;
        shares[i].end = pieces * (i + 1) / wanted;
    }
    on_free_threads(wanted, pieces, [&](int own) {
        for (int k = 0; k < wanted; ++k) {
            Share& share = shares[(own + k) % wanted];
            if (share.next >= share.end) continue;
            if (const std::int64_t piece = share.next++; piece < share.end) {
                work(n * piece / pieces, n * (piece + 1) / pieces);
                return true;
            }
        }
        return false;
    });
}
void share_indices(int threads, std::int64_t n, Work work) {
    if (threads <= 1 || n <= 1) return work(0, n);
    std::atomic<std::int64_t> next{0};
    on_free_threads(static_cast<int>(std::min<std::int64_t>(n, threads)), n, [&](int) {
        const std::int64_t i = next++;
        if (i < n) work(i, i + 1);
        return i < n;
    });
}
void run_together(int threads, Work work) {
    if (threads <= 1) return work(0, 1);
    std::atomic<std::int64_t> next{0};
    std::atomic<std::int64_t> started{0};  // the number of threads, or 0 until all have started
    const auto on_new_threads = [&](int count, void (*run)(void*), void* context) {
        std::vector<std::thread> others;
        others.reserve(static_cast<std::size_t>(count));
        start_up_to(count - 1, [&] { others.emplace_back(run, context); });
        started = 1 + static_cast<std::int64_t>(others.size());
        run(context);
        for (std::thread& thread : others) thread.join();
    };
    on_threads(on_new_threads, threads, [&] {
        while (started == 0) std::this_thread::yield();
        work(next++, started);
    });
}

}  // namespace softargmax
