// Bindings of operations: each argument from Python is stored, by name, in a field of the operation's struct.
//
//     bind<Args>(module, "softmax", "exp(beta z - lse) into p", run, [](Args& args) { args.op = Op::softmax; },
//                scores("z", &Args::z), mask("where", &Args::where), beta("beta"), axes("axes"),
//                result("p", &Args::out), row_result("lse", &Args::lse));
//
// A new option is one line in the struct and one field in the binding. The kernel runs over the rows of the array in
// the first field. The module's `ARGUMENTS` lists the names of each kernel's arguments in order. Operations
// (core/operation.py) build their calls from this list.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <tuple>
#include <utility>

#include "call_plan.hpp"
#include "processes.hpp"
#include "python_threads.hpp"
#include "tensors.hpp"

namespace nb = nanobind;

namespace softargmax {

// ---- arrays and scales from Python, and the call that is built from them ---------------------------------------

using Array = nb::ndarray<nb::ro, nb::device::cpu>;

inline Type type_of(nb::dlpack::dtype t) {
    const auto code = static_cast<nb::dlpack::dtype_code>(t.code);
    if (code == nb::dlpack::dtype_code::Float && t.bits == 32) return Type::f32;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 64) return Type::f64;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 16) return Type::f16;
    if (code == nb::dlpack::dtype_code::Bfloat && t.bits == 16) return Type::bf16;
    if (code == nb::dlpack::dtype_code::UInt && t.bits == 16) return Type::bf16;  // the bits of bfloat16
    if (code == nb::dlpack::dtype_code::Bool && t.bits == 8) return Type::boolean;
    if (code == nb::dlpack::dtype_code::Int && t.bits == 64) return Type::i64;
    throw nb::type_error("expected an array of float16, bfloat16, float32, float64, int64 or bool");
}

// True for arrays of ml_dtypes' bfloat16. DLPack and the buffer protocol both refuse such arrays, and these two
// attempts take 2.5 us. So the first such dtype is stored, and the dtypes of later arrays are compared with it by
// identity. `refused` is true if both protocols have just refused x.
inline bool is_bfloat16(nb::handle x, bool refused) {
    static PyObject* known = nullptr;
    if (!known && !refused) return false;
    const nb::object dtype = nb::getattr(x, "dtype", nb::none());
    if (dtype.is(known) || !refused) return dtype.is(known);
    const nb::object name = nb::getattr(dtype, "name", nb::none());
    const bool is = PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), "bfloat16") == 0;
    if (is && !known) known = dtype.inc_ref().ptr();
    return is;
}
// Returns a NumPy array aligned to its element type. An unaligned array is copied if it is only read. An array of
// bfloat16 becomes a view of its bits.
inline Array aligned(nb::handle x, bool written) {
    Array array;
    const auto is_aligned = [&] {
        const std::size_t size = array.dtype().bits / 8u;
        return reinterpret_cast<std::uintptr_t>(array.data()) % size == 0;
    };
    if (is_bfloat16(x, false)) return aligned(x.attr("view")("uint16"), written);
    const bool described = nb::try_cast(x, array);
    if (described && is_aligned()) return array;
    if (!described && is_bfloat16(x, true)) return aligned(x.attr("view")("uint16"), written);
    if (written) throw nb::value_error("out: expected an aligned array, got one that is not aligned to its type");
    if (!nb::hasattr(x, "copy") || !nb::try_cast(x.attr("copy")(), array))
        throw nb::type_error("expected a NumPy array of a supported dtype");
    return array;
}

