// The gradients of attention, computed from its output and lse (docs/design.md, Formulas). Scores are recomputed for
// about 100 queries and one block of keys at a time.
//
//     p = e^(S - lse)      dS = p (do v^T - delta), times the soft-cap's derivative      delta = <do, o> - dlse
//     dq = scale dS k      dk = dS^T (scale q)      dv = p^T do
//
// Queries with nonfinite numbers are flagged and left out of all sums. The definition (reference.py) computes the
// gradients of these queries. If a query does not see a key, nonfinite numbers in that key and its value count as 0.
//
// Sums over keys run block by block. Sums over queries run in groups of about 100. Each of these partial sums starts at
// 0 and has a fixed order. Therefore the bits of the gradients do not depend on the number of threads.
#pragma once

#include <vector>

#include "attend/query_tile.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::attend {

constexpr std::int64_t kBackKeys = 256, kBackPanels = 8, kBackQueries = kBackPanels * kPanelRows;
constexpr int kBackPitch = kBackKeys + 16;
using RowsInPlace = Layout<kBackPitch, 1>;
using ColumnsInPlace = Layout<1, kBackPitch>;

// One query: its visible keys, delta and scale. k and factor represent e^-lse = 2^-k * factor. A score of at most `low`
// has p = 0.
template <class T> struct BackRow {
    Range visible;
    std::int32_t k = 0;
    T factor = 0, low = std::numeric_limits<T>::infinity(), delta = 0, scale = 0;
    bool sees_any() const { return low < std::numeric_limits<T>::infinity(); }
};

// Replaces the scores of one query by p. Entries outside the range `in` become 0.
template <class T> void probabilities(T* z, Range all, Range in, const BackRow<T>& row) {
    using V = Pack<T>;
    std::fill(z + all.begin, z + std::clamp(in.begin, all.begin, all.end), -std::numeric_limits<T>::infinity());
    std::fill(z + std::clamp(in.end, all.begin, all.end), z + all.end, -std::numeric_limits<T>::infinity());
    const V low = V::all(row.low), magic = V::all(magic_of<T>(-row.k)), factor = V::all(row.factor);
    const ScaleIn<T> unit{Scale{}};
    for (std::int64_t i = all.begin; i < all.end; i += V::kLanes) {
        const V x = V::load(z + i);
        keep(above(x, low), exp_term<true>(x, unit, magic).value() * factor).store(z + i);
    }
}

// A block of keys and values, packed for the products.
template <class T> struct BackKeys {
    T *keys, *columns, *values;
    static std::int64_t size(const Args& args) {
        return kBackKeys * (args.width + whole_panels<T>(args.width) + args.values);
    }
    BackKeys(const Args& args, T* memory)
        : keys(memory),
          columns(keys + kBackKeys * args.width),
          values(columns + kBackKeys * whole_panels<T>(args.width)) {}
    void pack(const Shared& head, std::int64_t begin) const {
        const Args& args = head.args;
        const std::int64_t count = std::min(kBackKeys, head.keys - begin);
        head.pack_keys(args.k, args.width, begin, count, keys);
        head.pack_columns(args.k, args.width, begin, count, columns);
        make_finite(columns, count * whole_panels<T>(args.width));
        head.pack_keys(args.v, args.values, begin, count, values);
    }
};

