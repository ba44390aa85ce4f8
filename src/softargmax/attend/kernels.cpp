// The attention kernels, compiled once for each instruction set.
//
// The queries of a head are divided into units of at most kQueries. Each unit reads the keys and values in blocks, in
// order. With several units, the blocks are packed once. With one unit, for example in decoding, `block_once` packs
// only what it must, and each block is used while it is in a cache.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "attend/backward.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::attend {
namespace {

// Queries per unit of work. All queries of a unit use a block of keys while it is in the second-level cache.
constexpr std::int64_t kPanels = 8, kQueries = kPanels * kPanelRows;

std::int64_t blocks_of(std::int64_t keys) { return (keys + kKeys - 1) / kKeys; }

// Memory for packed keys and values.
template <class T> struct Packing {
    T *keys, *values;
    std::int64_t width, pitch;
    Packing(const Args& args, std::int64_t count, T* memory)
        : keys(memory),
          values(memory + whole_panels<T>(count) * args.width),
          width(args.width),
          pitch(whole_panels<T>(args.values)) {}
    static std::int64_t size(const Args& args, std::int64_t keys) {
        return whole_panels<T>(keys) * (args.width + whole_panels<T>(args.values));
    }
    // Returns the block of keys that starts at key `begin`. It was packed into the memory at position `at`.
    Block<T> block(const Shared& head, std::int64_t begin, std::int64_t at) const {
        const std::int64_t count = std::min(kKeys, head.keys - begin);
        return {keys + at * width, values + at * pitch, count * kPanelCols<T>, kPanelCols<T>};
    }
    Block<T> pack(const Shared& head, std::int64_t begin, std::int64_t at) const {
        const std::int64_t count = std::min(kKeys, head.keys - begin);
        head.pack_keys(head.args.k, width, begin, count, keys + at * width);
        head.pack_columns(head.args.v, head.args.values, begin, count, values + at * pitch);
        return block(head, begin, at);
    }
    // Returns a block that only a few queries use. Values with contiguous numbers are not packed: they are read in
    // place, or copied row by row (`rows_of`). The same holds for whole panels of keys if their numbers are contiguous
    // and at most kMostByColumns queries use them. Keys in float64 are always packed: few models use them, and
    // reading them in place would need much code.
    SOFTARGMAX_CALLED Block<T> block_once(const Shared& head, std::int64_t begin) const {
        const Args& args = head.args;
        const std::int64_t count = std::min(kKeys, head.keys - begin);
        Block<T> block = this->block(head, begin, 0);
        std::int64_t unpacked = 0;
        if (std::is_same_v<T, float> && head.rows() <= kMostByColumns && args.k.col[0] == 1) {
            unpacked = count / kPanelCols<T> * kPanelCols<T>;
            block.unpacked = rows_of(head, args.k, width, width, begin, unpacked, keys);
        }
        if (unpacked < count)
            head.pack_keys(args.k, width, begin + unpacked, count - unpacked, keys + unpacked * width);
        if (args.v.col[0] == 1) {
            const Matrix<T> its = rows_of(head, args.v, args.values, pitch, begin, count, values);
            block.values = its.data;
            block.panel = kPanelCols<T>;
            block.pitch = its.col;
        } else {
            head.pack_columns(args.v, args.values, begin, count, values);
        }
        return block;
    }
    // Returns `count` keys or values of contiguous numbers, as the columns of a matrix. Each column has `wide` numbers:
    // `own` numbers of a key or value, and then zeros. The columns are in place if possible, and otherwise copied.
    static Matrix<T> rows_of(const Shared& head, const Operand& x, std::int64_t own, std::int64_t wide,
                             std::int64_t begin, std::int64_t count, T* to) {
        if (!head.args.table && x.type == kTypeOf<T> && own == wide)
            return {reinterpret_cast<const T*>(x.data) + head.offset_of_key(x, begin), wide, count, 1,
                    x.row[head.args.batch.dims + 1]};
        head.copy_rows(x, own, begin, count, wide, to);
        return {to, wide, count, 1, wide};
    }
};

// A unit of work of one thread: up to kQueries queries that share a head of keys.
template <class T> struct Unit {
    std::vector<QueryTile<T>> panels;
    Range any;
    T* spare;
    static std::int64_t size(const Args& args) { return (kPanels + 1) * QueryTile<T>::size(args); }
    SOFTARGMAX_CALLED Unit(const Shared& head, std::int64_t row, T* memory)
        : spare(memory + kPanels * QueryTile<T>::size(head.args)) {
        const std::int64_t each = QueryTile<T>::size(head.args), end = std::min(row + kQueries, head.rows());
        panels.reserve(kPanels);
        for (std::int64_t i = row; i < end; i += kPanelRows, memory += each) {
            panels.emplace_back(head, i, std::min<std::int64_t>(kPanelRows, end - i), memory);
            any.include(panels.back().any);
        }
    }
    std::int64_t begin() const { return any.begin / kKeys * kKeys; }
    void fold(std::int64_t first, const Block<T>& block) {
        for (QueryTile<T>& panel : panels) panel.fold(first, block);
    }
    void add(const Unit& later) {
        for (std::size_t i = 0; i < panels.size(); ++i) panels[i].add(later.panels[i]);
    }
    // Makes the states of all queries empty.
    void clear() {
        for (QueryTile<T>& panel : panels) panel.clear();
    }
    // Calls f(state, o, nonfinite, number of the query in the unit) for each query.
    template <class F> void each_state(F f) {
        std::int64_t number = 0;
        for (QueryTile<T>& panel : panels)
            for (int i = 0; i < panel.rows; ++i)
                f(panel.state[i], panel.o + i * panel.pitch, panel.nonfinite[i], number++);
    }
    // Writes the results. A nonfinite result may come from a value that only other queries see. Therefore queries with
    // a nonfinite result are computed again, one by one, with 0 in place of nonfinite values. Returns true if one of
    // these queries sees a nonfinite value or again has a nonfinite result.
    template <class BlockAt> bool finish(BlockAt block_at) {
        bool nonfinite = false;
        FiniteBlock<T> finite;
        for (QueryTile<T>& panel : panels) {
            if (!panel.finish()) continue;
            for (int i = 0; i < panel.rows; ++i) {
                if (!panel.nonfinite[i]) continue;
                QueryTile<T> alone(panel.head, panel.first + i, 1, spare);
                for (std::int64_t b = begin(); b < any.end; b += kKeys)
                    alone.fold(b, finite.of(block_at(b), std::min(kKeys, panel.head.keys - b), panel.head.args.values));
                nonfinite |= alone.finish();
            }
        }
        return nonfinite;
    }
    // Processes the blocks of keys in order.
    template <class BlockAt> bool run(BlockAt block_at) {
        for (std::int64_t b = begin(); b < any.end; b += kKeys) fold(b, block_at(b));
        return finish(block_at);
    }
};
template <class T> T* unit_memory(const Args& args) { return scratch(kTerms).get<T>(Unit<T>::size(args)); }

// Processes a head on one thread. Returns true if some results are not finite.
template <class T> bool run_head_serial(const Shared& head) {
    const Args& args = head.args;
    const bool few = head.rows() <= kQueries;
    const std::int64_t keys = few ? kKeys : head.keys;
    const Packing<T> packing(args, keys, scratch(kOther).get<T>(Packing<T>::size(args, keys)));
    if (few)
        return Unit<T>(head, 0, unit_memory<T>(args)).run([&](std::int64_t b) { return packing.block_once(head, b); });
    for (std::int64_t b = 0; b < head.keys; b += kKeys) packing.pack(head, b, b);
    bool nonfinite = false;
    for (std::int64_t row = 0; row < head.rows(); row += kQueries)
        nonfinite |=
            Unit<T>(head, row, unit_memory<T>(args)).run([&](std::int64_t b) { return packing.block(head, b, b); });
    return nonfinite;
}

// Processes a head on all threads. Its queries are divided among the threads.
template <class T> bool run_head_parallel(const Shared& head) {
    const Args& args = head.args;
    const Packing<T> packing(args, head.keys, scratch(kOther).get<T>(Packing<T>::size(args, head.keys)));
    parallel_each(args.threads, blocks_of(head.keys),
                  [&](std::int64_t b) { packing.pack(head, b * kKeys, b * kKeys); });
    const std::int64_t units = (head.rows() + kQueries - 1) / kQueries;
    std::atomic<bool> nonfinite{false};
    parallel_each(args.threads, units,
                  [&](std::int64_t i) {  // the last queries come first, because with `causal` they see the most keys
        Unit<T> unit(head, (units - 1 - i) * kQueries, unit_memory<T>(args));
        if (unit.run([&](std::int64_t b) { return packing.block(head, b, b); })) nonfinite = true;
    });
    return nonfinite;
}

// A block of keys: its head (or the unit that reads it), and its first key. A type of this namespace, because the
// linker would share the functions of a vector of std::pair between instruction sets.
struct KeyBlock {
    std::size_t head;
    std::int64_t first;
};
// Processes all heads on all threads, if they have few queries. The blocks of keys of all heads are divided among the
// threads, in order, because each block prefetches the next. Each block has its own sums. After a wave of blocks, these
// sums are added in the order of the blocks. A wave has kWave blocks per thread, or more if the sums take less than
// kWaveBytes. So there are few waves, and at the end of each the threads wait for each other.
constexpr std::int64_t kWave = 8, kWaveBytes = 16 << 20;
template <class T> bool run_keys_parallel(const Args& args, std::int64_t heads) {
    const std::int64_t size = Unit<T>::size(args),
                       wave = std::max(kWave * args.threads, kWaveBytes / (size * std::int64_t{sizeof(T)}));
    T* const memory = scratch(kTerms).get<T>(heads * size);
    std::vector<Shared> shared;
    std::vector<Unit<T>> whole;
    std::vector<KeyBlock> blocks;
    shared.reserve(static_cast<std::size_t>(heads));
    whole.reserve(static_cast<std::size_t>(heads));
    for (std::int64_t index = 0; index < heads; ++index) {
        const Unit<T>& unit = whole.emplace_back(shared.emplace_back(args, index), 0, memory + index * size);
        for (std::int64_t b = unit.begin(); b < unit.any.end; b += kKeys)
            blocks.push_back({static_cast<std::size_t>(index), b});
    }
    const auto block_at = [&](const Shared& head, std::int64_t b) {
        return Packing<T>(args, kKeys, scratch(kOther).get<T>(Packing<T>::size(args, kKeys))).block_once(head, b);
    };
    const std::int64_t all = static_cast<std::int64_t>(blocks.size());
    T* const sums = scratch(kResult).get<T>(std::clamp<std::int64_t>(all, 1, wave) * size);
    for (std::int64_t first = 0; first < all; first += wave) {
        const std::int64_t count = std::min(wave, all - first);
        std::vector<Unit<T>> parts;
        parts.reserve(static_cast<std::size_t>(count));
        const auto* const its = blocks.data() + first;
        for (std::int64_t i = 0; i < count; ++i) parts.emplace_back(shared[its[i].head], 0, sums + i * size);
        parallel_for(args.threads, count, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i)
                parts[static_cast<std::size_t>(i)].fold(its[i].first, block_at(shared[its[i].head], its[i].first));
        });
        for (std::int64_t i = 0; i < count; ++i) whole[its[i].head].add(parts[static_cast<std::size_t>(i)]);
    }
    bool nonfinite = false;
    for (std::size_t i = 0; i < whole.size(); ++i)
        nonfinite |= whole[i].finish([&](std::int64_t b) { return block_at(shared[i], b); });
    return nonfinite;
}

