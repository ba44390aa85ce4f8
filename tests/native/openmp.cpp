// A library that takes the place of GCC's OpenMP in thread_pool.cpp: it counts its parallel regions, and can end them
// late. GCC's own would confuse the thread sanitizer, which does not see how its threads wait.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

extern "C" {

std::atomic<int> regions{0};
std::atomic<int> late_ms{0};  // the time for which a region waits for a thread that has no work

void GOMP_parallel(void (*work)(void*), void* context, unsigned threads, unsigned) {
    ++regions;
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, context);
    work(context);
    std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    for (std::thread& other : others) other.join();
}

}  // extern "C"
