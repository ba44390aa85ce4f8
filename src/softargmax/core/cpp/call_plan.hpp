// Makes a plan for each call: which dimensions of its arrays are rows, and which are columns. Arrays can have any
// shapes and strides. A plan joins adjacent dimensions where the strides allow.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "args.hpp"

namespace softargmax {

// Sizes or strides of an array, without heap memory. A call has about ten such lists, and heap memory for them would
// add 0.4 us to a softmax of 7 scores.
class Dims {
    std::int64_t at_[kMaxDims];
    std::size_t count_ = 0;

  public:
    Dims() = default;
    Dims(std::size_t count, std::int64_t value) : count_(count) { std::fill_n(at_, count, value); }
    Dims(std::initializer_list<std::int64_t> values) : count_(values.size()) {
        std::copy(values.begin(), values.end(), at_);
    }
    Dims(const Dims& other) : count_(other.count_) { std::copy_n(other.at_, count_, at_); }
    Dims& operator=(const Dims& other) {
        count_ = other.count_;
        std::copy_n(other.at_, count_, at_);
        return *this;
    }
    void push_back(std::int64_t value) {
        if (count_ == kMaxDims) throw std::invalid_argument("expected at most 64 dimensions");
        at_[count_++] = value;
    }
    void pop_back() { --count_; }
    std::size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    std::int64_t& operator[](std::size_t i) { return at_[i]; }
    std::int64_t operator[](std::size_t i) const { return at_[i]; }
    const std::int64_t* begin() const { return at_; }
    const std::int64_t* end() const { return at_ + count_; }
    std::int64_t back() const { return at_[count_ - 1]; }
    bool operator==(const Dims& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
    bool operator!=(const Dims& other) const { return !(*this == other); }
};

// A description of memory, passed from Python.
struct View {
    char* data = nullptr;
    Type type = Type::f64;
    Dims shape, stride;  // strides in elements
    explicit operator bool() const { return data != nullptr; }
};

constexpr std::size_t kMaxOperands = 16;

class Plan {
    const View& z_;
    bool reduced_[kMaxDims] = {};
    struct OperandStrides {
        Operand* x;
        Dims stride;  // over the dimensions of z
    };
    // An array, because a std::vector would allocate 6 KB of heap memory at every call.
    struct {
        OperandStrides all[kMaxOperands];
        std::size_t count = 0;
        OperandStrides* begin() { return all; }
        OperandStrides* end() { return all + count; }
    } operands_;

    std::size_t dims() const { return z_.shape.size(); }
    static void refuse(const char* name, const char* problem) {
        throw std::invalid_argument(std::string(name) + ": " + problem);
    }

  public:
    template <class Axes> Plan(const View& z, const Axes& axes) : z_(z) {
        for (std::int64_t axis : axes) {
            if (axis < 0 || axis >= static_cast<std::int64_t>(dims())) refuse("axes", "expected axes of z");
            reduced_[static_cast<std::size_t>(axis)] = true;
        }
    }

    // Adds an operand that broadcasts with z. The last dimensions of both are aligned.
    void add(const char* name, Operand& to, const View& x, bool exact = false) {
        if (!x && !exact) return;
        if (x.shape.size() > dims() || (exact && x.shape != z_.shape)) refuse(name, "expected a shape that fits z");
        Dims stride(dims(), 0);
        const std::size_t lead = dims() - x.shape.size();
        for (std::size_t d = 0; d < x.shape.size(); ++d) {
            if (x.shape[d] != z_.shape[lead + d] && x.shape[d] != 1)
                refuse(name, "expected a shape that broadcasts with z");
            if (x.shape[d] != 1) stride[lead + d] = x.stride[d];
        }
        keep(to, x, stride);
    }

    // Adds an operand with one element per row. The reduced dimensions are absent or have size 1.
    void add_row(const char* name, Operand& to, const View& x) {
        if (!x) return;
        Dims stride(dims(), 0);
        const bool kept = x.shape.size() == dims();
        std::size_t d = 0;
        for (std::size_t i = 0; i < dims(); ++i) {
            if (reduced_[i] && !kept) continue;
            const std::int64_t wanted = reduced_[i] ? 1 : z_.shape[i];
            if (d >= x.shape.size() || x.shape[d] != wanted) refuse(name, "expected the shape of the rows");
            if (!reduced_[i]) stride[i] = x.stride[d];
            ++d;
        }
        if (d != x.shape.size()) refuse(name, "expected the shape of the rows");
        keep(to, x, stride);
    }

    std::int64_t rows() const {
        std::int64_t count = 1;
        for (std::size_t d = 0; d < dims(); ++d) count *= reduced_[d] ? 1 : z_.shape[d];
        return count;
    }

    void finish(RowArgs& job) {
        collect(job.rows, false);
        collect(job.cols, true);
    }

  private:
    void keep(Operand& to, const View& x, const Dims& stride) {
        to.data = x.data;
        to.type = x.type;
        if (operands_.count == kMaxOperands) refuse("operands", "too many");
        operands_.all[operands_.count++] = {&to, stride};
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
            bool joins = shape.dims > 0;  // true if dimension d can be joined to the previous one in every operand
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
