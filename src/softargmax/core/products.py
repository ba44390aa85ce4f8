"""Scores h W^T + b by the core's product, and what numbers that are not finite mean in products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import namespace
from softargmax.core.native import widened

Array = np.ndarray[Any, Any]


def finite(array: Any) -> Any:
    """The array with 0 in place of NaN and infinities: these meet a gradient that is 0, or NaN, anyway."""
    xp = namespace(array)
    return xp.where(xp.isfinite(array), array, xp.zeros_like(array))


def sound(array: Any, view: Any) -> Any:
    """The same, without a copy where all is finite; `view` shows the array's memory to the core."""
    return array if _native.finite(view(array)) else finite(array)


@np.errstate(all="ignore")
def biased(z: Any, bias: Any) -> Any:
    """z + b, but an infinite z stays what it is."""
    xp = namespace(z)
    return xp.where(xp.abs(z) == math.inf, z, z + bias)


def layer_scores(h: Array, w: Array, bias: Array | None, z: Array) -> None:
    """h W^T + b into z. What is not finite in b is added last, as it may not meet an infinite score."""
    if bias is None:
        _native.product(h, w.T, z)
        return
    bias = widened(bias, z.dtype)
    late = np.flatnonzero(~np.isfinite(bias))
    _native.product(h, w.T, z, finite(bias) if len(late) else bias)
    if len(late):
        z[:, late] = biased(z[:, late], bias[late])
