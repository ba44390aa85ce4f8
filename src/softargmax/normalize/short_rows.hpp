// Softmax of short float32 rows, sixteen rows at a time, one row per SIMD lane. Work that is needed once per row, such
// as finding the maximum, is then done for sixteen rows at once. Without lanes, each row waits for a chain of dependent
// operations, which takes 71 ns per row for 65536 rows of 64 scores.
//
// The operations and their order are as in core/cpp/state.hpp and softmax_row.hpp, so a row gives the same bits with
// and without lanes. Loops over the rows `g` are written so that the compiler vectorizes them.
#pragma once

#include "normalize/softmax_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::normalize {

// ---- sixteen rows in lanes ------------------------------------------------------------------------------------

constexpr int kShort = kUnroll * 16;  // length of the longest row that fits a lane: kUnroll packs of 16 scores

// Prefetches the cache lines of the next rows, one line at a time, between arithmetic instructions. The hardware does
// not predict the order in which rows of different lengths are read. If all lines were requested at once, the requests
// would wait for one another.
struct Lookahead {
    const char *next = nullptr, *end = nullptr;  // in the scores: the next line to prefetch, and where to stop
    char* out = nullptr;  // the position in the results that corresponds to `next`
    const char* until = nullptr;

    static constexpr std::int64_t kFar = 8192;
    // Records that all scores before the position `here` have been read.
    void advance(const char* here) {
        if (!end) return;
        if (next < here) {
            out += here - next;
            next = here;
        }
        until = end - here < kFar ? end : here + kFar;
    }
    SOFTARGMAX_INLINE void prefetch_line() {
        if (next >= until) return;
        __builtin_prefetch(next);
        __builtin_prefetch(out, 1);
        next += 64;
        out += 64;
    }
};

// Sums the first `n` terms of each of sixteen rows, in the order in which Sum<float> would add them. Row g has term i
// at terms[i][g]. Terms beyond the end of a row are 0, so rows of different lengths are summed together. `n` is 16, 32,
// 48 or 64. Terms whose positions in the row differ by a multiple of 16 are added first. The 16 results are then added
// as in sum_of (simd.hpp): first those that are 8 apart, then 4, 2 and 1 apart. The function is not inlined and its
// loop not unrolled, which saves 20 kB of the module.
static_assert(kShort == 64);
SOFTARGMAX_CALLED inline void sum_lanes(const float (*terms)[kSide], int n, double* sum) {
    using V = Pack<float>;
    alignas(64) float sums[kSide][kSide];
#pragma GCC unroll 1
    for (int j = 0; j < kSide; ++j) {
        V x = V::load(terms[j]);
        if (n > 16) x = x + V::load(terms[j + 16]);
        if (n == 48) x = x + V::load(terms[j + 32]);
        if (n == 64) x = x + (V::load(terms[j + 32]) + V::load(terms[j + 48]));
        x.store(sums[j]);
    }
    const auto pair = [&](int j) SOFTARGMAX_LAMBDA { return widen(V::load(sums[j])) + widen(V::load(sums[j + 8])); };
    const Wide all = ((pair(0) + pair(4)) + (pair(2) + pair(6))) + ((pair(1) + pair(5)) + (pair(3) + pair(7)));
    all.low.store(sum);
    all.high.store(sum + 8);
}

