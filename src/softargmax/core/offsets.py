"""Checks of the bounds of ragged rows.

Type and shape are checked before any work. The values are checked later: the compiled core checks them before it writes
a result, and the definitions call `bounds_hold`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import INTEGERS, device_of, dtype_name, integer_dtype, is_torch, like, namespace
from softargmax.core.check import inspectable


def offsets_of(offsets: Any, z: Any, name: str = "offsets", of: str = "z") -> Any:
    """The checked segment bounds: S + 1 non-decreasing integers from 0 to len(z). `of` is z's name in errors."""
    if z.ndim < 1:
        raise ValueError(f"{of}: expected at least one axis, got a 0-d array")
    offsets = like(_checked_list(offsets, z, name, of), z, name)
    shape = tuple(offsets.shape)
    if dtype_name(offsets.dtype) not in INTEGERS - {"bool"} and shape != (0,):  # an empty list becomes a float array
        raise TypeError(f"{name}: expected an integer type, got dtype {offsets.dtype}")
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"{name}: expected shape (S + 1,) for S segments (for no segments the array [0]), got {shape}")
    return _signed(offsets, z, name, of) if dtype_name(offsets.dtype).startswith("uint") else offsets


def segments_of(offsets: Any, index: Any, num_segments: Any, z: Any) -> tuple[Any, Any]:
    """Return the segment bounds, and the permutation that sorts z by segment id.

    The permutation is None if z is already sorted.
    """
    if (offsets is None) is (index is None):
        got = "none" if index is None else "both"
        raise TypeError(f"offsets, index: expected exactly one of them, got {got}")
    if index is None:
        if num_segments is not None:
            raise TypeError(f"num_segments: expected None with offsets, which determine it, got {num_segments}")
        return offsets_of(offsets, z), None
    if z.ndim < 1:
        raise ValueError("z: expected at least one axis, got a 0-d array")
    index = like(index, z, "index")
    shape = tuple(index.shape)
    if dtype_name(index.dtype) not in INTEGERS - {"bool"} and shape != (0,):  # an empty list becomes a float array
        raise TypeError(f"index: expected an integer type, got dtype {index.dtype}")
    if shape != tuple(z.shape[:1]):
        raise ValueError(f"index: expected one id per entry of z's first axis, shape {tuple(z.shape[:1])}, got {shape}")
    xp = namespace(index)
    index = xp.astype(index, integer_dtype(index))
    count = _count(index, num_segments)
    order = None
    if not (inspectable(index) and bool(xp.all(index[1:] >= index[:-1]))):
        order = xp.argsort(index, stable=True)
        index = xp.take(index, order)
    # Under tracing or on a device, ids out of range give bounds that do not cover 0 to len(z). The result is then NaN.
    return xp.searchsorted(index, xp.arange(count + 1, dtype=index.dtype, device=device_of(index))), order


def _count(index: Any, num_segments: Any) -> int:
    """The number of segments. If the values of the ids can be read, they are checked."""
    xp = namespace(index)
    low, high, look = 0, -1, num_segments is None or inspectable(index)
    if look and index.shape[0]:
        try:
            low, high = int(xp.min(index)), int(xp.max(index))
        except (TypeError, RuntimeError):  # JAX and torch raise these while tracing
            raise ValueError(
                "num_segments: expected an integer, as the values of index cannot be read here, got None"
            ) from None
    count = high + 1 if num_segments is None else check.integer(num_segments, "num_segments")
    if count < 0:
        raise ValueError(f"num_segments: expected an integer, 0 or above, got {num_segments}")
    if low < 0:
        raise ValueError(f"index: expected segment ids of at least 0, got {low}")
    if high >= count:
        raise ValueError(f"index: expected segment ids below num_segments, {count}, got {high}")
    return count


def _checked_list(offsets: Any, z: Any, name: str, of: str) -> Any:
    """Check offsets in a list before they become an array.

    Afterwards the values may be unreadable, or the array's dtype may be too narrow for them.
    """
    if not isinstance(offsets, (list, tuple, range)) or not offsets or not isinstance(offsets[0], (int, np.integer)):
        return offsets
    try:
        bounds = np.asarray(offsets)
    except (TypeError, ValueError):
        return offsets
    if bounds.ndim == 1 and all(isinstance(one, (int, np.integer)) for one in offsets):
        bounds_hold(bounds if bounds.dtype.kind == "i" else np.asarray(offsets, object), z, name, of)
    return offsets


def _signed(offsets: Any, z: Any, name: str, of: str) -> Any:
    """Convert unsigned offsets to int64: torch has no arithmetic for them. Numbers beyond int64 raise ValueError."""
    if not (is_torch(offsets) or inspectable(offsets)):
        return offsets
    xp = namespace(offsets)
    offsets = xp.astype(offsets, xp.int64)
    if inspectable(offsets) and bool(xp.any(offsets < 0)):
        wrapped = int(xp.min(offsets)) + (1 << 64)
        raise ValueError(f"{name}: expected numbers from 0 to the length of {of}, {z.shape[0]}, got {wrapped}")
    return offsets


def bounds_hold(offsets: Any, z: Any, name: str = "offsets", of: str = "z") -> None:
    """Check the values of the bounds if they can be read."""
    if inspectable(offsets):
        read_bounds_hold(offsets, z.shape[0], name, of)


def read_bounds_hold(offsets: Any, length: int, name: str, of: str) -> None:
    """Check the values of the bounds of `length` rows."""
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != length:
        raise ValueError(f"{name}: expected bounds from 0 to {length}, the length of {of}, got {first} to {last}")
    if bool(namespace(offsets).any(offsets[1:] < offsets[:-1])):
        raise ValueError(f"{name}: expected non-decreasing numbers, got some that decrease")
