"""Definitions of the Fenchel-Young losses. Let x = beta z - max beta z - lambda, a = alpha - 1 and v = 1 + a x.

    loss = (a / alpha) sum p x - sum t x + sum t log(t) E(a log t) / alpha,   E(u) = (e^u - 1) / u

    for a class y   loss = sum_{k != y} p_k v_k / alpha + psi,   psi = (p_y v_y - 1) / alpha - x_y
    e = 1 - p_y     psi = integral of (1 - s)^(a - 1) s from 0 to e = sum_j c_j e^(j + 2) / (j + 2)
    c_0 = 1         c_(j + 1) = c_j (j + 1 - a) / (j + 1)

The form for a class has no negative term, so the small loss of a confident row keeps its digits. If a is large and
e < 1/2, psi is computed by a closed form. Otherwise, psi is computed by the series for e < 1/4, and by its first
formula for larger e, where that formula does not cancel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, namespace
from softargmax.core.error_free import total
from softargmax.core.row_layout import INF
from softargmax.sparse.reference import entmax
from softargmax.sparse.reference_root import (
    Root,
    distances,
    expm1_over,
    max_plus_lambda,
    nan_entries,
    powers,
    solve_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.core.scale import Scale

_TERMS = 25  # the largest j in the series for psi, which is used for e < 1/4


@np.errstate(all="ignore")
def entmax_loss(
    z: Any, target: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...], ignore_index: int
) -> tuple[Any, None]:
    """Return the loss of each row for its class, in working precision, and None.

    None stands in place of the roots. Only the kernels return roots, which are saved for the backward pass.
    """
    return _loss(z, target, alpha, where, beta, axes, ignore_index, _of_class), None


@np.errstate(all="ignore")
def loss_of_masses(
    z: Any,
    target: Any,
    alpha: Any,
    where: Any,
    beta: Scale,
    axes: tuple[int, ...],
    ignore_index: int,
    label_smoothing: float,
) -> Any:
    """Return the loss of each row. The share `label_smoothing` of the target is distributed evenly over the support."""

    def smoothed(root: Root, low: Any, t: Any, inside: Any) -> Any:
        xp, e = namespace(t), label_smoothing
        n = _sum(xp.astype(inside, t.dtype))
        return _of_masses(root, low, xp.where(inside, (1.0 - e) * t + e / xp.where(n == 0.0, 1.0, n), 0.0), inside)

    return _loss(z, target, alpha, where, beta, axes, ignore_index, smoothed)


def _loss(
    z: Any,
    target: Any,
    alpha: Any,
    where: Any,
    beta: Scale,
    axes: tuple[int, ...],
    ignore_index: int,
    form: Callable[..., Any],
) -> Any:
    """Return the loss of each row by the formula `form`. Handle ignored rows, NaN and infinite losses."""
    xp, skipped, wrong = namespace(z), None, None
    of_classes = xp.isdtype(target.dtype, "integral")
    if of_classes:
        skipped = target == ignore_index
        wrong = ~skipped & ((target < 0) | (target >= z.shape[axes[0]]))
        z = xp.where(skipped, 0.0, z)  # scores of ignored rows have no derivative, even if they are NaN
    solution = solve_rows(z, axes, alpha, where, beta)
    rows, root, low = solution.rows, solution.root, solution.low
    t = _one_hot(target, z, axes[0]) if of_classes else target
    t = rows.pad_with(xp.astype(rows.lay(t), rows.dtype), 0.0)
    inside = root.d > -INF
    loss = form(root, low, t, inside)
    # A target outside the support makes the loss infinite. The term max beta z + lambda gives this loss the gradient p.
    outside = _sum(xp.where(inside, 0.0, t))
    infinite = (outside != 0.0) | ~xp.any(inside, axis=-1, keepdims=True)
    loss = loss + xp.where(infinite, outside * max_plus_lambda(solution) + INF, 0.0)
    loss = xp.where(solution.invalid, xp.sum(nan_entries(solution), axis=-1, keepdims=True), loss)
    loss = rows.per_row(loss, keepdims=True)
    if skipped is None:
        return loss
    return xp.where(wrong, math.nan, xp.where(skipped, 0.0, loss))


def _one_hot(target: Any, z: Any, axis: int) -> Any:
    """Return an array of bool, True at the class of each row."""
    xp, classes = namespace(z), z.shape[axis]
    indices = xp.arange(classes, dtype=target.dtype, device=device_of(z))
    return xp.reshape(indices, tuple(classes if i == axis else 1 for i in range(z.ndim))) == target


@np.errstate(all="ignore")
def entmax_loss_vjp(
    z: Any, target: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...], ignore_index: int, g: Any
) -> Any:
    """Return g (p - t) in the support, and 0 in ignored rows and rows of infinities."""
    xp, skipped = namespace(z), target == ignore_index
    p, tau = entmax(xp.where(skipped, 0.0, z), alpha, where, beta, axes)
    out = ((z == -INF) & (beta.hi >= 0.0)) | ((z == INF) & (beta.hi < 0.0))
    t = _one_hot(target, z, axes[0]) & ~out
    t = t if where is None else t & where
    slope = xp.where(skipped | (tau == INF), 0.0, xp.astype(p, g.dtype) - xp.astype(t, g.dtype))
    return xp.astype(xp.where(slope == 0.0, 0.0, g * slope), z.dtype)


def _of_class(root: Root, low: Any, t: Any, inside: Any) -> Any:
    """Return the loss by the formula for a class, which has no negative terms."""
    xp, a = namespace(t), root.a
    p, _, v = powers(root, low)
    pv = p * v
    y = (t > 0.0) & inside
    e = _sum(xp.where(y, 0.0, p))
    near = e < 0.25
    x, series = xp.where(near, e, 0.0), xp.zeros_like(e)
    for j in range(_TERMS, -1, -1):  # Horner's scheme for sum_j c_j x^j / (j + 2)
        series = 1.0 / (j + 2) + x * (j + 1 - a) / (j + 1) * series
    far = (_sum(xp.where(y, pv, 0.0)) - 1.0) / (1.0 + a) - _sum(xp.where(y, distances(root, low), 0.0))
    steep = (a > 1.0) & ((a + 1.0) * e > 0.5)  # here the first terms of the series increase
    b, part = xp.where(steep, a, 1.0), xp.where(steep & (e < 1.0), e, 0.0)
    closed = -xp.expm1(b * xp.log1p(-part) + xp.log1p(b * part)) / (b * (b + 1.0))
    psi = xp.where(steep & (e < 0.5), closed, xp.where(near & ~steep, x * x * series, far))
    return _sum(xp.where(y, 0.0, pv)) / (1.0 + a) + psi


def _of_masses(root: Root, low: Any, t: Any, inside: Any) -> Any:
    """Return the loss by the formula for any target."""
    xp, a = namespace(t), root.a
    p = powers(root, low)[0]
    x = xp.where(inside, distances(root, low), 0.0)
    log = xp.log(xp.where(t > 0.0, t, 1.0))
    entropy = xp.where(t > 0.0, t * log * expm1_over(a * log), 0.0)
    return _sum(a * p * x) / (1.0 + a) - _sum(xp.where(inside, t * x, 0.0)) + _sum(entropy) / (1.0 + a)


def _sum(x: Any) -> Any:
    """Return the sum of each row, with a single rounding at its end."""
    high, rest = total(x)
    return high + rest
