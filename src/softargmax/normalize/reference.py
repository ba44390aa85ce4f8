"""The definition of the family in array-API Python: the oracle, and what serves JAX, CuPy and every other library.

    x = beta z        m = max x        l = sum exp(x - m)        r = l - 1
    softmax = exp(x - m) / l           log_softmax = x - m - log l           lse = m + log l

It is computed in float64 where the library has it (else in float32) and rounded once. No control flow depends on
values, so it can be traced. How it stays exact, and what becomes of limits: `reference_rows.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.dispatch import device_of, namespace
from softargmax.core.exact import two_sum, working_dtype
from softargmax.core.rows import INF, Rows
from softargmax.core.scale import UNIT
from softargmax.core.scan import scan
from softargmax.core.state import State
from softargmax.normalize.reference_rows import Measure, Segments, measure, safe

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


def _deliver(result: Any, dtype: Any, out: Any) -> Any:
    xp = namespace(result)
    result = xp.astype(result, dtype)
    if out is None:
        return result
    out[...] = result
    return out


def _shares(rows: Rows, a: Measure) -> Any:
    p = a.w / (1.0 + rows.spread(safe(a.r, rows.xp)))
    return rows.xp.where(a.s == -INF, 0.0, p)  # 0 outside the support, in a row of NaN too


def _probabilities(rows: Rows, a: Measure) -> Any:
    return rows.restore(_shares(rows, a))


def _log_probabilities(rows: Rows, a: Measure) -> Any:
    rest = a.t - rows.spread(rows.xp.log1p(safe(a.r, rows.xp)))
    return rows.restore(a.s + rows.xp.where(a.s == -INF, 0.0, rest))


def _smooth_maximum(rows: Rows, a: Measure) -> Any:
    """lse / beta = m + log(l) / beta, in the unit of z; at beta = 0 it is the limit inf, or z itself if alone."""
    xp = rows.xp
    log_l = a.c + xp.log1p(safe(a.r, xp))
    limit = (a.hi == 0.0) | (a.hi == INF)
    lse = a.m + xp.where(limit, 0.0, log_l / xp.where(limit, 1.0, a.hi))
    if a.mean is not None:
        far = xp.full_like(log_l, INF)
        limit = xp.where(log_l > 0.0, far, xp.where(log_l < 0.0, -far, log_l))
        lse = xp.where(a.hi == 0.0, a.mean + limit, lse)
    return a.sign * lse


@np.errstate(all="ignore")
def softmax(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Any:
    """exp(x - m) / l."""
    rows = Rows(z, axes)
    return _deliver(_probabilities(rows, measure(rows, z, scale, where)), dtype, out)


@np.errstate(all="ignore")
def log_softmax(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Any:
    """x - m - log l."""
    rows = Rows(z, axes)
    return _deliver(_log_probabilities(rows, measure(rows, z, scale, where)), dtype, out)


@np.errstate(all="ignore")
def softmax_with_lse(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any) -> tuple[Any, Any]:
    """exp(x - m) / l, and m + log l in the unit of x."""
    rows, xp = Rows(z, axes), namespace(z)
    a = measure(rows, z, scale, where)
    still = (xp.abs(a.m) == INF) | ((a.m == 0.0) & (a.hi == INF))  # beta 0 and beta inf leave these where they are
    infinite = ~still & (a.hi == INF)
    m, hi = xp.where(still, 0.0, a.m), xp.where(a.hi == INF, 0.0, a.hi)
    scaled = xp.where(infinite, xp.where(a.m < 0.0, -xp.full_like(m, INF), INF), hi * m + a.lo * m)
    lse = xp.where(still, a.m, scaled) + xp.log1p(safe(a.r, xp))
    row_type = xp.float64 if dtype == xp.float64 else xp.float32
    return xp.astype(_probabilities(rows, a), dtype), xp.astype(rows.per_row(lse), row_type)


@np.errstate(all="ignore")
def logsumexp(z: Any, axes: tuple[int, ...], scale: Scale, weights: Any, where: Any, dtype: Any, keepdims: bool) -> Any:
    """(m + log l) / beta."""
    rows = Rows(z, axes)
    lse = _smooth_maximum(rows, measure(rows, z, scale, where, weights))
    return namespace(z).astype(rows.per_row(lse, keepdims=keepdims), dtype)


def _total(rows: Rows, terms: Any) -> Any:
    """The sum of each row, exact to a rounding."""
    high, low = rows.total(terms)
    return high + rows.xp.where(rows.xp.isfinite(high), low, 0.0)  # an infinite term has no rounding error


def _sum(rows: Rows, a: Measure, values: Any, dtype: Any) -> Any:
    """sum p v over the support of each row; outside of it no value is looked at."""
    xp = rows.xp
    p = _shares(rows, a)
    return xp.astype(rows.per_row(_total(rows, xp.where(p == 0.0, 0.0, p * xp.where(p == 0.0, 0.0, values)))), dtype)


@np.errstate(all="ignore")
def entropy(z: Any, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any) -> Any:
    """sum p (-log p)."""
    rows = Rows(z, axes)
    a = measure(rows, z, scale, where)
    return _sum(rows, a, rows.xp.log1p(safe(a.r, rows.xp)) - a.t - a.s, dtype)


@np.errstate(all="ignore")
def expectation(z: Any, axes: tuple[int, ...], scale: Scale, values: Any, where: Any, dtype: Any) -> Any:
    """sum p v; of the positions 0..K-1 where there are no values."""
    rows, xp = Rows(z, axes), namespace(z)
    if values is None:
        values = xp.arange(max(rows.length, 1), dtype=rows.dtype, device=device_of(z))
    else:
        values = rows.pad(xp.astype(rows.lay(values), rows.dtype))
    return _sum(rows, measure(rows, z, scale, where), values, dtype)


@np.errstate(all="ignore")
def kl_divergence(z_p: Any, z_q: Any, axes: tuple[int, ...], where: Any, dtype: Any) -> Any:
    """sum p (delta - 1 + exp(-delta)), delta = log p - log q; no term is below 0, so they do not cancel.

    delta = (z_p - z_q) - (m_p - m_q) - (log l_p - log l_q): an error of what is subtracted changes the sum by its
    square only.
    """
    rows, xp = Rows(z_p, axes), namespace(z_p)
    a, b = (measure(rows, z, UNIT, where) for z in (z_p, z_q))
    p, q = _shares(rows, a), _shares(rows, b)
    inside, lost = (a.s != -INF) & (b.s != -INF), (p > 0.0) & (b.s == -INF)
    large = 1e290 if rows.dtype == xp.float64 else 1e30
    plain = (xp.abs(a.m) < large) & (xp.abs(b.m) < large)
    top = two_sum(xp.where(plain, a.m, 0.0), -xp.where(plain, b.m, 0.0))
    x, y = (rows.pad(xp.astype(rows.lay(z), rows.dtype)) for z in (z_p, z_q))
    gap = two_sum(*(xp.where(inside, xp.where(plain, c, d), 0.0) for c, d in ((x, a.s), (-y, -b.s))))
    log_ratio = xp.log1p(safe(a.r, xp)) - xp.log1p(safe(b.r, xp))
    delta = (gap[0] - top[0]) + ((gap[1] - top[1]) - log_ratio)

    near = inside & (xp.abs(delta) < 1.4)
    small, far = xp.where(near, delta, 0.0), xp.where(near | ~inside, 0.0, delta)
    series = xp.ones_like(small)
    for n in range(28, 2, -1):  # exp(-delta) - 1 + delta = delta^2 / 2 (1 - delta / 3 (1 - delta / 4 (1 - ...)))
        series = 1.0 - series * small / n
    terms = xp.where(near, p * (0.5 * small * small * series), xp.where(p == 0.0, q, (p * far - p) + q))
    total = _total(rows, terms)
    infinite = rows.total(xp.astype(lost, rows.dtype))[0] > 0.0
    total = xp.where(infinite & ~xp.isnan(total), INF, total)
    return xp.astype(rows.per_row(xp.where(a.r == -1.0, 0.0, total)), dtype)


@np.errstate(all="ignore")
def logcumsumexp(z: Any, axis: int) -> Any:
    """m + log l of every prefix, by the state's merge."""
    xp = namespace(z)
    m = xp.astype(xp.moveaxis(z, axis, -1), working_dtype(z, xp))
    states = m, xp.where(m == -INF, xp.full_like(m, -1.0), 0.0)
    state = State(*scan(lambda a, b: State(*a).merge(State(*b))[:2], states, (-INF, -1.0)))
    lse = xp.astype(state.finalize().lse, xp.float64 if z.dtype == xp.float64 else xp.float32)
    return xp.moveaxis(lse, -1, axis)


@np.errstate(all="ignore")
def segment_softmax(z: Any, offsets: Any, scale: Scale) -> Any:
    """exp(x - m) / l, with m and l of the segment."""
    rows = Segments(z, offsets)
    return namespace(z).astype(_probabilities(rows, measure(rows, z, scale)), z.dtype)


@np.errstate(all="ignore")
def segment_log_softmax(z: Any, offsets: Any, scale: Scale) -> Any:
    """x - m - log l."""
    rows = Segments(z, offsets)
    return namespace(z).astype(_log_probabilities(rows, measure(rows, z, scale)), z.dtype)


@np.errstate(all="ignore")
def segment_logsumexp(z: Any, offsets: Any, scale: Scale) -> Any:
    """(m + log l) / beta of each segment."""
    rows, xp = Segments(z, offsets), namespace(z)
    lse = rows.per_row(_smooth_maximum(rows, measure(rows, z, scale)))
    return xp.astype(lse, xp.float64 if z.dtype == xp.float64 else xp.float32)
