// The filters top-k, top-p, min-p, typical, epsilon and eta.
//
// Let the scores of a row be sorted from the largest to the smallest, and equal scores by column. All filters except
// `typical` keep a prefix of this order, which is stored as a `Kept`. The intersection of two prefixes is the shorter
// prefix. With `joint`, each filter sees the whole row. Without it, each filter sees only the scores that the previous
// filters kept, renormalised.
#pragma once

#include "sample/kept_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

// ---- the boundary of a smallest set ---------------------------------------------------------------------------
//
// A filter keeps the first scores of some order, and as few of them as possible. The number of kept scores, or the sum
// of their e^x (a mass), must reach a goal. The boundary is the last score that is kept. It is found without sorting
// the row.
//
// The depth of a score is its distance from the start of the order. The weight of a score is 1 if the goal is a number
// of scores, and e^x with x = beta (z - m) if the goal is a mass. A histogram sums the weights of all scores by depth.
// Prefix sums give the bin in which the goal is reached. The scores of this bin are collected, sorted, and added one by
// one. If the bin has too many scores, it is divided further. If all its scores are equal, those with the lowest
// columns are taken.

// The order and the goal. count: sorted by score, the goal is k scores. mass: sorted by score, the goal is the mass p.
// typical: sorted by |x - mean|, the goal is the mass p.
enum class By { count, mass, typical };

struct Entry {
    double key, weight;
    std::int64_t at;
    bool operator<(const Entry& b) const { return key < b.key || (key == b.key && at < b.at); }
};
struct Boundary {
    double key;  // the key of the last kept score: minus the score, or |x - mean| for By::typical
    std::int64_t at;  // the column of this score
};

template <class T> class Select {
    using V = Pack<double>;
    static constexpr int kTile = Row<T>::kTile, kMostSteps = 4096;
    static constexpr std::int64_t kFew = 2048, kVeryFew = 128;

    static constexpr double kLeastDepth = 1e-290;  // if high - low is smaller, (count - 1) / (high - low) may overflow
    // The bins of a histogram: the depths from low to high, divided into `count` bins, also called steps.
    struct Steps {
        double low, high;
        int count;
        double factor = high - low > kLeastDepth ? (count - 1) / (high - low) : 0;
    };
    // The bin in which the goal is reached, and the sum over all earlier bins.
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
    const double center_, cut_;  // terms of at most e^-cut sum to less than 2^-54 of the mass

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

    // Calls f(piece, from, count, distances, depths) for every kTile scores of the row. Excluded scores have depth -1.
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

    // Returns the bin of each depth, counted from 1, or 0 for depths outside the histogram.
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

    // Collects up to `limit` scores of one bin. Returns the number and the range of all scores in the bin.
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
    // Returns the boundary for a bin in which all scores have the same key. The lowest columns are kept first.
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

    // Returns the boundary for the fraction `share` of the mass, or for `share` scores (By::count). The row has at
    // least one score.
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
            // The keys differ, but after rounding the depths are equal or too close to be divided into steps.
            if (there.last - there.first <= kLeastDepth) {
                gather(steps, found.step, there.count);
                return finish(before, goal);
            }
            steps = {there.first, there.last, count};
            add_up(steps);
        }
    }
};

// ---- the filters ----------------------------------------------------------------------------------------------

template <class T> struct Pick {
    T z;
    std::int64_t at;
    bool operator<(const Pick& b) const { return z > b.z || (z == b.z && at < b.at); }
};

