// How an operation's arguments cross from Python: by name, each into a field of the operation's struct.
//
//     bind<Args>(module, "softmax", "exp(beta z - lse) into p", run, [](Args& args) { args.op = Op::softmax; },
//                scores("z", &Args::z), mask("where", &Args::where), beta("beta"), axes("axes"),
//                result("p", &Args::out), row_result("lse", &Args::lse));
//
// An option is one line in the struct and one field here. The first field is the array whose rows the call runs over.
// `ARGUMENTS` of the module lists the names, in order: from them the operation records make their calls.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "arguments.hpp"

namespace softargmax {

[[noreturn]] inline void refuse(const char* name, const char* expected) {
    throw nb::type_error((std::string(name) + ": expected " + expected).c_str());
}

// How an array lies beside the first one: of its shape, broadcasting with it, or with one element a row.
enum class Lies { exactly, broadcast, by_row };

template <class T> T number_of(const char* name, nb::handle x) {
    T value;
    if (!nb::try_cast(x, value)) refuse(name, "a number");
    return value;
}
inline void must_be_given(const char* name, nb::handle x) {
    if (x.is_none()) refuse(name, "an array, got None");
}

// An array in a field of J, or of a struct that J is made of.
template <class Base> struct ArrayField {
    using Value = Held;
    const char* name;
    Operand Base::* to;
    Lies lies;
    bool written;
    std::initializer_list<Type> types;
    bool may_be_none = false;
    Held read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        Held held(x, written);
        must_be(name, held, types);
        return held;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, Held& x) const {
        if (lies == Lies::by_row) plan.add_row(name, call.job.*to, x);
        else plan.add(name, call.job.*to, x, lies == Lies::exactly);
    }
};
constexpr std::initializer_list<Type> kDouble = {Type::f64}, kMask = {Type::boolean}, kInteger = {Type::i64},
                                      kNumber = {Type::f64, Type::i64}, kWide = {Type::f32, Type::f64};

template <class B> ArrayField<B> scores(const char* name, Operand B::* to) {
    return {name, to, Lies::exactly, false, kReal};
}
template <class B> ArrayField<B> beside(const char* name, Operand B::* to) {
    return {name, to, Lies::broadcast, false, kReal};
}
template <class B> ArrayField<B> mask(const char* name, Operand B::* to) {
    return {name, to, Lies::broadcast, false, kMask};
}
template <class B> ArrayField<B> result(const char* name, Operand B::* to) {
    return {name, to, Lies::exactly, true, kReal};
}
template <class B> ArrayField<B> mask_result(const char* name, Operand B::* to) {
    return {name, to, Lies::exactly, true, kMask};
}
template <class B> ArrayField<B> integers(const char* name, Operand B::* to) {
    return {name, to, Lies::broadcast, false, kInteger};
}
template <class B> ArrayField<B> row(const char* name, Operand B::* to) {
    return {name, to, Lies::by_row, false, kReal};
}
template <class B> ArrayField<B> row_result(const char* name, Operand B::* to) {
    return {name, to, Lies::by_row, true, kReal};
}
template <class B> ArrayField<B> row_state(const char* name, Operand B::* to) {
    return {name, to, Lies::by_row, true, kDouble};
}
template <class B> ArrayField<B> row_integer(const char* name, Operand B::* to) {
    return {name, to, Lies::by_row, true, kInteger};
}

// A number for all rows, or an array that broadcasts with them. T is double, or uint64 for arrays of int64.
template <class Base, class T> struct RowwiseField {
    struct Value {
        Held array;
        std::optional<T> number;
    };
    const char* name;
    Operand Base::* to;
    std::initializer_list<Type> types;
    bool may_be_none = false;
    Value read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        if (PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr())) return {Held(nb::none()), number_of<T>(name, x)};
        Held array(x);
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

