// Memory of large results: in huge pages, and kept for the next result when it is let go.
//
// The page faults of fresh memory cost more than a softmax: 64 MiB take 20 ms in pages of 4 KiB, 3 to 5 ms in huge ones,
// where the arithmetic takes 3 ms. Kept memory is given to the system to take back as it likes (MADV_FREE): while nothing
// else wants it, the next result of this size has no faults at all.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace softargmax {

class Pool {
    struct Piece {
        void* data;
        std::size_t bytes;
    };
    static constexpr std::size_t kPage = 2 << 20;
    std::mutex lock_;
    std::vector<Piece> kept_;  // the oldest first
    std::size_t bytes_ = 0, most_;

    Pool() {
        const char* asked = std::getenv("SOFTARGMAX_POOL_MIB");
        most_ = (asked ? std::strtoull(asked, nullptr, 10) : 256) << 20;
        kept_.reserve(16);
    }
    static std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

    static void* map(std::size_t bytes) {  // aligned to a huge page, which mmap does not promise
        void* all = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) return nullptr;
        char* data = static_cast<char*>(all);
        const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
        if (before) munmap(data, before);
        munmap(data + before + bytes, kPage - before);
        madvise(data + before, bytes, MADV_HUGEPAGE);  // advice: what the system answers does not matter
        return data + before;
    }

  public:
    // Never destroyed: arrays may outlive whatever the interpreter tears down.
    static Pool& instance() {
        static Pool& pool = *new Pool;
        return pool;
    }

    // Null where there is no memory. Nobody waits for the lock, so a child forked while it was held cannot hang.
    void* take(std::size_t bytes) {
        const std::size_t wanted = whole_pages(bytes);
        const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
        if (held)
            for (std::size_t i = kept_.size(); i-- > 0;)
                if (kept_[i].bytes == wanted) {
                    void* data = kept_[i].data;
                    drop(i);
                    return data;
                }
        return map(wanted);
    }

    void give(void* data, std::size_t bytes) {
        const Piece piece{data, whole_pages(bytes)};
        const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
        if (!held || piece.bytes > most_ || madvise(data, piece.bytes, MADV_FREE) != 0) {
            munmap(data, piece.bytes);
            return;
        }
        while (bytes_ + piece.bytes > most_ || kept_.size() == kept_.capacity()) {
            munmap(kept_[0].data, kept_[0].bytes);
            drop(0);
        }
        kept_.push_back(piece);
        bytes_ += piece.bytes;
    }

  private:
    void drop(std::size_t i) {
        bytes_ -= kept_[i].bytes;
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    }
};

// Results of this size and more are from the pool. Smaller ones glibc's malloc keeps as well (and at less cost: 4 MiB in 17 us
// against 60); these it returns to the system each time.
constexpr std::size_t kPooled = 32 << 20;

}  // namespace softargmax