// A view of the memory of a Python array, and the reference that keeps the array alive.
struct HeldArray : View {
    static constexpr char somewhere = 0;  // an array without elements may have no address
    Array array;
    explicit HeldArray(nb::handle x, bool written = false) {
        if (x.is_none()) return;
        if (Tensors::known().has(x)) {
            nb::dlpack::dltensor memory;
            if (Tensors::known().describe(x.ptr(), &memory)) nb::raise_python_error();
            if (memory.device.device_type != nb::device::cpu::value) throw nb::type_error("expected CPU memory");
            data = static_cast<char*>(memory.data) + memory.byte_offset;
            type = type_of(memory.dtype);
            for (std::int32_t i = 0; i < memory.ndim; ++i) {
                shape.push_back(memory.shape[i]);
                stride.push_back(memory.strides[i]);
            }
        } else if (PyTuple_Check(x.ptr())) {
            const auto parts = nb::borrow<nb::tuple>(x);
            if (parts.size() != 4) throw nb::type_error("expected an address, a type, a shape and strides");
            data = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(parts[0]));
            type = static_cast<Type>(nb::cast<int>(parts[1]));
            if (type > Type::i64) throw nb::type_error("expected a known type code");
            for (nb::handle n : nb::borrow<nb::tuple>(parts[2])) shape.push_back(nb::cast<std::int64_t>(n));
            for (nb::handle n : nb::borrow<nb::tuple>(parts[3])) stride.push_back(nb::cast<std::int64_t>(n));
            if (shape.size() != stride.size()) throw nb::value_error("expected as many strides as dimensions");
        } else {
            array = aligned(x, written);
            data = const_cast<char*>(static_cast<const char*>(array.data()));
            type = type_of(array.dtype());
            for (std::size_t i = 0; i < array.ndim(); ++i) {
                shape.push_back(static_cast<std::int64_t>(array.shape(i)));
                stride.push_back(array.stride(i));
            }
        }
        if (!data) data = const_cast<char*>(&somewhere);
    }
};

inline void must_be(const char* name, const View& x, std::initializer_list<Type> types) {
    if (!x) return;
    for (Type t : types)
        if (x.type == t) return;
    throw nb::type_error((std::string(name) + ": expected a dtype that this operation supports").c_str());
}
inline std::int64_t size_of(const View& x) {
    std::int64_t size = 1;
    for (std::int64_t n : x.shape) size *= n;
    return size;
}
// True for memory in C order without gaps, and for arrays without elements.
inline bool is_contiguous(const View& x) {
    std::int64_t count = 1;
    bool contiguous = true;
    for (std::size_t d = x.shape.size(); d-- > 0;) {
        contiguous = contiguous && (x.shape[d] == 1 || x.stride[d] == count);
        count *= x.shape[d];
    }
    return contiguous || count == 0;
}
// The address of `count` contiguous numbers of type T. Kernels receive only the address, so the count is checked here.
template <class T> T* numbers(const char* name, const View& x, std::int64_t count) {
    if (!x) return nullptr;
    constexpr bool real = std::is_same_v<std::remove_const_t<T>, double>;
    const std::int64_t size = size_of(x);
    const bool usable = x.type == (real ? Type::f64 : Type::i64) && is_contiguous(x);
    if ((!usable && size > 0) || size != count)
        throw nb::value_error(
            (std::string(name) + ": expected " + std::to_string(count) + " contiguous " + (real ? "float64" : "int64"))
                .c_str());
    return reinterpret_cast<T*>(x.data);
}

// A contiguous array of integers, of any size. None is an array of size 0.
struct Integers : HeldArray {
    std::int64_t count;
    Integers(const char* name, nb::handle x) : HeldArray(x), count(x.is_none() ? 0 : size_of(*this)) {
        numbers<const std::int64_t>(name, *this, count);
    }
    const std::int64_t* begin() const { return reinterpret_cast<const std::int64_t*>(data); }
    const std::int64_t* end() const { return begin() + count; }
};

// Runs a kernel if all classes in `target` exist. If not, returns the first row whose class does not exist.
template <auto kRun, class Args> std::optional<std::int64_t> unless_wrong_class(Args& args) {
    const std::int64_t rows = args.target ? args.rows.total : 0, classes = args.length();
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t y = args.target[row];
        if (y != args.ignore_index && (y < 0 || y >= classes)) return row;
    }
    kRun(args);
    return std::nullopt;
}
constexpr std::initializer_list<Type> kReal = {Type::f16, Type::bf16, Type::f32, Type::f64};

