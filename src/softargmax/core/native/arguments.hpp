// Arrays and scales as Python passes them, and the call that is made of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "plan.hpp"
#include "processor.hpp"

namespace nb = nanobind;

namespace softargmax {

using Axes = std::vector<std::int64_t>;
using Array = nb::ndarray<nb::ro, nb::device::cpu>;

inline Type type_of(nb::dlpack::dtype t) {
    const auto code = static_cast<nb::dlpack::dtype_code>(t.code);
    if (code == nb::dlpack::dtype_code::Float && t.bits == 32) return Type::f32;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 64) return Type::f64;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 16) return Type::f16;
    if (code == nb::dlpack::dtype_code::Bfloat && t.bits == 16) return Type::bf16;
    if (code == nb::dlpack::dtype_code::Bool && t.bits == 8) return Type::boolean;
    if (code == nb::dlpack::dtype_code::Int && t.bits == 64) return Type::i64;
    throw nb::type_error("native arrays are float16, bfloat16, float32, float64, int64 or bool");
}

// A NumPy array whose elements lie where their type may lie; of one whose do not, a copy, unless it is to be written.
inline Array aligned(nb::handle x, bool written) {
    Array array;
    const auto lies_well = [&] {
        const std::size_t size = array.dtype().bits / 8u;
        return reinterpret_cast<std::uintptr_t>(array.data()) % size == 0;
    };
    if (nb::try_cast(x, array) && lies_well()) return array;
    if (written) throw nb::value_error("out: not aligned to its type; it may be an aligned array");
    if (!nb::hasattr(x, "copy")) throw nb::type_error("not a NumPy array of a known type");
    return nb::cast<Array>(x.attr("copy")());
}

// Memory that Python described, and the hold on it.
struct Held : View {
    static constexpr char somewhere = 0;  // an array without elements may have no address
    Array array;
    explicit Held(nb::handle x, bool written = false) {
        if (x.is_none()) return;
        if (PyTuple_Check(x.ptr())) {
            const auto parts = nb::borrow<nb::tuple>(x);
            if (parts.size() == 1) {  // the bits of a NumPy array of bfloat16, which its buffer does not describe
                hold(aligned(parts[0], written), Type::bf16);
                return;
            }
            data = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(parts[0]));
            type = static_cast<Type>(nb::cast<int>(parts[1]));
            if (type > Type::i64) throw nb::type_error("unknown type code");
            for (nb::handle n : nb::borrow<nb::tuple>(parts[2])) shape.push_back(nb::cast<std::int64_t>(n));
            for (nb::handle n : nb::borrow<nb::tuple>(parts[3])) stride.push_back(nb::cast<std::int64_t>(n));
            if (shape.size() != stride.size()) throw nb::value_error("as many strides as dimensions, please");
        } else {
            Array numpy = aligned(x, written);
            const Type its = type_of(numpy.dtype());
            hold(std::move(numpy), its);
        }
        if (!data) data = const_cast<char*>(&somewhere);
    }
    void hold(Array numpy, Type its) {
        array = std::move(numpy);
        data = const_cast<char*>(static_cast<const char*>(array.data()));
        type = its;
        for (std::size_t i = 0; i < array.ndim(); ++i) {
            shape.push_back(static_cast<std::int64_t>(array.shape(i)));
            stride.push_back(array.stride(i));
        }
        if (!data) data = const_cast<char*>(&somewhere);
    }
};

inline void must_be(const char* name, const View& x, std::initializer_list<Type> types) {
    if (!x) return;
    for (Type t : types)
        if (x.type == t) return;
    throw nb::type_error((std::string(name) + ": a type that this operation does not take").c_str());
}
// `count` numbers of a type, one after the other; they are addresses, so their number is checked here.
template <class T> T* numbers(const char* name, const View& x, std::int64_t count) {
    if (!x) return nullptr;
    std::int64_t size = 1, stride = 1;
    constexpr bool real = std::is_same_v<std::remove_const_t<T>, double>;
    bool dense = x.type == (real ? Type::f64 : Type::i64);
    for (std::size_t d = x.shape.size(); d-- > 0;) {
        dense = dense && (x.shape[d] == 1 || x.stride[d] == stride);
        stride *= x.shape[d];
        size *= x.shape[d];
    }
    if ((!dense && size > 0) || size != count)
        throw nb::value_error((std::string(name) + ": expected " + std::to_string(count) +
                               (real ? " float64" : " int64") + " that lie one after the other")
                                  .c_str());
    return reinterpret_cast<T*>(x.data);
}

