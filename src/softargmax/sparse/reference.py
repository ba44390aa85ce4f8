"""The definition of the sparse maps in array-API Python: the oracle, and what serves JAX, CuPy and every other library.

    p = e_a(d - lambda)      e_a(x) = [1 + a x]_+^(1/a)      a = alpha - 1      d = z - max z      sum p = 1

How lambda is found: `reference_root.py`; the losses: `reference_loss.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core.dispatch import device_of, frozen
from softargmax.core.rows import INF
from softargmax.sparse.reference_loss import loss as loss  # noqa: PLC0414 a primitive of this module
from softargmax.sparse.reference_root import no_number, powers, solved, threshold_of


@np.errstate(all="ignore")
def entmax(z: Any, axes: tuple[int, ...], alpha: Any, where: Any, out: Any) -> Any:
    """[(alpha - 1) z - tau]_+^(1 / (alpha - 1))."""
    found = solved(z, axes, alpha, where)
    rows, xp = found.rows, found.rows.xp
    p = xp.where(found.lost & ~(found.x == -INF), no_number(found), powers(found.place, found.low)[0])
    result = xp.astype(rows.restore(p), z.dtype)
    if out is None:
        return result
    out[...] = result
    return out


@np.errstate(all="ignore")
def threshold(z: Any, axes: tuple[int, ...], alpha: Any, where: Any) -> tuple[Any, Any]:
    """Tau, and how many p are above 0 (-1 in a row of NaN)."""
    found = solved(z, axes, alpha, where)
    rows, xp = found.rows, found.rows.xp
    p = frozen(powers(found.place, found.low)[0])
    integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
    support = xp.sum(xp.astype(p > 0.0, integer), axis=-1, keepdims=True, dtype=integer)
    kind = xp.float64 if z.dtype == xp.float64 else xp.float32
    return xp.astype(rows.per_row(threshold_of(found, kind)), kind), rows.per_row(xp.where(found.lost, -1, support))
