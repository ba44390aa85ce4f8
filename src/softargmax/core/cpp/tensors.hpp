// Fast checks, in C++, whether an argument from Python is a tensor in CPU memory, or an array that needs no conversion.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace nb = nanobind;

namespace softargmax {

// Takes the new reference that a call of Python's C API returned. Throws if the call set an exception.
inline nb::object answered(PyObject* answer) {
    if (!answer) nb::raise_python_error();
    return nb::steal(answer);
}

// ---- tensors ----------------------------------------------------------------------------------------------------

// Torch tensors, described in C through DLPack's exchange API. This takes 0.1 us. Four calls in Python, and a tuple of
// their results, would take 0.7 us. The core is not linked against torch.
struct Tensors {
    using Describe = int (*)(void* tensor, nb::dlpack::dltensor* memory);  // -1: a Python exception is set
    PyTypeObject* type = nullptr;
    PyTypeObject* parameter = nullptr;  // torch.nn.Parameter, which is treated as a tensor
    Describe describe = nullptr;
    PyObject* is_neg = nullptr;  // Tensor.is_neg
    // A function that is true for functorch's wrappers. Describing a wrapper raises an error, which takes 7 ms.
    PyObject* is_wrapped = nullptr;
    PyObject* grad_mode = nullptr;  // torch.is_grad_enabled
    PyObject* requires_grad = nullptr;  // the name of this attribute

    static Tensors& known() {
        static Tensors all;
        return all;
    }
    // Registers torch's types. Returns false if torch has no exchange API (before 2.10).
    static bool know(nb::handle its_type, nb::handle parameter, nb::handle is_wrapped, nb::handle grad_mode) {
        struct Table {  // DLPackExchangeAPI of dlpack.h
            std::uint32_t major, minor;
            const Table* older;
            void (*allocate)(), (*from_object)(), (*to_object)();
            Describe describe;
        };
        const nb::object capsule = nb::getattr(its_type, "__dlpack_c_exchange_api__", nb::none());
        if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
        const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (table->major != 1 || !table->describe) return false;
        known() = {reinterpret_cast<PyTypeObject*>(its_type.inc_ref().ptr()),
                   reinterpret_cast<PyTypeObject*>(parameter.inc_ref().ptr()),
                   table->describe,
                   nb::getattr(its_type, "is_neg").release().ptr(),
                   is_wrapped.inc_ref().ptr(),
                   grad_mode.inc_ref().ptr(),
                   PyUnicode_InternFromString("requires_grad")};
        return true;
    }
    static bool is_float(nb::dlpack::dtype dtype) {
        const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
        return code == nb::dlpack::dtype_code::Float || code == nb::dlpack::dtype_code::Bfloat;
    }
    // True for a tensor or a Parameter, and false for all other subclasses.
    bool ordinary(nb::handle x) const {
        const PyTypeObject* const own = Py_TYPE(x.ptr());
        return type && (own == type || own == parameter);
    }
    // Describes an ordinary tensor. Returns false for functorch's wrappers and for tensors that DLPack cannot describe.
    bool described(nb::handle x, nb::dlpack::dltensor& memory) const {
        return is_false(is_wrapped, x) && described_outside_transforms(x, memory);
    }
    // `described` for use when no transform is active. It omits the check for wrappers, which takes 63 ns. Wrappers of
    // a transform that has ended can still arrive. Describing them fails, so the result is false.
    bool described_outside_transforms(nb::handle x, nb::dlpack::dltensor& memory) const {
        if (describe(x.ptr(), &memory) == 0) return true;
        PyErr_Clear();
        return false;
    }
    // True for an ordinary tensor whose values are in CPU memory. False for a lazily negated tensor.
    bool in_memory(nb::handle x) const {
        nb::dlpack::dltensor memory;
        return ordinary(x) && described(x, memory) && in_memory(x, memory);
    }
    bool in_memory(nb::handle x, const nb::dlpack::dltensor& memory) const {
        return memory.device.device_type == nb::device::cpu::value && memory.data && is_false(is_neg, x);
    }
    // True if `in_memory` and there is no derivative to record.
    bool ready(nb::handle x) const {
        nb::dlpack::dltensor memory;
        return ordinary(x) && described(x, memory) && ready(x, memory);
    }
    bool ready(nb::handle x, const nb::dlpack::dltensor& memory) const { return in_memory(x, memory) && unrecorded(x); }
    // True if torch records no derivative with respect to the tensor.
    bool unrecorded(nb::handle x) const {
        return answered(PyObject_GetAttr(x.ptr(), requires_grad)).ptr() == Py_False ||
               answered(PyObject_CallNoArgs(grad_mode)).ptr() == Py_False;
    }
    static bool is_false(PyObject* question, nb::handle x) {
        PyObject* const self = x.ptr();
        return answered(PyObject_Vectorcall(question, &self, 1, nullptr)).ptr() == Py_False;
    }
    bool has(nb::handle x) const { return type && PyObject_TypeCheck(x.ptr(), type); }
    // True only if all tensors in a record, and in tuples in it, are ready. It may be false although all are ready.
    bool all_ready(nb::handle x) const {
        if (ordinary(x)) return ready(x);
        if (!PyTuple_Check(x.ptr())) return type && !has(x);
        for (Py_ssize_t i = 0; i < NB_TUPLE_GET_SIZE(x.ptr()); ++i)
            if (!all_ready(NB_TUPLE_GET_ITEM(x.ptr(), i))) return false;
        return true;
    }
};

// The current state of torch, which every call reads through torch's Python functions.
struct Torch {
    PyObject *transformed = nullptr, *modes = nullptr, *recording = nullptr;  // functions
    PyObject *forward_mode = nullptr, *level = nullptr;  // a module, and the name of its attribute

