"""Definitions of the sparse maps in array-API Python. JAX and CuPy use them, and tests compare the kernels with them.

    p = e_a(d - lambda)    e_a(x) = [1 + a x]_+^(1/a)    a = alpha - 1    d = beta z - max beta z    sum p = 1

`reference_root.py` finds lambda. For alpha > 2 it finds q, the smallest p above 0, instead of lambda.
`reference_loss.py` defines the losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, frozen, namespace, row_dtype
from softargmax.core.row_layout import INF
from softargmax.sparse.reference_root import Solution, nan_entries, powers, solve_rows, threshold_of
from softargmax.sparse.support import Support

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


@np.errstate(all="ignore")
def entmax(z: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return [(alpha - 1) beta z - tau]_+^(1 / (alpha - 1)), and tau."""
    solution = solve_rows(z, axes, alpha, where, beta)
    rows, xp = solution.rows, solution.rows.xp
    p = powers(solution.root, solution.low)[0]
    p = xp.where(solution.invalid & ~(solution.x == -INF), nan_entries(solution), p)
    return xp.astype(rows.restore(p), z.dtype), _threshold(solution, z.dtype)


@np.errstate(all="ignore")
def threshold(z: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return tau, and the number of p above 0 (-1 in a row with a NaN)."""
    solution = solve_rows(z, axes, alpha, where, beta)
    rows, xp = solution.rows, solution.rows.xp
    p = frozen(powers(solution.root, solution.low)[0])
    integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
    support = xp.sum(xp.astype(p > 0.0, integer), axis=-1, keepdims=True, dtype=integer)
    return _threshold(solution, z.dtype), rows.per_row(xp.where(solution.invalid, -1, support), keepdims=True)


def _threshold(solution: Solution, dtype: Any) -> Any:
    """Return tau, one number per row, in float32 or better."""
    xp = solution.rows.xp
    kind = row_dtype(dtype)
    return xp.astype(solution.rows.per_row(threshold_of(solution, kind), keepdims=True), kind)


@np.errstate(all="ignore")
def entmax_vjp(p: Any, tau: Any, alpha: Any, g: Any, axes: tuple[int, ...]) -> Any:
    """Return s (g - <s, g> / <s, 1>) with s = p^(2 - alpha)."""
    row = Support(p, tau, alpha, axes)
    return namespace(p).astype(row.s * row.centred(g), p.dtype)
