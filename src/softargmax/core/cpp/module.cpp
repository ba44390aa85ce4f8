// softargmax.core._native: the Python module of the compiled core (used by core/native.py and the operations).
//
// An array is passed as a NumPy array, as a tensor whose memory a C function of torch describes, or as a tuple
// (address, type, shape, strides in elements) for memory of other libraries. Passing a tuple takes a tenth of the time
// of a DLPack capsule. A uint16 array is read as the bits of bfloat16. An ml_dtypes bfloat16 array is accepted
// directly. Shapes and the values of offsets are checked here, because memory safety depends on them. core/check.py
// makes all other checks.
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>

#include "allocator.hpp"
#include "bind.hpp"
#include "xla_call.hpp"

using namespace nb::literals;

namespace softargmax {
namespace {

// Computes out = A B + bias, or out += A B. The bits of a row of `out` do not depend on other rows of A and `out`.
void product(nb::handle a_, nb::handle b_, nb::handle out_, nb::handle bias_, bool adds, bool sparse) {
    const HeldArray a(a_), b(b_), out(out_, true), bias(bias_);
    must_be("a", a, kReal);
    must_be("b", b, kReal);
    const Type type = a.type == Type::f64 || b.type == Type::f64 ? Type::f64 : Type::f32;
    must_be("out", out, {type});
    must_be("bias", bias, {type});
    if (a.shape.size() != 2 || b.shape.size() != 2 || out.shape.size() != 2 || a.shape[1] != b.shape[0] ||
        out.shape[0] != a.shape[0] || out.shape[1] != b.shape[1] ||
        (out.stride[1] != 1 && out.shape[1] > 1 && out.shape[0] > 0))
        throw nb::value_error("a, b, out: expected shapes (M, K), (K, N) and (M, N), with contiguous rows in out");
    if (bias && (bias.shape != Dims{b.shape[1]} || (bias.stride[0] != 1 && bias.shape[0] > 1)))
        throw nb::value_error("bias: expected one number per column, contiguous");
    if (bias && adds) throw nb::value_error("bias: expected None where the product is added to out, got an array");
    core::ProductArgs job;
    job.a = {a.data, a.type, a.stride[0], a.stride[1]};
    job.b = {b.data, b.type, b.stride[0], b.stride[1]};
    job.rows = a.shape[0];
    job.depth = a.shape[1];
    job.cols = b.shape[1];
    job.out = out.data;
    job.pitch = out.stride[0];
    job.bias = bias ? bias.data : nullptr;
    job.adds = adds;
    job.sparse = sparse;
    job.streams = job.rows * job.cols * kTypeBytes[static_cast<int>(type)] >= streaming_bytes();
    if (job.rows == 0 || job.cols == 0) return;
    const std::int64_t work = job.rows * job.cols * std::max<std::int64_t>(job.depth, 1);
    job.threads = work < kParallelProduct ? 1 : threads_now();
    const ReleasedGil released;
    core::product(job);
}

// True if all entries of a row are finite. In NaN and infinities, all bits of the exponent are set.
template <class U> bool is_finite(const View& x, std::int64_t row, U exponent) {
    const U* at = reinterpret_cast<const U*>(x.data) + row * x.stride[0];
    bool finite = true;
    if (x.stride[1] == 1)
        for (std::int64_t i = 0; i < x.shape[1]; ++i) finite &= (at[i] & exponent) != exponent;
    else
        for (std::int64_t i = 0; i < x.shape[1]; ++i) finite &= (at[i * x.stride[1]] & exponent) != exponent;
    return finite;
}
bool all_finite(nb::handle x_) {
    const HeldArray x(x_);
    must_be("x", x, kReal);
    if (x.shape.size() != 2) throw nb::value_error("x: expected a matrix");
    std::atomic<bool> all{true};
    const int threads = x.shape[0] * x.shape[1] < kParallel ? 1 : threads_now();
    const ReleasedGil released;
    parallel_for(threads, x.shape[0], [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end && all; ++i) {
            const bool here = x.type == Type::f64 ? is_finite<std::uint64_t>(x, i, 0x7FFull << 52)
                              : x.type == Type::f32
                                  ? is_finite<std::uint32_t>(x, i, 0xFFu << 23)
                                  : is_finite<std::uint16_t>(x, i, x.type == Type::f16 ? 0x7C00 : 0x7F80);
            if (!here) all = false;
        }
    });
    return all;
}

// Returns memory of the pool as an array. The pool gets the memory back when the array is freed.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> memory(std::size_t bytes) {
    struct Loan {
        void* data;
        std::size_t bytes;
    };
    Loan* loan = new Loan{Allocator::instance().take(bytes), bytes};
    if (!loan->data) {
        delete loan;
        throw std::bad_alloc();
    }
    const nb::capsule owner(loan, [](void* p) noexcept {
        const Loan* returned = static_cast<Loan*>(p);
        Allocator::instance().give(returned->data, returned->bytes);
        delete returned;
    });
    return {loan->data, {bytes}, owner};
}

}  // namespace

