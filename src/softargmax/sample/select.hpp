// The boundary of a smallest set: the first scores, in some order, whose number or mass reaches a goal. Without sorting.
//
// The weights of all scores are added up by how far down the order they are, in kBins equal steps. Prefix sums say in
// which step the goal is reached; its scores are gathered, sorted, and added one by one. If they are still many, the
// steps are made finer between the first and the last of them; if they are all equal, the first by column are taken.
#pragma once

#include "sample/row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

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
    static constexpr int kBins = 1024, kTile = Row<T>::kTile;
    static constexpr std::int64_t kFew = 2048, kVeryFew = 128;

    Row<T>& row_;
    const By by_;
    const double center_, cut_;  // e^-cut and less adds up to nothing, below 2^-54 of the mass
    double mass_[kBins];

    // f(depth in the order, weight, key, column) of every score that is left.
    template <class F> void each(F f) {
        row_.distances([&](const Piece<T>& piece, const double* x, std::int64_t from, std::int64_t n) {
            alignas(64) double w[kTile], q[kTile];
            if (by_ == By::count) {
                for (std::int64_t i = 0; i < n; ++i) {
                    w[i] = x[i] > -kInf ? 1 : 0;
                    q[i] = 0.5 * row_.m - 0.5 * static_cast<double>(piece.z[from + i]);
                }
            } else {
                exponentials(x, n, cut_, w);
                for (std::int64_t i = 0; i < n; ++i) q[i] = by_ == By::mass ? -x[i] : std::fabs(x[i] - center_);
            }
            f(piece, from, n, q, w);
        });
    }
    double key(const Piece<T>& piece, std::int64_t i, double q) const {
        return by_ == By::typical ? q : -static_cast<double>(piece.z[i]);
    }
    // Which step of [low, high] a depth falls into; below 0 or kBins and more: outside.
    static double scale(double low, double high) { return high > low ? (kBins - 1) / (high - low) : 0; }
    static double step(double q, double low, double factor) { return (q - low) * factor; }

    // Adds up the steps of [low, high].
    void add_up(double low, double high) {
        std::fill_n(mass_, kBins, 0.0);
        const double factor = scale(low, high);
        each([&](const Piece<T>&, std::int64_t, std::int64_t n, const double* q, const double* w) {
            alignas(64) double s[kTile];
            for (std::int64_t i = 0; i < n; ++i) {
                const double at = step(q[i], low, factor);
                s[i] = q[i] >= low && q[i] <= high && w[i] > 0 ? at : -1;
            }
            for (std::int64_t i = 0; i < n; ++i)
                if (s[i] >= 0) mass_[static_cast<int>(s[i])] += w[i];
        });
    }

    struct Found {
        std::int64_t count = 0;
        double first = kInf, last = -kInf, least_key = kInf, greatest_key = -kInf;
    };
    // The scores of one step of [low, high]: all of them if `limit` allows, else only what they are like.
    Found gather(double low, double high, int wanted, std::int64_t limit) {
        Found found;
        entries().clear();
        const double factor = scale(low, high);
        each([&](const Piece<T>& piece, std::int64_t from, std::int64_t n, const double* q, const double* w) {
            alignas(64) double s[kTile];
            bool here = false;
            for (std::int64_t i = 0; i < n; ++i) {
                const double at = step(q[i], low, factor);
                s[i] = q[i] >= low && q[i] <= high && w[i] > 0 && at >= wanted && at < wanted + 1 ? 1 : 0;
                here |= s[i] > 0;
            }
            for (std::int64_t i = 0; here && i < n; ++i) {
                if (s[i] == 0) continue;
                const double its = key(piece, from + i, q[i]);
                found.first = std::min(found.first, q[i]);
                found.last = std::max(found.last, q[i]);
                found.least_key = std::min(found.least_key, its);
                found.greatest_key = std::max(found.greatest_key, its);
                if (++found.count <= limit) entries().push_back({its, w[i], piece.column(from + i)});
            }
        });
        return found;
    }
    static std::vector<Entry>& entries() {
        thread_local std::vector<Entry> all;
        return all;
    }
    Boundary finish(double before, double goal) {
        std::vector<Entry>& all = entries();
        std::sort(all.begin(), all.end());
        std::size_t i = 0;
        while (i + 1 < all.size() && (before += all[i].weight) < goal) ++i;
        return {all[i].key, all[i].at};
    }
    // Of scores that are all alike, the first by column.
    Boundary first_alike(double key_of_all, double before, double goal) {
        Boundary last{key_of_all, -1};
        each([&](const Piece<T>& piece, std::int64_t from, std::int64_t n, const double* q, const double* w) {
            for (std::int64_t i = 0; i < n && before < goal; ++i)
                if (w[i] > 0 && key(piece, from + i, q[i]) == key_of_all) {
                    before += w[i];
                    last.at = piece.column(from + i);
                }
        });
        return last;
    }

  public:
    Select(Row<T>& row, By by, double center = 0)
        : row_(row), by_(by), center_(center), cut_(40 + std::log(static_cast<double>(std::max<std::int64_t>(row.length, 1)))) {}

    // `share` of the mass, or that many scores. There has to be a score.
    Boundary operator()(double share) {
        double low = 0, high = by_ == By::mass ? cut_ : by_ == By::typical ? cut_ + std::fabs(center_) : 0;
        if (row_.length <= kVeryFew) {  // one step
            gather(low, kInf, 0, kVeryFew);
            double total = 0;
            std::sort(entries().begin(), entries().end());
            for (const Entry& each : entries()) total += each.weight;
            return finish(0, by_ == By::count ? share : share * total);
        }
        if (by_ == By::count)
            each([&](const Piece<T>&, std::int64_t, std::int64_t n, const double* q, const double* w) {
                for (std::int64_t i = 0; i < n; ++i) high = w[i] > 0 && q[i] > high ? q[i] : high;
            });
        double before = 0, goal = by_ == By::count ? share : -1;
        while (true) {
            add_up(low, high);
            if (goal < 0) {
                double total = 0;
                for (double each : mass_) total += each;
                goal = share * total;
            }
            int bin = 0;
            double sum = before;
            for (int i = 0; i < kBins && sum < goal; ++i) {
                if (mass_[i] == 0) continue;
                bin = i;
                before = sum;
                sum += mass_[i];
            }
            const Found found = gather(low, high, bin, kFew);
            if (found.count <= kFew) return finish(before, goal);
            if (found.least_key == found.greatest_key) return first_alike(found.least_key, before, goal);
            if (found.first == found.last) {  // one depth, several keys: scores closer than rounding can tell
                gather(low, high, bin, found.count);
                return finish(before, goal);
            }
            low = found.first;
            high = found.last;
        }
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
