"""The dtypes of a stream's source, computation and result."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_array


def numpy_of(item: Any, name: str) -> np.ndarray[Any, Any]:
    """Return an item as a NumPy array. Raise TypeError for masked arrays and arrays of other libraries."""
    if isinstance(item, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array is not supported; fill its masked entries with -inf")
    array = as_array(item, name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(item).__name__}")
    return array


def check_readable(dtype: np.dtype[Any], name: str) -> None:
    """Raise TypeError unless the dtype is bool, an integer, or a float of at most 8 bytes."""
    if dtype.hasobject:
        raise TypeError(
            f"{name}: expected plain numbers, got Python objects (dtype {dtype}), which are never unpickled"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise TypeError(f"{name}: expected dtype float16, float32, float64, an integer or bool, got {dtype}")


def working(dtype: np.dtype[Any], result: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the computations: the source's float dtype in native byte order, or float64.

    It is float64 for integer and boolean scores, and for all scores if the result is float64.
    """
    return _native_float(dtype) if result.itemsize < 8 else np.dtype(np.float64)


def _native_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=") if dtype.kind == "f" else np.dtype(np.float64)


def returned(dtype: np.dtype[Any], requested: Any, *, lse: bool) -> np.dtype[Any]:
    """Return the dtype of the result: the requested dtype, or by default the dtype of the scores.

    By default, integer and boolean scores give float64. For logsumexp (`lse`), float16 scores give float32.
    """
    if requested is not None:
        result: np.dtype[Any] = check.float_dtype(requested, np.empty(0))
        return result
    own = _native_float(dtype)
    return np.dtype(np.float32) if lse and own.itemsize == 2 else own
