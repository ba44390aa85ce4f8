// A dozen queries against a block of keys: scores, their exponentials, and what these weigh the values with.
//
//     k = max_j rint(S_j log2 e)       p_j = e^(S_j - k ln 2)       l = sum p_j       o = sum p_j v_j
//
// The maximum is that of the exponents: to merge two blocks is to multiply by powers of two, which is exact.
#pragma once

#include "attend/heads.hpp"
#include "core/native/philox.hpp"
#include "core/native/softcap.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// Scores lie in rows that do not fall on the same sets of a cache.
constexpr int kPitch = kKeys + 16;
using InPlace = Layout<kPitch, 1>;
// Sums over the width of a vector, and over keys or queries, begin anew so often: in one chain their error was three
// times that of torch's for a few queries of width 128.
constexpr std::int64_t kWidthChunk = 16, kChain = 32;
// What the sums of chunks are added up in.
template <class V> SOFTARGMAX_INLINE void gather(V sum, typename V::Scalar* to, bool first) {
    (first ? sum : V::load(to) + sum).store(to);
}

// What is left of a row of scores: k, l, and whether any key was seen.
struct Part {
    std::int32_t k = 0;
    double l = 0;
    bool empty() const { return l == 0; }
};
inline double log_of(const Part& x) {
    return fma(x.k, Exp<double>::ln2_hi, fma(x.k, Exp<double>::ln2_lo, log_scalar(x.l)));
}
// 2^d, 0 where that is below every number.
template <class T> T power(std::int64_t d) {
    constexpr int least = std::numeric_limits<T>::min_exponent - 1;
    return d < least ? T{0} : static_cast<T>(std::ldexp(T{1}, static_cast<int>(d)));
}
// Scores to which exponents are exact; terms so far below the largest are none.
template <class T> constexpr T kLargest = sizeof(T) == 4 ? T(0x1p20) : T(0x1p30);
template <class T> constexpr T kFar = sizeof(T) == 4 ? T(80) : T(700);

// z[begin..end), multiples of two packs, become p; those outside of `in` are 0. Where nothing masks them, scores that
// are all -inf have overflown (`may_be_empty`). `strange` where a score is NaN or too large.
template <class T> Part exponentials(T* z, Range all, Range in, bool may_be_empty, bool& strange) {
    using V = Pack<T>;
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    std::fill(z + all.begin, z + std::min(in.begin, all.end), lowest);
    std::fill(z + std::max(in.end, all.begin), z + all.end, lowest);
    V top[2] = {V::all(lowest), V::all(lowest)};
    for (std::int64_t i = all.begin; i < all.end; i += 2 * V::kLanes)
        for (int u = 0; u < 2; ++u) top[u] = max(V::load(z + i + u * V::kLanes), top[u]);
    const T m = max_of(max(top[0], top[1]));
    if (m == lowest) {  // nothing is seen, or nothing but NaN
        strange = strange || !may_be_empty;
        for (std::int64_t i = in.begin; i < in.end; ++i) strange = strange || z[i] != z[i];
        std::fill(z + all.begin, z + all.end, T{0});
        return {};
    }
    if (!(m < kLargest<T> && m > -kLargest<T>)) {
        strange = true;
        return {};
    }
    const std::int32_t k = static_cast<std::int32_t>(std::rint(static_cast<double>(m) * Exp<double>::log2e));
    const V low = V::all(m - kFar<T>), magic = V::all(magic_of<T>(-k));
    const ScaleIn<T> unit{Scale{}};
    V sum[2] = {V::all(0), V::all(0)};
    for (std::int64_t i = all.begin; i < all.end; i += 2 * V::kLanes)
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
            T* at = z + i + u * V::kLanes;
            const V x = V::load(at), p = keep(above(x, low), exp_term<true>(x, unit, magic).value());
            p.store(at);
            sum[u] = sum[u] + p;
        }
    return {k, sum_of(sum[0] + sum[1])};
}

