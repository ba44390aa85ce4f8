// The boundary of a smallest set: the first scores, in some order, whose number or mass reaches a goal. Without
// sorting.
//
// The weights of all scores are added up by how deep in the order they are, in equal steps. Prefix sums say in which
// step the goal is reached; its scores are gathered, sorted, and added one by one. If they are still many, the steps
// are made finer between the first and the last of them; if they are all equal, the first by column are taken.
#pragma once

#include "sample/row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

enum class By { count, mass, typical };  // by score, until k or the mass p; by |x - mean|, until the mass p

struct Entry {
    double key, weight;
    std::int64_t at;
    bool operator<(const Entry& b) const { return key < b.key || (key == b.key && at < b.at); }
};
struct Boundary {
    double key;  // the last one's: minus its score, or for By::typical its distance from the mean
    std::int64_t at;
};

template <class T> class Select {
    using V = Pack<double>;
    static constexpr int kTile = Row<T>::kTile, kMostSteps = 4096;
    static constexpr std::int64_t kFew = 2048, kVeryFew = 128;

    static constexpr double kLeastDepth = 1e-290;  // the number of steps over less than this may overflow
    // The depths from low to high, cut into steps.
    struct Steps {
        double low, high;
        int count;
        double factor = high - low > kLeastDepth ? (count - 1) / (high - low) : 0;
    };
    // Where the goal is reached, and what has been added up before.
    struct Reached {
        int step = 1;
        double before = 0;
    };
    struct Found {
        std::int64_t count = 0;
        double first = kInf, last = -kInf, least_key = kInf, greatest_key = -kInf;
    };

    Row<T>& row_;
    const By by_;
    const double center_, cut_;  // e^-cut and less adds up to nothing, below 2^-54 of the mass

    struct Step {
        double mass;
    };
    static std::vector<Step>& masses() {
        thread_local std::vector<Step> all(kMostSteps + 1);
        return all;
    }
    static std::vector<Entry>& entries() {
        thread_local std::vector<Entry> all;
        return all;
    }

    // f(piece, from, how many, distances, depths) for every stretch of the row; of what does not count, depth -1.
    template <class F> void each(F f) {
        row_.distances([&](const Piece<T>& piece, const double* x, std::int64_t from, std::int64_t n) {
            alignas(64) double q[kTile];
            const V zero = V::all(0), none = V::all(-1), top = V::all(0.5 * row_.m), half = V::all(0.5);
            const V center = V::all(center_), low = V::all(by_ == By::count ? -kInf : -cut_);
            const By by = by_;
            wide_packs(piece.z + from, n, [&](std::int64_t i, V z) SOFTARGMAX_LAMBDA {
                const V y = V::load(x + i), off = y - center;
                const auto in = above(y, low), out = unless(equal(zero, zero), in);
                const V depth = by == By::count ? top - half * z : by == By::mass ? zero - y : max(off, zero - off);
                (keep(in, depth) + keep(out, none)).store(q + i);
            });
            f(piece, from, n, x, q);
        });
    }
    double key(const Piece<T>& piece, std::int64_t i, double q) const {
        return by_ == By::typical ? q : -static_cast<double>(piece.z[i]);
    }
    double weight(double x) const { return by_ == By::count ? 1 : exp_scalar(x); }

    // Which step each depth falls into, from 1 on; 0 is for what lies outside.
    static SOFTARGMAX_INLINE V step_of(const Steps& steps, V q) {
        const V low = V::all(steps.low), one = V::all(1);
        const auto here = unless(unless(equal(one, one), above(low, q)), above(q, V::all(steps.high)));
        return keep(here, (q - low) * V::all(steps.factor) + one);
    }
    void add_up(const Steps& steps) {
        Step* sums = masses().data();
        std::fill_n(sums, steps.count + 1, Step{0});
        each([&](const Piece<T>&, std::int64_t, std::int64_t n, const double* x, const double* q) {
            alignas(64) double w[kTile], at[kTile];
            if (by_ == By::count) std::fill_n(w, n, 1.0);
            else exponentials(x, n, cut_, w);
            for (std::int64_t i = 0; i < n; i += V::kLanes) step_of(steps, V::load(q + i)).store(at + i);
            for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::int32_t>(at[i])].mass += w[i];
        });
    }
    static Reached reach(const Steps& steps, double before, double goal) {
        Reached found{1, before};
        double sum = before;
        for (int i = 1; i <= steps.count && sum < goal; ++i) {
            const double mass = masses()[static_cast<std::size_t>(i)].mass;
            if (mass == 0) continue;
            found = {i, sum};
            sum += mass;
        }
        return found;
    }

    // The scores of one step: as many as `limit` allows, and what all of them are like.
    Found gather(const Steps& steps, int wanted, std::int64_t limit) {
        Found found;
        entries().clear();
        const V first = V::all(wanted), next = V::all(wanted + 1), one = V::all(1);
        each([&](const Piece<T>& piece, std::int64_t from, std::int64_t n, const double* x, const double* q) {
            alignas(64) double is_there[kTile];
            bool here = false;
            for (std::int64_t i = 0; i < n; i += V::kLanes) {
                const V at = step_of(steps, V::load(q + i));
                const auto in = unless(above(next, at), above(first, at));
                keep(in, one).store(is_there + i);
                here |= any(in);
            }
            for (std::int64_t i = 0; here && i < n; ++i) {
                if (is_there[i] == 0) continue;
                const double its = key(piece, from + i, q[i]);
                found.first = std::min(found.first, q[i]);
                found.last = std::max(found.last, q[i]);
                found.least_key = std::min(found.least_key, its);
                found.greatest_key = std::max(found.greatest_key, its);
                if (++found.count <= limit) entries().push_back({its, weight(x[i]), piece.column(from + i)});
            }
        });
        return found;
    }
    static Boundary finish(double before, double goal) {
        std::vector<Entry>& all = entries();
        std::sort(all.begin(), all.end());
        std::size_t i = 0;
        while (i + 1 < all.size() && (before += all[i].weight) < goal) ++i;
        return {all[i].key, all[i].at};
    }
    // Of scores that are all alike, the first by column.
    Boundary first_alike(double its, double before, double goal) {
        Boundary last{its, -1};
        each([&](const Piece<T>& piece, std::int64_t from, std::int64_t n, const double* x, const double* q) {
            for (std::int64_t i = 0; i < n && before < goal; ++i)
                if (q[i] >= 0 && key(piece, from + i, q[i]) == its) {
                    before += weight(x[i]);
                    last.at = piece.column(from + i);
                }
        });
        return last;
    }
    double deepest() {
        double most = 0;
        each([&](const Piece<T>&, std::int64_t, std::int64_t n, const double*, const double* q) {
            for (std::int64_t i = 0; i < n; ++i) most = q[i] > most ? q[i] : most;
        });
        return most;
    }

  public:
    Select(Row<T>& row, By by, double center = 0)
        : row_(row), by_(by), center_(center), cut_(40 + log_scalar(static_cast<double>(row.length))) {}

    // `share` of the mass, or that many scores. There has to be a score.
    Boundary operator()(double share) {
        if (row_.length <= kVeryFew) {
            gather({0, kInf, 1}, 1, kVeryFew);
            double total = 0;
            for (const Entry& each : entries()) total += each.weight;
            return finish(0, by_ == By::count ? share : share * total);
        }
        const int count = static_cast<int>(std::min<std::int64_t>(kMostSteps, row_.length / 8));
        Steps steps{0, by_ == By::mass ? cut_ : by_ == By::count ? deepest() : cut_ + std::fabs(center_), count};
        add_up(steps);
        double goal = share, before = 0;
        if (by_ != By::count) {
            double total = 0;
            for (int i = 1; i <= count; ++i) total += masses()[static_cast<std::size_t>(i)].mass;
            goal = share * total;
        }
        while (true) {
            const Reached found = reach(steps, before, goal);
            const Found there = gather(steps, found.step, kFew);
            before = found.before;
            if (there.count <= kFew) return finish(before, goal);
            if (there.least_key == there.greatest_key) return first_alike(there.least_key, before, goal);
            // One depth, several keys, closer than rounding can tell; or depths too close for the steps between them.
            if (there.last - there.first <= kLeastDepth) {
                gather(steps, found.step, there.count);
                return finish(before, goal);
            }
            steps = {there.first, there.last, count};
            add_up(steps);
        }
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
