"""The definitions in array-API Python. They are the oracle of the tests and serve JAX, CuPy and other libraries.

    x = beta z        m = max x        l = sum exp(x - m)        r = l - 1
    softmax = exp(x - m) / l           log_softmax = x - m - log l           lse = m + log l

The definitions compute in float64 if the library has it, otherwise in float32, and round the result once. No control
flow depends on values, so the functions can be traced. `reference_rows.py` explains how they avoid rounding errors and
how they treat limits. In the code, the variable m is not max x but the maximum of z, or of -z for beta < 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softargmax.core.arrays import device_of, namespace, row_dtype, working_dtype
from softargmax.core.error_free import two_product, two_sum
from softargmax.core.operation import only, row_sum, slope
from softargmax.core.prefix_scan import scan
from softargmax.core.row_layout import INF, Rows, below, magnitude
from softargmax.core.scale import Scale
from softargmax.core.state import State, merged
from softargmax.normalize.reference_rows import Measure, Segments, measure, safe


def _shares(rows: Rows, a: Measure) -> Any:
    """Return p, in the layout of `rows`."""
    p = a.w / (1.0 + rows.spread(safe(a.r, rows.xp)))
    return rows.xp.where(a.s == -INF, 0.0, p)  # 0 outside the support, even if r is NaN


def _probabilities(rows: Rows, a: Measure) -> Any:
    return rows.restore(_shares(rows, a))


def _log_probabilities(rows: Rows, a: Measure) -> Any:
    rest = a.t - rows.spread(rows.xp.log1p(safe(a.r, rows.xp)))
    return rows.restore(a.s + rows.xp.where(a.s == -INF, 0.0, rest))


def _smooth_maximum(rows: Rows, a: Measure) -> Any:
    """Return lse / beta = m + log(l) / beta, where m is the maximum of z.

    At beta = 0 it is inf if l > 1, -inf if l < 1 (which needs weights), and the mean of the scores if l = 1.
    """
    xp = rows.xp
    log_l = a.c + xp.log1p(safe(a.r, xp))
    limit = (a.hi == 0.0) | (a.hi == INF)
    lse = a.m + xp.where(limit, 0.0, log_l / xp.where(limit, 1.0, a.hi))
    if a.mean is not None:
        inf = xp.full_like(log_l, INF)
        limit = xp.where(log_l > 0.0, inf, xp.where(log_l < 0.0, -inf, log_l))
        lse = xp.where(a.hi == 0.0, a.mean + limit, lse)
    return a.sign * lse


@np.errstate(all="ignore")
def softmax(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """Return exp(x - m) / l, and lse."""
    rows = Rows(z, axes)
    a = measure(rows, z, beta, where)
    return rows.xp.astype(_probabilities(rows, a), dtype), _lse(rows, a, dtype)


@np.errstate(all="ignore")
def log_softmax(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """Return x - m - log l, and lse."""
    rows = Rows(z, axes)
    a = measure(rows, z, beta, where)
    return rows.xp.astype(_log_probabilities(rows, a), dtype), _lse(rows, a, dtype)


@np.errstate(all="ignore")
def softmax_and_log(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> tuple[Any, Any, Any]:
    """Return exp(x - m) / l, its logarithm, and lse, from one maximum and one sum."""
    rows = Rows(z, axes)
    a = measure(rows, z, beta, where)
    p, log_p = (rows.xp.astype(x, dtype) for x in (_probabilities(rows, a), _log_probabilities(rows, a)))
    return p, log_p, _lse(rows, a, dtype)


def _lse(rows: Rows, a: Measure, dtype: Any) -> Any:
    """Return lse = m + log l, in the unit of x = beta z. The dtype is float32 or wider."""
    xp = rows.xp
    # In the `fixed` rows beta m counts as m: an infinite m stays infinite at beta = 0, and m = 0 stays 0 at beta = inf.
    fixed = (xp.abs(a.m) == INF) | ((a.m == 0.0) & (a.hi == INF))
    infinite = ~fixed & (a.hi == INF)
    m, hi = xp.where(fixed, 0.0, a.m), xp.where(a.hi == INF, 0.0, a.hi)
    scaled = xp.where(infinite, xp.where(a.m < 0.0, -xp.full_like(m, INF), INF), hi * m + a.lo * m)
    lse = xp.where(fixed, a.m, scaled) + xp.log1p(safe(a.r, xp))
    return xp.astype(rows.per_row(lse, keepdims=True), row_dtype(dtype))


@np.errstate(all="ignore")
def softmax_vjp(p: Any, lse: Any, g: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return beta p (g - <p, g>), and 0 in a row with lse = inf."""
    xp, wide = namespace(p), working_dtype(p, namespace(p))
    inside = (p != 0) & (lse != INF)
    p, g = (only(inside, xp.astype(x, wide)) for x in (p, g))
    return xp.astype(only(inside, p * (g - row_sum(p * g, axes))) * slope(beta), dtype)


