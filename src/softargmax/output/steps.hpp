// Descent on the vectors of words, in small batches of rows, in place.
//
// A batch has two halves. In the first, rows are dealt out: the losses of each and the change of its own vector, from
// tables that nobody writes. In the second, the vectors of both tables are dealt out, each to one thread. To a node
// come the batch's rows one after the other, up to kTogether pairs of a row at a time, and what they ask for is taken
// from the node as it is then: where all asked at once for what the node was before the batch, they would push the
// nodes near a tree's root beyond all bounds. A row's own vector has its change last.
//
// So the bits depend neither on the number of threads nor on who was quicker.
#pragma once

#include <atomic>
#include <thread>

#include "core/native/group.hpp"
#include "core/native/threads.hpp"
#include "output/coins.hpp"
#include "output/jobs.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

constexpr std::int64_t kTogether = 64;
// Parts of a batch's first half for each thread; how often one looks whether others are ready before it lets them run.
constexpr std::int64_t kParts = 2;
constexpr int kSpins = 1000;

template <class T> class Steps {
    struct Met {
        std::int32_t node, row;  // the row in the batch
    };

    StepsJob& job_;
    T *const vectors_, *const weight_;
    const int threads_;
    std::int64_t* begin_;  // of every target, its first pair among all
    double* loss_;         // of every row
    Met* met_;             // of the batch, as are these
    std::int8_t* signs_;
    T *slopes_, *h_, *dh_;

    std::int64_t pairs_before(std::int64_t row) const { return begin_[job_.starts[row]]; }
    std::int64_t end_of_batch(std::int64_t row) const { return std::min(job_.rows, row + job_.batch); }
    T* vector(std::int64_t i) const { return vectors_ + i * job_.vectors.pitch; }
    T* node(std::int64_t p) const { return weight_ + met_[p].node * job_.weight.pitch; }
    bool is_mine(std::int64_t i, int role) const {
        const std::uint64_t scattered = static_cast<std::uint32_t>(i) * 0x9E3779B1u;
        return static_cast<int>(scattered * static_cast<std::uint64_t>(threads_) >> 32) == role;
    }

    // f(node, sign) for all that stands beside a target.
    template <class F> SOFTARGMAX_INLINE void each_node(std::int64_t target, const F& f) const {
        const std::int64_t y = job_.target[target];
        if (job_.offsets) {
            for (std::int64_t i = job_.offsets[y]; i < job_.offsets[y + 1]; ++i) f(job_.nodes[i], job_.signs[i]);
            return;
        }
        f(y, 1);
        const std::int64_t* const negatives = job_.negatives + target * job_.samples;
        for (std::int64_t i = 0; i < job_.samples; ++i) f(negatives[i], negatives[i] == y ? 0 : -1);
    }

    // ---- the first half ---------------------------------------------------------------------------------------------

    // The pairs of the rows from `begin` to `end`.
    void look_up(std::int64_t first, std::int64_t begin, std::int64_t end) {
        std::int64_t p = pairs_before(begin) - pairs_before(first);
        for (std::int64_t row = begin; row < end; ++row)
            for (std::int64_t t = job_.starts[row]; t < job_.starts[row + 1]; ++t)
                each_node(t, [&](std::int64_t i, int sign) SOFTARGMAX_LAMBDA {
                    met_[p] = {static_cast<std::int32_t>(i), static_cast<std::int32_t>(row - first)};
                    signs_[p++] = static_cast<std::int8_t>(sign);
                });
    }
    void look_at(std::int64_t first, std::int64_t begin, std::int64_t end, T rate) {
        look_up(first, begin, end);
        for (std::int64_t row = begin; row < end; ++row)
            look_at_row(row, first, pairs_before(end) - pairs_before(first), rate);
    }
    // A row's vector, its losses and its change; `known`: up to which pair nodes are known.
    void look_at_row(std::int64_t row, std::int64_t first, std::int64_t known, T rate) {
        const std::int64_t n = job_.width, from = pairs_before(row) - pairs_before(first),
                           count = pairs_before(row + 1) - pairs_before(row);
        T *const h = h_ + (row - first) * n, *const x = slopes_ + from;
        std::memcpy(h, vector(job_.inputs[row]), static_cast<std::size_t>(n) * sizeof(T));
        for (std::int64_t j = 0; j < count; ++j)
            x[j] = static_cast<T>(inner(h, node(from + j), n, node(std::min(from + j + kAhead, known - 1))));
        loss_[row] = toss(x, count, rate, [&](std::int64_t j) SOFTARGMAX_LAMBDA { return signs_[from + j]; });
        const auto w = [&](std::int64_t j) SOFTARGMAX_LAMBDA { return node(from + j); };
        const auto slope = [&](std::int64_t j) SOFTARGMAX_LAMBDA { return x[j]; };
        add_up<T, T>(Summands{w, slope, count}, count, n, dh_ + (row - first) * n);
    }

    // ---- the second half --------------------------------------------------------------------------------------------

    static SOFTARGMAX_INLINE void add(T* to, T factor, const T* x, std::int64_t n) {
        using V = Pack<T>;
        const V f = V::all(factor);
        std::int64_t i = 0;
        for (; i + V::kLanes <= n; i += V::kLanes) fma(f, V::load(x + i), V::load(to + i)).store(to + i);
        if (i < n) fma(f, V::load_part(x + i, n - i, 0), V::load_part(to + i, n - i, 0)).store_part(to + i, n - i);
    }
    // Of pairs from `begin` to `end`, all of one row, those whose nodes are this role's.
    void change_nodes(std::int64_t begin, std::int64_t end, int role, T rate) {
        const T* const h = h_ + met_[begin].row * job_.width;
        std::int64_t mine[kTogether], count = 0;
        for (std::int64_t p = begin; p < end; ++p)
            if (signs_[p] != 0 && is_mine(met_[p].node, role)) mine[count++] = p;
        T x[kTogether];
        for (std::int64_t j = 0; j < count; ++j)
            x[j] = static_cast<T>(inner(h, node(mine[j]), job_.width, node(mine[std::min(j + kAhead, count - 1)])));
        toss(x, count, rate, [&](std::int64_t j) SOFTARGMAX_LAMBDA { return signs_[mine[j]]; });
        for (std::int64_t j = 0; j < count; ++j) add(node(mine[j]), x[j], h, job_.width);
    }
    void change(std::int64_t first, std::int64_t last, int role, T rate) {
        for (std::int64_t row = first; row < last; ++row) {
            const std::int64_t end = pairs_before(row + 1) - pairs_before(first);
            for (std::int64_t p = pairs_before(row) - pairs_before(first); p < end; p += kTogether)
                change_nodes(p, std::min(end, p + kTogether), role, rate);
        }
        for (std::int64_t row = first; row < last; ++row)
            if (is_mine(job_.inputs[row], role))
                add(vector(job_.inputs[row]), T{1}, dh_ + (row - first) * job_.width, job_.width);
    }

    static void wait_for(const std::atomic<std::int64_t>& done, std::int64_t enough) {
        for (int spins = 0; done.load(std::memory_order_acquire) < enough; ++spins)
            if (spins > kSpins) std::this_thread::yield();
    }

  public:
    explicit Steps(StepsJob& job)
        : job_(job),
          vectors_(reinterpret_cast<T*>(job.vectors.data)),
          weight_(reinterpret_cast<T*>(job.weight.data)),
          threads_(job.threads),
          begin_(scratch(kTerms).get<std::int64_t>(job.targets + 1)),
          loss_(scratch(kResult).get<double>(job.rows)) {
        begin_[0] = 0;
        for (std::int64_t t = 0; t < job.targets; ++t) {
            const std::int64_t y = job.target[t];
            begin_[t + 1] = begin_[t] + (job.offsets ? job.offsets[y + 1] - job.offsets[y] : 1 + job.samples);
        }
        std::int64_t most = 0;
        for (std::int64_t row = 0; row < job.rows; row += job.batch)
            most = std::max(most, pairs_before(end_of_batch(row)) - pairs_before(row));
        const std::int64_t numbers = std::min(job.batch, job.rows) * job.width;
        met_ = scratch(kOther).get<Met>(most);
        signs_ = scratch(kMask).get<std::int8_t>(most);
        slopes_ = scratch(kWeights).get<T>(most);
        h_ = scratch(kScores).get<T>(2 * numbers);
        dh_ = h_ + numbers;
    }
    // The halves' parts are numbered through all batches, and each goes to the thread that is free: one that the system
    // has put to sleep between two parts holds nobody up. A part waits until all of the halves before it are done.
    void run() {
        const std::int64_t batches = (job_.rows + job_.batch - 1) / job_.batch, parts = kParts * threads_,
                           each = parts + threads_;
        std::atomic<std::int64_t> next{0}, done{0};
        parallel_for(threads_, threads_, [&](std::int64_t, std::int64_t) {
            for (std::int64_t i; (i = next++) < batches * each;) {
                const std::int64_t first = i / each * job_.batch, last = end_of_batch(first), part = i % each;
                const double share = static_cast<double>(first) / static_cast<double>(job_.rows);
                const T rate = static_cast<T>(job_.rate + (job_.last_rate - job_.rate) * share);
                wait_for(done, part < parts ? i - part : i - part + parts);
                if (part < parts)
                    look_at(first, first + (last - first) * part / parts, first + (last - first) * (part + 1) / parts,
                            rate);
                else change(first, last, static_cast<int>(part - parts), rate);
                done.fetch_add(1, std::memory_order_release);
            }
        });
        for (std::int64_t row = 0; row < job_.rows; ++row) job_.loss += loss_[row];
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
