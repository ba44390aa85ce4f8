"""The dtypes that a stream reads, computes in and returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_array


def numpy_of(item: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a piece as a NumPy array; arrays of other libraries and masked arrays are refused."""
    if isinstance(item, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array, whose mask a stream does not read; fill it with -inf")
    array = as_array(item, name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(item).__name__}")
    return array


def check_readable(dtype: np.dtype[Any], name: str) -> None:
    """Refuse dtypes that cannot be streamed: objects, strings, structures, complex and extended precision."""
    if dtype.hasobject:
        raise TypeError(
            f"{name} holds Python objects (dtype {dtype}), which are never unpickled here; save plain numbers"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise TypeError(f"{name}: expected dtype float16, float32, float64, an integer or bool, got {dtype}")


def working(dtype: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that windows are read into: a float dtype in native byte order, or float64.

    Integers, booleans and any scores with a float64 result are computed in float64.
    """
    return _native_float(dtype) if result.itemsize < 8 else np.dtype(np.float64)


def _native_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.float64)


def returned(dtype: np.dtype[Any], requested: Any, *, lse: bool) -> np.dtype[Any]:
    """Return the result's dtype: the requested one, or that of the scores; an lse of half precision is float32."""
    if requested is not None:
        result: np.dtype[Any] = check.float_dtype(requested, np.empty(0))
        return result
    own = _native_float(dtype)
    return np.dtype(np.float32) if lse and own.itemsize == 2 else own
