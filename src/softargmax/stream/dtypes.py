"""The dtypes that a stream reads, computes in, and returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_array


def numpy_of(item: Any, name: str) -> np.ndarray[Any, Any]:
    """Give a piece as a NumPy array; refuse arrays of other libraries, and masks, which a stream does not read."""
    if isinstance(item, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array, whose mask a stream does not read; fill it with -inf")
    array = as_array(item, name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(item).__name__}")
    return array


def check_readable(dtype: np.dtype[Any], name: str) -> None:
    """Refuse what cannot be streamed: objects, strings, structures, complex and extended numbers."""
    if dtype.hasobject:
        raise TypeError(
            f"{name} holds Python objects (dtype {dtype}), which are never unpickled here; save plain numbers"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise TypeError(f"{name}: expected dtype float16, float32, float64, an integer or bool, got {dtype}")


def working(dtype: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype that windows are read into: floats as they are, in this machine's byte order; else float64.

    A result that was asked in float64 is computed in it.
    """
    return _native_float(dtype) if result.itemsize < 8 else np.dtype(np.float64)


def _native_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.float64)


def returned(dtype: np.dtype[Any], asked: Any, *, lse: bool) -> np.dtype[Any]:
    """Give the result's dtype: what was asked, else that of the scores (every lse of halves is float32)."""
    if asked is not None:
        result: np.dtype[Any] = check.float_dtype(asked, np.empty(0))
        return result
    own = _native_float(dtype)
    return np.dtype(np.float32) if lse and own.itemsize == 2 else own