    static Torch& known() {
        static Torch all;
        return all;
    }
    static void know(nb::handle transformed, nb::handle modes, nb::handle recording, nb::handle forward_mode) {
        known() = {transformed.inc_ref().ptr(), modes.inc_ref().ptr(), recording.inc_ref().ptr(),
                   forward_mode.inc_ref().ptr(), PyUnicode_InternFromString("_current_level")};
    }
    // True if no transform, mode, trace or forward mode is active.
    bool still() const {
        return answered(PyObject_CallNoArgs(transformed)).ptr() == Py_False &&
               PyLong_AsLong(answered(PyObject_CallNoArgs(modes)).ptr()) == 0 &&
               PyLong_AsLong(answered(PyObject_GetAttr(forward_mode, level)).ptr()) < 0 &&
               answered(PyObject_CallNoArgs(recording)).is_none();
    }
};

// ---- arrays of floats that need no conversion ---------------------------------------------------------------------

// NumPy arrays, excluding subclasses of ndarray.
struct NumPy {
    PyTypeObject* type;
    PyObject* floats[3];  // the dtypes that need no conversion
    PyObject* classes;  // int64
    PyObject *dtype, *ndim, *shape;  // names

    static const NumPy& known() {
        static const NumPy all = [] {
            const nb::module_ numpy = nb::module_::import_("numpy");
            const auto of = [&](const char* name) { return numpy.attr("dtype")(name).release().ptr(); };
            return NumPy{reinterpret_cast<PyTypeObject*>(nb::getattr(numpy, "ndarray").release().ptr()),
                         {of("float32"), of("float64"), of("float16")},
                         of("int64"),
                         PyUnicode_InternFromString("dtype"),
                         PyUnicode_InternFromString("ndim"),
                         PyUnicode_InternFromString("shape")};
        }();
        return all;
    }
    nb::object dtype_of(nb::handle x) const { return answered(PyObject_GetAttr(x.ptr(), dtype)); }
    std::int32_t dims(nb::handle x) const {
        return static_cast<std::int32_t>(PyLong_AsLong(answered(PyObject_GetAttr(x.ptr(), ndim)).ptr()));
    }
    bool is_float(nb::handle x) const {
        return std::find(std::begin(floats), std::end(floats), dtype_of(x).ptr()) != std::end(floats);
    }
    nb::tuple shape_of(nb::handle x) const { return nb::borrow<nb::tuple>(answered(PyObject_GetAttr(x.ptr(), shape))); }
};

// A NumPy array or tensor of floats that needs no conversion, with its dtype and sizes.
class Described {
    static constexpr std::int32_t kDims = 8;  // NumPy arrays of more dimensions are not described
    nb::handle x_;
    nb::dlpack::dltensor memory_{};
    std::int64_t sizes_[kDims];
    bool tensor_ = false, found_ = false;

    bool read_array() {
        const NumPy& numpy = NumPy::known();
        const nb::object dtype = numpy.dtype_of(x_);
        const auto* const place = std::find(std::begin(numpy.floats), std::end(numpy.floats), dtype.ptr());
        const nb::tuple shape = numpy.shape_of(x_);
        if (place == std::end(numpy.floats) || shape.size() > kDims) return false;
        memory_.dtype.code = static_cast<std::uint8_t>(place - numpy.floats);  // an index for `alike`, no DLPack code
        memory_.ndim = static_cast<std::int32_t>(shape.size());
        memory_.shape = sizes_;
        for (std::int32_t d = 0; d < memory_.ndim; ++d) sizes_[d] = nb::cast<std::int64_t>(shape[d]);
        return true;
    }

