// A program in which several threads call threads.cpp at once. Its argument is the library of openmp.cpp. It prints the
// number of wrong results. test_thread_pool.py runs the program under the thread sanitizer.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cpp/threads.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::atomic<int> wrong{0};

// Each index of a range is visited once.
void visit_once(int threads) {
    std::vector<int> visits(257, 0);
    softargmax::parallel_for(threads, 257, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    for (const int count : visits) wrong += count != 1;
    std::vector<int> indices(40, 0);
    softargmax::parallel_each(threads, 40, [&](std::int64_t i) { ++indices[static_cast<std::size_t>(i)]; });
    for (const int count : indices) wrong += count != 1;
}
// An exception of any thread reaches the caller: of one thread, of all, and of a call inside a call.
void rethrow() {
    const auto expect = [](const auto& call) {
        try {
            call();
            ++wrong;
        } catch (const std::runtime_error&) {}
    };
    const auto fail = [] { throw std::runtime_error("expected"); };
    expect([&] {
        softargmax::parallel_for(4, 64, [&](std::int64_t begin, std::int64_t) {
            if (begin >= 32) fail();
        });
    });
    expect([&] { softargmax::parallel_each(4, 64, [&](std::int64_t) { fail(); }); });
    expect([&] { softargmax::on_team(3, [&](int, int) { fail(); }); });
    expect([&] {
        softargmax::parallel_each(3, 6, [&](std::int64_t) {
            softargmax::parallel_each(2, 6, [&](std::int64_t i) {
                if (i == 5) fail();
            });
        });
    });
}
// A call inside a call ends, although all threads may be busy.
void nest() {
    std::vector<std::atomic<int>> visits(60);
    softargmax::parallel_each(4, 6, [&](std::int64_t i) {
        softargmax::parallel_for(3, 10, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t k = begin; k < end; ++k) ++visits[static_cast<std::size_t>(10 * i + k)];
        });
    });
    for (const auto& count : visits) wrong += count != 1;
}
// The threads of a team wait for each other.
void meet() {
    std::atomic<int> arrived{0};
    softargmax::on_team(3, [&](int, int team) {
        ++arrived;
        while (arrived < team) std::this_thread::yield();
    });
    wrong += arrived != 3;
}
// Our threads leave all signals to the program's own, except those that report an error of the thread itself.
void leave_signals() {
    const auto caller = std::this_thread::get_id();
    softargmax::on_team(2, [&](int, int) {
        if (std::this_thread::get_id() == caller) return;
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        wrong += sigismember(&blocked, SIGINT) != 1 || sigismember(&blocked, SIGSEGV) != 0;
    });
}

void call_at_once(int rounds) {
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([caller, rounds] {
            for (int round = 0; round < rounds; ++round) {
                visit_once(2 + (round + caller) % 5);
                if (round % 50 == 0) rethrow(), nest();
                if (round % 500 == 0) meet(), leave_signals();
                if (round % 97 == 0) std::this_thread::sleep_for(milliseconds(1));
                if (round % 31 == 0) std::thread(visit_once, 3).join();  // this caller ends after its call
            }
        });
    for (std::thread& caller : callers) caller.join();
}

// If a call waits longer for OpenMP's threads than it works, the calls that follow leave OpenMP, and their caller
// starts alone. Every call forgets an eighth of the wait. Short calls end before others start, until less than 10 us
// are left.
class LateThreads {
    std::atomic<int>& regions_;
    std::atomic<int>& late_;
    static constexpr int kLate = 20;  // ms, of which an eighth is added to the expected wait
    static constexpr int kCalls = 42;  // 2.5 ms (7 / 8)^42 < 10 us. Other processes can only make it more.

    // Runs a call in which the caller works for `work` ms. Returns true if it ran on OpenMP's threads.
    bool on_openmp(int late, int work) const {
        const int before = regions_;
        late_ = late;
        const auto caller = std::this_thread::get_id();
        std::atomic<bool> begun{false};
        softargmax::parallel_each(2, 16, [&](std::int64_t) {
            while (std::this_thread::get_id() != caller && !begun) std::this_thread::yield();
            if (begun.exchange(true)) return;  // the caller has the first index that is visited
            std::this_thread::sleep_for(milliseconds(work));
        });
        return regions_ != before;
    }
    // The number of short calls until one runs on OpenMP's threads again.
    int calls_without() const {
        int calls = 0;
        while (calls < 10 * kCalls && !on_openmp(0, 0)) ++calls;
        return calls;
    }
    // The number of pieces, of `us` microseconds each, that other threads than the caller compute.
    static int pieces_of_others(int us) {
        const auto caller = std::this_thread::get_id();
        std::atomic<int> others{0};
        softargmax::parallel_for(2, 16, [&](std::int64_t, std::int64_t) {
            const auto end = Clock::now() + std::chrono::microseconds(us);
            while (Clock::now() < end) {}
            others += std::this_thread::get_id() != caller;
        });
        return others;
    }
    bool leave_once() const {
        const bool late = on_openmp(kLate, 0), alone = pieces_of_others(20) == 0, joined = pieces_of_others(400) > 0;
        const bool long_call_leaves = !on_openmp(0, 3);
        const int calls = 3 + calls_without();
        const bool again = on_openmp(kLate, 0);
        rethrow(), nest();  // while callers start alone
        return calls_without() < 10 * kCalls && late && alone && joined && long_call_leaves && calls >= kCalls && again;
    }
    // A call that waits, but less than it works, changes nothing.
    bool stays() const { return on_openmp(kLate, 3 * kLate) && calls_without() < kCalls; }

  public:
    LateThreads(std::atomic<int>& regions, std::atomic<int>& late) : regions_(regions), late_(late) {}
    bool are_avoided() const {
        calls_without();
        return stays() && leave_once() && leave_once() && stays();
    }
};

}  // namespace

int main(int, char** arguments) {
    softargmax::start_threads();
    call_at_once(1500);
    void* const library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return std::puts(dlerror()), 1;
    softargmax::find_openmp();
    const LateThreads late_threads(*static_cast<std::atomic<int>*>(dlsym(library, "regions")),
                                   *static_cast<std::atomic<int>*>(dlsym(library, "late_ms")));
    int tries = 20;  // other processes may disturb some of them
    while (tries > 0 && !late_threads.are_avoided()) --tries;
    wrong += tries == 0;
    call_at_once(150);
    std::printf("%d\n", wrong.load());
}