template <class J> struct CallOf {
    J job;

    // beta as two numbers, or two arrays that broadcast with the rows.
    double hi_ = 1, lo_ = 0;
    std::optional<HeldArray> hi, lo;
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
    // Makes x an operand with the same value for all rows.
    template <class T> static void constant(Operand& x, T& value) {
        x.data = reinterpret_cast<char*>(&value);
        x.type = std::is_floating_point_v<T> ? Type::f64 : Type::i64;
        for (auto& s : x.row) s = 0;
        for (auto& s : x.col) s = 0;
    }

    // Spreads the rows over processes, if there are any. `processes` must exist until the kernel has run.
    void spread(const Processes& processes) {
        if (!processes) return;
        if (!J::kSpreads) throw nb::value_error("axes: this operation needs whole rows in one process");
        job.shards = processes.shards();
    }

    // Runs the kernel and returns its result. Returns a default-constructed result if there are no rows.
    template <class Kernel> auto run(Plan& plan, Kernel kernel) {
        plan.finish(job);
        return run(kernel);
    }
    template <class Kernel> auto run(Kernel kernel) -> decltype(kernel(job)) {
        if (job.rows.total == 0 && !takes_part) return decltype(kernel(job))();
        const std::int64_t work =
            passes * job.rows.total * (job.offsets ? 1 : std::max<std::int64_t>(1, job.cols.total)) + segment_work;
        job.threads = work < kParallel ? 1 : threads_now();
        job.streaming = job.out && work * kTypeBytes[static_cast<int>(job.out.type)] >= streaming_bytes();
        if (work < 1024) return kernel(job);
        const ReleasedGil released;
        return kernel(job);
    }
    std::int64_t segment_work = 0;
    std::int64_t passes = 1;  // passes over the scores; the work of a call is proportional to it
    bool takes_part = false;  // true if the kernel runs without rows, too, since other processes have some
};

// ---- fields ---------------------------------------------------------------------------------------------------

[[noreturn]] inline void refuse(const char* name, const char* expected) {
    throw nb::type_error((std::string(name) + ": expected " + expected).c_str());
}

// The shape of an array, compared with the first array: equal, broadcasting, or with one element per row.
enum class Fit { exactly, broadcast, by_row };

template <class T> T number_of(const char* name, nb::handle x) {
    T value{};
    if (!nb::try_cast(x, value)) refuse(name, "a number");
    return value;
}
inline void must_be_given(const char* name, nb::handle x) {
    if (x.is_none()) refuse(name, "an array, got None");
}

// An array argument. It is stored in the field `to` of Base: the kernel's struct of arguments, or a base class of it.
template <class Base> struct ArrayField {
    using Value = HeldArray;
    const char* name;
    Operand Base::* to;
    Fit fit;
    bool written;
    std::initializer_list<Type> types;
    bool may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        HeldArray held(x, written);
        must_be(name, held, types);
        return held;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, HeldArray& x) const {
        if (fit == Fit::by_row) plan.add_row(name, call.job.*to, x);
        else plan.add(name, call.job.*to, x, fit == Fit::exactly);
    }
};
constexpr std::initializer_list<Type> kDouble = {Type::f64}, kMask = {Type::boolean}, kInteger = {Type::i64},
                                      kNumber = {Type::f64, Type::i64}, kWide = {Type::f32, Type::f64};