template <class T> struct Backward {
    const GradientArgs& args;
    Shared head;
    std::int64_t width, values;  // widths of keys and values, each rounded up to whole panels
    std::vector<BackRow<T>> rows;
    T *q, *seed, *q_columns, *seed_columns, *dq;

    static std::int64_t padded(std::int64_t rows) { return (rows + kBackQueries - 1) / kBackQueries * kBackQueries; }
    static std::int64_t size(const Args& args) {
        return padded(args.heads / args.groups * args.queries) *
               (args.width + args.values + 2 * whole_panels<T>(args.width) + whole_panels<T>(args.values));
    }
    Backward(const GradientArgs& j, std::int64_t index, T* memory)
        : args(j),
          head(j, index),
          width(whole_panels<T>(j.width)),
          values(whole_panels<T>(j.values)),
          rows(static_cast<std::size_t>(padded(head.rows()))) {
        const std::int64_t n = padded(head.rows());
        q = memory;
        seed = q + n * args.width;
        q_columns = seed + n * args.values;
        seed_columns = q_columns + n * width;
        dq = seed_columns + n * values;
    }
    std::int64_t blocks() const { return padded(head.rows()) / kBackQueries; }
    // The number of blocks of keys here, without those beyond the length of the entry of the batch.
    std::int64_t key_blocks() const {
        const std::int64_t count = std::min(head.keys, args.end_key()) - args.first_key;
        return (std::max<std::int64_t>(count, 0) + kBackKeys - 1) / kBackKeys;
    }

    // Packs a block of about 100 queries, and sets the `delta` and `factor` of each query.
    void prepare(std::int64_t block) {
        const std::int64_t first = block * kBackQueries, end = std::min(first + kBackQueries, head.rows());
        std::fill(dq + first * width, dq + (first + kBackQueries) * width, T{0});
        T* line = scratch(kWeights).get<T>(std::max(width, values) + args.values);
        T* out = line + std::max(width, values);
        for (std::int64_t i = first; i < first + kBackQueries; ++i) {
            BackRow<T>& row = rows[static_cast<std::size_t>(i)];
            std::fill(line, line + values, T{0});
            if (i < end) {
                row.visible = head.visible(i);
                read(args.scale.value, head.at(args.scale.value, i), 0, 1, &row.scale);
                head.read_row(args.seed, i, args.values, line);
                head.read_row(args.out, i, args.values, out);
                double delta = 0;
                for (std::int64_t d = 0; d < args.values; ++d)
                    delta += static_cast<double>(line[d]) * static_cast<double>(out[d]);
                set_factor_and_delta(row, head.number(i), delta);
            }
            pack_row(line, args.values, values, i, seed, seed_columns);
            std::fill(line, line + width, T{0});
            if (i < end) {
                head.read_row(args.q, i, args.width, line);
                for (std::int64_t d = 0; d < args.width; ++d) line[d] *= row.scale;
            }
            pack_row(line, args.width, width, i, q, q_columns);
        }
    }
    void set_factor_and_delta(BackRow<T>& row, std::int64_t number, double delta) {
        const double lse = args.lse[number];
        if (args.to_lse) delta -= args.to_lse[number];
        args.delta[number] = delta;
        if (lse == -kInf) return;  // the query sees no key
        row.delta = static_cast<T>(delta);
        if (!(std::fabs(lse) < static_cast<double>(kLargest<T>)) || !all_finite(&row.delta, 1)) {
            args.nonfinite[number] = 1;
            return;
        }
        const double k = std::rint(lse * Exp<double>::log2e);
        row.k = static_cast<std::int32_t>(k);
        row.factor = static_cast<T>(exp_scalar(fma(k, Exp<double>::ln2_hi, -lse) + k * Exp<double>::ln2_lo));
        row.low = static_cast<T>(lse) - kPowerReach<T>;
    }
    // Packs the vector of a query into two layouts: a panel of 12 queries, and panels of columns (see `pack_columns`).
    void pack_row(T* line, std::int64_t n, std::int64_t pitch, std::int64_t row, T* panels, T* columns) const {
        T* to = panels + row / kPanelRows * kPanelRows * n + row % kPanelRows;
        for (std::int64_t d = 0; d < n; ++d) to[d * kPanelRows] = line[d];
        make_finite(line, n);
        T* at = columns + row / kBackQueries * kBackQueries * pitch + row % kBackQueries * kPanelCols<T>;
        for (std::int64_t d = 0; d < pitch; d += kPanelCols<T>, at += kBackQueries * kPanelCols<T>)
            std::copy_n(line + d, kPanelCols<T>, at);
    }

    // Computes c += a b for up to 12 rows. Consecutive rows of c are `pitch` numbers apart.
    template <class A> static void add_product(std::int64_t count, const T* a, const T* b, std::int64_t panel,
                                               const Depth& depth, T* c, std::int64_t pitch) {
        for (std::int64_t j = 0; j < pitch; j += kTileCols<T>)
            for (std::int64_t i = 0; i < count; i += kTileRows)
                lowest_tile(A{}, count - i, a + i * A::row, b + j / kPanelCols<T> * panel + j % kPanelCols<T>,
                            kPanelCols<T>, depth,
                            [to = c + i * pitch + j, pitch, rest = count - i](Pack<T> sum, int r, int col, bool)
                                SOFTARGMAX_LAMBDA {
                    if (r >= rest) return;
                    T* at = to + r * pitch + col;
                    (Pack<T>::load(at) + sum).store(at);
                });
    }
    // Computes z = a b, where a is a panel of rows and b consists of panels of columns.
    static void products(int count, const T* a, const T* b, std::int64_t depth, Range all, T* z) {
        for (std::int64_t j = all.begin; j < all.end; j += kTileCols<T>)
            for (int i = 0; i < count; i += kTileRows)
                lowest_tile(Packed{}, count - i, a + i,
                            b + j / kPanelCols<T> * kPanelCols<T> * depth + j % kPanelCols<T>, kPanelCols<T>,
                            Depth(depth, kWidthChunk),
                            [to = z + i * kBackPitch + j](Pack<T> sum, int r, int c, bool first)
                                SOFTARGMAX_LAMBDA { add_chunk(sum, to + r * kBackPitch + c, first); });
    }

    // Computes the gradients for all pairs of a query in the query block `block` (about 100 queries) and a key in the
    // key block that starts at `begin`. Adds them to dq if `to_queries` is true, and to dk and dv unless these are
    // null.
    SOFTARGMAX_CALLED
    void add_gradients(std::int64_t block, std::int64_t begin, const BackKeys<T>& keys, bool to_queries, T* dk, T* dv) {
        T* const p = scratch(kScores).get<T>(2 * kBackQueries * kBackPitch);
        T* const ds = p + kBackQueries * kBackPitch;
        Range seen[kBackPanels];  // the keys of the block that each panel of queries sees
        Range visible;  // the keys that any of the panels sees
        for (std::int64_t i = 0; i < kBackPanels; ++i) {
            seen[i] = keys_of(block * kBackQueries + i * kPanelRows, begin);
            visible.include(seen[i]);
        }
        if (visible.empty()) return;
        visible.begin = visible.begin / kPanelRows * kPanelRows;
        for (std::int64_t i = 0; i < kBackPanels; ++i) {
            const std::int64_t first = block * kBackQueries + i * kPanelRows;
            const Range in = seen[i];
            scores(first, begin, in, dk ? visible : Range{}, keys, p + i * kPanelRows * kBackPitch,
                   ds + i * kPanelRows * kBackPitch, to_queries);
            if (in.empty() || !to_queries) continue;
            const std::int64_t count = std::min<std::int64_t>(kPanelRows, head.rows() - first);
            add_product<RowsInPlace>(
                count, ds + i * kPanelRows * kBackPitch + in.begin, keys.columns + in.begin * kPanelCols<T>,
                std::min(kBackKeys, head.keys - begin) * kPanelCols<T>, in.end - in.begin, dq + first * width, width);
        }
        if (!dk) return;
        for (std::int64_t i = visible.begin; i < visible.end; i += kPanelRows) {
            const std::int64_t count = std::min<std::int64_t>(kPanelRows, visible.end - i);
            // From the first to the last query of the panels that see at least one of the keys i to i + count - 1.
            Range queries;
            for (std::int64_t j = 0; j < kBackPanels; ++j)
                if (seen[j].begin < i + count && seen[j].end > i)
                    queries.include({j * kPanelRows, (j + 1) * kPanelRows});
            if (queries.empty()) continue;
            const std::int64_t from = queries.begin, first = block * kBackQueries;
            const Depth depth(queries.end - from, kChain, from);
            const T* const at = p + from * kBackPitch + i;
            add_product<ColumnsInPlace>(count, at, seed_columns + first * values + from * kPanelCols<T>,
                                        kBackQueries * kPanelCols<T>, depth, dv + i * values, values);
            add_product<ColumnsInPlace>(count, at + (ds - p), q_columns + first * width + from * kPanelCols<T>,
                                        kBackQueries * kPanelCols<T>, depth, dk + i * width, width);
        }
    }

    // The keys of the block that starts at `begin` which at least one of 12 queries sees.
    Range keys_of(std::int64_t first, std::int64_t begin) const {
        Range any;
        for (std::int64_t i = first; i < std::min(first + kPanelRows, head.rows()); ++i)
            any.include(rows[static_cast<std::size_t>(i)].visible);
        const Range in = any.within(begin, std::min(kBackKeys, head.keys - begin));
        return in.empty() ? Range{} : in;
    }
    // Computes dS, and p times the dropout factors, of 12 queries and the keys in the range `in`, which they see. For
    // all other keys in the range `used`, p and dS become 0.
    void scores(std::int64_t first, std::int64_t begin, Range in, Range used, const BackKeys<T>& keys, T* p, T* ds,
                bool to_queries) {
        const int count = static_cast<int>(std::clamp<std::int64_t>(head.rows() - first, 0, kPanelRows));
        const BackRow<T>* const row = &rows[static_cast<std::size_t>(first)];
        const Range all = in.empty() ? Range{used.end, used.end} : in.panels<T>();
        if (!in.empty()) {
            products(count, q + first * args.width, keys.keys, args.width, all, p);
            products(count, seed + first * args.values, keys.values, args.values, all, ds);
        }
        // Fill with 0 only after the products. The products write whole tiles. In a tile's rows without a query, they
        // write NaN if a key is not finite, because 0 times a nonfinite number is NaN.
        if (!used.empty())
            for (T* x : {p, ds})
                for (int i = 0; i < kPanelRows; ++i, x += kBackPitch) {
                    const bool there = i < count;
                    std::fill(x + used.begin, x + std::max(used.begin, there ? all.begin : used.end), T{0});
                    if (there) std::fill(x + std::min(all.end, used.end), x + used.end, T{0});
                }
        if (in.empty()) return;
        for (int i = 0; i < count; ++i) {
            const Range its{std::clamp(row[i].visible.begin - begin, all.begin, all.end),
                            std::clamp(row[i].visible.end - begin, all.begin, all.end)};
            T *const z = p + i * kBackPitch, *const g = ds + i * kBackPitch;
            if (!row[i].sees_any()) {
                for (T* x : {z, g}) std::fill(x + all.begin, x + all.end, T{0});
                continue;
            }
            T* const slope = args.softcap > 0 ? scratch(kResult).get<T>(kBackKeys) : nullptr;
            bool nonfinite = false;
            cap_and_mask(head, first + i, begin, its, z, nonfinite, slope);
            if (nonfinite && to_queries) args.nonfinite[head.number(first + i)] = 2;
            probabilities(z, all, its, row[i]);
            if (args.dropout > 0) {
                T* const keep = scratch(kMask).get<T>(kKeys);
                dropout_factors(head, first + i, begin, all, keep);
                for (std::int64_t j = all.begin; j < all.end; ++j) g[j] *= keep[j];
            }
            using V = Pack<T>;
            const V delta = V::all(row[i].delta), zero = V::all(0);
            for (std::int64_t j = all.begin; j < all.end; j += V::kLanes) {
                const V weight = V::load(z + j);
                keep(above(weight, zero), weight * (V::load(g + j) - delta)).store(g + j);
            }
            if (args.dropout > 0) {
                const T* const keep = scratch(kMask).get<T>(kKeys);
                for (std::int64_t j = all.begin; j < all.end; ++j) z[j] *= keep[j];
            }
            if (to_queries) add_to_terms(head, args, first + i, begin, its, g);
            for (std::int64_t j = its.begin; slope && j < its.end; ++j) g[j] = g[j] == 0 ? g[j] : g[j] * slope[j];
        }
    }

    // ---- results ------------------------------------------------------------------------------------------------

    // Copies the sums for dq of some queries to `to`, one query after another, or back.
    void put_sums(Range some, T* to) const {
        for (std::int64_t i = some.begin; i < some.end; ++i, to += args.width)
            std::copy_n(dq + i * width, args.width, to);
    }
    void take_sums(Range some, const T* from) {
        for (std::int64_t i = some.begin; i < some.end; ++i, from += args.width)
            std::copy_n(from, args.width, dq + i * width);
    }

    void finish_queries(std::int64_t block) {
        const std::int64_t first = block * kBackQueries, end = std::min(first + kBackQueries, head.rows());
        T* line = scratch(kWeights).get<T>(args.width);
        for (std::int64_t i = first; i < end; ++i) {
            T* const its = dq + i * width;
            if (args.scale.gradient) {
                head.read_row(args.q, i, args.width, line);
                make_finite(line, args.width);
                double sum = 0;
                for (std::int64_t d = 0; d < args.width && rows[static_cast<std::size_t>(i)].sees_any(); ++d)
                    sum += static_cast<double>(line[d]) * static_cast<double>(its[d]);
                args.scale.gradient[head.number(i)] = sum;
            }
            for (std::int64_t d = 0; d < args.width; ++d) its[d] *= rows[static_cast<std::size_t>(i)].scale;
            if (!all_finite(its, args.width)) args.nonfinite[head.number(i)] = 2;
            write(args.dq, head.at(args.dq, i), args.width, its);
        }
    }
    // Writes dk and dv of the block that starts at key `begin` of the keys here.
    void finish_keys(std::int64_t begin, const T* dk, const T* dv) {
        for (std::int64_t i = 0; i < std::min(kBackKeys, args.keys - begin); ++i, dk += width, dv += values) {
            const std::int64_t number = (head.entry * args.groups + head.group) * args.keys + begin + i;
            if (!all_finite(dk, args.width) || !all_finite(dv, args.values))
                args.nonfinite[args.batch.total * args.heads * args.queries + number] = 1;
            write(args.dk, offset(args, args.dk, head.entry, head.group, begin + i), args.width, dk);
            write(args.dv, offset(args, args.dv, head.entry, head.group, begin + i), args.values, dv);
        }
    }
};