template <class T> class Filters {
    static constexpr std::int64_t kListed = 4096;  // for a larger k, the histogram is used
    const Args& args_;
    Row<T>& row_;
    const bool lists_;  // true if a list of the remaining scores may replace the row

    double parameter(const Operand& x) const {
        const std::int64_t row = row_.group.first;
        return x.type == Type::i64 ? static_cast<double>(integer_at(x, args_, row)) : at(x, args_, row);
    }

    static std::vector<Pick<T>>& picks() {
        thread_local std::vector<Pick<T>> all;
        return all;
    }
    // Finds the k largest scores of the row. A score is collected if it is above `least`. As soon as 2 k + 64 scores
    // are collected, only the k largest are kept, and `least` becomes the smallest of them. (For rows of 128256 scores
    // and k = 50, a few hundred scores per row are collected.) Returns true if the row contains a NaN.
    bool gather_top(std::int64_t k) {
        using V = Pack<T>;
        std::vector<Pick<T>>& all = picks();
        all.clear();
        T least = -std::numeric_limits<T>::infinity();
        const auto cut = [&] {
            if (static_cast<std::int64_t>(all.size()) <= k) return;
            std::nth_element(all.begin(), all.begin() + (k - 1), all.end());
            all.resize(static_cast<std::size_t>(k));
            least = all.back().z;
        };
        const std::size_t many = static_cast<std::size_t>(2 * k + 64);
        Count<T> nans;
        row_.each([&](const Piece<T>& piece) {
            std::int64_t i = 0;
            steps(piece.z, piece.count, -std::numeric_limits<T>::infinity(),
                  [&](const V(&v)[kUnroll], int) SOFTARGMAX_LAMBDA {
                const std::int64_t from = i, end = std::min(piece.count, i + kUnroll * V::kLanes);
                i = end;
                for (const V& x : v) nans.add(above(x, x));
                if (!any(above(max(max(v[0], v[1]), max(v[2], v[3])), V::all(least)))) return;
                for (std::int64_t j = from; j < end; ++j)
                    if (piece.z[j] > least) all.push_back({piece.z[j], piece.column(j)});
                if (all.size() >= many) cut();
            });
        });
        cut();
        return nans.total() > 0;
    }
    Kept<T> top_k(std::int64_t k) {
        if (k > kListed) {
            const Boundary last = Select<T>(row_, By::count)(static_cast<double>(k));
            return {static_cast<T>(-last.key), last.at};
        }
        gather_top(k);
        const std::vector<Pick<T>>& all = picks();
        const Pick<T> last = *std::max_element(all.begin(), all.end());
        return {last.z, last.at};
    }
    // Replaces the row by the collected scores, in the order of columns.
    void list() {
        std::vector<Pick<T>>& all = picks();
        std::sort(all.begin(), all.end(), [](const Pick<T>& a, const Pick<T>& b) { return a.at < b.at; });
        const std::int64_t n = static_cast<std::int64_t>(all.size());
        T* z = scratch(kWeights).get<T>(n);
        std::int64_t* columns = scratch(kResult).get<std::int64_t>(n);
        for (std::int64_t i = 0; i < n; ++i) {
            z[i] = all[static_cast<std::size_t>(i)].z;
            columns[i] = all[static_cast<std::size_t>(i)].at;
        }
        row_.list = z;
        row_.columns = columns;
        row_.length = n;
        row_.kept = {};
        row_.band = {};
    }
    // Returns the set of scores z for which beta (z - m), a number of at most 0, is at least x. A bisection finds the
    // smallest number of type T in this set.
    Kept<T> at_least(double x) {
        using I = typename IntOf<T>::Type;
        const auto place = [](T z) {  // maps floats to integers in the same order
            I i;
            std::memcpy(&i, &z, sizeof i);
            return i < 0 ? std::numeric_limits<I>::min() - i : i;
        };
        const auto number = [](I i) {
            i = i < 0 ? std::numeric_limits<I>::min() - i : i;
            T z;
            std::memcpy(&z, &i, sizeof z);
            return z;
        };
        I low = place(std::numeric_limits<T>::lowest()), high = place(static_cast<T>(row_.m));
        const auto far = [&](I i) { return distance(static_cast<double>(number(i)), row_.m, row_.beta) < x; };
        if (!far(low)) return {};
        while (high - 1 != low) {  // `low` is too far from m, `high` is not
            const I middle = static_cast<I>((low & high) + ((low ^ high) >> 1));
            (far(middle) ? low : high) = middle;
        }
        return {number(high), Kept<T>::kAll};
    }

  public:
    Filters(Row<T>& row, const Args& args, bool lists) : args_(args), row_(row), lists_(lists) {}

    static bool any_asked(const Args& args) {
        return args.top_k || args.top_p || args.min_p || args.typical_p || args.epsilon || args.eta;
    }

    // True if every parameter is in its range. Parameters in tensors can arrive here unchecked.
    bool sound() const {
        const auto within = [&](const Operand& x, double least, double most, bool open) {
            const double value = x ? parameter(x) : most;
            return (open ? value > least : value >= least) && value <= most;
        };
        const RowScale& scale = row_.group.scale[0];
        return within(args_.top_k, 1, static_cast<double>(row_.length), false) && within(args_.top_p, 0, 1, true) &&
               within(args_.min_p, 0, 1, false) && within(args_.typical_p, 0, 1, true) &&
               within(args_.epsilon, 0, 1, false) && within(args_.eta, 0, 1, false) && !scale.undefined &&
               !scale.negate;
    }
    // True if one pass can find the scores that top-k keeps, the maximum, and any NaN. For 64 rows of 128256 scores and
    // k = 50, the single pass takes 0.7 times as long as two passes.
    bool lists_the_top() const { return lists_ && !args_.joint && args_.top_k && parameter(args_.top_k) <= kListed; }
    bool nan_or_top() {
        if (gather_top(static_cast<std::int64_t>(parameter(args_.top_k)))) return true;
        std::vector<Pick<T>>& all = picks();
        T top = -std::numeric_limits<T>::infinity();
        for (const Pick<T>& pick : all) top = std::max(top, pick.z);
        if (top == std::numeric_limits<T>::infinity()) {
            all.erase(std::remove_if(all.begin(), all.end(), [&](const Pick<T>& pick) { return pick.z < top; }),
                      all.end());
            for (Pick<T>& pick : all) pick.z = 0;
            top = 0;
        }
        row_.m = static_cast<double>(top);
        list();
        return false;
    }

    // Applies all filters to a row with a finite maximum and 0 < beta < inf.
    void operator()() {
        Kept<T> kept;
        Band band;
        const auto narrow = [&](const Kept<T>& to) {
            kept.tighten(to);
            if (!args_.joint) row_.kept.tighten(to);
        };
        if (args_.top_k && !row_.list) {
            const double k = parameter(args_.top_k);
            if (k < static_cast<double>(row_.length)) narrow(top_k(static_cast<std::int64_t>(k)));
        }
        if (args_.top_p && parameter(args_.top_p) < 1) {
            const Boundary last = Select<T>(row_, By::mass)(parameter(args_.top_p));
            narrow({static_cast<T>(-last.key), last.at});
        }
        if (args_.min_p && parameter(args_.min_p) > 0) narrow(at_least(log_scalar(parameter(args_.min_p))));
        if (args_.typical_p && parameter(args_.typical_p) < 1) {
            const double center = moments(row_).mean;
            const Boundary last = Select<T>(row_, By::typical, center)(parameter(args_.typical_p));
            band = {center, last.key, last.at};
            if (!args_.joint) row_.band = band;
        }
        if (args_.epsilon && parameter(args_.epsilon) > 0)
            narrow(at_least(bound(log_scalar(parameter(args_.epsilon)))));
        if (args_.eta && parameter(args_.eta) > 0) {
            const double log_eta = log_scalar(parameter(args_.eta));
            const Moments p = moments(row_);
            narrow(at_least(bound(std::min(log_eta, 0.5 * log_eta - (p.log_l() - p.mean)))));
        }
        row_.kept = kept;
        row_.band = band;
        if (band.everything()) return;
        // With `joint`, it is possible that no score is kept by all filters. Then the largest score is kept.
        if (args_.joint && moments(row_).count == 0) {
            row_.band = {};
            row_.kept = {};
            row_.kept = top_k(1);
        }
        if (lists_ && !row_.band.everything()) list_what_is_left();
    }
    // Returns the x = beta (z - m) at which log p is log_p. If the x of all remaining scores are lower, returns the
    // largest of them instead, so that at least one score is kept.
    double bound(double log_p) {
        const Moments p = moments(row_);
        return std::min(log_p + p.log_l(), greatest());
    }
    // Returns the largest x of the remaining scores. It is 0, unless the filter `typical` removed the maximum.
    double greatest() {
        if (row_.band.everything()) return 0;
        double top = -kInf;
        row_.distances([&](const Piece<T>&, const double* x, std::int64_t, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
        });
        return top;
    }
    void list_what_is_left() {
        std::vector<Pick<T>>& all = picks();
        all.clear();
        row_.distances([&](const Piece<T>& piece, const double* x, std::int64_t from, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i)
                if (x[i] > -kInf) all.push_back({piece.z[from + i], piece.column(from + i)});
        });
        list();
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
