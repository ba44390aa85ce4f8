"""Definitions of the log semiring in array-API Python. JAX and CuPy use them, and tests compare the kernels with them.

    c_ij = log(sum_k exp(beta (a_ik + b_kj))) / beta        p_ikj = exp(beta (a_ik + b_kj - c_ij))

A term is left out (p = 0) if a_ik or b_kj is outside the support: -inf, or +inf for beta < 0. The functions compute a
few rows at a time, so that no temporary has all terms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, namespace, working_dtype
from softargmax.core.scale import Scale
from softargmax.normalize.operations import LogSumExp, logsumexp

if TYPE_CHECKING:
    from collections.abc import Iterator

TERMS = 1 << 20
"""The number of terms that are computed at a time."""


def _rows(a: Any, b: Any) -> Iterator[slice]:
    """Return slices of the rows of a, whose terms are at most TERMS, and at least one row each."""
    per_row = math.prod(a.shape[:-2]) * math.prod(b.shape[-2:])
    step = max(1, TERMS // max(1, per_row))
    count = a.shape[-2]
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _each_term(beta: Scale) -> Scale:
    """Return beta with one more axis, if it is an array."""
    return beta if isinstance(beta.hi, float) else Scale(beta.hi[..., None], beta.lo[..., None])


def _sign(beta: Scale) -> Any:
    """Return -1 for a negative beta, and 1 otherwise."""
    if isinstance(beta.hi, float):
        return -1.0 if beta.hi < 0.0 else 1.0
    xp, one = namespace(beta.hi), namespace(beta.hi).ones_like(beta.hi)
    return xp.where(beta.hi < 0.0, -one, one)


def zero_of(beta: Scale, dtype: Any) -> Any:
    """Return the zero of the semiring: -inf, and +inf for a negative beta."""
    sign = _sign(beta)
    return -math.inf * sign if isinstance(sign, float) else namespace(sign).astype(-math.inf * sign, dtype)


def _sums_of_scores(a: Any, b: Any, beta: Scale) -> Any:
    """Return beta's sign times (a_ik + b_kj), or -inf outside the support."""
    xp = namespace(a)
    wide = working_dtype(a, xp)
    sign = _sign(_each_term(beta))
    a, b = (xp.astype(x, wide) for x in (a, b))
    a, b = a[..., :, :, None] * sign, b[..., None, :, :] * sign
    return xp.where((a == -math.inf) | (b == -math.inf), -math.inf, a + b)


@np.errstate(all="ignore")
def log_matmul(a: Any, b: Any, beta: Scale) -> tuple[Any, Any]:
    """Return c in the dtype of a, and in the widest dtype."""
    xp, size = namespace(a), _each_term(beta)
    wide = working_dtype(a, xp)
    found = [xp.zeros((*a.shape[:-2], 0, b.shape[-1]), dtype=wide, device=device_of(a))]
    for part in _rows(a, b):
        z = _sums_of_scores(a[..., part, :], b, beta)
        sign = _sign(size)
        of = LogSumExp(z, None, None, Scale(abs(size.hi), size.lo * sign), (z.ndim - 2,), wide)
        found.append(sign * logsumexp.define(of, True))
    c = xp.concat([found[0], *(x[..., 0, :] for x in found[1:])], axis=-2)
    return xp.astype(c, a.dtype), c


def _terms(a: Any, b: Any, c: Any, beta: Scale) -> Any:
    """Return p for some rows. In the limits, and for an infinite c, the largest scores share p equally."""
    xp, size = namespace(a), _each_term(beta)
    z, c = _sums_of_scores(a, b, beta), c[..., :, None, :]
    sign = _sign(size)
    inside = z != -math.inf
    shared = (abs(size.hi) == math.inf) | (size.hi == 0.0) | (xp.abs(c) == math.inf)
    level = xp.where((size.hi == 0.0) & xp.isfinite(z), 0.0, z)
    largest = inside & (level == xp.max(level, axis=-2, keepdims=True))
    ties = xp.sum(xp.astype(largest, z.dtype), axis=-2, keepdims=True)
    distance = xp.where(inside & ~shared, z - sign * c, 0.0)
    exponent = xp.where(shared, 0.0, abs(size.hi) * distance + size.lo * sign * distance)
    p = xp.where(shared, largest / xp.where(ties == 0.0, 1.0, ties), xp.exp(exponent))
    return xp.where(inside, p, 0.0)


@np.errstate(all="ignore")
def term_sums(a: Any, b: Any, wide: Any, beta: Scale, w: Any, x: Any, y: Any, to: str) -> tuple[Any, Any, Any]:
    """Return sum_k p x y, sum_j p w y and sum_i p w x, or an array of shape (0,) for each that is not in `to`."""
    xp = namespace(a)
    dtype, none = working_dtype(a, xp), xp.zeros((0,), dtype=a.dtype, device=device_of(a))
    to_c, to_a = [], []
    to_b = xp.zeros(b.shape, dtype=dtype, device=device_of(a))

    def times(p: Any, *weights: Any) -> Any:
        for one in weights:
            p = p if one is None else xp.where(p == 0.0, 0.0, p * xp.astype(one, dtype))
        return p

    for part in _rows(a, b):
        p = _terms(a[..., part, :], b, wide[..., part, :], beta)
        w_part = None if w is None else w[..., part, None, :]
        x_part = None if x is None else x[..., part, :, None]
        y_part = None if y is None else y[..., None, :, :]
        to_c.append(xp.sum(times(p, x_part, y_part), axis=-2))
        to_a.append(xp.sum(times(p, w_part, y_part), axis=-1))
        to_b = to_b + xp.sum(times(p, w_part, x_part), axis=-3)
    found = {"c": (to_c, wide.shape), "a": (to_a, a.shape)}
    rows = {
        name: xp.concat(x, axis=-2) if x else xp.zeros(shape, dtype=dtype, device=device_of(a))
        for name, (x, shape) in found.items()
    }
    rows["b"] = to_b
    return tuple(xp.astype(rows[name], a.dtype) if name in to else none for name in ("c", "a", "b"))