// Sums for dk and dv of a block of keys, initially 0.
template <class T> struct KeySums {
    T *dk, *dv;
    explicit KeySums(const Args& args)
        : dk(scratch(kTerms).get<T>(kBackKeys * (whole_panels<T>(args.width) + whole_panels<T>(args.values)))),
          dv(dk + kBackKeys * whole_panels<T>(args.width)) {
        std::fill(dk, dk + kBackKeys * (whole_panels<T>(args.width) + whole_panels<T>(args.values)), T{0});
    }
};

// Sums for dk and dv that are continued from the queries of another process (`GradientArgs::key_sums`).
template <class T> class KeptSums {
    const GradientArgs& args_;
    // Calls f(the numbers of a key there, its sums for dk and dv) for each key of a block.
    template <class F> void each_key(const Backward<T>& head, std::int64_t begin, const KeySums<T>& sums, F f) const {
        const std::int64_t each = args_.width + args_.values;
        T* to = reinterpret_cast<T*>(args_.key_sums) +
                ((head.head.entry * args_.groups + head.head.group) * args_.keys + begin) * each;
        for (std::int64_t i = 0; i < std::min(kBackKeys, args_.keys - begin); ++i, to += each)
            f(to, sums.dk + i * head.width, sums.dv + i * head.values);
    }

  public:
    explicit KeptSums(const GradientArgs& args) : args_(args) {}
    void take(const Backward<T>& head, std::int64_t begin, const KeySums<T>& sums) const {
        if (!args_.key_sums) return;
        each_key(head, begin, sums, [&](const T* from, T* dk, T* dv) {
            std::copy_n(from, args_.width, dk);
            std::copy_n(from + args_.width, args_.values, dv);
        });
    }
    void put(const Backward<T>& head, std::int64_t begin, const KeySums<T>& sums) const {
        if (!args_.key_sums) return;
        each_key(head, begin, sums, [&](T* to, const T* dk, const T* dv) {
            std::copy_n(dk, args_.width, to);
            std::copy_n(dv, args_.values, to + args_.width);
        });
    }
};

