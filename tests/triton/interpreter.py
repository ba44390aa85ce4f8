"""Corrections of Triton's interpreter, which runs kernels on the CPU, so that its float32 results equal a GPU's.

The interpreter rounds a fused multiply-add twice, truncates float32 to bfloat16, and multiplies the bits of bfloat16
matrices. With `apply()`, a fused multiply-add rounds once, conversions to bfloat16 round to nearest even, and matrix
products of bfloat16 are those of the numbers. Custom reductions and tl.exp2 stay those of NumPy.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

# A loop in C++ takes 2 ns a number. libm's fma, called from Python for each number, takes 1,000.
_SOURCE = """
#include <cmath>
template <class T> void each(long n, const T* x, const T* y, const T* z, T* out) {
  for (long i = 0; i < n; ++i) out[i] = std::fma(x[i], y[i], z[i]);
}
extern "C" void fma4(long n, const float* x, const float* y, const float* z, float* out) { each(n, x, y, z, out); }
extern "C" void fma8(long n, const double* x, const double* y, const double* z, double* out) { each(n, x, y, z, out); }
"""


def _compiled() -> ctypes.CDLL:
    """Compile the loops. A loaded library needs its file no more."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fma.so"
        command = [os.environ.get("CXX", "g++"), "-x", "c++", "-O2", "-shared", "-fPIC", "-o", str(library), "-"]
        subprocess.run(command, input=_SOURCE, text=True, check=True)
        return ctypes.CDLL(str(library))


_loops = _compiled()
_cast = interpreter.InterpreterBuilder.cast_impl


def fma(*operands: Any) -> Any:
    """x y + z, rounded once, for arrays of float32 or of float64."""
    arrays = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*operands)]  # must live until the loop has run
    out = np.empty(np.broadcast_shapes(*(x.shape for x in operands)), arrays[0].dtype)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*arrays, out)]
    getattr(_loops, f"fma{out.itemsize}")(ctypes.c_long(out.size), *pointers)
    return out


def _create_fma(_self: Any, x: Any, y: Any, z: Any) -> Any:
    return interpreter.TensorHandle(fma(x.data, y.data, z.data), z.dtype.scalar)


def _cast_impl(self: Any, source: Any, to: Any) -> Any:
    a, b = source.dtype.scalar, to.scalar
    if b == tl.bfloat16 and a in (tl.float32, tl.float64):
        bits = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(bits.reshape(source.data.shape), b)
    if a == tl.bfloat16 and b in (tl.float32, tl.float64, tl.float16):
        return interpreter.TensorHandle(_wide(source).astype(interpreter._get_np_dtype(b)), b)
    return _cast(self, source, to)


def _wide(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _create_dot(_self: Any, a: Any, b: Any, c: Any, _precision: Any, _most: Any) -> Any:
    kind = c.data.dtype
    return interpreter.TensorHandle(np.matmul(_wide(a).astype(kind), _wide(b).astype(kind)) + c.data, c.dtype.scalar)


_run = interpreter.GridExecutor.__call__
_patched: set[str] = set()
"""The modules whose functions call the interpreter in this launch."""


def _run_quietly(self: Any, *arguments: Any, **more: Any) -> None:
    _patched.clear()
    with np.errstate(all="ignore"), warnings.catch_warnings():  # infinities and NaN are ordinary numbers on a GPU
        warnings.simplefilter("ignore", RuntimeWarning)
        _run(self, *arguments, **more)


def _call(self: Any, *arguments: Any, **more: Any) -> Any:
    """Call a function of a kernel. Triton replaces all operations again for each call, which took half of the time."""
    if self.fn.__module__ not in _patched:
        _patched.add(self.fn.__module__)
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*arguments, **more)


def apply() -> None:
    """Correct the interpreter of this process."""
    interpreter.GridExecutor.__call__ = _run_quietly
    interpreter.InterpretedFunction.__call__ = _call
    builder = interpreter.InterpreterBuilder
    builder.create_fma, builder.cast_impl, builder.create_dot = _create_fma, _cast_impl, _create_dot