void take_gil(PyThreadState* state) {
    // Before 3.14, Python then calls pthread_exit in all threads but the main one. This unwinds the thread's stack, and
    // would end in std::terminate, because nanobind's functions let no exception pass.
    struct Stay {
        bool ends = true;
        ~Stay() {
            while (ends) pause();
        }
    } stay;
    PyEval_RestoreThread(state);
    stay.ends = false;
}

}  // namespace softargmax

#define SOFTARGMAX_DECLARE_ROOM(room) \
    namespace softargmax::room {      \
    void bind(nb::module_& module);   \
    }
SOFTARGMAX_EACH_ROOM(SOFTARGMAX_DECLARE_ROOM)
#define SOFTARGMAX_BIND_ROOM(room) room::bind(module);

NB_MODULE(_native, module) {
    using namespace softargmax;
    start_threads();
    chosen_isa();  // an invalid SOFTARGMAX_ISA raises at import, not at the first call
    Allocator::instance();  // an invalid SOFTARGMAX_POOL_MIB raises at import, too
    SOFTARGMAX_EACH_ROOM(SOFTARGMAX_BIND_ROOM)

    module.def("most_threads", &most_threads, "Return the largest number of threads of a call");
    module.def("set_num_threads", [](int n) { requested_threads() = n; }, "n"_a,
               "Set the number of threads; 0 for the default");
    module.def("get_num_threads", [] { return threads_now(); });
    module.def("multiply_adds", [](std::int64_t rounds) {
        const ReleasedGil released;
        core::MultiplyAddsArgs args{rounds};
        core::multiply_adds(args);
        return args.sum;
    }, "rounds"_a, "Run MULTIPLY_ADDS fused multiply-adds of 16 floats per round, on the calling thread");
    module.attr("MULTIPLY_ADDS") = core::kMultiplyAdds;
    module.def("isa", [] { return std::string(isas()[chosen_isa()].name); }, "The instruction set in use");
    module.def("isas", [] {
        nb::dict all;
        for (const Isa& each : isas()) all[each.name] = each.usable;
        return all;
    }, "The instruction sets that were compiled: True for each that this processor has");
    module.def("product", &product, "a"_a, "b"_a, "out"_a, "bias"_a = nb::none(), "adds"_a = false, "sparse"_a = false,
               "Write A B + bias into out, or add A B to it; a row has the same bits in every batch");
    module.def("finite", &all_finite, "x"_a, "True if all entries of a matrix are finite");
    module.def("know_tensors", &Tensors::know, "type"_a, "parameter"_a, "is_wrapped"_a, "grad_mode"_a,
               "Register torch's tensor types; True if kernels accept tensors from now on");
    module.def("know_torch", &Torch::know, "transformed"_a, "modes"_a, "recording"_a, "forward_mode"_a,
               "Register the functions of torch that `still` calls");
    module.def("still", [] { return Torch::known().still(); },
               "True if torch runs plain eager code: no transform, mode, trace or forward-mode derivative is active");
    module.def("in_memory", [](nb::handle x) { return Tensors::known().in_memory(x); }, "x"_a.none(),
               "True if x has a registered tensor type, not a subclass of it, and its values are in CPU memory");
    module.def("ready", [](nb::handle x) { return Tensors::known().ready(x); }, "x"_a.none(),
               "True if `in_memory` and there is no derivative to record");
    module.def("at_once", [](nb::handle i) { return Tensors::known().all_ready(i) && Torch::known().still(); }, "i"_a,
               "True if it is certain that a kernel may run on this record now, without torch");
    module.def("plain_axes", [](nb::handle z, nb::handle axis) { return CommonCall(z, axis).axes(); }, "z"_a.none(),
               "axis"_a.none(),
               "The axes if z is an array of floats that needs no conversion and axis is valid, else None");
    module.def("plain_classes",
               [](nb::handle z, nb::handle axis, nb::handle target) {
        return CommonCall(z, axis).axes_of_classes(target);
    }, "z"_a.none(), "axis"_a.none(), "target"_a.none(),
               "`plain_axes` if target is an int64 array in CPU memory with one class per row of z, else None");
    module.def("axes_at_once", [](nb::handle z, nb::handle axis) { return CommonCall(z, axis, true).axes(); },
               "z"_a.none(), "axis"_a.none(), "`plain_axes` if a kernel may run `at_once`, else None");
    module.def("memory", &memory, "bytes"_a, "Allocate memory for a large result, from the pool");
    module.attr("POOLED") = kPooled;
    module.def("want_huge_pages", [](std::uintptr_t address, std::size_t bytes) {
        want_huge_pages(reinterpret_cast<void*>(address), bytes);
    }, "address"_a, "bytes"_a, "Advise the system to use huge pages for memory owned by others");
    bind_xla(module);
    module.attr("BLOCK") = kBlock;
    module.attr("DEPTH") = kDepth;
    module.attr("__version__") = SOFTARGMAX_VERSION;
}