// Classes, one to a row, from 0 to `classes` or to be ignored; how many rows are not.
inline std::int64_t check_classes(const std::int64_t* target, std::int64_t given, std::int64_t rows,
                                  std::int64_t classes, std::int64_t ignore_index) {
    if (given != rows) throw nb::value_error("target: not one per row");
    std::int64_t counted = rows;
    for (std::int64_t i = 0; i < rows; ++i)
        if (target[i] == ignore_index) --counted;
        else if (target[i] < 0 || target[i] >= classes)
            throw nb::index_error(("target: " + std::to_string(target[i]) + " in row " + std::to_string(i) +
                                   "; it may be from 0 to " + std::to_string(classes - 1))
                                      .c_str());
    return counted;
}
constexpr std::initializer_list<Type> kReal = {Type::f16, Type::bf16, Type::f32, Type::f64};

// Small work stays on the calling thread: a team costs microseconds (1.5 to 5 measured), 2^15 scores about 10.
constexpr std::int64_t kParallel = 1 << 15;
// A result that will not stay in the caches beside its scores (16 MiB, 4096 x 1024: 1.0 ms against 1.2 with plain
// stores where neighbours use the last cache too, the same where they do not).
constexpr std::int64_t kStreaming = 16 << 20;

template <class J> struct CallOf {
    J job;

    // beta as two numbers, or two arrays that broadcast with the rows.
    double hi_ = 1, lo_ = 0;
    std::optional<Held> hi, lo;
    void scale(Plan& plan, nb::handle h, nb::handle l) {
        if (PyFloat_Check(h.ptr()) && PyFloat_Check(l.ptr())) {
            hi_ = PyFloat_AsDouble(h.ptr());
            lo_ = PyFloat_AsDouble(l.ptr());
            if (hi_ == 1 && lo_ == 0) return;
            constant(job.hi, hi_);
            constant(job.lo, lo_);
            return;
        }
        hi.emplace(h);
        lo.emplace(l);
        must_be("hi", *hi, {Type::f64});
        must_be("lo", *lo, {Type::f64});
        plan.add("hi", job.hi, *hi);
        plan.add("lo", job.lo, *lo);
    }
    // An operand that is the same for all rows.
    template <class T> static void constant(Operand& x, T& value) {
        x.data = reinterpret_cast<char*>(&value);
        x.type = std::is_floating_point_v<T> ? Type::f64 : Type::i64;
        for (auto& s : x.row) s = 0;
        for (auto& s : x.col) s = 0;
    }

    // What the kernel returns; nothing where there are no rows.
    template <class Kernel> auto run(Plan& plan, Kernel kernel) {
        plan.finish(job);
        return run(kernel);
    }
    template <class Kernel> auto run(Kernel kernel) -> decltype(kernel(job)) {
        if (job.rows.total == 0) return decltype(kernel(job))();
        const std::int64_t work =
            passes * job.rows.total * (job.offsets ? 1 : std::max<std::int64_t>(1, job.cols.total)) + segment_work;
        job.threads = work < kParallel ? 1 : threads_now();
        job.streaming = streaming_pays() && job.out && work * kTypeBytes[static_cast<int>(job.out.type)] >= kStreaming;
        if (work < 1024) return kernel(job);
        const nb::gil_scoped_release release;
        return kernel(job);
    }
    std::int64_t segment_work = 0;
    std::int64_t passes = 1;  // over the scores, for the number of threads
};

}  // namespace softargmax
