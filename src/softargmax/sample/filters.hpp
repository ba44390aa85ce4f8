// What top-k, top-p, min-p, typical, epsilon and eta leave over of a row.
//
// All but the typical ones keep a first part of the order by score, of equal scores by column: a `Kept`, and the
// intersection of two of them is the smaller one. One after the other, each filter sees what the one before has left,
// renormalised; jointly, each sees the whole row.
#pragma once

#include "sample/select.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

template <class T> struct Pick {
    T z;
    std::int64_t at;
    bool operator<(const Pick& b) const { return z > b.z || (z == b.z && at < b.at); }
};

template <class T> class Filters {
    static constexpr std::int64_t kListed = 4096;  // of a larger k the boundary is found by steps
    const Args& args_;
    Row<T>& row_;
    const bool lists_;  // whether the row may be replaced by the list of what is left

    double parameter(const Operand& x) const {
        const std::int64_t row = row_.group.first;
        return x.type == Type::i64 ? static_cast<double>(integer_at(x, args_, row)) : at(x, args_, row);
    }

    static std::vector<Pick<T>>& picks() {
        thread_local std::vector<Pick<T>> all;
        return all;
    }
    // The k first of the whole row: those above the least of the best so far are gathered, and cut down to k whenever
    // they are many (64 x 128256, k = 50: a few hundred of a row come that far). Returns whether there is a NaN.
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
    // The row is what was picked, in the order of columns.
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
    // Those whose distance is at least x: the least such score, found between the numbers of its type.
    Kept<T> at_least(double x) {
        using I = typename IntOf<T>::Type;
        const auto place = [](T z) {  // numbers in order, as integers in order
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
        while (high - 1 != low) {  // low is too far, high is not
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

    // Whether every parameter is in its range: tensors of them may come here unseen.
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
    // Where the first filter leaves few, one pass finds them, the maximum and whether there is a NaN (64 x 128256, k =
    // 50: 0.7 of the time of two passes).
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

    // The row has a finite maximum, 0 < beta < inf.
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
        if (args_.joint && moments(row_).count == 0) {  // what is typical may not be among the others: the top is left
            row_.band = {};
            row_.kept = {};
            row_.kept = top_k(1);
        }
        if (lists_ && !row_.band.everything()) list_what_is_left();
    }
    // log p as a distance from m, and no more than the greatest of what is left.
    double bound(double log_p) {
        const Moments p = moments(row_);
        return std::min(log_p + p.log_l(), greatest());
    }
    // The greatest distance of what is left: 0, unless the typical ones alone are left.
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
