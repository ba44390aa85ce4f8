"""The definition of the family in array-API Python: the oracle, and what serves JAX, CuPy and every other library.

    x = beta z        m = max x        l = sum exp(x - m)        r = l - 1
    softmax = exp(x - m) / l           log_softmax = x - m - log l           lse = m + log l

Two things keep it exact. The difference z - m carries its rounding error (d + e = z - m, so exp(d) (1 + e)), and so
does its product with beta. The sum is a pair, so that the maximum's own term, exactly 1, comes out of it without
rounding, and log l = log1p(r).

A limit needs no formula of its own, it shrinks the support: a row that holds +inf is the row of its infinities, all
equal, and at beta = inf a row is its maxima. Nothing outside the support enters arithmetic, so it has no derivative.

It is computed in float64 where the library has it (else in float32) and rounded once. No control flow depends on
values, so it can be traced.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.dispatch import namespace
from softargmax.core.exact import difference, total, two_product, two_sum, working_dtype
from softargmax.core.scale import UNIT, Scale, rounded

if TYPE_CHECKING:
    from collections.abc import Callable

INF = math.inf


class Rows:
    """z laid out as rows along the last axis; a length of 0 becomes 1, the identity -inf."""

    def __init__(self, z: Any, axes: tuple[int, ...]) -> None:
        self.xp = namespace(z)
        self.dtype = working_dtype(z, self.xp)
        self.shape, self.axes = tuple(z.shape), axes
        self.order = tuple(i for i in range(z.ndim) if i not in axes) + axes
        self.outer = tuple(z.shape[i] for i in self.order[: z.ndim - len(axes)])
        self.length = math.prod(z.shape[i] for i in axes)

    def lay(self, array: Any) -> Any:
        """An array of z's shape as rows."""
        array = self.xp.broadcast_to(array, self.shape)
        return self.xp.reshape(self.xp.permute_dims(array, self.order), (*self.outer, self.length))

    def lay_kept(self, array: Any) -> Any:
        """An array per row, with the reduced axes kept as 1, as rows of one."""
        array = self.xp.permute_dims(array, self.order)
        return self.xp.reshape(array, (*array.shape[: len(self.outer)], 1))

    def restore(self, rows: Any) -> Any:
        """Rows as an array of z's shape."""
        rows = self.xp.reshape(rows[..., : self.length], tuple(self.shape[i] for i in self.order))
        return self.xp.permute_dims(rows, tuple(self.order.index(i) for i in range(len(self.order))))

    def per_row(self, row: Any, *, keepdims: bool = False) -> Any:
        """Rows of one as an array with one number per row."""
        kept = tuple(1 if i in self.axes else n for i, n in enumerate(self.shape))
        return self.xp.reshape(row, kept if keepdims else self.outer)

    def top(self, x: Any) -> Any:
        """The maximum of each row."""
        return self.xp.max(x, axis=-1, keepdims=True)

    def total(self, w: Any) -> tuple[Any, Any]:
        """The sum of each row as a pair."""
        return total(w)

    def spread(self, row: Any) -> Any:
        """A number per row as one that broadcasts with the scores."""
        return row


class Measure(NamedTuple):
    """Rows of scores x = |beta| z, seen from their maximum: x - x_max = s + t, w = exp(s + t), r = sum w - 1."""

    m: Any  # the maximum of sign z, in the unit of z
    c: Any  # the maximum of x - |beta| m + log weights: 0 without weights
    s: Any
    t: Any
    w: Any
    r: Any
    sign: Any
    hi: Any  # |beta| = hi + lo
    lo: Any


def measure(rows: Rows, z: Any, scale: Scale, where: Any = None, weights: Any = None) -> Measure:
    """Everything that the family's formulas need of each row."""
    xp = rows.xp
    sign, hi, lo = _magnitude(rows, z, scale)
    x = sign * xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    if weights is not None:
        weights = xp.astype(rows.lay(weights), rows.dtype)
        x = xp.where(weights == 0, -INF, x)
        weights = xp.log(xp.where(weights == 0, 1.0, weights))
    if rows.length == 0:
        x = xp.full((*rows.outer, 1), -INF, dtype=rows.dtype, device=z.device)
        weights = None if weights is None else xp.zeros_like(x)
    m = rows.top(x)
    if scale is UNIT:
        s, t = difference(x, rows.spread(m))
    else:
        # Where |beta| < 1 the difference of two huge numbers could overflow and yet matter; a quarter of it cannot.
        quarter = xp.where(hi < 1.0, xp.full_like(hi, 0.25), 1.0)
        s, t = _times(hi / quarter, lo / quarter, *difference(x * quarter, rows.spread(m) * quarter))
    c = xp.zeros_like(m)
    if weights is not None:
        y, e = two_sum(s, weights)
        c = rows.top(y)
        s, e_top = difference(y, rows.spread(c))
        t = t + xp.where(xp.abs(y) < INF, e, 0.0) + e_top
        c = xp.where(c == -INF, 0.0, c)
    w = xp.exp(s) * (1.0 + t)
    l, rest = rows.total(w)
    return Measure(m, c, s, t, w, (l - 1.0) + rest, sign, hi, lo)


