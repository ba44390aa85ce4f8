// A program in which several threads call the thread pool (threads.cpp) at once. It prints the number of wrong results.
// test_thread_pool.py runs the program under the thread sanitizer.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cpp/threads.hpp"

namespace {

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
// An exception of any thread reaches the caller.
void rethrow() {
    try {
        softargmax::parallel_for(4, 64, [](std::int64_t begin, std::int64_t) {
            if (begin >= 32) throw std::runtime_error("expected");
        });
        ++wrong;
    } catch (const std::runtime_error&) {}
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

}  // namespace

int main() {
    softargmax::start_threads();
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([caller] {
            for (int round = 0; round < 1500; ++round) {
                visit_once(2 + (round + caller) % 5);
                if (round % 50 == 0) rethrow();
                if (round % 500 == 0) meet();
                if (round % 97 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        });
    for (std::thread& caller : callers) caller.join();
    std::printf("%d\n", wrong.load());
}