// Soft-cap, bias and mask of the scores `in` of a block that starts at key `begin`; and the soft-cap's slope, if
// wanted.
// `strange` where a product is -inf, which is no mask's: it has overflown, or its key is not finite.
template <class T>
void bend(const Shared& head, std::int64_t row, std::int64_t begin, Range in, T* z, bool& strange, T* slope = nullptr) {
    const AttendJob& job = head.job;
    const std::int64_t n = in.end - in.begin;
    if (n <= 0 || !(job.softcap > 0 || job.bias || job.mask)) return;
    bool low = false;
    for (std::int64_t i = in.begin; i < in.end; ++i) low |= z[i] == -std::numeric_limits<T>::infinity();
    strange = strange || low;
    if (job.softcap > 0) Softcap<T>(job.softcap).bend(z + in.begin, n);
    if (slope) {
        const T inverse = static_cast<T>(1 / job.softcap);
        for (std::int64_t i = in.begin; i < in.end; ++i) slope[i] = (1 - z[i] * inverse) * (1 + z[i] * inverse);
    }
    T* const line = scratch(kMask).get<T>(kKeys) - in.begin;
    if (job.bias) {
        read(job.bias, head.at(job.bias, row), begin + in.begin, n, line + in.begin);
        for (std::int64_t i = in.begin; i < in.end; ++i) z[i] += line[i];
    }
    if (job.mask) {
        read(job.mask, head.at(job.mask, row), begin + in.begin, n, line + in.begin);
        for (std::int64_t i = in.begin; i < in.end; ++i)
            z[i] = line[i] != 0 ? z[i] : -std::numeric_limits<T>::infinity();
    }
}

// Which p of a query are kept (dropout.py): 1 / (1 - rate) there, 0 elsewhere.
template <class T> void kept(const Shared& head, std::int64_t row, std::int64_t first, Range all, T* to) {
    const AttendJob& job = head.job;
    const Philox philox(job.seeds[head.entry * job.heads + head.head(row)], static_cast<std::uint64_t>(head.query(row)),
                        0);
    const std::uint32_t low = static_cast<std::uint32_t>(job.dropout * 0x1p32);
    const T share = static_cast<T>(1 / (1 - job.dropout));
    std::uint32_t words[kChunk];
    for (std::int64_t i = all.begin; i < all.end; i += kChunk) {
        philox.adjacent(first + i, 0, words);
        for (std::int64_t j = i; j < std::min(i + kChunk, all.end); ++j) to[j] = words[j - i] >= low ? share : T{0};
    }
}

// A block of keys as a product takes it: panels of keys depth by depth, and values, panels of columns `panel` numbers
// apart, one key `pitch` behind the other.
template <class T> struct Block {
    const T *keys, *values;
    std::int64_t panel, pitch;
};

