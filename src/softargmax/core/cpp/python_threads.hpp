// Calls from Python: their number of threads, and the GIL, which they release while a kernel runs.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "tensors.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace softargmax {

// The CPU quota's limit on the default number of threads. OMP_NUM_THREADS overrides the quota, which cpu_quota.py reads
// at the first large call.
inline int quota_threads() {
    static std::atomic<int> known{0};
    if (known == 0) {
        const int threads =
            omp_num_threads() > 0
                ? 0
                : nb::cast<int>(nb::module_::import_("softargmax.core.cpu_quota").attr("quota_threads")());
        known = threads > 0 ? threads : std::numeric_limits<int>::max();
    }
    return known;
}
// torch's number of threads for calls of this thread, or 0 until torch's import has defined `get_num_threads`. OpenMP's
// number would not do: each new thread starts with OpenMP's default, and only torch's functions replace it by torch's.
inline int torch_threads() {
    static PyObject* asked = nullptr;
    if (!asked) {
        PyObject* const torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
        if (!torch || !PyObject_HasAttrString(torch, "get_num_threads")) return 0;
        asked = PyObject_GetAttrString(torch, "get_num_threads");
        find_openmp();
    }
    return static_cast<int>(PyLong_AsLong(answered(PyObject_CallNoArgs(asked)).ptr()));
}
// The number of threads of a large call. The caller must hold the GIL.
inline int threads_now() {
    const int of_torch = torch_threads(), requested = requested_threads();
    if (requested > 0) return std::min(requested, most_threads());
    return std::min(of_torch > 0 ? of_torch : default_threads(), quota_threads());
}

// Takes the GIL that PyEval_SaveThread gave up. If Python has ended meanwhile, waits for the end of the process.
void take_gil(PyThreadState* state);
// Gives up the GIL until the end of a block.
class ReleasedGil {
    PyThreadState* const state_ = PyEval_SaveThread();

  public:
    ReleasedGil() = default;
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;
    ~ReleasedGil() { take_gil(state_); }
};

}  // namespace softargmax
