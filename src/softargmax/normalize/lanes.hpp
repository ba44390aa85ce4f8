// Short float32 rows, sixteen at a time, one to a lane: what is done once a row (its peak, its factor) is then done for
// sixteen rows side by side, where a row by itself would wait for its own chain of latencies (65536 x 64: 71 ns a row).
//
// The operations of each row, and their order, are those of fold.hpp and rows.hpp: the same bits.
#pragma once

#include "core/native/tiles.hpp"
#include "normalize/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

constexpr int kShort = kUnroll * 16;  // the longest such row: one step of `steps`

template <bool Unit> class Lanes {
    using V = Pack<float>;
    static constexpr int kRows = kSide;
    alignas(64) float row_[kRows][kShort];  // as given, filled up with -inf
    alignas(64) float lane_[kShort][kRows];
    alignas(64) float t_[kShort][kRows], power_[kShort][kRows], y_[kShort][kRows];
    alignas(64) float top_[kRows], shift_[kRows], low_[kRows], magic_[kRows], hi_[kRows], lo_[kRows];
    double total_[kRows];
    float ties_[kRows];
    State state_[kRows];
    std::int64_t length_[kRows];
    Scale beta_;
    int columns_ = 0;  // of the longest row, in whole squares

    static void turn_all(const float* from, int from_pitch, float* to, int to_pitch, int squares, bool back) {
        for (int i = 0; i < squares; ++i)
            if (back) turn(from + i * kSide * from_pitch, from_pitch, to + i * kSide, to_pitch);
            else turn(from + i * kSide, from_pitch, to + i * kSide * to_pitch, to_pitch);
    }
  public:
    explicit Lanes(Scale beta) : beta_(beta) {
        for (auto& row : row_)
            for (float& z : row) z = -std::numeric_limits<float>::infinity();
        for (auto& n : length_) n = 0;
    }
    void put(int g, const float* z, std::int64_t n) {
        for (int i = 0; i < kShort && i < n; i += V::kLanes) V::load_part(z + i, n - i, -INFINITY).store(row_[g] + i);
        length_[g] = n;
        columns_ = std::max(columns_, static_cast<int>((n + kSide - 1) / kSide * kSide));
    }
    const float* row(int g) const { return row_[g]; }

    // Whether the row has an ordinary maximum and no NaN; the others are left to the one-row formulas.
    bool plain(int g) const { return std::isfinite(top_[g]) && fits_float(top_[g], beta_) && state_[g].r == state_[g].r; }
    const State& state(int g) const { return state_[g]; }

    void fold() {
        turn_all(row_[0], kShort, lane_[0], kRows, columns_ / kSide, false);
        V top = V::all(-INFINITY);
        for (int i = 0; i < columns_; ++i) top = max(V::load(lane_[i]), top);
        top.store(top_);
        Peak<float> peak[kRows];
        for (int g = 0; g < kRows; ++g) {
            const bool ordinary = std::isfinite(top_[g]) && fits_float(top_[g], beta_);
            peak[g] = Peak<float>(ordinary ? top_[g] : 0, beta_);
            shift_[g] = peak[g].shift;
            low_[g] = peak[g].floor(beta_);
            magic_[g] = magic_of<float>(Reach<float>::lift - peak[g].k);
        }
        const ScaleIn<float> scale(beta_);
        const V shift = V::load(shift_), low = V::load(low_), magic = V::load(magic_), one = V::all(1);
        V ties = V::all(0);
        for (int i = 0; i < columns_; ++i) {
            const V v = V::load(lane_[i]);
            const Term<float> e = exp_term<Unit>(v - shift, scale, magic);
            const auto in = above(v, low);
            keep(in, e.t).store(t_[i]);
            keep(in, e.power).store(power_[i]);
            const auto tie = equal(v, top);
            keep(unless(in, tie), e.value()).store(y_[i]);
            ties = ties + keep(tie, one);
        }
        ties.store(ties_);
        // The sum of each row in the order of Sum<float>: four packs of a step, then lanes, low and high halves first.
        const auto lane = [&](int j) {
            const V y = V::load(y_[j]);
            if (columns_ == 16) return widen(y);
            const V second = y + V::load(y_[j + 16]);
            if (columns_ == 32) return widen(second);
            const V third = V::load(y_[j + 32]);
            return widen(second + (columns_ == 48 ? third : third + V::load(y_[j + 48])));
        };
        Wide x[8] = {};
        for (int j = 0; j < 8 && columns_; ++j) {
            const Wide a = lane(j), b = lane(j + 8);
            x[j] = {a.low + b.low, a.high + b.high};
        }
        // In the order of sum_of (pack.hpp), for the same bits.
        const auto tree = [](Pack<double> a, Pack<double> b, Pack<double> c, Pack<double> d, Pack<double> e, Pack<double> f,
                             Pack<double> g, Pack<double> h) { return ((a + e) + (c + g)) + ((b + f) + (d + h)); };
        tree(x[0].low, x[1].low, x[2].low, x[3].low, x[4].low, x[5].low, x[6].low, x[7].low).store(total_);
        tree(x[0].high, x[1].high, x[2].high, x[3].high, x[4].high, x[5].high, x[6].high, x[7].high).store(total_ + 8);
        for (int g = 0; g < kRows; ++g) {
            const double rest = total_[g] * (Reach<float>::lower / peak[g].e);
            state_[g] = {static_cast<double>(top_[g]), (static_cast<double>(ties_[g]) - 1) + rest};
            if (looks_confident(state_[g].r))
                state_[g] = fold_once<Unit, Fold::kCareful>(row_[g], length_[g], peak[g], beta_);
            const double inverse = inverse_of(state_[g], peak[g]).hi;
            hi_[g] = static_cast<float>(inverse);
            lo_[g] = static_cast<float>(inverse - static_cast<double>(hi_[g]));
        }
    }

    // softmax of all rows, to be taken by `take`.
    void softmax() {
        const V hi = V::load(hi_), lo = V::load(lo_);
        for (int i = 0; i < columns_; ++i)
            ((hi + fma(V::load(t_[i]), hi, lo)) * V::load(power_[i])).store(lane_[i]);
        turn_back();
    }
    // log_softmax of all rows.
    void log_softmax() {
        for (int g = 0; g < kRows; ++g) {
            const double log = -log_l(state_[g]);
            hi_[g] = static_cast<float>(log);
            lo_[g] = static_cast<float>(log - static_cast<double>(hi_[g]));
        }
        const LogOf<Unit, float> log_of(V::load(top_), V::load(hi_), V::load(lo_), beta_);
        for (int i = 0; i < columns_; ++i) log_of(V::load(lane_[i])).store(lane_[i]);
        turn_back();
    }
    void take(int g, float* out) const {
        for (int i = 0; i < length_[g]; i += V::kLanes) V::load(y_[0] + g * kShort + i).store_part(out + i, length_[g] - i);
    }

  private:
    void turn_back() { turn_all(lane_[0], kRows, y_[0], kShort, columns_ / kSide, true); }  // y_ read as rows
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
