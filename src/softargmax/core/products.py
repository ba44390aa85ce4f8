"""Scores h W^T + b by the core's matrix product, and the handling of nonfinite numbers in products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import namespace
from softargmax.core.native import widened

Array = np.ndarray[Any, Any]


def finite(array: Any) -> Any:
    """The array with NaN and infinities replaced by 0, for a product with a gradient.

    The gradient that is multiplied by a replaced entry is 0 or NaN. If it is 0, the product must be 0. Without the
    replacement it would be 0 * inf = NaN.
    """
    xp = namespace(array)
    return xp.where(xp.isfinite(array), array, xp.zeros_like(array))


def sound(array: Any, view: Any) -> Any:
    """Return `finite(array)`, without a copy if all entries are finite. `view` converts the array for the core."""
    return array if _native.finite(view(array)) else finite(array)


@np.errstate(all="ignore")
def biased(z: Any, bias: Any) -> Any:
    """z + b. Infinite entries of z stay unchanged."""
    xp = namespace(z)
    return xp.where(xp.abs(z) == math.inf, z, z + bias)


def layer_scores(h: Array, w: Array, bias: Array | None, z: Array) -> None:
    """Write h W^T + b into z. Nonfinite entries of b are added after the product, but not to infinite scores."""
    if bias is None:
        _native.product(h, w.T, z)
        return
    bias = widened(bias, z.dtype)
    late = np.flatnonzero(~np.isfinite(bias))
    _native.product(h, w.T, z, finite(bias) if len(late) else bias)
    if len(late):
        z[:, late] = biased(z[:, late], bias[late])