// Up to a dozen queries in the hands of one thread.
template <class T> struct Panel {
    static constexpr int kRows = kPanelRows;
    const Shared& head;
    std::int64_t first;
    int rows;
    Range seen[kRows], any;
    T* q;           // packed: depth by depth
    T* o;           // kRows rows of `pitch`
    std::int64_t pitch;
    Part part[kRows];  // of the keys so far, o with it
    bool strange[kRows] = {};

    static std::int64_t size(const AttendJob& job) { return kRows * (job.width + whole_panels<T>(job.values)) + 64; }
    Panel(const Shared& h, std::int64_t row, std::int64_t count, T* memory)
        : head(h),
          first(row),
          rows(static_cast<int>(count)),
          q(memory),
          o(memory + kRows * h.job.width),
          pitch(whole_panels<T>(h.job.values)) {
        const AttendJob& job = head.job;
        T* line = scratch(kWeights).get<T>(job.width);
        std::fill(q, q + kRows * job.width, T{0});
        std::fill(o, o + kRows * pitch, T{0});
        for (int i = 0; i < rows; ++i) {
            read(job.q, head.at(job.q, first + i), 0, job.width, line);
            T scale = 0;
            read(job.scale, head.at(job.scale, first + i), 0, 1, &scale);
            for (std::int64_t d = 0; d < job.width; ++d) q[d * kRows + i] = line[d] * scale;
            seen[i] = head.seen(first + i);
            any.include(seen[i]);
        }
    }

    // The scores of a block's keys, as far as any query sees them; `all` is where they stand, in whole panels of keys.
    void scores(const T* keys, Range all, T* z) const {
        const std::int64_t width = head.job.width;
        for (std::int64_t j = all.begin; j < all.end; j += kTileCols<T>) {
            const T* columns = keys + j / kPanelCols<T> * kPanelCols<T> * width + j % kPanelCols<T>;
            for (int i = 0; i < rows; i += kTileRows)
                lowest_tile<Packed>(rows - i, q + i, columns, kPanelCols<T>, Depth(width, kWidthChunk),
                                    [to = z + i * kPitch + j](Pack<T> sum, int r, int c, bool first)
                                        SOFTARGMAX_LAMBDA { gather(sum, to + r * kPitch + c, first); });
        }
    }
    // The block of keys from `begin` on is added.
    void fold(std::int64_t begin, const Block<T>& block) {
        const Range in = any.within(begin, kKeys);
        if (in.empty()) return;
        const Range all = in.panels<T>();
        T* z = scratch(kScores).get<T>(kRows * kPitch);
        scores(block.keys, all, z);
        T weight[kRows] = {};
        const bool masked = head.job.mask || head.job.bias;
        for (int i = 0; i < rows; ++i) {
            const Range its{std::max(all.begin, seen[i].begin - begin), std::min(all.end, seen[i].end - begin)};
            T* row = z + i * kPitch;
            bend<T>(head, first + i, begin, its, row, strange[i]);
            weight[i] = merge(part[i], exponentials(row, all, its, masked || its.empty(), strange[i]), o + i * pitch);
            if (head.job.dropout > 0) {
                T* const keep = scratch(kMask).get<T>(kKeys);
                kept(head, first + i, begin, all, keep);
                for (std::int64_t j = all.begin; j < all.end; ++j) row[j] *= keep[j];
            }
        }
        weigh(z, in, block, weight);
    }
    // o += weight p v.
    void weigh(const T* z, Range in, const Block<T>& block, const T* weight) {
        for (std::int64_t j = 0; j < pitch; j += kTileCols<T>) {
            const T* columns = block.values + j / kPanelCols<T> * block.panel + j % kPanelCols<T>;
            const Depth depth(in.end - in.begin, kChain, in.begin);
            for (int i = 0; i < rows; i += kTileRows) {
                T sums[kTileRows][kTileCols<T>];
                lowest_tile<InPlace>(rows - i, z + i * kPitch + in.begin, columns + in.begin * block.pitch, block.pitch,
                                     depth, [&sums](Pack<T> sum, int r, int c, bool first) SOFTARGMAX_LAMBDA {
                    gather(sum, sums[r] + c, first);
                });
                for (int r = 0; r < std::min(kTileRows, rows - i); ++r)
                    for (int c = 0; c < kTileCols<T>; c += Pack<T>::kLanes) {
                        T* const at = o + (i + r) * pitch + j + c;
                        fma(Pack<T>::load(sums[r] + c), Pack<T>::all(weight[i + r]), Pack<T>::load(at)).store(at);
                    }
            }
        }
    }
    // What a block counts beside what there is; that is brought to the block's exponent where it is the larger.
    T merge(Part& to, const Part& block, T* its) const {
        if (block.empty()) return 0;
        if (to.empty()) {
            to = block;
            return 1;
        }
        const std::int64_t d = std::int64_t{block.k} - to.k;
        if (d <= 0) {
            const T weight = power<T>(d);
            to.l += block.l * static_cast<double>(weight);
            return weight;
        }
        const T weight = power<T>(-d);
        for (std::int64_t j = 0; j < pitch; ++j) its[j] *= weight;
        to = {block.k, to.l * static_cast<double>(weight) + block.l};
        return 1;
    }

    // The same queries and later keys.
    void add(const Panel& later) {
        for (int i = 0; i < rows; ++i) {
            const T weight = merge(part[i], later.part[i], o + i * pitch);
            strange[i] = strange[i] || later.strange[i];
            const T* const from = later.o + i * pitch;
            for (std::int64_t j = 0; j < pitch; j += Pack<T>::kLanes) {
                T* const at = o + i * pitch + j;
                fma(Pack<T>::load(from + j), Pack<T>::all(weight), Pack<T>::load(at)).store(at);
            }
        }
    }

    // The output, and lse with the sink's part.
    bool finish() {
        const AttendJob& job = head.job;
        bool any_strange = false;
        for (int i = 0; i < rows; ++i) {
            const std::int64_t row = first + i;
            Part& of = part[i];
            double lse = of.empty() ? -kInf : log_of(of), inverse = of.empty() ? 0 : 1 / of.l;
            if (job.sink) {
                const double sink = job.sink[head.head(row)];
                const State both = softargmax::SOFTARGMAX_ISA_NAME::merge(
                    State{lse, lse == -kInf ? -1.0 : 0.0}, State{sink, sink == -kInf ? -1.0 : 0.0}, Scale{});
                const double whole = finalize(both, Scale{});
                inverse = of.empty() ? 0 : inverse * exp_scalar(lse - whole);
                lse = whole;
            }
            job.lse[head.number(row)] = lse;
            T* its = o + i * pitch;
            for (std::int64_t j = 0; j < job.values; ++j)
                its[j] = static_cast<T>(static_cast<double>(its[j]) * inverse);
            strange[i] = strange[i] || lse != lse || !all_finite(its, job.values);
            job.strange[head.number(row)] = strange[i];
            any_strange = any_strange || strange[i];
            write(job.out, head.at(job.out, row), job.values, its);
        }
        return any_strange;
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
