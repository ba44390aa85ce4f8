// Gumbel-max: arg max of beta z plus noise. The noise g is only computed for columns that may be the arg max.
//
// Columns are processed 64 at a time. Each column has two random words of 32 bits. The first gives an upper bound of
// the noise of the column. A column is skipped if beta z plus this bound does not reach the best value so far. The
// noise of the other columns is computed in double. Their expected number is O(log K) in a row of K columns. If none of
// the 64 columns can reach the best value even with the largest possible noise, their random words are not computed.
#pragma once

#include "core/cpp/philox.hpp"
#include "sample/kept_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {

// ---- noise: from the random words w1 and w2 to g, in double ---------------------------------------------------
//
//     w = w1 2^32 + w2,   V = (w + 1/2) / 2^64,   g = -log(-log(1 - V))

constexpr int kLanes = Pack<double>::kLanes;
// The range of the noise: V is from 2^-65 to 1 - 2^-65.
constexpr double kLeast = -3.82, kMost = 45.1;

// Returns the noise of kLanes columns. 1 - V = (~w + 1/2) / 2^64 is computed as a pair of doubles, without rounding.
// The logarithm of a pair near 1 keeps its digits. So both tails of g are accurate up to the final rounding. Near g = 0
// the error is 2^-60.
SOFTARGMAX_INLINE Pack<double> gumbel(const std::uint32_t* w1, const std::uint32_t* w2) {
    using V = Pack<double>;
    double upper[kLanes], lower[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        upper[i] = static_cast<double>(~w1[i]);
        lower[i] = static_cast<double>(~w2[i]);
    }
    const V none = V::all(-0.0);
    const Two<V> log =
        log_pair(two_sum(V::load(upper) * V::all(0x1p-32), (V::load(lower) + V::all(0.5)) * V::all(0x1p-64)));
    const Two<V> g = log_pair(Two<V>{none - log.hi, none - log.lo});
    return none - (g.hi + g.lo);
}

// Returns an upper bound of the noise -log(-log(1 - V)) of 16 columns, computed from w1. Let n be the integer
// floor(w1 / 2). Then -log(1 - V) >= V >= n / 2^31, so the noise is at most -log(n / 2^31). The logarithm of n is
// bounded from below: log2 of a float is at least i / 2^23 - 127, where i is its bit pattern read as an integer,
// because the logarithm is concave. The bound is at most 0.06 too high and takes seven instructions. Its rounding error
// is below 1e-4.
SOFTARGMAX_INLINE Pack<float> noise_bound(const std::uint32_t* w1) {
    constexpr float ln2 = 0x1.62e430p-1f;
    std::int32_t bits[16];
    float v[16], bound[16];
    for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(static_cast<std::int32_t>(w1[i] >> 1));
    std::memcpy(bits, v, sizeof bits);
    for (int i = 0; i < 16; ++i) bound[i] = ln2 * (31 + 127) - (ln2 * 0x1p-23f) * static_cast<float>(bits[i]);
    return Pack<float>::load(bound);
}

// ---- draws ----------------------------------------------------------------------------------------------------

// The column with the largest beta z + g so far, or the first of several equal ones. Values are compared by their
// difference, which is accurate even if beta z is huge.
struct Best {
    double z = 0, noise = 0;
    std::int64_t at = -1;
    // Returns the value, relative to beta m, that a column must exceed to become the best. It is at least kLeast,
    // because the column with score m reaches kLeast with any noise.
    double need(double m, Scale beta) const { return at < 0 ? kLeast : std::max(kLeast, distance(z, m, beta) + noise); }
    void offer(double its, double g, std::int64_t column, Scale beta) {
        if (at < 0 || distance(its, z, beta) + (g - noise) > 0) *this = {its, g, column};
    }
};

struct Ranked {
    double x, key;
    std::int64_t at;
    bool operator<(const Ranked& b) const { return key > b.key || (key == b.key && at < b.at); }
};
// The n columns with the largest beta (z - m) + g, for draws without replacement.
class Top {
    std::vector<Ranked>& all_;
    const std::size_t n_;
    const double m_;
    double edge_ = -kInf;