@np.errstate(all="ignore")
def log_softmax_vjp(log_p: Any, lse: Any, g: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return beta (g - p <1, g>), and 0 in a row with lse = inf."""
    xp, wide = namespace(log_p), working_dtype(log_p, namespace(log_p))
    inside = (log_p != -INF) & (lse != INF)
    log_p, g = (only(inside, xp.astype(x, wide)) for x in (log_p, g))
    return xp.astype(only(inside, g - xp.exp(log_p) * row_sum(g, axes)) * slope(beta), dtype)


@np.errstate(all="ignore")
def logsumexp(z: Any, weights: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return (m + log l) / beta."""
    rows = Rows(z, axes)
    lse = _smooth_maximum(rows, measure(rows, z, beta, where, weights))
    return rows.xp.astype(rows.per_row(lse, keepdims=True), dtype)


@np.errstate(all="ignore")
def logsumexp_vjp(p: Any, g: Any, dtype: Any) -> Any:
    """Return p g in the support."""
    return namespace(p).astype(only(p != 0, p * g), dtype)


def _total(rows: Rows, terms: Any) -> Any:
    """Return the sum of each row, exact up to one rounding."""
    high, low = rows.total(terms)
    return high + rows.xp.where(rows.xp.isfinite(high), low, 0.0)  # an infinite sum has no rounding error


def _sum(rows: Rows, a: Measure, values: Any, dtype: Any) -> Any:
    """Return sum p v over the support of each row. Values outside the support are ignored."""
    xp = rows.xp
    p = _shares(rows, a)
    terms = xp.where(p == 0.0, 0.0, p * xp.where(p == 0.0, 0.0, values))
    return xp.astype(rows.per_row(_total(rows, terms), keepdims=True), dtype)


@np.errstate(all="ignore")
def entropy(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return the entropy, sum p (-log p)."""
    rows = Rows(z, axes)
    a = measure(rows, z, beta, where)
    return _sum(rows, a, rows.xp.log1p(safe(a.r, rows.xp)) - a.t - a.s, dtype)


def raised(beta: Scale, order: Any, z: Any) -> Scale:
    """Return order * beta. At this scale the softmax of the scores is proportional to p^order.

    A beta of 0 or infinity is returned unchanged.
    """
    xp, dtype = namespace(z), working_dtype(z, namespace(z))

    def per_row(x: Any) -> Any:
        if isinstance(x, float):
            return xp.full((1,) * z.ndim, x, dtype=dtype, device=device_of(z))
        return xp.astype(x, dtype)

    hi, lo, order = per_row(beta.hi), per_row(beta.lo), per_row(order)
    limit_already = (hi == 0.0) | (xp.abs(hi) == INF)
    plain = ~limit_already & (order < INF)
    a, b = xp.where(plain, hi, 1.0), xp.where(plain, order, 1.0)
    product, error = two_product(a, b)
    rest = error + xp.where(plain, lo, 0.0) * b
    limit = xp.where(limit_already, hi, xp.where(hi < 0.0, -INF, xp.full_like(hi, INF)))
    exact = plain & (xp.abs(product) < INF) & (xp.abs(rest) < INF)
    return Scale(xp.where(plain, product + 0.0, limit), xp.where(exact, rest, 0.0))


def _series(u: Any, terms: int) -> Any:
    """Return (exp(u) - 1) / u."""
    series = namespace(u).ones_like(u)
    for n in range(terms, 1, -1):
        series = 1.0 + series * u / n
    return series


@np.errstate(all="ignore")
def renyi_entropy(z: Any, where: Any, beta: Scale, order: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return log sum p^a / (1 - a), computed by one of two formulas.

    Let q = p^a / sum p^a. p and q are the softmaxes of the scores at the scales beta and a * beta. Let l_p and l_q be
    the sums l of these softmaxes. If the smaller of log l_q and a log l_p is at most half the larger, the result is
    (log l_q - a log l_p) / (1 - a). The maxima are not in this formula, because they cancel. Otherwise the result is
    log1p((1 - a) E) / (1 - a), where the sum E = <p, (p^(a-1) - 1) / (1 - a)> has no negative terms.
    """
    rows, xp = Rows(z, axes), namespace(z)
    scale = raised(beta, order, z)
    a, b = measure(rows, z, beta, where), measure(rows, z, scale, where)
    if isinstance(order, float):
        orders = xp.full((), order, dtype=rows.dtype, device=device_of(z))
    else:
        orders = rows.lay_kept(xp.astype(order, rows.dtype))
    log_p, log_q = (xp.log1p(safe(x.r, xp)) for x in (a, b))

    infinite = orders > 1e18
    order = xp.where(infinite, 2.0, orders)
    logs = order * log_p, log_q
    far = (order != 1.0) & (xp.minimum(*logs) <= 0.5 * xp.maximum(*logs))
    difference = (logs[0] - logs[1]) / xp.where(order == 1.0, 1.0, order - 1.0) + 0.0  # + 0.0: no negative zero

    order = xp.where(far, 1.0, order)
    excess, inside, p = order - 1.0, a.s != -INF, _shares(rows, a)
    y = xp.where(inside, xp.where(inside, a.s, 0.0) + (a.t - log_p), 0.0)
    u = excess * y
    near = xp.abs(u) < 1.4
    near_terms = -p * y * _series(xp.where(near, u, 0.0), 26)
    far_terms = (p - xp.exp(xp.where(near, 0.0, order * y))) / xp.where(excess == 0.0, 1.0, excess)
    mean = _total(rows, xp.where(near, near_terms, xp.where(inside, far_terms, 0.0)))
    rise = -excess * mean
    small = xp.abs(rise) < 0.05
    v, w = xp.where(small, rise, 0.0), xp.where(small | (rise <= -0.9), 1.0, rise)
    ratio = xp.full_like(v, 1.0 / 14)  # log1p(v) / v = 1 - v (1/2 - v (1/3 - ..))
    for n in range(13, 0, -1):
        ratio = 1.0 / n - v * ratio
    entropy = mean * xp.where(small, ratio, xp.log1p(w) / w)

    entropy = xp.where(far | (rise <= -0.9), difference, entropy)
    entropy = xp.where(infinite, log_p, entropy)
    entropy = xp.where(a.r == -1.0, 0.0, entropy)
    entropy = xp.where(xp.isnan(orders), math.nan, entropy)
    return xp.astype(rows.per_row(entropy, keepdims=True), dtype)


@np.errstate(all="ignore")
def expectation(z: Any, where: Any, beta: Scale, values: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return sum p v. If `values` is None, v is the positions 0..K-1."""
    rows, xp = Rows(z, axes), namespace(z)
    if values is None:
        values = xp.arange(max(rows.length, 1), dtype=rows.dtype, device=device_of(z))
    else:
        values = rows.pad(xp.astype(rows.lay(values), rows.dtype))
    return _sum(rows, measure(rows, z, beta, where), values, dtype)


@np.errstate(all="ignore")
def kl_divergence(z_p: Any, z_q: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return sum p (delta - 1 + exp(-delta)) with delta = log p - log q. No term is negative, so terms do not cancel.

    delta = beta ((z_p - z_q) - (m_p - m_q)) - (log l_p - log l_q). An error e in a maximum or in a log l shifts every
    delta of the row by the same amount. Because p and q sum to 1, this changes the sum by only about e^2.
    """
    rows, xp = Rows(z_p, axes), namespace(z_p)
    a, b = (measure(rows, z, beta, where) for z in (z_p, z_q))
    p, q = _shares(rows, a), _shares(rows, b)
    inside, lost = (a.s != -INF) & (b.s != -INF), (p > 0.0) & (b.s == -INF)
    large = 1e290 if rows.dtype == xp.float64 else 1e30
    plain = (xp.abs(a.m) < large) & (xp.abs(b.m) < large) & (a.hi < INF)
    scale = xp.where(plain, a.hi, 1.0)
    top = two_sum(xp.where(plain, a.m, 0.0), -xp.where(plain, b.m, 0.0))
    x, y = (rows.pad(a.sign * xp.astype(rows.lay(z), rows.dtype)) for z in (z_p, z_q))
    gap = two_sum(*(xp.where(inside, xp.where(plain, c, d), 0.0) for c, d in ((x, a.s), (-y, -b.s))))
    log_ratio = xp.log1p(safe(a.r, xp)) - xp.log1p(safe(b.r, xp))
    delta = scale * (gap[0] - top[0]) + (scale * (gap[1] - top[1]) - log_ratio)

    near = inside & (xp.abs(delta) < 1.4)
    small, far = xp.where(near, delta, 0.0), xp.where(near | ~inside, 0.0, delta)
    series = xp.ones_like(small)
    for n in range(28, 2, -1):  # exp(-delta) - 1 + delta = delta^2 / 2 (1 - delta / 3 (1 - delta / 4 (1 - ...)))
        series = 1.0 - series * small / n
    terms = xp.where(near, p * (0.5 * small * small * series), xp.where(p == 0.0, q, (p * far - p) + q))
    total = _total(rows, terms)
    infinite = rows.total(xp.astype(lost, rows.dtype))[0] > 0.0
    total = xp.where(infinite & ~xp.isnan(total), INF, total)
    return xp.astype(rows.per_row(xp.where(a.r == -1.0, 0.0, total), keepdims=True), dtype)


class _Prefixes(NamedTuple):
    """The states of all prefixes, and x: the scores times the sign of beta, or -inf outside the support."""

    x: Any
    m: Any
    log_l: Any
    sign: Any
    hi: Any  # |beta| = hi + lo
    lo: Any


def _prefixes(rows: Rows, z: Any, where: Any, beta: Scale) -> _Prefixes:
    """Compute the states by a prefix scan.

    At beta = 0 all finite scores have the same weight. At beta = inf only maxima count.
    """
    xp = rows.xp
    sign, hi, lo = magnitude(rows, z, beta)
    x = sign * xp.astype(rows.lay(z), rows.dtype)
    x = x if where is None else xp.where(rows.lay(where), x, -INF)

    def gap(m: Any, top: Any) -> tuple[Any, Any]:
        return below(m, top, beta, hi, lo, 2000.0)

    states = x, xp.where(x == -INF, xp.full_like(x, -1.0), 0.0)
    m, r = scan(lambda a, b: merged(State(*a), State(*b), gap)[:2], states, (-INF, -1.0))
    return _Prefixes(x, m, xp.log1p(safe(r, xp)), sign, hi, lo)


@np.errstate(all="ignore")
def logcumsumexp(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return (m + log l) / beta of every prefix."""
    rows, xp = Rows(z, axes), namespace(z)
    a = _prefixes(rows, z, where, beta)
    limit = (a.hi == 0.0) | (a.hi == INF)
    lse = a.m + xp.where(limit, 0.0, a.log_l / xp.where(limit, 1.0, a.hi))
    lse = xp.where((a.hi == 0.0) & (a.log_l > 0.0), INF, lse)
    return xp.astype(rows.restore(a.sign * xp.where(xp.isnan(a.log_l), math.nan, lse)), dtype)


@np.errstate(all="ignore")
def prefix_surprisals(z: Any, where: Any, beta: Scale, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return -log of the probability of each score in the softmax of its prefix, and inf outside the support."""
    rows, xp = Rows(z, axes), namespace(z)
    a = _prefixes(rows, z, where, beta)
    s, t = below(a.x, a.m, beta, a.hi, a.lo, 2000.0)
    out = (a.x == -INF) | (s == -INF)
    surprisal = xp.where(out, 0.0, a.log_l) - (xp.where(out, 0.0, s) + t)
    return xp.astype(rows.restore(xp.where(out, INF, surprisal)), dtype)


@np.errstate(all="ignore")
def segment_softmax(z: Any, offsets: Any, beta: Scale, dtype: Any) -> tuple[Any, Any]:
    """Return exp(x - m) / l, and lse. m, l and lse are those of the segment."""
    rows = Segments(z, offsets)
    a = measure(rows, z, beta)
    return rows.xp.astype(_probabilities(rows, a), dtype), _lse(rows, a, dtype)


@np.errstate(all="ignore")
def segment_log_softmax(z: Any, offsets: Any, beta: Scale, dtype: Any) -> tuple[Any, Any]:
    """Return x - m - log l, and lse."""
    rows = Segments(z, offsets)
    a = measure(rows, z, beta)
    return rows.xp.astype(_log_probabilities(rows, a), dtype), _lse(rows, a, dtype)


@np.errstate(all="ignore")
def segment_logsumexp(z: Any, offsets: Any, beta: Scale, dtype: Any) -> Any:
    """Return (m + log l) / beta of each segment."""
    rows = Segments(z, offsets)
    lse = rows.per_row(_smooth_maximum(rows, measure(rows, z, beta)))
    return rows.xp.astype(lse, row_dtype(dtype))
