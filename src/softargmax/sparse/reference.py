"""The definition of the sparse maps in array-API Python: the oracle, and what serves JAX, CuPy and every other library.

    p = e_a(d - lambda)      e_a(x) = [1 + a x]_+^(1/a)      a = alpha - 1      d = z - max z      sum p = 1

How lambda is found: `reference_root.py`; the losses: `reference_loss.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core.dispatch import device_of, frozen
from softargmax.core.rows import INF
from softargmax.sparse.reference_loss import loss as loss  # noqa: PLC0414 a primitive of this module
from softargmax.sparse.reference_root import powers, solved


@np.errstate(all="ignore")
def entmax(z: Any, axes: tuple[int, ...], alpha: Any, where: Any, out: Any) -> Any:
    """[(alpha - 1) z - tau]_+^(1 / (alpha - 1))."""
    rows, _, place, low = solved(z, axes, alpha, where)
    p, _ = powers(place, low)
    xp = rows.xp
    result = xp.astype(rows.restore(xp.where(xp.isnan(place.d), math.nan, p)), z.dtype)
    if out is None:
        return result
    out[...] = result
    return out


@np.errstate(all="ignore")
def threshold(z: Any, axes: tuple[int, ...], alpha: Any, where: Any) -> tuple[Any, Any]:
    """Tau, and how many p are above 0 (-1 in a row of NaN)."""
    rows, m, place, low = solved(z, axes, alpha, where)
    p, _ = powers(place, low)
    xp = rows.xp
    a, still = place.a, xp.abs(m) == INF
    finite = xp.where(still, 0.0, m)
    root = xp.where(place.steep, 0.0 - (place.at + low), a * (place.at + low) - 1.0)
    tau = xp.where(still, m, a * finite + root)
    integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
    support = xp.sum(xp.astype(frozen(p) > 0.0, integer), axis=-1, keepdims=True, dtype=integer)
    kind = xp.float64 if z.dtype == xp.float64 else xp.float32
    return xp.astype(rows.per_row(tau), kind), rows.per_row(xp.where(xp.isnan(m), -1, support))