template <bool Unit> class Lanes {
    using V = Pack<float>;
    using W = Pack<double>;
    static constexpr int kRows = kSide;
    Scale beta_;
    int columns_, padded_;  // a bound on the lengths of the rows, and this bound rounded up to a multiple of 16
    alignas(64) float row_[kRows][kShort];  // the scores, padded with -inf
    alignas(64) float lane_[kShort][kRows];
    alignas(64) float t_[kShort][kRows], power_[kShort][kRows], y_[kShort][kRows];
    alignas(64) float top_[kRows], m_[kRows], shift_[kRows], low_[kRows], magic_[kRows], hi_[kRows], lo_[kRows],
        ties_[kRows];
    alignas(64) double e_[kRows], r_[kRows], rest_[kRows];
    bool plain_[kRows];
    std::int64_t length_[kRows];

    static void transpose_all(const float* from, int from_pitch, float* to, int to_pitch, int squares, bool back) {
        for (int i = 0; i < squares; ++i)
            if (back) turn(from + i * kSide * from_pitch, from_pitch, to + i * kSide, to_pitch);
            else turn(from + i * kSide, from_pitch, to + i * kSide * to_pitch, to_pitch);
    }
    void transpose_back() {
        transpose_all(lane_[0], kRows, y_[0], kShort, padded_ / kSide, true);
    }  // y_ then contains rows

    // Finds the peak of every row, with the formulas of Peak<float> (core/cpp/state.hpp).
    void find_peaks() {
        V top = V::all(-INFINITY);
        for (int i = 0; i < columns_; ++i) top = max(V::load(lane_[i]), top);
        top.store(top_);
        alignas(64) double d[kRows], k[kRows];
        for (int g = 0; g < kRows; ++g) {
            const bool ordinary = std::isfinite(top_[g]) && fits_float(top_[g], beta_);
            m_[g] = ordinary ? top_[g] : 0;
            shift_[g] = Peak<float>::shift_of(m_[g], beta_);
            plain_[g] = ordinary && !(Unit && shift_[g] != 0);
        }
        for (int g = 0; g < kRows; ++g) {
            low_[g] = Peak<float>::floor_of(m_[g], beta_);
            d[g] = static_cast<double>(m_[g]) - static_cast<double>(shift_[g]);
        }
        for (int g = 0; g < kRows; g += W::kLanes) {
            const Parts<W> x = parts_of(W::load(d + g), beta_);
            x.k.store(k + g);
            x.e.store(e_ + g);
        }
        constexpr double magic = static_cast<double>(Exp<float>::magic) + Exp<float>::bias + Reach<float>::lift;
        for (int g = 0; g < kRows; ++g) magic_[g] = static_cast<float>(magic - k[g]);
    }

    // Writes 0 into the padding, terms[columns_] .. terms[padded_ - 1].
    void pad(float (*terms)[kRows]) const {
        for (int i = columns_; i < padded_; ++i) V::all(0).store(terms[i]);
    }
    // Computes the terms of every row, and sums all terms except those of the row's maxima.
    void add_terms(Lookahead& ahead) {
        const ScaleIn<float> scale(beta_);
        const V top = V::load(top_), shift = V::load(shift_), low = V::load(low_), magic = V::load(magic_),
                one = V::all(1);
        V ties = V::all(0);
        for (int i = 0; i < columns_; ++i) {
            ahead.prefetch_line();
            const V v = V::load(lane_[i]);
            const Term<float> e = exp_term<Unit>(Unit ? v : v - shift, scale, magic);
            const auto in = above(v, low), tie = equal(v, top);
            keep(in, e.t).store(t_[i]);
            keep(in, e.power).store(power_[i]);
            keep(unless(in, tie), e.value()).store(y_[i]);
            ties = ties + keep(tie, one);
        }
        pad(y_);
        ties.store(ties_);
        sum_lanes(y_, padded_, rest_);
        for (int g = 0; g < kRows; ++g) r_[g] = sum_of_terms(g, rest_[g]);
    }
    // Returns the state's r: the number of maxima minus 1, plus the sum of the other terms. The argument `rest` is this
    // sum before it is scaled. The function scales it so that the term of a maximum would be 1.
    double sum_of_terms(int g, double rest) const {
        return (static_cast<double>(ties_[g]) - 1) + rest * (Reach<float>::lower / e_[g]);
    }
    // A term is power * (1 + t). For rows that look confident, power and power * t are summed separately, as in
    // Fold::kCareful (core/cpp/state.hpp).
    void refine_confident() {
        bool any = false;
        for (int g = 0; g < kRows; ++g) any = any || looks_confident(r_[g]);
        if (!any) return;
        const V top = V::load(top_), low = V::load(low_);
        alignas(64) float products[kShort][kRows];
        for (int i = 0; i < columns_; ++i) {
            const V v = V::load(lane_[i]), power = V::load(power_[i]);
            const auto kept = unless(above(v, low), equal(v, top));
            keep(kept, power).store(y_[i]);
            keep(kept, V::load(t_[i]) * power).store(products[i]);
        }
        pad(products);
        alignas(64) double powers[kRows];
        sum_lanes(y_, padded_, powers);  // y_ still has its padding from add_terms
        sum_lanes(products, padded_, rest_);
        for (int g = 0; g < kRows; ++g)
            if (looks_confident(r_[g])) r_[g] = sum_of_terms(g, powers[g] + rest_[g]);
    }

  public:
    // For rows of at most `columns` scores.
    Lanes(Scale beta, int columns) : beta_(beta), columns_(columns), padded_((columns + kSide - 1) / kSide * kSide) {}

    // Copies a row register by register, not pack by pack. With AVX2 a pack has two registers, and the second register
    // of the last pack may be past the end of the row.
    void load_row(int g, const float* z, std::int64_t n) {
        int i = 0;
        for (; i < n; i += One<float>::kLanes) One<float>::load_part(z + i, n - i, -INFINITY).store(row_[g] + i);
        for (; i < padded_; i += One<float>::kLanes) One<float>::all(-INFINITY).store(row_[g] + i);
        length_[g] = n;
    }
    const float* row(int g) const { return row_[g]; }

    // True if the lanes can compute the row: it has no NaN, and its maximum is in the range that find_peaks allows.
    // Other rows are computed by whole_group.
    bool plain(int g) const { return plain_[g] && r_[g] == r_[g]; }
    State state(int g) const { return {static_cast<double>(top_[g]), r_[g]}; }

    void fold(Lookahead& ahead) {
        transpose_all(row_[0], kShort, lane_[0], kRows, padded_ / kSide, false);
        find_peaks();
        add_terms(ahead);
        refine_confident();
    }

    // Computes the softmax of all rows. `store_row` then writes the result of one row.
    void softmax() {
        for (int g = 0; g < kRows; ++g) {
            const double inverse = inverse_of<float>(r_[g], e_[g]);
            hi_[g] = static_cast<float>(inverse);
            lo_[g] = static_cast<float>(inverse - static_cast<double>(hi_[g]));
        }
        const V hi = V::load(hi_), lo = V::load(lo_);
        for (int i = 0; i < columns_; ++i) ((hi + fma(V::load(t_[i]), hi, lo)) * V::load(power_[i])).store(lane_[i]);
        transpose_back();
    }
    // Computes the log_softmax of all rows.
    void log_softmax() {
        for (int g = 0; g < kRows; ++g) {
            const double log = -log_l(state(g));
            hi_[g] = static_cast<float>(log);
            lo_[g] = static_cast<float>(log - static_cast<double>(hi_[g]));
        }
        const LogOf<Unit, float> log_of(V::load(top_), V::load(hi_), V::load(lo_), beta_);
        for (int i = 0; i < columns_; ++i) log_of(V::load(lane_[i])).store(lane_[i]);
        transpose_back();
    }
    void store_row(int g, float* out) const {
        for (int i = 0; i < length_[g]; i += One<float>::kLanes)
            One<float>::load(y_[0] + g * kShort + i).store_part(out + i, length_[g] - i);
    }
};

