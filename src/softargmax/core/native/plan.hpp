// From arrays with any shapes and strides to a job: which dimensions are rows, which are columns, and as few of either
// as the strides allow.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "job.hpp"

namespace softargmax {

// Memory as Python described it.
struct View {
    char* data = nullptr;
    Type type = Type::f64;
    std::vector<std::int64_t> shape, stride;  // strides in elements
    explicit operator bool() const { return data != nullptr; }
};

class Plan {
    const View& z_;
    std::vector<bool> reduced_;
    std::vector<std::pair<Operand*, std::vector<std::int64_t>>> operands_;  // strides over the dimensions of z

    std::size_t dims() const { return z_.shape.size(); }
    static void refuse(const char* name, const char* problem) {
        throw std::invalid_argument(std::string(name) + ": " + problem);
    }

  public:
    Plan(const View& z, const std::vector<std::int64_t>& axes) : z_(z), reduced_(z.shape.size(), false) {
        for (std::int64_t axis : axes) {
            if (axis < 0 || axis >= static_cast<std::int64_t>(dims())) refuse("axes", "out of range");
            reduced_[static_cast<std::size_t>(axis)] = true;
        }
        if (dims() > kMaxDims) refuse("z", "more than 64 dimensions");
    }

    // An operand that broadcasts with z: aligned at the last dimension, as everywhere.
    void add(const char* name, Operand& to, const View& x, bool exact = false) {
        if (!x && !exact) return;
        if (x.shape.size() > dims() || (exact && x.shape != z_.shape)) refuse(name, "its shape does not fit z");
        std::vector<std::int64_t> stride(dims(), 0);
        const std::size_t lead = dims() - x.shape.size();
        for (std::size_t d = 0; d < x.shape.size(); ++d) {
            if (x.shape[d] != z_.shape[lead + d] && x.shape[d] != 1)
                refuse(name, "its shape does not broadcast with z");
            if (x.shape[d] != 1) stride[lead + d] = x.stride[d];
        }
        keep(to, x, std::move(stride));
    }

    // An operand with one element a row: the reduced dimensions absent, or kept with size 1.
    void add_row(const char* name, Operand& to, const View& x) {
        if (!x) return;
        std::vector<std::int64_t> stride(dims(), 0);
        const bool kept = x.shape.size() == dims();
        std::size_t d = 0;
        for (std::size_t i = 0; i < dims(); ++i) {
            if (reduced_[i] && !kept) continue;
            const std::int64_t wanted = reduced_[i] ? 1 : z_.shape[i];
            if (d >= x.shape.size() || x.shape[d] != wanted) refuse(name, "its shape is not that of the rows");
            if (!reduced_[i]) stride[i] = x.stride[d];
            ++d;
        }
        if (d != x.shape.size()) refuse(name, "its shape is not that of the rows");
        keep(to, x, std::move(stride));
    }

    void finish(Job& job) {
        collect(job.rows, false);
        collect(job.cols, true);
    }

  private:
    void keep(Operand& to, const View& x, std::vector<std::int64_t> stride) {
        to.data = x.data;
        to.type = x.type;
        operands_.emplace_back(&to, std::move(stride));
    }
    void collect(Shape& shape, bool columns) {
        const auto strides_of = [&](Operand& x) { return columns ? x.col : x.row; };
        shape.dims = 0;
        shape.total = 1;
        for (std::size_t d = 0; d < dims(); ++d) {
            if (reduced_[d] != columns) continue;
            const std::int64_t size = z_.shape[d];
            shape.total *= size;
            if (size == 1) continue;
            bool joins = shape.dims > 0;  // dimension d continues the one before in every operand
            for (auto& [x, stride] : operands_) joins = joins && strides_of(*x)[shape.dims - 1] == stride[d] * size;
            if (!joins) ++shape.dims;
            shape.size[shape.dims - 1] = joins ? shape.size[shape.dims - 1] * size : size;
            for (auto& [x, stride] : operands_) strides_of(*x)[shape.dims - 1] = stride[d];
        }
        if (shape.dims > 0) return;
        shape.dims = 1;
        shape.size[0] = 1;
        for (auto& [x, stride] : operands_) strides_of(*x)[0] = 0;
    }
};

}  // namespace softargmax
