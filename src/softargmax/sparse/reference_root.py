"""The root that the sparse maps stand on, for the reference: what makes a row's p sum to 1.

For alpha <= 2 the unknown is lambda in p = e_a(z - max z - lambda). Above, it is q, the least p above 0, at the score
o: p = (q^a + a (z - o))^(1/a), in which probabilities next to the threshold keep their digits.

The search (`reference_search.py`) sees constants. Two more steps from its end are differentiable: one would carry the
first derivatives of the root, two carry the third as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.arrays import device_of, frozen, namespace
from softargmax.core.check import inspectable
from softargmax.core.error_free import total, two_product, two_sum
from softargmax.core.row_layout import INF, Rows, below, magnitude
from softargmax.sparse.reference_search import mean_decay, origin, search_least, search_shift

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

_NEAR, _SERIES = 1 / 64, 9
_FAR = 1000.0  # at p = e^-1000 it is 0, its derivatives too
_EXACT = 1e30  # below -1e30 a p needs no second part of its score
_SPLIT = 2.0**30  # so far from the largest number `two_product` has no overflow


class Place(NamedTuple):
    """Where the root is: `at` is lambda, or q where alpha > 2 (`steep`)."""

    d: Any
    e: Any  # d + e = beta z - max beta z; d is -inf outside the support, and in a row of NaN everywhere
    a: Any
    steep: Any
    at: Any
    o: Any  # d of the least score whose p is above 0, where `steep`; else 0
    o_low: Any  # and its e
    first: Any  # which score that is, of equal ones the first, where `steep`


class Solved(NamedTuple):
    """Rows with their root: what constants know of it is in `place`, the rest, which is differentiable, in `low`."""

    rows: Rows
    x: Any  # the scores; for beta < 0 the negated ones
    m: Any  # their maximum
    hi: Any  # |beta| = hi + lo
    lo: Any
    lost: Any  # rows of NaN, or of an order that is none
    place: Place
    low: Any


def solved(z: Any, axes: tuple[int, ...], alpha: Any, where: Any, beta: Scale) -> Solved:
    """The rows with their roots."""
    rows = Rows(z, axes)
    xp = rows.xp
    sign, hi, lo = magnitude(rows, z, beta)
    x = sign * xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    x = rows.pad(xp.where(x == -INF, -INF, x))  # has no derivative, whatever comes in
    unknown = xp.isnan(x)
    m = rows.top(xp.where(unknown, -INF, x))
    if isinstance(alpha, float):
        a = xp.full_like(m, alpha - 1.0)
    else:
        a = rows.lay_kept(xp.astype(alpha, rows.dtype)) - 1.0 + xp.zeros_like(m)
    known = (a >= -1.0) & (a < INF)
    lost = xp.any(unknown, axis=-1, keepdims=True) | ~known | xp.isnan(hi)
    d, e = below(xp.where(lost, -INF, x), m, beta, hi, lo, _EXACT)
    a = xp.where(known, a, 1.0)
    place = _found(d, e, a, some_steep=not isinstance(alpha, float) or alpha > 2.0)
    low = xp.zeros_like(m)
    for _ in range(2):
        p, slope, _ = powers(place, low)
        high, rest = total(p)
        by = xp.sum(slope, axis=-1, keepdims=True)
        step = xp.where(by == 0.0, 0.0, ((high - 1.0) + rest) / xp.where(by == 0.0, 1.0, by))
        low = low + xp.where(place.steep, -step, step)
    return Solved(rows, x, m, hi, lo, lost, place, low)


def _found(d: Any, e: Any, a: Any, *, some_steep: bool) -> Place:
    xp = namespace(d)
    far, rest, order = frozen(d), frozen(e), frozen(a)
    steep = order > 1.0
    shift = search_shift(far, rest, order)
    none = xp.zeros_like(a)
    if not some_steep or (inspectable(steep) and not bool(xp.any(steep))):
        return Place(d, e, a, steep, shift, none, none, xp.zeros_like(d, dtype=xp.bool))
    o, o_low = origin(far, rest, order)
    at = xp.where(steep, search_least(far - o, rest - o_low, order), shift)
    first = steep & (far == o) & (rest == o_low)
    index = xp.arange(d.shape[-1], device=device_of(d))
    first = first & (index == xp.argmax(xp.astype(first, xp.int8), axis=-1, keepdims=True))
    own = xp.sum(xp.where(first, d, 0.0), axis=-1, keepdims=True)  # the score itself, with its derivative
    return Place(d, e, a, steep, at, own, xp.where(steep, o_low, 0.0), first)


def powers(place: Place, low: Any) -> tuple[Any, Any, Any]:
    """p at `at` + `low`, its slope in the unknown (without its sign), and v = p^a: all 0 where p is.

    w = v - 1 is formed as a product, so that log(v) / a = log1p(w) / a has its digits however small a is.
    """
    d, e, a, steep, at, o, o_low, first = place
    xp = namespace(d)
    reach = xp.where(a < 0.0, xp.clip(_FAR * mean_decay(_FAR * a), max=xp.finfo(d.dtype).max / _SPLIT), _FAR)
    from_o = (d > o) | ((d == o) & (e >= o_low))
    there = (d > -INF) & ((steep & from_o) | (~steep & (d > -reach)))
    x, r = two_sum(xp.where(there, d, 0.0), -xp.where(steep, o, at))
    r = r + xp.where(there, e, 0.0) - xp.where(steep, o_low, low)
    w, q = two_product(a + xp.zeros_like(x), x)
    q = q + a * r
    log_least = xp.log(xp.where(steep, at + low, 1.0))
    base = xp.where(steep, xp.exp(a * log_least), 1.0)
    tie = steep & (x == 0.0) & (r == 0.0)
    level = first | (tie & (base <= xp.finfo(base.dtype).smallest_normal))  # p is q itself
    v, lost = two_sum(base + xp.zeros_like(w), w)
    lost = lost + q
    inside = there & (v + lost > 0.0) & ~level
    near = inside & ~steep & (w > -0.5)
    far = inside & ~near
    safe_v = xp.where(inside, v + lost, 1.0)
    # x + r and w + q carry the derivatives, what their rounding loses counts beside them
    sum_x, sum_w = xp.where(near, x + r, 0.0), xp.where(near, w + q, 0.0)
    left_x = xp.where(near, (x - (x + r)) + r, 0.0)
    y_near = sum_x * _log1p_over(sum_w) + left_x / (1.0 + sum_w)
    whole = xp.where(far, v + lost, 1.0)
    left = xp.where(far, lost - (whole - v), 0.0)
    y_far = (xp.log(whole) + left / whole) / xp.where(a == 0.0, 1.0, a)
    p = xp.where(inside, xp.exp(xp.where(near, y_near, y_far)), 0.0)
    factor = xp.where(steep, xp.exp((xp.where(steep, a, 1.0) - 1.0) * log_least), 1.0)
    p, slope = xp.where(level, at + low, p), xp.where(level & there, 1.0, p / safe_v * factor)
    p = xp.where(tie, p + frozen(at + low - p), p)  # so much as q, with derivatives of their own
    return xp.where(there, p, 0.0), slope, xp.where(level, base, xp.where(inside, safe_v, 0.0))


def no_number(found: Solved) -> Any:
    """NaN in the support of lost rows, with a derivative that is NaN, too; 0 elsewhere."""
    xp = found.rows.xp
    return xp.where(found.lost & ~(found.x == -INF), found.x, 0.0) * xp.where(
        found.lost, math.nan, xp.zeros_like(found.m)
    )


def expm1_over(u: Any) -> Any:
    """(e^u - 1) / u."""
    xp = namespace(u)
    near = xp.abs(u) < 0.05
    x, series = xp.where(near, u, 0.0), xp.ones_like(u)
    for k in range(_SERIES, 1, -1):
        series = 1.0 + x / k * series
    y = xp.where(near, 1.0, u)
    return xp.where(near, series, xp.expm1(y) / y)


def distances(place: Place, low: Any) -> Any:
    """x = beta z - max beta z - lambda, so that v = 1 + a x wherever it is above 0."""
    d, e, a, steep, at, o, o_low, _ = place
    xp = namespace(d)
    base = xp.exp(a * xp.log(xp.where(steep, at + low, 1.0)))
    return xp.where(steep, (d - o) + (e - o_low) + (base - 1.0) / xp.where(steep, a, 1.0), (d - at) + (e - low))


def threshold_of(found: Solved, kind: Any) -> Any:
    """tau = a (max beta z + lambda) - 1 of each row; infinite in rows without a finite maximum, NaN in lost ones."""
    xp, a = found.rows.xp, found.place.a
    m, side = frozen(found.m), frozen(a * found.m)
    still = xp.abs(m) == INF
    jump = ~still & (found.hi == INF) & (side != 0.0)  # a maximum of +-inf
    tau = a * level(found) - 1.0
    most = xp.finfo(kind).max  # of an ordinary row it stays finite: infinity says what the row is
    tau = xp.where(still, m, xp.clip(tau, -most, most))
    tau = xp.where(jump, xp.where(side > 0.0, INF, xp.full_like(tau, -INF)), tau)
    return xp.where(found.lost, math.nan, tau)


def level(found: Solved) -> Any:
    """max beta z + lambda; lambda alone where the maximum is infinite."""
    xp = found.rows.xp
    none = found.lost | (xp.abs(frozen(found.m)) == INF) | (found.hi == INF)
    m, hi, lo = (xp.where(none, 0.0, x) for x in (found.m, found.hi, found.lo))
    top = found.place._replace(d=xp.zeros_like(found.m), e=xp.zeros_like(found.m))
    return (hi * m + lo * m) - distances(top, found.low)


def _log1p_over(w: Any) -> Any:
    """log(1 + w) / w."""
    xp = namespace(w)
    near = xp.abs(w) < _NEAR
    x = xp.where(near, w, 0.0)
    series = xp.zeros_like(w)
    for k in range(_SERIES, 0, -1):
        series = (1.0 / k if k % 2 else -1.0 / k) + x * series
    y = xp.where(near, 1.0, w)
    return xp.where(near, series, xp.log1p(y) / y)
