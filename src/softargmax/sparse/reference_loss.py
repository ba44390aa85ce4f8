"""The definition of the Fenchel-Young losses: with x = beta z - max beta z - lambda, a = alpha - 1 and v = 1 + a x,

    loss = (a / alpha) sum p x - sum t x + sum t log(t) E(a log t) / alpha,   E(u) = (e^u - 1) / u

    of a class y    loss = sum_{k != y} p_k v_k / alpha + psi,   psi = (p_y v_y - 1) / alpha - x_y
    e = 1 - p_y     psi = integral of (1 - s)^(a - 1) s from 0 to e = sum_j c_j e^(j + 2) / (j + 2)

The second form has no negative term: a confident row keeps its small loss. For e > 1/4 psi does not cancel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, namespace
from softargmax.core.error_free import total
from softargmax.core.row_layout import INF
from softargmax.sparse.reference import entmax
from softargmax.sparse.reference_root import Place, distances, expm1_over, level, no_number, powers, solved

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.core.scale import Scale

_TERMS = 25  # of the series for psi, where e < 1/4


@np.errstate(all="ignore")
def entmax_loss(
    z: Any, target: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...], ignore_index: int
) -> tuple[Any, None]:
    """The loss of every row's class, in working precision. (The roots are the kernel's alone.)"""
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
    """The loss of every row, of which `label_smoothing` of the target is spread over the support."""

    def smoothed(place: Place, low: Any, t: Any, inside: Any) -> Any:
        xp, e = namespace(t), label_smoothing
        n = _sum(xp.astype(inside, t.dtype))
        return _of_masses(place, low, xp.where(inside, (1.0 - e) * t + e / xp.where(n == 0.0, 1.0, n), 0.0), inside)

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
    """The loss of every row by a form of it, and the rows that have none."""
    xp, skipped, wrong = namespace(z), None, None
    of_classes = xp.isdtype(target.dtype, "integral")
    if of_classes:
        skipped = target == ignore_index
        wrong = ~skipped & ((target < 0) | (target >= z.shape[axes[0]]))
        z = xp.where(skipped, 0.0, z)  # whatever stands there, NaN included, has no derivative
    solution = solved(z, axes, alpha, where, beta)
    rows, broken, place, low = solution.rows, solution.lost, solution.place, solution.low
    t = _one_hot(target, z, axes[0]) if of_classes else target
    t = rows.pad_with(xp.astype(rows.lay(t), rows.dtype), 0.0)
    inside = place.d > -INF
    found = form(place, low, t, inside)
    # What the target has outside the support makes the loss infinite; max beta z + lambda keeps its gradient, p.
    outside = _sum(xp.where(inside, 0.0, t))
    lost = (outside != 0.0) | ~xp.any(inside, axis=-1, keepdims=True)
    found = found + xp.where(lost, outside * level(solution) + INF, 0.0)
    found = xp.where(broken, xp.sum(no_number(solution), axis=-1, keepdims=True), found)
    found = rows.per_row(found, keepdims=True)
    if skipped is None:
        return found
    return xp.where(wrong, math.nan, xp.where(skipped, 0.0, found))


def _one_hot(target: Any, z: Any, axis: int) -> Any:
    """Whether this is the class of its row."""
    xp, classes = namespace(z), z.shape[axis]
    places = xp.arange(classes, dtype=target.dtype, device=device_of(z))
    return xp.reshape(places, tuple(classes if i == axis else 1 for i in range(z.ndim))) == target


@np.errstate(all="ignore")
def entmax_loss_vjp(
    z: Any, target: Any, alpha: Any, where: Any, beta: Scale, axes: tuple[int, ...], ignore_index: int, g: Any
) -> Any:
    """g (p - t) in the support; 0 in rows of infinities and in those that are ignored."""
    xp, skipped = namespace(z), target == ignore_index
    p, tau = entmax(xp.where(skipped, 0.0, z), alpha, where, beta, axes)
    out = ((z == -INF) & (beta.hi >= 0.0)) | ((z == INF) & (beta.hi < 0.0))
    t = _one_hot(target, z, axes[0]) & ~out
    t = t if where is None else t & where
    slope = xp.where(skipped | (tau == INF), 0.0, xp.astype(p, g.dtype) - xp.astype(t, g.dtype))
    return xp.astype(xp.where(slope == 0.0, 0.0, g * slope), z.dtype)


def _of_class(place: Place, low: Any, t: Any, inside: Any) -> Any:
    """The form without negative terms."""
    xp, a = namespace(t), place.a
    p, _, v = powers(place, low)
    pv = p * v
    y = (t > 0.0) & inside
    e = _sum(xp.where(y, 0.0, p))
    near = e < 0.25
    x, series = xp.where(near, e, 0.0), xp.zeros_like(e)
    for j in range(_TERMS, -1, -1):  # sum_j c_j x^j / (j + 2), c_(j + 1) = c_j (j + 1 - a) / (j + 1), from within
        series = 1.0 / (j + 2) + x * (j + 1 - a) / (j + 1) * series
    far = (_sum(xp.where(y, pv, 0.0)) - 1.0) / (1.0 + a) - _sum(xp.where(y, distances(place, low), 0.0))
    steep = (a > 1.0) & ((a + 1.0) * e > 0.5)  # where the series grows before it falls
    b, part = xp.where(steep, a, 1.0), xp.where(steep & (e < 1.0), e, 0.0)
    closed = -xp.expm1(b * xp.log1p(-part) + xp.log1p(b * part)) / (b * (b + 1.0))
    psi = xp.where(steep & (e < 0.5), closed, xp.where(near & ~steep, x * x * series, far))
    return _sum(xp.where(y, 0.0, pv)) / (1.0 + a) + psi


def _of_masses(place: Place, low: Any, t: Any, inside: Any) -> Any:
    """The form for any target."""
    xp, a = namespace(t), place.a
    p = powers(place, low)[0]
    x = xp.where(inside, distances(place, low), 0.0)
    log = xp.log(xp.where(t > 0.0, t, 1.0))
    entropy = xp.where(t > 0.0, t * log * expm1_over(a * log), 0.0)
    return _sum(a * p * x) / (1.0 + a) - _sum(xp.where(inside, t * x, 0.0)) + _sum(entropy) / (1.0 + a)


def _sum(x: Any) -> Any:
    """The sum of each row, exact but for its last rounding."""
    high, rest = total(x)
    return high + rest
