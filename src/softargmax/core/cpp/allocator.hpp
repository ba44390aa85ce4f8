// A pool of memory for large results. It uses huge pages, and keeps freed memory for later results.
//
// Page faults of new memory take longer than a softmax. The first writes to 64 MiB take five times as long with pages
// of 4 KiB as with huge pages (Zen 4, one thread). Kept memory is marked MADV_FREE, so the system may reclaim it at any
// time. If the system does not, the next result of this size causes no page faults.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace softargmax {

// Advises the system to use huge pages for all pages that lie entirely in a range. The system may ignore this.
inline void want_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
    const std::uintptr_t page = 4096, first = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
    const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

class Allocator {
    struct Piece {
        void* data;
        std::size_t bytes;
    };
    static constexpr std::size_t kPage = 2 << 20;
    std::mutex lock_;
    std::vector<Piece> kept_;  // the oldest first
    std::size_t bytes_ = 0, most_;

    Allocator() : most_(requested_mib() << 20) { kept_.reserve(16); }
    static std::size_t requested_mib() {
        const char* requested = std::getenv("SOFTARGMAX_POOL_MIB");
        if (!requested || !*requested) return 256;
        const std::string text = requested;
        if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos)
            throw std::invalid_argument("SOFTARGMAX_POOL_MIB=" + text + ": expected a whole number of MiB, 0 for none");
        return std::stoul(text);
    }
    static std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

    static void* map(std::size_t bytes) {  // mmap does not guarantee alignment to a huge page
        void* all = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) return nullptr;
        char* data = static_cast<char*>(all);
        const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
        if (before) munmap(data, before);
        munmap(data + before + bytes, kPage - before);
        want_huge_pages(data + before, bytes);
        return data + before;
    }
    void drop(std::size_t i) {
        bytes_ -= kept_[i].bytes;
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    void unmap_oldest() {
        munmap(kept_[0].data, kept_[0].bytes);
        drop(0);
    }

  public:
    // The pool is never destroyed, because arrays may live longer than the interpreter.
    static Allocator& instance() {
        static Allocator& pool = *new Allocator;
        return pool;
    }

    // Returns memory, or null if there is none. It never waits for the lock, because a process that is forked while
    // another thread holds the lock would wait forever.
    void* take(std::size_t bytes) {
        if (bytes > PTRDIFF_MAX - 2 * kPage) return nullptr;
        const std::size_t wanted = whole_pages(bytes);
        const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
        if (!held) return map(wanted);
        for (std::size_t i = kept_.size(); i-- > 0;)
            if (kept_[i].bytes == wanted) {
                void* data = kept_[i].data;
                drop(i);
                return data;
            }
        void* data = map(wanted);
        while (!data && !kept_.empty()) {  // kept memory uses part of a limited address space
            unmap_oldest();
            data = map(wanted);
        }
        return data;
    }

    void give(void* data, std::size_t bytes) {
        const Piece piece{data, whole_pages(bytes)};
        const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
        if (!held || piece.bytes > most_ || madvise(data, piece.bytes, MADV_FREE) != 0) {
            munmap(data, piece.bytes);
            return;
        }
        while (bytes_ + piece.bytes > most_ || kept_.size() == kept_.capacity()) unmap_oldest();
        kept_.push_back(piece);
        bytes_ += piece.bytes;
    }
};

// The smallest result, in bytes, that uses the pool. glibc's malloc is faster for smaller results, because it also
// keeps freed memory, without asking the system. But malloc often returns larger blocks to the system, for example if a
// program allocates and frees other arrays between its gradients. It always returns blocks of 32 MiB or more.
constexpr std::size_t kPooled = 12 << 20;

}  // namespace softargmax
