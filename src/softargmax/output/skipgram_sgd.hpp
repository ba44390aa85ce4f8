// Stochastic gradient descent on word vectors, in place, in small batches of rows.
//
// A node is a row of `weight`: a word, or an inner node of the tree. Each node belongs to one of kOwners owners, and
// each owner is run by one thread. An owner processes the rows of the batch in order, and the nodes of each row in
// groups of up to kTogether. In each group, the owner computes the inner products of its own nodes with the row's
// vector, and then updates these nodes. So each row uses node vectors that the earlier rows have updated. (If all rows
// used the nodes' vectors from before the batch, nodes near the root of a tree would diverge.) The vector of a row does
// not change until all owners have processed the batch. Then the changes of the owners are added to the vector, in the
// order of the owners.
//
// So the bits of the results depend neither on the number of threads nor on their timing. A node stays in the cache of
// one core. (In a version that divided the rows among the threads, two threads were no faster than one.)
#pragma once

#include <atomic>
#include <thread>

#include "output/args.hpp"
#include "output/embedding_rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::output {

constexpr std::int64_t kTogether = 64;
constexpr int kOwners = 8;
// The number of times that a waiting thread checks whether the other threads are done, before it yields its core.
constexpr int kSpins = 1000;
// The number of packs of a row's vector that are in registers at the same time. The changes of these packs take the
// same number of registers.
constexpr int kUpdated = kRegisterBytes == 64 ? 8 : 2;

inline int owner_of(std::int64_t i) { return static_cast<int>(static_cast<std::uint32_t>(i) * 0x9E3779B1u >> 29); }
static_assert(kOwners == 1 << (32 - 29));

// For every j below `count`, with f_j = factors[j] and w_j = nodes[j]: change += f_j w_j, then w_j += f_j h. Covers the
// numbers from `at` to `at` + n - 1 of each vector, in `Packs` packs.
template <int Packs, class T>
SOFTARGMAX_INLINE void update_packs(T* const* nodes, const T* factors, std::int64_t count, const T* h, T* change,
                                    std::int64_t at, std::int64_t n) {
    using V = Pack<T>;
    constexpr int L = V::kLanes, last = Packs - 1;
    const std::int64_t rest = n - last * L;
    V own[Packs], sum[Packs];
#pragma GCC unroll 8
    for (int c = 0; c < last; ++c) {
        own[c] = V::load(h + at + c * L);
        sum[c] = V::load(change + at + c * L);
    }
    own[last] = V::load_part(h + at + last * L, rest, 0);
    sum[last] = V::load_part(change + at + last * L, rest, 0);
    for (std::int64_t j = 0; j < count; ++j) {
        T* const w = nodes[j] + at;
        const V factor = V::all(factors[j]);
#pragma GCC unroll 8
        for (int c = 0; c < last; ++c) {
            const V x = V::load(w + c * L);
            sum[c] = fma(factor, x, sum[c]);
            fma(factor, own[c], x).store(w + c * L);
        }
        const V x = V::load_part(w + last * L, rest, 0);
        sum[last] = fma(factor, x, sum[last]);
        fma(factor, own[last], x).store_part(w + last * L, rest);
    }
#pragma GCC unroll 8
    for (int c = 0; c < last; ++c) sum[c].store(change + at + c * L);
    sum[last].store_part(change + at + last * L, rest);
}
template <int Packs = kUpdated, class T>
SOFTARGMAX_INLINE void update_last(T* const* nodes, const T* factors, std::int64_t count, const T* h, T* change,
                                   std::int64_t at, std::int64_t n) {
    if constexpr (Packs > 1)
        if (n <= (Packs - 1) * Pack<T>::kLanes) return update_last<Packs - 1>(nodes, factors, count, h, change, at, n);
    update_packs<Packs>(nodes, factors, count, h, change, at, n);
}
template <class T>
void update(T* const* nodes, const T* factors, std::int64_t count, const T* h, T* change, std::int64_t n) {
    constexpr std::int64_t step = kUpdated * Pack<T>::kLanes;
    std::int64_t i = 0;
    for (; i + step < n; i += step) update_packs<kUpdated>(nodes, factors, count, h, change, i, step);
    update_last(nodes, factors, count, h, change, i, n - i);
}

