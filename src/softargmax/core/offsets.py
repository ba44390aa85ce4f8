"""Where ragged rows begin and end, checked: what they are before any work, their values by whoever is to use them.

The compiled core looks at the values itself, before anything is written; the reference calls `bounds_hold`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core.arrays import INTEGERS, dtype_name, is_torch, like, namespace
from softargmax.core.check import seen


def offsets_of(offsets: Any, z: Any, name: str = "offsets", of: str = "z") -> Any:
    """Segment bounds: integers (S + 1,), non-decreasing, from 0 to len(z); `name` and `of`: what users call the two."""
    if z.ndim < 1:
        raise ValueError(f"{of}: 0-d; segments need at least one axis")
    offsets = like(_looked_at(offsets, z, name, of), z, name)
    shape = tuple(offsets.shape)
    if dtype_name(offsets.dtype) not in INTEGERS - {"bool"} and shape != (0,):  # an empty list has a dtype by chance
        raise TypeError(f"{name}: dtype {offsets.dtype}; it may be an integer type")
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"{name}: shape {shape}; it may be (S + 1,) for S segments, so [0] for none")
    return _signed(offsets, z, name, of) if dtype_name(offsets.dtype).startswith("uint") else offsets


def _looked_at(offsets: Any, z: Any, name: str, of: str) -> Any:
    """Check a list of integers before a library makes it an array that cannot be looked at, or of a dtype too small."""
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
    """Unsigned offsets as int64: torch cannot calculate with them, and beyond int64 none is right."""
    if not (is_torch(offsets) or seen(offsets)):
        return offsets
    xp = namespace(offsets)
    offsets = xp.astype(offsets, xp.int64)
    if seen(offsets) and bool(xp.any(offsets < 0)):
        wrapped = int(xp.min(offsets)) + (1 << 64)
        raise ValueError(f"{name}: {wrapped} among them; they may go from 0 to the length of {of}, {z.shape[0]}")
    return offsets


def bounds_hold(offsets: Any, z: Any, name: str = "offsets", of: str = "z") -> None:
    """Check the values where they can be looked at."""
    if not seen(offsets):
        return
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != z.shape[0]:
        raise ValueError(f"{name}: from {first} to {last}; they may go from 0 to the length of {of}, {z.shape[0]}")
    if bool(namespace(offsets).any(offsets[1:] < offsets[:-1])):
        raise ValueError(f"{name}: they decrease somewhere; they may only stay or grow")
