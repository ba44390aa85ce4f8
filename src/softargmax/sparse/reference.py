"""The definition of the sparse maps in array-API Python: the oracle, and what serves JAX, CuPy and every other library.

    p = e_a(d - lambda)    e_a(x) = [1 + a x]_+^(1/a)    a = alpha - 1    d = beta z - max beta z    sum p = 1

How lambda is found: `reference_root.py`; the losses: `reference_loss.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, frozen, namespace
from softargmax.core.row_layout import INF
from softargmax.core.rules import row_dtype
from softargmax.sparse.reference_root import Solved, no_number, powers, solved, threshold_of
from softargmax.sparse.support import Support

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


@np.errstate(all="ignore")
def entmax(z: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """[(alpha - 1) beta z - tau]_+^(1 / (alpha - 1)), and tau."""
    found = solved(z, axes, alpha, where, beta)
    rows, xp = found.rows, found.rows.xp
    p = xp.where(found.lost & ~(found.x == -INF), no_number(found), powers(found.place, found.low)[0])
    return xp.astype(rows.restore(p), z.dtype), _threshold(found, z.dtype)


@np.errstate(all="ignore")
def threshold(z: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Tau, and how many p are above 0 (-1 in a row of NaN)."""
    found = solved(z, axes, alpha, where, beta)
    rows, xp = found.rows, found.rows.xp
    p = frozen(powers(found.place, found.low)[0])
    integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
    support = xp.sum(xp.astype(p > 0.0, integer), axis=-1, keepdims=True, dtype=integer)
    return _threshold(found, z.dtype), rows.per_row(xp.where(found.lost, -1, support), keepdims=True)


def _threshold(found: Solved, dtype: Any) -> Any:
    xp = found.rows.xp
    kind = row_dtype(dtype, xp)
    return xp.astype(found.rows.per_row(threshold_of(found, kind), keepdims=True), kind)


@np.errstate(all="ignore")
def entmax_vjp(p: Any, tau: Any, alpha: Any, g: Any, axes: tuple[int, ...]) -> Any:
    """s (g - <s, g> / <s, 1>), s = p^(2 - alpha)."""
    row = Support(p, tau, alpha, axes)
    return namespace(p).astype(row.s * row.centred(g), p.dtype)