// ---- two ways to compute short rows: bare rows without a Group, and rows in lanes -----------------------------

// True if the call is a softmax whose rows fit in one block, and the kernel reads and writes the caller's
// memory directly.
template <class T, int Size> bool is_bare(const Frame<T>& frame) {
    const Args& args = frame.args;
    return Size == 1 && args.op == Op::softmax && !args.offsets && args.cols.total <= kBlock && frame.z_direct &&
           frame.out_direct && !frame.changed && frame.one_scale && !frame.scale.undefined && !args.lse;
}
// Computes the softmax of bare rows without a Group. This saves 10 ns per row. A row of 1024 scores takes 240 ns.
template <class T> void bare_rows(const Frame<T>& frame, std::int64_t begin, std::int64_t end) {
    const Args& args = frame.args;
    T* store = scratch(kTerms).get<T>(kBlock);
    for (std::int64_t i = begin; i < end; ++i) {
        const RowOf row{args, i};
        const T* z = reinterpret_cast<const T*>(row.start(args.z));
        softmax_short(z, args.cols.total, frame.scale.beta, store,
                      {reinterpret_cast<T*>(row.start(args.out)), z + args.cols.total, args.streaming});
    }
}

struct ShortRow {
    std::int64_t index, length;
};

// Computes up to sixteen rows of at most `columns` scores, one row per lane. It is not inlined, which saves 10 kB.
template <bool Unit> SOFTARGMAX_CALLED void rows_in_lanes(const Frame<float>& frame, const ShortRow* rows, int count,
                                                          int columns, Lookahead& ahead) {
    const Args& args = frame.args;
    const bool read_there = frame.z_direct && !frame.changed, written_there = frame.out_direct && !args.lse;
    Lanes<Unit> lanes(frame.scale.beta, columns);
    for (int g = 0; g < kSide; ++g) {
        const ShortRow row = rows[g < count ? g : 0];
        if (read_there) {
            lanes.load_row(g, reinterpret_cast<const float*>(RowOf{args, row.index}.start(args.z)), row.length);
            continue;
        }
        Group<float, 1> group(frame, row.index);
        group.load(0);
        lanes.load_row(g, group.scores, group.length);
    }
    lanes.fold(ahead);
    if (args.op == Op::softmax) lanes.softmax();
    else if (args.op == Op::log_softmax) lanes.log_softmax();
    for (int g = 0; g < count; ++g) {
        if (written_there && args.op != Op::logsumexp && lanes.plain(g)) {
            lanes.store_row(g, reinterpret_cast<float*>(RowOf{args, rows[g].index}.start(args.out)));
            continue;
        }
        Group<float, 1> group(frame, rows[g].index);
        if (!lanes.plain(g)) {
            whole_group(group);
            continue;
        }
        Folded s{lanes.state(g)};
        finish(group, 0, s);
        if (args.op == Op::logsumexp) continue;
        lanes.store_row(g, group.target(0, 0, lanes.row(g)).out);
        group.flush(0);
    }
}

