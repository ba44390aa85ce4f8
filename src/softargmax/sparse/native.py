"""The primitives of this room on NumPy arrays, by the compiled core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax import _native
from softargmax.core.native import fresh, view
from softargmax.sparse import reference_loss

Array = np.ndarray[Any, Any]


def entmax(z: Array, axes: tuple[int, ...], alpha: Any, where: Any, out: Any) -> Array:
    """[(alpha - 1) z - tau]_+^(1 / (alpha - 1))."""
    result = fresh(z.shape, z.dtype) if out is None else out
    _native.sparse(view(z), view(result), axes, _orders(alpha), where)
    return result


def threshold(z: Array, axes: tuple[int, ...], alpha: Any, where: Any) -> tuple[Array, Array]:
    """Tau, and how many p are above 0 (-1 in a row of NaN)."""
    rows = tuple(size for axis, size in enumerate(z.shape) if axis not in axes)
    tau = np.empty(rows, np.float64 if z.dtype == np.float64 else np.float32)
    support = np.empty(math.prod(rows), np.int64)
    _native.sparse(view(z), None, axes, _orders(alpha), where, tau, support)
    return tau, support.reshape(rows)


def loss(z: Array, beside: Any, options: Any) -> Array:
    """The loss of every row; by the definition where the target is not one class."""
    if not options.plain:
        return reference_loss.loss(z, beside, options)  # type: ignore[no-any-return]
    rows = np.empty([size for axis, size in enumerate(z.shape) if axis != options.axis])
    _native.sparse_loss(
        view(z),
        np.ascontiguousarray(beside.target, np.int64).reshape(-1),
        np.empty((*rows.shape, 5)),
        (options.axis,),
        _orders(beside.alpha),
        where=beside.where,
        ignore_index=options.ignore_index,
        loss=rows,
    )
    return rows


def _orders(alpha: Any) -> Any:
    return alpha.astype(np.float64) if isinstance(alpha, np.ndarray) else alpha