// The states of queries as processes pass them on: for each query its state, and then its o.
template <class T> struct PassedStates {
    std::int64_t values, bytes;  // numbers in o, bytes per query
    explicit PassedStates(const Args& args)
        : values(args.values),
          bytes(static_cast<std::int64_t>(sizeof(PowerState<T>)) + args.values * static_cast<std::int64_t>(sizeof(T))) {
    }
    void put(Unit<T>& unit, char* to) const {
        unit.each_state([&](PowerState<T> state, const T* o, bool nonfinite, std::int64_t i) {
            if (nonfinite) state.l = kNaN;  // no later state changes it
            std::memcpy(to + i * bytes, &state, sizeof state);
            std::memcpy(to + i * bytes + sizeof state, o, static_cast<std::size_t>(values) * sizeof(T));
        });
    }
    void take(Unit<T>& unit, const char* from) const {
        unit.each_state([&](PowerState<T>& state, T* o, bool, std::int64_t i) {
            std::memcpy(&state, from + i * bytes, sizeof state);
            std::memcpy(o, from + i * bytes + sizeof state, static_cast<std::size_t>(values) * sizeof(T));
        });
    }
};

// Processes all heads if the keys are spread over processes. Each process computes the states of its blocks. The first
// process merges its states from left to right and passes the result on. The next one merges its own states into it,
// and so on, in the order in which one process merges all blocks. The final states go the same way back.
//
// Units are processed in groups. While one process merges the states of a group, the next can merge those of the group
// before. The states of the blocks of a group take at most kWaveBytes, unless the group is a single unit.
template <class T> SOFTARGMAX_RARE bool run_spread(const Args& args, std::int64_t heads) {
    const Shards& shards = args.shards;
    const PassedStates<T> passed(args);
    const std::int64_t rows = args.heads / std::max<std::int64_t>(args.groups, 1) * args.queries,
                       per_head = (rows + kQueries - 1) / kQueries, units = heads * per_head,
                       unit_bytes = std::min(rows, kQueries) * passed.bytes;
    std::int64_t most = 1;  // blocks of a process; all processes must have the same groups
    for (std::int64_t p = 0; p < shards.count; ++p) most = std::max(most, blocks_of(shards.sizes[p]));
    const std::int64_t group = std::max<std::int64_t>(1, kWaveBytes / (most * unit_bytes));
    const auto head_of = [&](std::int64_t unit) { return Shared(args, unit / per_head); };
    const auto first_row = [&](std::int64_t unit) { return unit % per_head * kQueries; };
    Scratch all_states, of_blocks, of_keys;
    char* const states = all_states.get<char>(heads * rows * passed.bytes);
    const auto at = [&](std::int64_t unit) {
        return states + (unit / per_head * rows + first_row(unit)) * passed.bytes;
    };
    // Several units of a head use its packed keys. A single unit packs only what it must.
    const std::int64_t kept = per_head > 1 ? args.keys : 0;
    const Packing<T> packed(args, kept, of_keys.get<T>(Packing<T>::size(args, kept)));
    const auto pack = [&](const Shared& head) SOFTARGMAX_RARE {
        const std::int64_t count = std::max<std::int64_t>(std::min(head.keys, args.end_key()) - args.first_key, 0);
        parallel_each(args.threads, blocks_of(count),
                      [&](std::int64_t b) { packed.pack(head, args.first_key + b * kKeys, b * kKeys); });
    };
    const auto block_at = [&](const Shared& head, std::int64_t b) SOFTARGMAX_RARE {
        if (per_head > 1) return packed.block(head, b, b - args.first_key);
        return Packing<T>(args, kKeys, scratch(kOther).get<T>(Packing<T>::size(args, kKeys))).block_once(head, b);
    };
    for (std::int64_t first = 0, end = 0; first < units; first = end) {
        end = std::min(first + group, units);
        if (per_head > 1) {
            end = std::min(end, (first / per_head + 1) * per_head);
            if (first % per_head == 0) pack(head_of(first));
        }
        std::vector<KeyBlock> blocks;
        for (std::int64_t i = first; i < end; ++i) {
            const Shared head = head_of(i);
            Range seen;
            for (std::int64_t row = first_row(i); row < std::min(first_row(i) + kQueries, rows); ++row)
                seen.include(head.visible(row));
            std::int64_t b = std::max(seen.begin / kKeys * kKeys, args.first_key);
            for (; b < std::min(seen.end, args.end_key()); b += kKeys)
                blocks.push_back({static_cast<std::size_t>(i), b});
        }
        const auto count = static_cast<std::int64_t>(blocks.size());
        const KeyBlock* const its = blocks.data();
        // The number of the first block of a unit, or of a later one.
        const auto first_block = [&](std::int64_t unit) {
            const auto is_before = [](const KeyBlock& x, std::size_t u) { return x.head < u; };
            return std::lower_bound(its, its + count, static_cast<std::size_t>(unit), is_before) - its;
        };
        // With many units, each thread takes whole units. Then the first process needs no states of single blocks.
        const bool by_unit = end - first >= 2 * args.threads || args.threads == 1,
                   visited = args.all_queries > 0 && !args.is_first(),  // the states are here already
            merges = by_unit && (args.is_first() || visited);
        const std::int64_t bytes = (end == units ? states + heads * rows * passed.bytes : at(end)) - at(first);
        if (visited) shards.pass(shards, Shards::Pass::from_previous, Type::boolean, at(first), bytes);
        char* const parts = of_blocks.get<char>(merges ? 0 : count * unit_bytes);
        const auto fold = [&](std::int64_t unit, std::int64_t begin, std::int64_t stop) SOFTARGMAX_RARE {
            const Shared head = head_of(unit);
            Unit<T> part(head, first_row(unit), unit_memory<T>(args));
            if (merges && visited) passed.take(part, at(unit));
            for (std::int64_t i = begin; i < stop; ++i) {
                part.fold(its[i].first, block_at(head, its[i].first));
                if (merges) continue;
                passed.put(part, parts + i * unit_bytes);
                part.clear();
            }
            if (merges) passed.put(part, at(unit));
        };
        if (by_unit)
            parallel_each(args.threads, end - first,
                          [&](std::int64_t i) { fold(first + i, first_block(first + i), first_block(first + i + 1)); });
        else
            parallel_for(args.threads, count, [&](std::int64_t begin, std::int64_t stop) {
                for (std::int64_t i = begin; i < stop; ++i) fold(static_cast<std::int64_t>(its[i].head), i, i + 1);
            });
        if (!args.is_first() && !visited)
            shards.pass(shards, Shards::Pass::from_previous, Type::boolean, at(first), bytes);
        if (!merges)
            parallel_each(args.threads, end - first, [&](std::int64_t i) SOFTARGMAX_RARE {
                const std::int64_t unit = first + i;
                const Shared head = head_of(unit);
                Unit<T> whole(head, first_row(unit), unit_memory<T>(args)),
                    part(head, first_row(unit), scratch(kResult).get<T>(Unit<T>::size(args)));
                if (!args.is_first()) passed.take(whole, at(unit));
                for (std::int64_t b = first_block(unit); b < first_block(unit + 1); ++b) {
                    passed.take(part, parts + b * unit_bytes);
                    whole.add(part);
                }
                passed.put(whole, at(unit));
            });
        if (shards.count > 1) shards.pass(shards, Shards::Pass::to_next, Type::boolean, at(first), bytes);
    }
    if (shards.count > 1) shards.pass(shards, Shards::Pass::all_back, Type::boolean, nullptr, 0);
    std::atomic<bool> nonfinite{false};
    parallel_each(args.threads, units, [&](std::int64_t i) SOFTARGMAX_RARE {
        const Shared head = head_of(i);
        Unit<T> whole(head, first_row(i), unit_memory<T>(args));
        passed.take(whole, at(i));
        for (QueryTile<T>& panel : whole.panels)
            if (panel.finish()) nonfinite = true;
    });
    return nonfinite;
}