template <class B> ArrayField<B> scores(const char* name, Operand B::* to) {
    return {name, to, Fit::exactly, false, kReal};
}
template <class B> ArrayField<B> beside(const char* name, Operand B::* to) {
    return {name, to, Fit::broadcast, false, kReal};
}
template <class B> ArrayField<B> mask(const char* name, Operand B::* to) {
    return {name, to, Fit::broadcast, false, kMask};
}
template <class B> ArrayField<B> result(const char* name, Operand B::* to) {
    return {name, to, Fit::exactly, true, kReal};
}
template <class B> ArrayField<B> mask_result(const char* name, Operand B::* to) {
    return {name, to, Fit::exactly, true, kMask};
}
template <class B> ArrayField<B> integers(const char* name, Operand B::* to) {
    return {name, to, Fit::broadcast, false, kInteger};
}
template <class B> ArrayField<B> row(const char* name, Operand B::* to) {
    return {name, to, Fit::by_row, false, kReal};
}
template <class B> ArrayField<B> row_result(const char* name, Operand B::* to) {
    return {name, to, Fit::by_row, true, kReal};
}
template <class B> ArrayField<B> row_state(const char* name, Operand B::* to) {
    return {name, to, Fit::by_row, true, kDouble};
}
template <class B> ArrayField<B> row_integer(const char* name, Operand B::* to) {
    return {name, to, Fit::by_row, true, kInteger};
}

// A number for all rows, or an array that broadcasts with the rows. T is the type of the number: double, or uint64_t if
// arrays are int64.
template <class Base, class T> struct RowwiseField {
    struct Value {
        HeldArray array;
        std::optional<T> number;
    };
    const char* name;
    Operand Base::* to;
    std::initializer_list<Type> types;
    bool may_be_none = false;
    Value read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        if (PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr())) return {HeldArray(nb::none()), number_of<T>(name, x)};
        HeldArray array(x);
        must_be(name, array, types);
        return {std::move(array), std::nullopt};
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, Value& x) const {
        if (x.number) CallOf<J>::constant(call.job.*to, *x.number);
        else plan.add(name, call.job.*to, x.array);
    }
};
template <class B>
RowwiseField<B, double> rowwise(const char* name, Operand B::* to, std::initializer_list<Type> types = kDouble) {
    return {name, to, types};
}
template <class B> RowwiseField<B, std::uint64_t> word(const char* name, Operand B::* to) {
    return {name, to, kInteger};
}

// Several numbers per row, contiguous along an additional last dimension. `count` points to the member of the struct
// that says how many. An earlier field has set this member.
template <class Base> struct ListField {
    using Value = HeldArray;
    const char* name;
    Operand Base::* to;
    std::int64_t Base::* count;
    std::initializer_list<Type> types;
    HeldArray read(nb::handle x) const {
        must_be_given(name, x);
        HeldArray held(x, true);
        must_be(name, held, types);
        return held;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, const HeldArray& x) const {
        View rows = x;
        const std::int64_t n = call.job.*count;
        const bool some = n > 1 && std::find(x.shape.begin(), x.shape.end(), 0) == x.shape.end();
        if (x.shape.empty() || x.shape.back() != n || (some && x.stride.back() != 1))
            throw nb::value_error(
                (std::string(name) + ": expected " + std::to_string(n) + " contiguous numbers per row").c_str());
        rows.shape.pop_back();
        rows.stride.pop_back();
        plan.add_row(name, call.job.*to, rows);
    }
};
template <class B> ListField<B> integer_list(const char* name, Operand B::* to, std::int64_t B::* count) {
    return {name, to, count, kInteger};
}
template <class B> ListField<B> real_list(const char* name, Operand B::* to, std::int64_t B::* count) {
    return {name, to, count, kWide};
}

// A field that may be None.
template <class Field> Field optional(Field field) {
    field.may_be_none = true;
    return field;
}