template <class T> class Steps {
    // Up to kTogether nodes that are paired with the same row. Only this thread changes these nodes.
    struct Pairs {
        std::int64_t count = 0;
        T* node[kTogether];
        std::int8_t sign[kTogether];
        std::uint8_t owner[kTogether];
    };

    StepsArgs& args_;
    T *const vectors_, *const weight_;
    const std::int64_t batch_;
    T* const changes_;  // the change of each row of the batch, for each owner
    double* const losses_;  // the loss of each row of the batch, for each owner
    double* const loss_;  // the loss of each row, over all batches
    std::atomic<std::int64_t> done_{0};

    T* change(int owner, std::int64_t row) const { return changes_ + (owner * batch_ + row) * args_.width; }
    double& loss(int owner, std::int64_t row) const { return losses_[owner * batch_ + row]; }

    // Calls f(node, sign) for the nodes of every target of a row: the nodes on the target's path, or the target and its
    // negatives.
    template <class F> SOFTARGMAX_INLINE void each_node(std::int64_t row, const F& f) const {
        for (std::int64_t t = args_.starts[row]; t < args_.starts[row + 1]; ++t) {
            const std::int64_t y = args_.target[t];
            if (args_.offsets) {
                for (std::int64_t i = args_.offsets[y]; i < args_.offsets[y + 1]; ++i)
                    f(args_.nodes[i], args_.signs[i]);
                continue;
            }
            f(y, 1);
            const std::int64_t* const negatives = args_.negatives + t * args_.samples;
            for (std::int64_t i = 0; i < args_.samples; ++i) f(negatives[i], negatives[i] == y ? 0 : -1);
        }
    }
    void update_nodes(std::int64_t first, std::int64_t row, int begin, int end, T rate) const {
        for (int owner = begin; owner < end; ++owner) {
            std::fill_n(change(owner, row - first), args_.width, T{0});
            loss(owner, row - first) = 0;
        }
        Pairs found;
        std::int64_t seen = 0;
        each_node(row, [&](std::int64_t i, int sign) SOFTARGMAX_LAMBDA {
            const int owner = owner_of(i);
            found.node[found.count] = weight_ + i * args_.weight.pitch;
            found.sign[found.count] = static_cast<std::int8_t>(sign);
            found.owner[found.count] = static_cast<std::uint8_t>(owner);
            // The count increases without a branch, because a branch would be mispredicted half of the time.
            found.count += (sign != 0) & (begin <= owner) & (owner < end);
            if (++seen < kTogether) return;
            update_pairs(found, first, row, begin, end, rate);
            found.count = seen = 0;
        });
        update_pairs(found, first, row, begin, end, rate);
    }
    void update_pairs(const Pairs& found, std::int64_t first, std::int64_t row, int begin, int end, T rate) const {
        std::int64_t ends[kOwners + 1] = {};
        for (std::int64_t j = 0; j < found.count; ++j) ++ends[found.owner[j] + 1];
        for (int owner = 0; owner < kOwners; ++owner) ends[owner + 1] += ends[owner];
        T* node[kTogether];
        std::int8_t sign[kTogether];
        // Before this loop, ends[owner] is where the owner's pairs begin. After the loop, it is where they end.
        for (std::int64_t j = 0; j < found.count; ++j) {
            const std::int64_t at = ends[found.owner[j]]++;
            node[at] = found.node[j];
            sign[at] = found.sign[j];
        }
        const T* const h = vectors_ + args_.inputs[row] * args_.vectors.pitch;
        T x[kTogether];
        double losses[kTogether];
        for (std::int64_t j = 0; j < found.count; ++j)
            x[j] = static_cast<T>(inner(h, node[j], args_.width, node[std::min(j + kAhead, found.count - 1)]));
        const auto side = [&](std::int64_t j) SOFTARGMAX_LAMBDA { return sign[j]; };
        logistic_slopes(x, found.count, rate, side,
                        [&](std::int64_t j, double lost) SOFTARGMAX_LAMBDA { losses[j] = lost; });
        std::int64_t at = 0;
        for (int owner = begin; owner < end; at = ends[owner++]) {
            const std::int64_t count = ends[owner] - at;
            for (std::int64_t j = at; j < ends[owner]; ++j) loss(owner, row - first) += losses[j];
            if (count) update(node + at, x + at, count, h, change(owner, row - first), args_.width);
        }
    }
    // Adds the changes of all owners to the row's own vector, and sums the row's loss.
    void change_row(std::int64_t first, std::int64_t row) const {
        using V = Pack<T>;
        T* const h = vectors_ + args_.inputs[row] * args_.vectors.pitch;
        for (std::int64_t i = 0; i < args_.width; i += V::kLanes) {
            const std::int64_t rest = std::min<std::int64_t>(V::kLanes, args_.width - i);
            V sum = V::load_part(change(0, row - first) + i, rest, 0);
            for (int owner = 1; owner < kOwners; ++owner)
                sum = sum + V::load_part(change(owner, row - first) + i, rest, 0);
            (V::load_part(h + i, rest, 0) + sum).store_part(h + i, rest);
        }
        loss_[row] = 0;
        for (int owner = 0; owner < kOwners; ++owner) loss_[row] += loss(owner, row - first);
    }

    // Each batch has two halves: the update of the nodes, and the update of the rows. This function signals that the
    // `owners` owners of this thread have finished the current half, and waits for all other owners. `halves` is the
    // number of halves so far, including the current one.
    void wait_for_all(std::int64_t owners, std::int64_t halves) {
        done_.fetch_add(owners, std::memory_order_acq_rel);
        for (int spins = 0; done_.load(std::memory_order_acquire) < halves * kOwners; ++spins)
            if (spins > kSpins) std::this_thread::yield();
    }

  public:
    explicit Steps(StepsArgs& args)
        : args_(args),
          vectors_(reinterpret_cast<T*>(args.vectors.data)),
          weight_(reinterpret_cast<T*>(args.weight.data)),
          batch_(std::min(args.batch, args.rows)),
          changes_(scratch(kScores).get<T>(kOwners * batch_ * args.width)),
          losses_(scratch(kTerms).get<double>(kOwners * batch_)),
          loss_(scratch(kResult).get<double>(args.rows)) {}

    void run() {
        // The threads wait for each other, so they must run at the same time.
        on_team(std::min(args_.threads, kOwners), [&](int thread, int team) {
            const int begin = kOwners * thread / team, end = kOwners * (thread + 1) / team;
            const auto is_mine = [&](std::int64_t i) { return begin <= owner_of(i) && owner_of(i) < end; };
            std::int64_t halves = 0;
            for (std::int64_t first = 0; first < args_.rows; first += batch_) {
                const std::int64_t last = std::min(args_.rows, first + batch_);
                const double share = static_cast<double>(first) / static_cast<double>(args_.rows);
                const T rate = static_cast<T>(args_.rate + (args_.last_rate - args_.rate) * share);
                for (std::int64_t row = first; row < last; ++row) update_nodes(first, row, begin, end, rate);
                wait_for_all(end - begin, ++halves);
                for (std::int64_t row = first; row < last; ++row)
                    if (is_mine(args_.inputs[row])) change_row(first, row);
                wait_for_all(end - begin, ++halves);
            }
        });
        for (std::int64_t row = 0; row < args_.rows; ++row) args_.loss += loss_[row];
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::output
