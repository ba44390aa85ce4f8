// What a query sees, and where its memory is.
#pragma once

#include "attend/args.hpp"
#include "core/native/group.hpp"
#include "core/native/matmul.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::attend {

// Keys to a block. A block's sums start at 0, so a query's result does not depend on how blocks are dealt out: neither
// on threads nor on how many queries there are.
constexpr std::int64_t kKeys = 512;

// From the first element of what one index of an operand's batch, head and row names.
inline std::int64_t offset(const Args& args, const Operand& x, std::int64_t entry, std::int64_t head,
                           std::int64_t row) {
    const std::int64_t* stride = x.row + args.batch.dims;
    return offset_of(entry, args.batch, x.row) + head * stride[0] + row * stride[1];
}
// `count` numbers of one row from column `first` on, as T.
template <class T>
void read(const Operand& x, std::int64_t at, std::int64_t first, std::int64_t count, T* to) {
    with_type(x.type, x.data, [&](auto* base) {
        const auto* from = base + at + first * x.col[0];
        if (x.col[0] == 1) convert(from, count, to);
        else
            for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(from[i * x.col[0]]);
    });
}

// One row of `count` numbers, written in the operand's type.
template <class T> void write(const Operand& x, std::int64_t at, std::int64_t count, const T* from) {
    with_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        if constexpr (!std::is_same_v<S, std::uint8_t>) {
            if (x.col[0] == 1) convert(from, count, base + at);
            else
                for (std::int64_t j = 0; j < count; ++j) base[at + j * x.col[0]] = convert<S>(from[j]);
        }
    });
}
template <class T> bool all_finite(const T* x, std::int64_t n) {
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) finite &= std::fabs(x[i]) < std::numeric_limits<T>::infinity();
    return finite;
}

// The keys from `begin` to `end`.
struct Range {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
    bool empty() const { return end <= begin; }
    void include(Range other) {
        if (!other.empty()) *this = {std::min(begin, other.begin), std::max(end, other.end)};
    }
    // Counted from `first` on, as far as they are below `count`.
    Range within(std::int64_t first, std::int64_t count) const {
        return {std::max<std::int64_t>(begin - first, 0), std::min(end - first, count)};
    }
    // Widened to whole panels.
    template <class T> Range panels() const {
        constexpr std::int64_t step = kPanelCols<T>;
        return {begin / step * step, (end + step - 1) / step * step};
    }
};

// A head of keys and values, and the queries of the heads that share it, one after the other: query `row` is number
// row % queries of head row / queries among them.
struct Shared {
    const Args& args;
    std::int64_t entry, group, heads, keys;
    Shared(const Args& j, std::int64_t index)
        : args(j),
          entry(index / j.groups),
          group(index % j.groups),
          heads(j.heads / j.groups),
          keys(j.lengths ? j.lengths[index / j.groups] : j.keys) {}
    std::int64_t rows() const { return heads * args.queries; }
    std::int64_t head(std::int64_t row) const { return group * heads + row / args.queries; }
    std::int64_t query(std::int64_t row) const { return row % args.queries; }
    std::int64_t at(const Operand& x, std::int64_t row) const { return offset(args, x, entry, head(row), query(row)); }
    std::int64_t number(std::int64_t row) const { return (entry * args.heads + head(row)) * args.queries + query(row); }
    // The last query stands at the last key.
    std::int64_t place(std::int64_t row) const { return query(row) + keys - args.queries; }
    Range seen(std::int64_t row) const {
        return {args.left < 0 ? 0 : std::max<std::int64_t>(0, place(row) - args.left),
                args.right < 0 ? keys : std::min(keys, place(row) + args.right + 1)};
    }
    // f(first number, row stride, column stride) of `count` keys, or values, from `first` on. Those of pages are copied
    // first.
    template <class T, class F>
    void with_rows(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count, F f) const {
        if (!args.table) {
            with_type(x.type, x.data, [&](auto* base) {
                f(base + offset(args, x, entry, group, first), x.row[args.batch.dims + 1], x.col[0]);
            });
            return;
        }
        T* const lines = scratch(kMask).get<T>(kKeys * width);
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t at = first + i, page = args.table[entry * args.pages + at / args.page];
            read(x, page * x.row[0] + group * x.row[1] + at % args.page * x.row[2], 0, width, lines + i * width);
        }
        f(lines, width, std::int64_t{1});
    }
    // In panels of keys, which are beside each other depth by depth; or in panels of their columns, one key behind the
    // other.
    template <class T> void pack_keys(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count,
                                      T* to) const {
        with_rows<T>(x, width, first, count, [&](auto* from, std::int64_t row, std::int64_t col) {
            pack<kPanelCols<T>>(Matrix<std::remove_pointer_t<decltype(from)>>{from, count, width, row, col}, to);
        });
    }
    template <class T> void pack_columns(const Operand& x, std::int64_t width, std::int64_t first, std::int64_t count,
                                         T* to) const {
        with_rows<T>(x, width, first, count, [&](auto* from, std::int64_t row, std::int64_t col) {
            pack<kPanelCols<T>>(Matrix<std::remove_pointer_t<decltype(from)>>{from, width, count, col, row}, to);
        });
    }
};

template <class T> std::int64_t whole_panels(std::int64_t n) {
    return (n + kPanelCols<T> - 1) / kPanelCols<T> * kPanelCols<T>;
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::attend
