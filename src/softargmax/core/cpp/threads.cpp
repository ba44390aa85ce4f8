// The threads that kernels run on: OpenMP's if the process has OpenMP, or else those of a pool of our own.
//
// torch loads OpenMP. Its threads wait for the next call by spinning, for 15 ms after a call, and our threads would
// have to share their cores: softmax of 512 x 4096 after a call of torch takes 0.7 ms on OpenMP's threads and 1.3 ms on
// our own. But a call of OpenMP waits for every thread of its team. Beside another busy process, 0.2 ms become 8 ms if
// one thread has to wait for a core. So if a thread starts late, our own pool serves the next calls.
//
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/cpp/kernel.hpp"

namespace softargmax {
namespace {

// A call of `run_on_threads`. It is on the stack of the calling thread.
struct Job {
    void (*work)(void*);
    void* context;
    int most;  // threads of the pool that may work on it
    std::atomic<int> running{0};  // threads of the pool that do
};

// Waits until `done()` is true, or about as long as a sleeping thread takes to wake up. Returns done().
constexpr std::chrono::microseconds kSpin{30};
template <class Done> bool spin(const Done& done) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
#if defined(__x86_64__)
            _mm_pause();
#elif defined(__aarch64__)
            asm volatile("yield");
#endif
        }
    } while (std::chrono::steady_clock::now() < end);
    return done();
}

// Locks a mutex that is never held for long. A contended std::mutex would put this thread to sleep for 30 us.
std::unique_lock<std::mutex> locked(std::mutex& mutex) {
    std::unique_lock lock(mutex, std::defer_lock);
    if (!spin([&] { return lock.try_lock(); })) lock.lock();
    return lock;
}

class ThreadPool {
    std::mutex mutex_;  // of all that follows
    std::condition_variable posted_, finished_;
    std::vector<Job*> jobs_;  // those that threads may join
    std::atomic<std::uint64_t> posts_{0};
    int threads_ = 0, sleeping_ = 0;

    void close(const Job* job) { jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end()); }

    // Starts threads until the pool has `wanted`. If the system refuses, the pool has fewer.
    void grow(int wanted) {
        if (threads_ >= wanted) return;
        sigset_t all, before;  // signals are for the threads of the program
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {}
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
                lock.unlock();
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
        close(&job);  // it has no work left for threads that would join now
        if (--job.running == 0) finished_.notify_all();  // the job may be gone from here on
    }
    void sleep() {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        posted_.wait(lock, [&] { return next_job(); });
        --sleeping_;
    }

  public:
    void run(Job& job) {
        auto lock = locked(mutex_);
        grow(job.most);
        jobs_.push_back(&job);
        const int waking = std::min(job.most, sleeping_);
        lock.unlock();
        ++posts_;
        for (int i = 0; i < waking; ++i) posted_.notify_one();
        job.work(job.context);
        lock = locked(mutex_);
        close(&job);
        lock.unlock();
        const auto is_done = [&] { return job.running == 0; };
        if (spin(is_done)) return;
        lock.lock();
        finished_.wait(lock, is_done);
    }
};

// The pool has no destructor, because its threads run until the process ends. A forked child has none of the parent's
// threads, so it gets a new pool. OpenMP's threads are missing too, and OpenMP would wait for them forever.
ThreadPool* pool = nullptr;

// The number of processors that this process may run on.
int processors() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // over 1024 processors
}

// OpenMP's functions, if another library has loaded GCC's OpenMP (as torch does). Else null.
struct OpenMP {
    int (*most_threads)();
    void (*parallel)(void (*work)(void*), void* context, unsigned threads, unsigned flags);
};
std::atomic<const OpenMP*> openmp{nullptr};

using Clock = std::chrono::steady_clock;

// Runs calls on OpenMP's threads until one starts late. Then OpenMP is avoided for some time, which doubles if a thread
// is late again after it.
class OpenMPTeam {
    static constexpr std::chrono::microseconds kLate{500};
    static constexpr std::chrono::milliseconds kShortest{50}, kLongest{1600};
    std::atomic<Clock::duration> pause_{kShortest};
    std::atomic<Clock::time_point> until_{Clock::time_point{}};

  public:
    bool is_avoided() const { return Clock::now() < until_.load(); }

    void run(const OpenMP& openmp, int threads, void (*work)(void*), void* context) {
        struct Call {
            void (*work)(void*);
            void* context;
            Clock::time_point start = Clock::now();
            std::atomic<bool> late{false};
        } call{work, context};
        openmp.parallel([](void* of) {
            Call& to = *static_cast<Call*>(of);
            if (Clock::now() - to.start > kLate) to.late = true;
            to.work(to.context);
        }, &call, static_cast<unsigned>(threads), 0);
        if (call.late) {
            until_ = Clock::now() + pause_.load();
            pause_ = std::min<Clock::duration>(2 * pause_.load(), kLongest);
        } else {
            pause_ = kShortest;
        }
    }
} team;

}  // namespace

int& requested_threads() {
    static int threads = 0;
    return threads;
}
int most_threads() { return std::max(64, 4 * processors()); }
int default_threads() {
    if (const OpenMP* found = openmp) return found->most_threads();
    const char* const given = std::getenv("OMP_NUM_THREADS");
    const int number = given ? std::atoi(given) : 0;
    return number > 0 ? number : processors();
}

bool find_openmp() {
    void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    static const OpenMP functions = {reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads")),
                                     reinterpret_cast<decltype(OpenMP::parallel)>(dlsym(library, "GOMP_parallel"))};
    openmp = &functions;
    return true;
}
void start_threads() {
    pool = new ThreadPool;
    pthread_atfork(nullptr, nullptr, [] {
        pool = new ThreadPool;
        openmp = nullptr;
    });
}
void run_on_threads(int threads, void (*work)(void*), void* context) {
    const OpenMP* found = openmp;
    if (found && !team.is_avoided()) return team.run(*found, threads, work, context);
    Job job{work, context, threads - 1};
    pool->run(job);
}
void run_together(int threads, void (*work)(void*), void* context) {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work, context);
    work(context);
    for (std::thread& thread : others) thread.join();
}

}  // namespace softargmax
