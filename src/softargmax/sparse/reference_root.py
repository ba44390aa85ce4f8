"""The root of each row, a number from which p and tau follow, as a differentiable function of the scores.

For alpha <= 2 the root is lambda in p = e_a(z - max z - lambda), with e_a as in `reference.py`. For alpha > 2 the root
is q, the smallest p above 0. Let o be the score whose p is q. Then p = (q^a + a (z - o))^(1/a). In this form
probabilities near the threshold keep their digits. z are scores that are already multiplied by beta.

The search (`reference_search.py`) treats its inputs as constants, so it has no derivative. Two Newton steps follow the
search, and these are differentiable. One step would give the first derivatives of the root. Two steps give derivatives
up to the third.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.arrays import device_of, frozen, namespace
from softargmax.core.check import inspectable
from softargmax.core.error_free import total, two_product, two_sum
from softargmax.core.row_layout import INF, Rows, below, magnitude
from softargmax.sparse.reference_search import mean_decay, search_shift, search_smallest_in_support, search_smallest_p

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

_NEAR, _SERIES = 1 / 64, 9
_FAR = 1000.0  # a p of e^-1000 or less counts as 0, and its derivatives are 0
_EXACT = 1e30  # a difference d below -1e30 needs no low part e (see `Root`)
_SPLIT = 2.0**30  # `two_product` does not overflow for numbers up to the largest float divided by _SPLIT


class Root(NamedTuple):
    """The root that the search found: `at` is lambda, or q in rows with alpha > 2 (`steep`)."""

    d: Any
    e: Any  # d + e = beta z - max beta z; d is -inf outside the support and in invalid rows
    a: Any
    steep: Any
    at: Any
    o: Any  # d of the smallest score with p > 0 if `steep`, else 0
    o_low: Any  # e of this score
    first: Any  # True at this score if `steep`; of equal scores, only at the first


class Solution(NamedTuple):
    """Rows with their roots: the constant part of each root in `root`, its differentiable correction in `low`."""

    rows: Rows
    x: Any  # the scores, negated for beta < 0
    m: Any  # the maximum of x
    hi: Any  # |beta| = hi + lo
    lo: Any
    invalid: Any  # rows with a NaN, an invalid order or an invalid beta
    root: Root
    low: Any


def solve_rows(z: Any, axes: tuple[int, ...], alpha: Any, where: Any, beta: Scale) -> Solution:
    """Return the rows of z with their roots."""
    rows = Rows(z, axes)
    xp = rows.xp
    sign, hi, lo = magnitude(rows, z, beta)
    x = sign * xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    x = rows.pad(xp.where(x == -INF, -INF, x))  # makes -inf a constant: no derivative outside the support
    nan = xp.isnan(x)
    m = rows.top(xp.where(nan, -INF, x))
    if isinstance(alpha, float):
        a = xp.full_like(m, alpha - 1.0)
    else:
        a = rows.lay_kept(xp.astype(alpha, rows.dtype)) - 1.0 + xp.zeros_like(m)
    valid = (a >= -1.0) & (a < INF)
    invalid = xp.any(nan, axis=-1, keepdims=True) | ~valid | xp.isnan(hi)
    d, e = below(xp.where(invalid, -INF, x), m, beta, hi, lo, _EXACT)
    a = xp.where(valid, a, 1.0)
    root = _root_of(d, e, a, some_steep=not isinstance(alpha, float) or alpha > 2.0)
    low = xp.zeros_like(m)
    for _ in range(2):
        p, slope, _ = powers(root, low)
        high, rest = total(p)
        total_slope = xp.sum(slope, axis=-1, keepdims=True)
        safe_slope = xp.where(total_slope == 0.0, 1.0, total_slope)
        step = xp.where(total_slope == 0.0, 0.0, ((high - 1.0) + rest) / safe_slope)
        low = low + xp.where(root.steep, -step, step)
    return Solution(rows, x, m, hi, lo, invalid, root, low)


def _root_of(d: Any, e: Any, a: Any, *, some_steep: bool) -> Root:
    """Search for the root of each row. The inputs of the search are treated as constants."""
    xp = namespace(d)
    far, rest, order = frozen(d), frozen(e), frozen(a)
    steep = order > 1.0
    shift = search_shift(far, rest, order)
    zero = xp.zeros_like(a)
    if not some_steep or (inspectable(steep) and not bool(xp.any(steep))):
        return Root(d, e, a, steep, shift, zero, zero, xp.zeros_like(d, dtype=xp.bool))
    o, o_low = search_smallest_in_support(far, rest, order)
    at = xp.where(steep, search_smallest_p(far - o, rest - o_low, order), shift)
    first = steep & (far == o) & (rest == o_low)
    index = xp.arange(d.shape[-1], device=device_of(d))
    first = first & (index == xp.argmax(xp.astype(first, xp.int8), axis=-1, keepdims=True))
    own = xp.sum(xp.where(first, d, 0.0), axis=-1, keepdims=True)  # equal to o, but not a constant
    return Root(d, e, a, steep, at, own, xp.where(steep, o_low, 0.0), first)


def powers(root: Root, low: Any) -> tuple[Any, Any, Any]:
    """Return p at the root `at` + `low`, the magnitude of dp / droot, and v = p^a. All are 0 where p is 0.

    For alpha <= 2, w = v - 1 is computed as a product, so log(v) / a = log1p(w) / a keeps its digits for any small a.
    """
    d, e, a, steep, at, o, o_low, first = root
    xp = namespace(d)
    reach = xp.where(a < 0.0, xp.clip(_FAR * mean_decay(_FAR * a), max=xp.finfo(d.dtype).max / _SPLIT), _FAR)
    from_o = (d > o) | ((d == o) & (e >= o_low))
    there = (d > -INF) & ((steep & from_o) | (~steep & (d > -reach)))
    x, r = two_sum(xp.where(there, d, 0.0), -xp.where(steep, o, at))
    r = r + xp.where(there, e, 0.0) - xp.where(steep, o_low, low)
    w, q = two_product(a + xp.zeros_like(x), x)
    q = q + a * r
    log_q = xp.log(xp.where(steep, at + low, 1.0))
    base = xp.where(steep, xp.exp(a * log_q), 1.0)
    tie = steep & (x == 0.0) & (r == 0.0)
    is_q = first | (tie & (base <= xp.finfo(base.dtype).smallest_normal))  # here p is the root itself
    v, v_low = two_sum(base + xp.zeros_like(w), w)
    v_low = v_low + q
    inside = there & (v + v_low > 0.0) & ~is_q
    near = inside & ~steep & (w > -0.5)
    far = inside & ~near
    safe_v = xp.where(inside, v + v_low, 1.0)
    # Derivatives pass through x + r and w + q. The rounding errors of these sums are added separately.
    sum_x, sum_w = xp.where(near, x + r, 0.0), xp.where(near, w + q, 0.0)
    left_x = xp.where(near, (x - (x + r)) + r, 0.0)
    y_near = sum_x * _log1p_over(sum_w) + left_x / (1.0 + sum_w)
    whole = xp.where(far, v + v_low, 1.0)
    left = xp.where(far, v_low - (whole - v), 0.0)
    y_far = (xp.log(whole) + left / whole) / xp.where(a == 0.0, 1.0, a)
    p = xp.where(inside, xp.exp(xp.where(near, y_near, y_far)), 0.0)
    factor = xp.where(steep, xp.exp((xp.where(steep, a, 1.0) - 1.0) * log_q), 1.0)
    p, slope = xp.where(is_q, at + low, p), xp.where(is_q & there, 1.0, p / safe_v * factor)
    p = xp.where(tie, p + frozen(at + low - p), p)  # the value of the root, with the derivative of p
    return xp.where(there, p, 0.0), slope, xp.where(is_q, base, xp.where(inside, safe_v, 0.0))


def nan_entries(solution: Solution) -> Any:
    """Return NaN, with NaN as derivative, in the support of invalid rows, and 0 elsewhere."""
    xp = solution.rows.xp
    return xp.where(solution.invalid & ~(solution.x == -INF), solution.x, 0.0) * xp.where(
        solution.invalid, math.nan, xp.zeros_like(solution.m)
    )


def expm1_over(u: Any) -> Any:
    """Return (e^u - 1) / u."""
    xp = namespace(u)
    near = xp.abs(u) < 0.05
    x, series = xp.where(near, u, 0.0), xp.ones_like(u)
    for k in range(_SERIES, 1, -1):
        series = 1.0 + x / k * series
    y = xp.where(near, 1.0, u)
    return xp.where(near, series, xp.expm1(y) / y)


def distances(root: Root, low: Any) -> Any:
    """Return x = beta z - max beta z - lambda. Wherever v is above 0, v = 1 + a x."""
    d, e, a, steep, at, o, o_low, _ = root
    xp = namespace(d)
    base = xp.exp(a * xp.log(xp.where(steep, at + low, 1.0)))
    return xp.where(steep, (d - o) + (e - o_low) + (base - 1.0) / xp.where(steep, a, 1.0), (d - at) + (e - low))


def threshold_of(solution: Solution, kind: Any) -> Any:
    """Return tau = a (max beta z + lambda) - 1. tau is infinite if the maximum is infinite, and NaN in invalid rows."""
    xp, a = solution.rows.xp, solution.root.a
    m, side = frozen(solution.m), frozen(a * solution.m)
    infinite = xp.abs(m) == INF
    jump = ~infinite & (solution.hi == INF) & (side != 0.0)  # the scaled maximum is infinite
    tau = a * max_plus_lambda(solution) - 1.0
    largest = xp.finfo(kind).max  # clip tau in ordinary rows: an infinite tau marks a row with infinite beta z
    tau = xp.where(infinite, m, xp.clip(tau, -largest, largest))
    tau = xp.where(jump, xp.where(side > 0.0, INF, xp.full_like(tau, -INF)), tau)
    return xp.where(solution.invalid, math.nan, tau)


def max_plus_lambda(solution: Solution) -> Any:
    """Return max beta z + lambda, or lambda alone if the maximum is infinite."""
    xp = solution.rows.xp
    infinite = solution.invalid | (xp.abs(frozen(solution.m)) == INF) | (solution.hi == INF)
    m, hi, lo = (xp.where(infinite, 0.0, x) for x in (solution.m, solution.hi, solution.lo))
    top = solution.root._replace(d=xp.zeros_like(solution.m), e=xp.zeros_like(solution.m))
    return (hi * m + lo * m) - distances(top, solution.low)


def _log1p_over(w: Any) -> Any:
    """Return log(1 + w) / w."""
    xp = namespace(w)
    near = xp.abs(w) < _NEAR
    x = xp.where(near, w, 0.0)
    series = xp.zeros_like(w)
    for k in range(_SERIES, 0, -1):
        series = (1.0 / k if k % 2 else -1.0 / k) + x * series
    y = xp.where(near, 1.0, w)
    return xp.where(near, series, xp.log1p(y) / y)