// Some numbers of each row, one after the other in a last dimension; how many, a field before this one has said.
template <class Base> struct ListField {
    using Value = Held;
    const char* name;
    Operand Base::* to;
    std::int64_t Base::* count;
    std::initializer_list<Type> types;
    Held read(nb::handle x) const {
        must_be_given(name, x);
        Held held(x, true);
        must_be(name, held, types);
        return held;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, const Held& x) const {
        View rows = x;
        const std::int64_t n = call.job.*count;
        const bool some = n > 1 && std::find(x.shape.begin(), x.shape.end(), 0) == x.shape.end();
        if (x.shape.empty() || x.shape.back() != n || (some && x.stride.back() != 1))
            throw nb::value_error((std::string(name) + ": expected " + std::to_string(n) + " in a row").c_str());
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
        if (!PyTuple_Check(x.ptr()) || PyTuple_GET_SIZE(x.ptr()) != 2)
            refuse(name, "a pair of floats, or of float64 arrays");
        return x;
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, nb::handle x) const {
        call.scale(plan, PyTuple_GET_ITEM(x.ptr(), 0), PyTuple_GET_ITEM(x.ptr(), 1));
    }
};
inline BetaField beta(const char* name) { return {name}; }

// Along which axes a row runs.
struct AxesField {
    using Value = Dims;
    const char* name;
    Dims read(nb::handle x) const {
        if (!PySequence_Check(x.ptr())) refuse(name, "a sequence of integers");
        Dims found;
        for (nb::handle axis : nb::borrow<nb::sequence>(x)) found.push_back(nb::cast<std::int64_t>(axis));
        return found;
    }
    template <class J> void put(Plan&, CallOf<J>&, const Dims&) const {}
};
inline AxesField axes(const char* name) { return {name}; }

// float64 or int64 that lie one after the other, `each` to a row; const ones are read, the others written.
template <class Base, class T> struct DenseField {
    using Value = Held;
    const char* name;
    T* Base::* to;
    std::int64_t each;
    bool may_be_none = false;
    Held read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        return Held(x, !std::is_const_v<T>);
    }
    template <class J> void put(Plan& plan, CallOf<J>& call, const Held& x) const {
        call.job.*to = numbers<T>(name, x, each * plan.rows());
    }
};
template <class B, class T> DenseField<B, T> dense(const char* name, T* B::* to, std::int64_t each = 1) {
    return {name, to, each};
}

template <class B, class T> DenseField<B, T> integers(const char* name, T* B::* to) { return {name, to, 1}; }

// A number, written into a field as it is.
template <class Base, class T> struct NumberField {
    using Value = T;
    const char* name;
    T Base::* to;
    T read(nb::handle x) const { return number_of<T>(name, x); }
    template <class J> void put(Plan&, CallOf<J>& call, const T& x) const { call.job.*to = x; }
};
template <class B, class T> NumberField<B, T> number(const char* name, T B::* to) { return {name, to}; }

// What the operation records know a kernel by.
template <class... Field> void list_arguments(nb::module_& module, const char* name, const Field&... fields) {
    if (!nb::hasattr(module, "ARGUMENTS")) module.attr("ARGUMENTS") = nb::dict();
    if (nb::cast<nb::dict>(module.attr("ARGUMENTS")).contains(name))
        throw std::logic_error(std::string(name) + ": two kernels have this name");
    module.attr("ARGUMENTS")[name] = nb::make_tuple(fields.name...);
}

template <class> using Handle = nb::handle;

// A kernel over the rows of its first argument. `prepare` sets what is no argument; what the kernel returns is
// returned.
template <class J, class Kernel, class Prepare, class... Field>
void bind(nb::module_& module, const char* name, const char* text, Kernel kernel, Prepare prepare, Field... fields) {
    module.def(name, [=](Handle<Field>... given) {
        std::tuple<typename Field::Value...> values{fields.read(given)...};
        CallOf<J> call;
        prepare(call.job);
        Plan plan(std::get<0>(values), std::get<Dims>(values));
        std::apply([&](auto&... value) { (fields.put(plan, call, value), ...); }, values);
        return call.run(plan, kernel);
    }, nb::arg(fields.name).none()..., text);
    list_arguments(module, name, fields...);
}

}  // namespace softargmax
