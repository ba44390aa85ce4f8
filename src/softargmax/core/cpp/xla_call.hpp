// Calls of operations from programs that XLA has compiled (core/jax_operation.py).
//
// XLA calls the handler with the addresses of arrays. The handler makes NumPy arrays of this memory, without a copy,
// and calls a Python function with them. So a program runs the same code as a call with NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>

namespace softargmax {

// Adds xla_call, the address of the handler, and prepare_xla_calls, which sets the Python function that prepares calls.
void bind_xla(nanobind::module_& module);

}  // namespace softargmax