  public:
    Top(std::vector<Ranked>& all, std::int64_t n, double m) : all_(all), n_(static_cast<std::size_t>(n)), m_(m) {
        all_.clear();
    }
    double need(double, Scale) const { return edge_; }
    void offer(double z, double g, std::int64_t column, Scale beta) {
        const double x = distance(z, m_, beta);
        if (!(x + g > edge_)) return;
        all_.push_back({x, x + g, column});
        if (all_.size() >= 2 * n_ + 256) cut();
    }
    void cut() {
        if (all_.size() <= n_) return;
        std::nth_element(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(n_ - 1), all_.end());
        all_.resize(n_);
        edge_ = all_.back().key;
    }
    void finish() {
        cut();
        std::sort(all_.begin(), all_.end());
    }
};

// Returns a float below `need`, to be compared with distances that have a relative error of 2^-22. The result is so far
// below `need` that no score is missed because of this error. For `need` below -1e37 the result is -inf, so that every
// score is examined.
SOFTARGMAX_INLINE float safely(double need) {
    return need < -1e37 ? -std::numeric_limits<float>::infinity()
                        : static_cast<float>(need - (1e-3 + 1e-6 * std::fabs(need)));
}

// Computes beta (z - m) of up to kChunk scores in float, accurate enough for bounds. Scores below `low` become -inf.
template <class T>
SOFTARGMAX_INLINE void rough_distances(const T* z, std::int64_t n, T low, double m, Scale beta, float* x) {
    constexpr float out = -std::numeric_limits<float>::infinity(), least = -1e38F;
    for (std::int64_t i = n; i < kChunk; ++i) x[i] = out;
    const auto fill = [&](std::int64_t count) SOFTARGMAX_LAMBDA {
        if (sizeof(T) == 4 && fits_float(m, beta)) {
            const float top = static_cast<float>(m), factor = static_cast<float>(beta.hi);
            for (std::int64_t i = 0; i < count; ++i) {
                const float y = (static_cast<float>(z[i]) - top) * factor;
                x[i] = z[i] >= low ? (y > least ? y : least) : out;
            }
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                const double y = distance(static_cast<double>(z[i]), m, beta);
                x[i] = z[i] >= low ? static_cast<float>(y > -1e38 ? y : -1e38) : out;
            }
        }
    };
    if (n == kChunk) fill(kChunk);
    else fill(n);
}

// Offers to `keeper` (a `Best` or `Top`) every column of a piece whose beta z + g may be large enough to be kept. No
// score of the piece may be above m.
template <class T, class Keeper>
void draw(const Piece<T>& piece, const Kept<T>& kept, double m, Scale beta, const Philox& words, Keeper& keeper) {
    using V = Pack<float>;
    constexpr int kPacks = kChunk / V::kLanes;
    double reach = keeper.need(m, beta);
    float need = safely(reach);
    for (std::int64_t from = 0; from < piece.count; from += kChunk) {
        const std::int64_t n = std::min<std::int64_t>(kChunk, piece.count - from);
        alignas(64) float x[kChunk];
        alignas(64) std::uint32_t w1[kChunk], w2[kChunk];
        T low;
        const bool exact = kept.one_bound(piece.column(from), piece.column(from + n - 1), low);
        if (!exact) low = kept.edge;
        rough_distances(piece.z + from, n, low, m, beta, x);
        V y[kPacks];
        for (int u = 0; u < kPacks; ++u) y[u] = V::load(x + u * V::kLanes);
        const V needed = V::all(need);
        if (!any(above(max(max(y[0], y[1]), max(y[2], y[3])), V::all(need - static_cast<float>(kMost))))) continue;

        const auto fill = [&](std::uint32_t half, std::uint32_t* to) {
            if (piece.columns) words.scattered(piece.columns + from, n, half, to);
            else words.adjacent(piece.first + from, half, to);
        };
        fill(0, w1);
        bool matters = false;
        for (int u = 0; u < kPacks; ++u) {
            const V reached = y[u] + noise_bound(w1 + u * V::kLanes);
            matters |= any(above(reached, needed));
            reached.store(x + u * V::kLanes);
        }
        if (!matters) continue;
        fill(1, w2);
        for (int i = 0; i < n; i += kLanes) {
            bool here = false;
            for (int j = i; j < i + kLanes; ++j) here |= x[j] > need;
            if (!here) continue;
            double g[kLanes];
            gumbel(w1 + i, w2 + i).store(g);
            for (int j = i; j < i + kLanes; ++j) {
                if (!(x[j] > need)) continue;
                const T z = piece.z[from + j];
                const std::int64_t column = piece.column(from + j);
                if (exact || kept(z, column)) keeper.offer(static_cast<double>(z), g[j - i], column, beta);
            }
            need = safely(keeper.need(m, beta));
        }
    }
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