  public:
    explicit Described(nb::handle x) : x_(x) {
        if (Py_TYPE(x.ptr()) == NumPy::known().type) {
            found_ = read_array();
            return;
        }
        const Tensors& tensors = Tensors::known();
        tensor_ = tensors.ordinary(x);
        found_ = tensor_ && tensors.described(x, memory_) && Tensors::is_float(memory_.dtype) &&
                 tensors.in_memory(x, memory_);
    }
    Described(const Described&) = delete;  // memory_ may point to sizes_
    explicit operator bool() const { return found_; }
    // True for a tensor whose derivative is not recorded.
    bool ready() const { return tensor_ && Tensors::known().unrecorded(x_); }
    bool alike(const Described& other) const {
        return found_ && tensor_ == other.tensor_ && memory_.ndim == other.memory_.ndim &&
               memory_.dtype.code == other.memory_.dtype.code && memory_.dtype.bits == other.memory_.dtype.bits;
    }
    std::int32_t dims() const { return memory_.ndim; }
    std::int64_t size(std::int32_t d) const { return memory_.shape[d]; }
    const std::int64_t* sizes() const { return memory_.shape; }
};

// A call is common if its scores are an array of floats that needs no conversion, and if it has one valid axis. Such a
// call needs no further checks. Recognising it takes 0.1 us here, and would take 0.4 us in Python.
class CommonCall {
    nb::handle z_, axis_;
    nb::dlpack::dltensor memory_{};
    bool at_once_, tensor_ = false, common_ = false;

    bool is_common() {
        if (!PyLong_CheckExact(axis_.ptr())) return false;
        if (Py_TYPE(z_.ptr()) == NumPy::known().type) {
            memory_.ndim = NumPy::known().dims(z_);
            return NumPy::known().is_float(z_);
        }
        const Tensors& tensors = Tensors::known();
        tensor_ = tensors.ordinary(z_);
        if (!tensor_ || (at_once_ && !Torch::known().still())) return false;
        return (at_once_ ? tensors.described_outside_transforms(z_, memory_) : tensors.described(z_, memory_)) &&
               Tensors::is_float(memory_.dtype) && (!at_once_ || tensors.ready(z_, memory_));
    }

    bool tensor_of_classes(nb::handle target, std::int64_t axis) const {
        const Tensors& tensors = Tensors::known();
        nb::dlpack::dltensor classes;
        return tensors.in_memory(z_, memory_) && tensors.ordinary(target) && tensors.described(target, classes) &&
               classes.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) &&
               classes.dtype.bits == 64 && tensors.in_memory(target, classes) && classes.ndim == memory_.ndim - 1 &&
               std::equal(memory_.shape, memory_.shape + axis, classes.shape) &&
               std::equal(memory_.shape + axis + 1, memory_.shape + memory_.ndim, classes.shape + axis);
    }
    bool array_of_classes(nb::handle target, std::int64_t axis) const {
        const NumPy& numpy = NumPy::known();
        if (Py_TYPE(target.ptr()) != numpy.type || numpy.dtype_of(target).ptr() != numpy.classes) return false;
        const nb::tuple rows = numpy.shape_of(target), shape = numpy.shape_of(z_);
        bool same = rows.size() + 1 == shape.size();
        for (std::size_t d = 0; same && d < rows.size(); ++d)
            same = nb::cast<std::int64_t>(rows[d]) == nb::cast<std::int64_t>(shape[d + (d >= std::size_t(axis))]);
        return same;
    }

  public:
    // With `at_once`, a call with a tensor is common only if a kernel may run on the tensor now, without torch.
    CommonCall(nb::handle z, nb::handle axis, bool at_once = false) : z_(z), axis_(axis), at_once_(at_once) {
        common_ = is_common();
    }
    // The axes of a row, or None if this is not a common call.
    nb::object axes() const {
        int beyond = 0;
        const std::int64_t n = memory_.ndim;
        const std::int64_t axis = common_ ? PyLong_AsLongLongAndOverflow(axis_.ptr(), &beyond) : 0;
        if (!common_ || beyond || axis < -n || axis >= n) return nb::none();
        return nb::make_tuple(axis < 0 ? axis + n : axis);
    }
    // `axes` if `target` is an int64 array in CPU memory, of z's library and with one class per row. None otherwise.
    nb::object axes_of_classes(nb::handle target) const {
        const nb::object axes = this->axes();
        if (axes.is_none()) return axes;
        const std::int64_t axis = nb::cast<std::int64_t>(axes[0]);
        return (tensor_ ? tensor_of_classes(target, axis) : array_of_classes(target, axis)) ? axes : nb::none();
    }
};

}  // namespace softargmax