// Returns the Lookahead for rows [begin, end). It prefetches nothing if the rows are not contiguous.
inline Lookahead ahead_of(const Frame<float>& frame, std::int64_t begin, std::int64_t end) {
    const Args& args = frame.args;
    const auto dense = [&](const Operand& x) { return args.rows.dims == 1 && x.row[0] == args.cols.total; };
    const bool packed = args.offsets ? args.heads == 1 : dense(args.z) && dense(args.out);
    if (!packed || !frame.z_direct || !frame.out_direct || begin == end) return {};
    const RowOf first{args, begin}, last{args, end - 1};
    return {first.start(args.z), last.start(args.z), first.start(args.out)};
}

// Computes rows [begin, end). Rows whose lengths round up to the same multiple of kStep are computed together in lanes.
// At the end, the remaining rows of all lengths are computed together in lanes. Empty rows and rows that are too long
// for a lane are computed one by one. Lanes of similar lengths compute fewer padded scores. 50,000 segments of 20
// scores on average take 1.72 ms with steps of 4 or 8, and 1.89 ms with steps of 16 (AVX2).
template <bool Unit> void short_rows(const Frame<float>& frame, std::int64_t begin, std::int64_t end) {
    constexpr int kStep = 4, kSizes = kShort / kStep + 1;
    Lookahead ahead = ahead_of(frame, begin, end);
    ShortRow pending[kSizes][kSide];
    int count[kSizes] = {};
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t n = RowOf{frame.args, row}.length();
        if (n == 0 || n > kShort) {
            Group<float, 1> group(frame, row);
            whole_group(group);
            continue;
        }
        const int size = static_cast<int>((n + kStep - 1) / kStep);
        pending[size][count[size]++] = {row, n};
        if (count[size] < kSide) continue;
        ahead.advance(RowOf{frame.args, row}.start(frame.args.z));
        // count[size] is kSide here, but kSide is not passed: for a constant argument the compiler would make a second
        // copy of rows_in_lanes.
        rows_in_lanes<Unit>(frame, pending[size], count[size], size * kStep, ahead);
        count[size] = 0;
    }
    ShortRow rest[kSide];  // rows of several sizes, from short to long
    int rows = 0, columns = 0;
    for (int size = 1; size < kSizes; ++size)
        for (int i = 0; i < count[size]; ++i) {
            rest[rows++] = pending[size][i];
            columns = size * kStep;
            if (rows < kSide) continue;
            rows_in_lanes<Unit>(frame, rest, rows, columns, ahead);
            rows = 0;
        }
    if (rows > 0) rows_in_lanes<Unit>(frame, rest, rows, columns, ahead);
}

// True if the call has so many short rows that computing them in lanes is faster.
inline bool fits_lanes(const Frame<float>& frame) {
    const Args& args = frame.args;
    const bool is_short = args.offsets ? args.cols.total <= kShort * args.segments / 2 : args.cols.total <= kShort;
    return folds(args.op) && args.op != Op::fold && !args.m && is_short && frame.one_scale &&
           frame.groups.total >= kSide && !frame.scale.undefined && !frame.scale.flat &&
           std::isfinite(frame.scale.beta.hi);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::normalize
