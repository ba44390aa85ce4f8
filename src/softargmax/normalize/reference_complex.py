"""logsumexp of complex scores. As in SciPy, the imaginary part of the lse is in (-pi, pi]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, namespace
from softargmax.core.row_layout import INF, Rows
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


def logsumexp(z: Any, axes: tuple[int, ...], scale: Scale, weights: Any, where: Any, keepdims: bool) -> Any:
    """Return log sum w exp(beta z) / beta. All terms are divided by the term of largest magnitude."""
    xp = namespace(z)
    rows = Rows(z, axes)
    with np.errstate(all="ignore"):
        beta = scale.hi if isinstance(scale.hi, float) else rows.lay_kept(xp.astype(scale.hi, rows.dtype))
        x = rows.lay(z)
        # Multiply the real and the imaginary part separately: inf times 0j is NaN.
        x = x if scale is UNIT else xp.real(x) * beta + 1j * (xp.imag(x) * beta)
        if weights is not None:
            shift = xp.log(xp.astype(rows.lay(weights), rows.dtype))
            x = xp.where(xp.real(shift) == -INF, -INF, x + shift)
        if where is not None:
            x = xp.where(rows.lay(where), x, -INF)
        if rows.length == 0:
            x = xp.full((*rows.outer, 1), -INF, dtype=z.dtype, device=device_of(z))
        position = xp.arange(x.shape[-1], device=device_of(z))
        own = position == xp.argmax(xp.real(x), axis=-1, keepdims=True)
        m = xp.sum(xp.where(own, x, 0.0), axis=-1, keepdims=True)
        rest = xp.sum(xp.where(own, 0.0, xp.exp(x - m)), axis=-1, keepdims=True)
        lse = xp.log1p(rest) + m
        direct = xp.log(xp.sum(xp.exp(x), axis=-1, keepdims=True))  # for infinite scores; exp and log follow C99
        lse = xp.where(xp.isfinite(lse), lse, direct)
        angle = xp.imag(lse)
        wrapped = -((math.pi - angle) % (2.0 * math.pi) - math.pi)
        angle = xp.where(xp.abs(angle) < math.pi, angle, wrapped)
        lse = xp.real(lse) / beta + 1j * (angle / beta)
    return xp.astype(rows.per_row(lse, keepdims=keepdims), z.dtype)
