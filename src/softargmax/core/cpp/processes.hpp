// Rows that are spread over processes: `Shards`, whose exchanges run in Python (core/processes.py).
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <vector>

#include "args.hpp"

namespace nb = nanobind;

namespace softargmax {

// The processes that have parts of the rows, from the text of an argument `spread`. None: the rows are whole here.
class Processes {
    nb::object python_;
    std::vector<std::int64_t> sizes_;

    static nb::handle of(const Shards& shards) { return nb::handle(static_cast<PyObject*>(shards.processes)); }

    static bool is_known(const Shards& shards) {
        const nb::gil_scoped_acquire gil;
        return nb::cast<bool>(of(shards).attr("is_known"));
    }
    static void gather(const Shards& shards, const void* mine, std::int64_t per_block, std::int64_t per_process,
                       void* all) {
        const nb::gil_scoped_acquire gil;
        nb::list bytes;
        for (std::int64_t p = 0; p < shards.count; ++p) bytes.append(shards.blocks(p) * per_block + per_process);
        const auto sent = nb::cast<std::size_t>(bytes[static_cast<std::size_t>(shards.rank)]);
        const auto found = nb::cast<nb::bytes>(of(shards).attr("gather")(nb::bytes(mine, sent), bytes));
        std::memcpy(all, found.data(), found.size());
    }
    static void pass(const Shards& shards, Shards::Pass how, Type type, void* part, std::int64_t count) {
        const nb::gil_scoped_acquire gil;
        const nb::handle python = of(shards);
        if (how == Shards::Pass::all_back) {
            python.attr("all_back")();
            return;
        }
        const auto bytes = static_cast<Py_ssize_t>(count * kTypeBytes[static_cast<int>(type)]);
        const auto memory = nb::steal(PyMemoryView_FromMemory(static_cast<char*>(part), bytes, PyBUF_WRITE));
        const auto numbers = memory.attr("cast")(type == Type::boolean ? "B" : type == Type::f64 ? "d" : "f");
        const bool comes = how == Shards::Pass::from_previous;
        python.attr(comes ? "from_previous" : how == Shards::Pass::to_next ? "to_next" : "expect")(numbers);
    }

  public:
    Processes() = default;
    explicit Processes(nb::handle spread) {
        if (spread.is_none()) return;
        if (!PyUnicode_Check(spread.ptr())) throw nb::type_error("spread: expected text, or None");
        python_ = nb::module_::import_("softargmax.core.processes").attr("processes_of")(spread);
        for (nb::handle size : nb::borrow<nb::tuple>(python_.attr("sizes")))
            sizes_.push_back(nb::cast<std::int64_t>(size));
    }
    explicit operator bool() const { return !sizes_.empty(); }
    // Valid as long as this object.
    Shards shards() const {
        const auto rank = nb::cast<std::int64_t>(python_.attr("rank"));
        return {static_cast<std::int64_t>(sizes_.size()), sizes_.data(), rank, python_.ptr(), is_known, gather, pass};
    }
};

}  // namespace softargmax