// What processes pass on if the keys are spread over them: the sums for dq, and the gradients of the slopes.
template <class T> class PassedSums {
    const GradientArgs& args_;
    Scratch memory_;
    T* sums_;  // one row for each query

    // Passes on what belongs to `count` queries, from number `first`.
    void pass(Shards::Pass how, std::int64_t first, std::int64_t count) const {
        const auto pass_numbers = [&](auto* numbers, std::int64_t each) {
            if (!numbers) return;
            const Type type = kTypeOf<std::remove_pointer_t<decltype(numbers)>>;
            args_.shards.pass(args_.shards, how, type, numbers + first * each, count * each);
        };
        pass_numbers(sums_, args_.width);
        pass_numbers(args_.slopes.gradient, 1);
    }
    T* at(std::int64_t number) const { return sums_ + number * args_.width; }

  public:
    PassedSums(const GradientArgs& args, std::int64_t queries)
        : args_(args), sums_(memory_.get<T>(args.shards ? queries * args.width : 0)) {}
    void receive(Backward<T>& head, Range some) const {
        if (!args_.shards || args_.is_first()) return;
        pass(Shards::Pass::from_previous, head.head.number(some.begin), some.end - some.begin);
        take(head, some);
    }
    void send(const Backward<T>& head, Range some) const {
        if (!args_.shards) return;
        const std::int64_t first = head.head.number(some.begin);
        head.put_sums(some, at(first));
        if (args_.shards.count > 1) pass(Shards::Pass::to_next, first, some.end - some.begin);
    }
    void finish() const {
        const Shards& shards = args_.shards;
        if (shards.count > 1) shards.pass(shards, Shards::Pass::all_back, kTypeOf<T>, nullptr, 0);
    }
    void take(Backward<T>& head, Range some) const { head.take_sums(some, at(head.head.number(some.begin))); }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::attend