template <class T> void run_as(Args& args) {
    const std::int64_t heads = args.batch.total * args.groups;
    std::atomic<bool> nonfinite{false};
    if (args.shards) {
        nonfinite = run_spread<T>(args, heads);
    } else if (heads >= 2 * args.threads || args.threads == 1) {
        parallel_each(args.threads, heads, [&](std::int64_t index) {
            if (run_head_serial<T>(Shared(args, index))) nonfinite = true;
        });
    } else if (heads > 0 && Shared(args, 0).rows() <= kQueries) {
        nonfinite = run_keys_parallel<T>(args, heads);
    } else {
        for (std::int64_t index = 0; index < heads; ++index)
            if (run_head_parallel<T>(Shared(args, index))) nonfinite = true;
    }
    args.any_nonfinite = nonfinite;
}

// True if scores of different heads or queries share an entry of the bias. Then only one thread may run.
bool shares_bias(const GradientArgs& args) {
    const std::int64_t* stride = args.dbias.row + args.batch.dims;
    return args.dbias && ((stride[0] == 0 && args.heads > 1) || (stride[1] == 0 && args.queries > 1));
}

// With many heads, each thread processes one head at a time and computes five products per pair of query and key. With
// few heads, or for a gradient of the bias, the threads process one head together. They first divide the queries of
// the head to compute dq, and then its keys to compute dk and dv. This takes seven products per pair, because p and dS
// are computed twice, from two products each time.
//
// If the keys are spread over processes, each process adds its products to the sums for dq, and to the gradients of the
// slopes, that the process before it passes on, for kPassedBlocks blocks of queries at a time. The sums go the
// same way back.
constexpr std::int64_t kPassedBlocks = 8;
// Sets `any_nonfinite` if a flag of a query or a key is set.
void flag(GradientArgs& args) {
    const std::int64_t flags = args.batch.total * (args.heads * args.queries + args.groups * args.keys);
    args.any_nonfinite = std::any_of(args.nonfinite, args.nonfinite + flags, [](std::uint8_t x) { return x != 0; });
}
template <class T> void run_gradient_as(GradientArgs& args) {
    const std::int64_t heads = args.batch.total * args.groups;
    if (shares_bias(args)) args.threads = 1;
    if (heads >= args.threads && !args.dbias && !args.shards) {
        parallel_each(args.threads, heads, [&](std::int64_t index) {
            const std::int64_t size = Backward<T>::size(args);
            T* const memory = scratch(kOther).get<T>(size + BackKeys<T>::size(args));
            Backward<T> head(args, index, memory);
            const BackKeys<T> keys(args, memory + size);
            for (std::int64_t i = 0; i < head.blocks(); ++i) head.prepare(i);
            for (std::int64_t b = 0; b < args.keys; b += kBackKeys) {
                const KeySums<T> sums(args);
                if (b < head.head.keys) {
                    keys.pack(head.head, b);
                    for (std::int64_t i = 0; i < head.blocks(); ++i)
                        head.add_gradients(i, b, keys, true, sums.dk, sums.dv);
                }
                head.finish_keys(b, sums.dk, sums.dv);
            }
            for (std::int64_t i = 0; i < head.blocks(); ++i) head.finish_queries(i);
        });
    } else {
        const std::int64_t blocks = (args.keys + kBackKeys - 1) / kBackKeys, each = BackKeys<T>::size(args);
        T* const memory = scratch(kOther).get<T>(Backward<T>::size(args) + blocks * each);
        const std::int64_t queries = args.batch.total * args.heads * args.queries;
        const PassedSums<T> passed(args, args.key_sums ? 0 : queries);
        const KeptSums<T> kept(args);
        for (std::int64_t index = 0; index < heads; ++index) {
            Backward<T> head(args, index, memory);
            const auto keys = [&](std::int64_t b) {
                return BackKeys<T>(args, memory + Backward<T>::size(args) + b * each);
            };
            parallel_each(args.threads, head.blocks(), [&](std::int64_t i) { head.prepare(i); });
            parallel_each(args.threads, head.key_blocks(),
                          [&](std::int64_t b) { keys(b).pack(head.head, args.first_key + b * kBackKeys); });
            const std::int64_t at_once = args.shards ? kPassedBlocks : head.blocks();
            for (std::int64_t end = args.key_sums ? 0 : head.blocks(); end > 0; end -= at_once) {
                const std::int64_t first = std::max<std::int64_t>(end - at_once, 0);
                const Range some{first * kBackQueries, std::min(end * kBackQueries, head.head.rows())};
                passed.receive(head, some);
                parallel_each(args.threads, end - first, [&](std::int64_t i) {
                    const std::int64_t block = end - 1 - i;
                    for (std::int64_t b = 0; b < head.key_blocks(); ++b)
                        head.add_gradients(block, args.first_key + b * kBackKeys, keys(b), true, nullptr, nullptr);
                    if (!args.shards) head.finish_queries(block);
                });
                passed.send(head, some);
            }
            if (args.all_queries && !args.key_sums) continue;
            parallel_each(args.threads, blocks, [&](std::int64_t b) {
                const KeySums<T> sums(args);
                kept.take(head, b * kBackKeys, sums);
                for (std::int64_t i = 0; i < head.blocks() && b < head.key_blocks(); ++i)
                    head.add_gradients(i, args.first_key + b * kBackKeys, keys(b), false, sums.dk, sums.dv);
                kept.put(head, b * kBackKeys, sums);
                head.finish_keys(b * kBackKeys, sums.dk, sums.dv);
            });
        }
        if (args.key_sums) return flag(args);
        passed.finish();
        for (std::int64_t index = 0; args.shards && index < heads; ++index) {
            Backward<T> head(args, index, memory);
            parallel_each(args.threads, head.blocks(), [&](std::int64_t i) { head.prepare(i); });
            passed.take(head, {0, head.head.rows()});
            parallel_each(args.threads, head.blocks(), [&](std::int64_t i) { head.finish_queries(i); });
        }
    }
    flag(args);
}

}  // namespace

void run(Args& args) {
    const FloatEnvironment environment;
    if (args.q.type == Type::f64) run_as<double>(args);
    else run_as<float>(args);
}

void run_gradient(GradientArgs& args) {
    const FloatEnvironment environment;
    if (args.q.type == Type::f64) run_gradient_as<double>(args);
    else run_gradient_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::attend