// beta = hi + lo: a pair of numbers, or of arrays that broadcast with the rows.
struct BetaField {
    using Value = nb::handle;
    const char* name;
    nb::handle read(nb::handle x) const {
        if (!PyTuple_Check(x.ptr()) || NB_TUPLE_GET_SIZE(x.ptr()) != 2)
            refuse(name, "a pair of floats, or of float64 arrays");
        return x;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, nb::handle x) const {
        call.scale(plan, NB_TUPLE_GET_ITEM(x.ptr(), 0), NB_TUPLE_GET_ITEM(x.ptr(), 1));
    }
};
inline BetaField beta(const char* name) { return {name}; }

// The axes of a row, and how the rows are spread over processes (core/processes.py), if they are.
struct RowAxes : Dims {
    Processes processes;
};
struct AxesField {
    using Value = RowAxes;
    const char* name;
    RowAxes read(nb::handle x) const {
        if (!PySequence_Check(x.ptr())) refuse(name, "a sequence of integers");
        RowAxes found;
        if (!PyTuple_CheckExact(x.ptr()) && nb::hasattr(x, "spread")) found.processes = Processes(x.attr("spread"));
        if (!PyTuple_Check(x.ptr()))
            for (nb::handle axis : nb::borrow<nb::sequence>(x)) found.push_back(nb::cast<std::int64_t>(axis));
        else
            for (nb::handle axis : nb::borrow<nb::tuple>(x)) found.push_back(nb::cast<std::int64_t>(axis));
        return found;
    }
    template <class J> void put(Plan&, CallOf<J>& call, const RowAxes& x) const { call.spread(x.processes); }
};
inline AxesField axes(const char* name) { return {name}; }

// A contiguous float64 or int64 array with `each` numbers per row. The kernel reads the array if T is const, and writes
// it otherwise.
template <class Base, class T> struct DenseField {
    using Value = HeldArray;
    const char* name;
    T* Base::* to;
    std::int64_t each;
    bool may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        return HeldArray(x, !std::is_const_v<T>);
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, const HeldArray& x) const {
        call.job.*to = numbers<T>(name, x, each * plan.rows());
    }
};
template <class B, class T> DenseField<B, T> dense(const char* name, T* B::* to, std::int64_t each = 1) {
    return {name, to, each};
}

template <class B, class T> DenseField<B, T> integers(const char* name, T* B::* to) { return {name, to, 1}; }

template <class Base, class T> struct NumberField {
    using Value = T;
    const char* name;
    T Base::* to;
    T read(nb::handle x) const { return number_of<T>(name, x); }
    template <class J> void put(Plan&, CallOf<J>& call, const T& x) const { call.job.*to = x; }
};
template <class B, class T> NumberField<B, T> number(const char* name, T B::* to) { return {name, to}; }

// Adds a kernel's argument names to ARGUMENTS, for core/operation.py.
template <class... Field> void list_arguments(nb::module_& module, const char* name, const Field&... fields) {
    if (!nb::hasattr(module, "ARGUMENTS")) module.attr("ARGUMENTS") = nb::dict();
    if (nb::cast<nb::dict>(module.attr("ARGUMENTS")).contains(name))
        throw std::logic_error(std::string(name) + ": two kernels have this name");
    module.attr("ARGUMENTS")[name] = nb::make_tuple(fields.name...);
}

template <class> using Handle = nb::handle;

// Binds a kernel that runs over the rows of its first argument. `prepare` sets the fields that are not arguments. The
// binding returns the kernel's result to Python.
template <class J, class Kernel, class Prepare, class... Field>
void bind(nb::module_& module, const char* name, const char* text, Kernel kernel, Prepare prepare, Field... fields) {
    module.def(name, [=](Handle<Field>... inputs) {
        std::tuple<typename Field::Value...> values{fields.read(inputs)...};
        CallOf<J> call;
        prepare(call.job);
        Plan plan(std::get<0>(values), std::get<RowAxes>(values));
        std::apply([&](auto&... value) { (fields.put(plan, call, value), ...); }, values);
        return call.run(plan, kernel);
    }, nb::arg(fields.name).none()..., text);
    list_arguments(module, name, fields...);
}

}  // namespace softargmax