def _magnitude(rows: Rows, z: Any, scale: Scale) -> tuple[Any, Any, Any]:
    """The sign of beta, and |beta| = hi + lo, in the working dtype."""
    xp = rows.xp
    if isinstance(scale.hi, float):
        sign = -1.0 if scale.hi < 0.0 else 1.0
        pair = rounded(scale, 53 if rows.dtype == xp.float64 else 24)
        hi, lo = (xp.asarray(sign * part, dtype=rows.dtype, device=z.device) for part in pair)
        return sign, hi, lo
    hi, lo = (rows.lay_kept(xp.astype(part, rows.dtype)) for part in scale)
    sign = xp.where(hi < 0.0, xp.full_like(hi, -1.0), 1.0)
    return sign, sign * hi, sign * lo


def _times(hi: Any, lo: Any, d: Any, e: Any) -> tuple[Any, Any]:
    """(hi + lo) (d + e) as a pair, d <= 0 <= hi; at hi = inf only d = 0 stays in the support."""
    xp = namespace(d)
    frozen = hi == INF
    out = (d == -INF) | (frozen & (d < 0.0))
    b, y = xp.where(frozen, 0.0, hi), xp.where(out, 0.0, d)
    s = b * y
    near = s > -2000.0  # beyond, exp is 0, and in log_softmax the rest is less than a rounding
    _, q = two_product(b, xp.where(near, y, 0.0))
    q = q + (b * xp.where(near, e, 0.0) + lo * xp.where(near, y, 0.0))
    return xp.where(out, -INF, s), xp.where(near & (xp.abs(q) < 1.0), q, 0.0)


def _safe(r: Any, xp: Any) -> Any:
    """r, and 0 for an empty row, whose logarithm nothing uses."""
    return xp.where(r == -1.0, 0.0, r)


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def silent(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return silent


def _deliver(result: Any, dtype: Any, out: Any) -> Any:
    xp = namespace(result)
    result = xp.astype(result, dtype)
    if out is None:
        return result
    out[...] = result
    return out


def _probabilities(rows: Rows, a: Measure) -> Any:
    p = a.w / (1.0 + rows.spread(_safe(a.r, rows.xp)))
    return rows.restore(rows.xp.where(a.s == -INF, 0.0, p))  # 0 outside the support, in a row of NaN too


def _log_probabilities(rows: Rows, a: Measure) -> Any:
    rest = a.t - rows.spread(rows.xp.log1p(_safe(a.r, rows.xp)))
    return rows.restore(a.s + rows.xp.where(a.s == -INF, 0.0, rest))


def _smooth_maximum(rows: Rows, a: Measure) -> Any:
    """lse / beta = m + log(l) / beta, in the unit of z; at beta = 0 it is the limit inf, or z itself if alone."""
    xp = rows.xp
    log_l = a.c + xp.log1p(_safe(a.r, xp))
    alone = log_l == 0.0
    return a.sign * (a.m + xp.where(alone, 0.0, log_l / xp.where(alone, 1.0, a.hi)))


@_quiet
def softmax(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Any:
    """exp(x - m) / l."""
    rows = Rows(z, axes)
    return _deliver(_probabilities(rows, measure(rows, z, scale, where)), dtype, out)


@_quiet
def log_softmax(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Any:
    """x - m - log l."""
    rows = Rows(z, axes)
    return _deliver(_log_probabilities(rows, measure(rows, z, scale, where)), dtype, out)


@_quiet
def softmax_with_lse(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any) -> tuple[Any, Any]:
    """exp(x - m) / l, and m + log l in the unit of x."""
    rows, xp = Rows(z, axes), namespace(z)
    a = measure(rows, z, scale, where)
    still = (a.m == 0.0) | (xp.abs(a.m) == INF)  # beta 0 and beta inf leave these where they are
    m = xp.where(still, 0.0, a.m)
    lse = xp.where(still, a.m, a.hi * m + a.lo * m) + xp.log1p(_safe(a.r, xp))
    row_type = xp.float64 if dtype == xp.float64 else xp.float32
    return xp.astype(_probabilities(rows, a), dtype), xp.astype(rows.per_row(lse), row_type)


@_quiet
def logsumexp(z: Any, axes: tuple[int, ...], scale: Scale, weights: Any, where: Any, dtype: Any, keepdims: bool) -> Any:
    """(m + log l) / beta."""
    rows = Rows(z, axes)
    lse = _smooth_maximum(rows, measure(rows, z, scale, where, weights))
    return namespace(z).astype(rows.per_row(lse, keepdims=keepdims), dtype)
