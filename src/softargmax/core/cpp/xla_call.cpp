// The handler of XLA's custom call: a call of a Python function with views of XLA's buffers.
#include "xla_call.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "allocator.hpp"
#include "args.hpp"
#include "xla/c_api.h"

namespace nb = nanobind;

namespace softargmax {
namespace {

// A function (arguments, results), whose arguments and results are views of memory (bind.hpp) or NumPy arrays.
struct Function {
    nb::object call;
    bool takes_views;
};

// The Python function that prepares the function of a text, and those that are prepared. They are used under the GIL,
// and never freed, because XLA's threads may outlive the interpreter.
struct Prepared {
    static constexpr std::size_t kMost = 4096;
    nb::object prepare;
    std::unordered_map<std::string, Function> functions;

    static Prepared& instance() {
        static auto* const all = new Prepared;
        return *all;
    }
    Function of(const std::string& text) {
        const auto found = functions.find(text);
        if (found != functions.end()) return found->second;
        if (functions.size() == kMost) functions.clear();
        const nb::tuple made = nb::cast<nb::tuple>(prepare(text));
        return functions[text] = {made[0], nb::cast<bool>(made[1])};
    }
};

nb::dlpack::dtype type_of(XLA_FFI_DataType type) {
    const auto of = [](nb::dlpack::dtype_code code, std::uint8_t bits) {
        return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
    };
    using Code = nb::dlpack::dtype_code;
    switch (type) {
        case XLA_FFI_DataType_PRED: return of(Code::Bool, 8);
        case XLA_FFI_DataType_S8: return of(Code::Int, 8);
        case XLA_FFI_DataType_S16: return of(Code::Int, 16);
        case XLA_FFI_DataType_S32: return of(Code::Int, 32);
        case XLA_FFI_DataType_S64: return of(Code::Int, 64);
        case XLA_FFI_DataType_U8: return of(Code::UInt, 8);
        case XLA_FFI_DataType_U16: return of(Code::UInt, 16);
        case XLA_FFI_DataType_U32: return of(Code::UInt, 32);
        case XLA_FFI_DataType_U64: return of(Code::UInt, 64);
        case XLA_FFI_DataType_F16: return of(Code::Float, 16);
        case XLA_FFI_DataType_BF16: return of(Code::UInt, 16);  // the bits; NumPy has no bfloat16 of its own
        case XLA_FFI_DataType_F32: return of(Code::Float, 32);
        case XLA_FFI_DataType_F64: return of(Code::Float, 64);
        default: throw nb::type_error("expected an array of floats, integers or bool");
    }
}

std::size_t bytes_of(const XLA_FFI_Buffer& buffer) {
    std::size_t bytes = type_of(buffer.dtype).bits / 8u;
    for (std::int64_t i = 0; i < buffer.rank; ++i) bytes *= static_cast<std::size_t>(buffer.dims[i]);
    return bytes;
}

// A view: the address, the type, the shape and the strides. It is made in a tenth of the time of an array.
nb::object view_of(const XLA_FFI_Buffer& buffer) {
    const auto code = [&] {
        switch (buffer.dtype) {
            case XLA_FFI_DataType_F16: return Type::f16;
            case XLA_FFI_DataType_BF16: return Type::bf16;
            case XLA_FFI_DataType_F32: return Type::f32;
            case XLA_FFI_DataType_F64: return Type::f64;
            case XLA_FFI_DataType_PRED: return Type::boolean;
            case XLA_FFI_DataType_S64: return Type::i64;
            default: throw nb::type_error("expected an array of a dtype that kernels read");
        }
    }();
    const auto rank = static_cast<Py_ssize_t>(buffer.rank);
    const auto shape = nb::steal<nb::tuple>(PyTuple_New(rank)), strides = nb::steal<nb::tuple>(PyTuple_New(rank));
    std::int64_t stride = 1;
    for (Py_ssize_t i = rank; i-- > 0;) {
        PyTuple_SetItem(shape.ptr(), i, PyLong_FromLongLong(buffer.dims[i]));
        PyTuple_SetItem(strides.ptr(), i, PyLong_FromLongLong(stride));
        stride *= buffer.dims[i];
    }
    return nb::make_tuple(reinterpret_cast<std::uintptr_t>(buffer.data), static_cast<int>(code), shape, strides);
}

nb::object array_of(const XLA_FFI_Buffer& buffer, bool written) {
    std::size_t shape[64];
    if (buffer.rank > 64) throw nb::value_error("expected an array of at most 64 axes");
    for (std::int64_t i = 0; i < buffer.rank; ++i) shape[i] = static_cast<std::size_t>(buffer.dims[i]);
    const auto rank = static_cast<std::size_t>(buffer.rank);
    const nb::object owner = nb::none();  // the array views XLA's memory
    if (written)
        return nb::cast(nb::ndarray<nb::numpy>(buffer.data, rank, shape, owner, nullptr, type_of(buffer.dtype)));
    return nb::cast(nb::ndarray<nb::numpy, nb::ro>(buffer.data, rank, shape, owner, nullptr, type_of(buffer.dtype)));
}

std::string text_of(const XLA_FFI_Attrs& attributes) {
    for (std::int64_t i = 0; i < attributes.size; ++i) {
        const XLA_FFI_ByteSpan& name = *attributes.names[i];
        if (attributes.types[i] != XLA_FFI_AttrType_STRING || std::string_view(name.ptr, name.len) != "call") continue;
        const auto* value = static_cast<const XLA_FFI_ByteSpan*>(attributes.attrs[i]);
        return std::string(value->ptr, value->len);
    }
    throw nb::value_error("expected the attribute `call`");
}

XLA_FFI_Error* failed(const XLA_FFI_CallFrame& frame, const char* message) {
    XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                   XLA_FFI_Error_Code_INVALID_ARGUMENT};
    return frame.api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* xla_call(XLA_FFI_CallFrame* frame) {
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
        // Before XLA registers the handler, it asks for the version of the interface.
        XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
        metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
        return nullptr;
    }
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
    const nb::gil_scoped_acquire acquire;
    try {
        const Function function = Prepared::instance().of(text_of(frame->attrs));
        const auto memory = [&](const void* given, bool written) {
            const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(given);
            if (written && bytes_of(buffer) >= kPooled) want_huge_pages(buffer.data, bytes_of(buffer));
            return function.takes_views ? view_of(buffer) : array_of(buffer, written);
        };
        nb::list arguments, results;
        for (std::int64_t i = 0; i < frame->args.size; ++i) arguments.append(memory(frame->args.args[i], false));
        for (std::int64_t i = 0; i < frame->rets.size; ++i) results.append(memory(frame->rets.rets[i], true));
        function.call(arguments, results);
        return nullptr;
    } catch (const std::exception& error) {
        return failed(*frame, error.what());
    }
}

}  // namespace

void bind_xla(nb::module_& module) {
    module.def("xla_call", [] { return reinterpret_cast<std::uintptr_t>(&xla_call); }, "The address of the handler");
    module.def("prepare_xla_calls", [](nb::object prepare) { Prepared::instance().prepare = std::move(prepare); },
               nb::arg("prepare"),
               "Set the function of the text of a call. It returns a function (arguments, results), and True if that "
               "takes views");
}

}  // namespace softargmax
