"""Corrections of Triton's interpreter, which runs kernels on the CPU, so that its float32 results equal a GPU's.

The interpreter rounds a fused multiply-add twice, truncates float32 to bfloat16, and multiplies the bits of bfloat16
matrices. With `apply()`, a fused multiply-add rounds once, conversions to bfloat16 round to nearest even, and matrix
products of bfloat16 are those of the numbers. Custom reductions and tl.exp2 stay those of NumPy.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import warnings
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype = ctypes.c_double
_libm.fma.argtypes = [ctypes.c_double] * 3
_fma64 = np.vectorize(_libm.fma, otypes=[np.float64])
_cast = interpreter.InterpreterBuilder.cast_impl


def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once.

    For float32, x y is exact in float64. The float64 sum is rounded to odd, so that rounding it to float32 equals
    rounding the exact sum.
    """
    if z.dtype == np.float64:
        return _fma64(x, y, z)
    with np.errstate(all="ignore"):
        p, w = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        s = p + w
        b = s - p
        lost = (p - (s - b)) + (w - b)
        even = (s.view(np.int64) & 1) == 0
        odd = np.nextafter(s, np.where(lost > 0, np.inf, -np.inf))
        return np.where((lost != 0) & np.isfinite(s) & even, odd, s).astype(np.float32)


def _create_fma(_self: Any, x: Any, y: Any, z: Any) -> Any:
    arrays = np.broadcast_arrays(x.data, y.data, z.data)
    return interpreter.TensorHandle(fma(*map(np.ascontiguousarray, arrays)), z.dtype.scalar)


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


def _run_quietly(self: Any, *arguments: Any, **more: Any) -> None:
    with np.errstate(all="ignore"), warnings.catch_warnings():  # infinities and NaN are ordinary numbers on a GPU
        warnings.simplefilter("ignore", RuntimeWarning)
        _run(self, *arguments, **more)


def apply() -> None:
    """Correct the interpreter of this process."""
    interpreter.GridExecutor.__call__ = _run_quietly
    builder = interpreter.InterpreterBuilder
    builder.create_fma, builder.cast_impl, builder.create_dot = _create_fma, _cast_impl, _create_dot
