"""Where ragged rows begin and end, checked: what they are before any work, their values by whoever is to use them.

The compiled core looks at the values itself, before anything is written; the reference calls `bounds_hold`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core.check import INTEGERS, dtype_name, like, seen
from softargmax.core.dispatch import is_torch, namespace


def offsets_of(offsets: Any, z: Any) -> Any:
    """Segment bounds: integers (S + 1,), non-decreasing, from 0 to len(z)."""
    given = offsets if isinstance(offsets, (list, tuple, range)) else None
    offsets = like(offsets, z, "offsets")
    if dtype_name(offsets.dtype) not in INTEGERS - {"bool"}:
        raise TypeError(f"offsets: dtype {offsets.dtype}; it may be an integer type")
    if offsets.ndim != 1 or offsets.shape[0] < 1:
        raise ValueError(f"offsets: shape {tuple(offsets.shape)}; it may be (S + 1,) for S segments")
    if z.ndim < 1:
        raise ValueError("z: 0-d; segments need at least one axis")
    if is_torch(offsets) and dtype_name(offsets.dtype).startswith("uint"):  # which torch cannot calculate with
        offsets = offsets.long()
    if given is not None and not seen(offsets) and all(isinstance(one, (int, np.integer)) for one in given):
        bounds_hold(np.asarray(given), z)
    return offsets


def bounds_hold(offsets: Any, z: Any) -> None:
    """Check the values where they can be looked at."""
    if not seen(offsets):
        return
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != z.shape[0]:
        raise ValueError(f"offsets: from {first} to {last}; they may go from 0 to the length of z, {z.shape[0]}")
    if bool(namespace(offsets).any(offsets[1:] < offsets[:-1])):
        raise ValueError("offsets: they decrease somewhere; they may only stay or grow")
