"""The root that the sparse maps stand on, for the reference: lambda with sum e_a(d - lambda) = 1.

Newton's method on (sum p)^a = 1 climbs from 0 to the root where alpha <= 2; above, a bracket keeps it. The search sees
constants. Two more steps from its end are differentiable: one would carry the first derivatives of the root, two carry
the third as well.

No control flow depends on values that may not be looked at, so it can be traced; it takes `TRACED` steps then, enough
for all but contrived rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.check import seen
from softargmax.core.dispatch import frozen, namespace
from softargmax.core.exact import difference, total, two_product, two_sum
from softargmax.core.rows import INF, Rows

MOST, TRACED = 300, 24
_NEAR, _SERIES = 1 / 64, 9


class Place(NamedTuple):
    """Where the root is sought: `at` is lambda, or 1 - a lambda where alpha > 2 (`steep`), which lambda rounds away."""

    d: Any
    e: Any  # d + e = z - max z
    a: Any
    steep: Any
    at: Any


def solved(z: Any, axes: tuple[int, ...], alpha: Any, where: Any) -> tuple[Rows, Any, Place, Any]:
    """The rows, their maxima, the root as far as constants know it, and the rest of it, which is differentiable."""
    rows = Rows(z, axes)
    xp = rows.xp
    x = xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    x = rows.pad(x)
    m = rows.top(x)
    if isinstance(alpha, float):
        a = xp.full_like(m, alpha - 1.0)
    else:
        a = rows.lay_kept(xp.astype(alpha, rows.dtype)) - 1.0 + xp.zeros_like(m)
    d, e = difference(x, m)
    still = Place(*map(frozen, (d, e, a, a > 1.0, xp.zeros_like(m))))
    place = Place(d, e, a, still.steep, _search(still))
    low = xp.zeros_like(m)
    for _ in range(2):
        p, slope = powers(place, low)
        low = low + _by_newton(*total(p), xp.sum(slope, axis=-1, keepdims=True)) * _unit(place)
    return rows, m, place, low


def _unit(place: Place) -> Any:
    """What `at` moves by for a step of lambda."""
    return namespace(place.a).where(place.steep, 0.0 - place.a, 1.0)


def _by_newton(high: Any, rest: Any, slope: Any) -> Any:
    """(sum p - 1) / sum slope; 0 in a row with nothing in its support."""
    xp = namespace(high)
    void = slope == 0.0
    return xp.where(void, 0.0, ((high - 1.0) + rest) / xp.where(void, 1.0, slope))


def _search(place: Place) -> Any:
    """The root, to the last digits of `at` or nearly so, by Newton's method between two bounds."""
    d, a, steep = place.d, place.a, place.steep
    xp = namespace(d)
    n = xp.sum(xp.astype(d > -INF, d.dtype), axis=-1, keepdims=True)
    log_n = xp.log(xp.where(n == 0.0, 1.0, n))
    top = log_n * expm1_over(-a * log_n)  # (1 - n^-a) / a
    low = xp.where(steep, xp.exp(-a * log_n), 0.0)
    high = xp.where(steep, 1.0, top * (1.0 + 1e-6) + 1e-30)
    at = xp.where(steep, high, low)
    look = seen(d)
    for i in range(MOST if look else TRACED):
        p, slope = powers(place._replace(at=at), xp.zeros_like(at))
        s = xp.sum(p, axis=-1, keepdims=True)
        log_s = xp.log(xp.where(s > 0.0, s, 1.0))
        change = (
            s * log_s * expm1_over(-a * log_s) / xp.sum(xp.where(slope > 0.0, slope, 1e-300), axis=-1, keepdims=True)
        )
        change = change * _unit(place)
        rises = (s >= 1.0) != steep  # the root is above `at`
        low, high = xp.where(rises, at, low), xp.where(rises, high, at)
        small = xp.abs(change) <= 1e-9 * xp.where(steep, at, 1.0)
        between = xp.where(steep, xp.sqrt(low) * xp.sqrt(high), low + (high - low) / 2)
        wild = ~small & ((at + change < low) | (at + change > high) | (steep & (i % 4 == 3)))
        following = xp.where(wild, between, at + change)
        done = look and bool(xp.all((following == at) | small | (n <= 1.0) | xp.isnan(s)))
        at = following
        if done:
            break
    return at


def expm1_over(u: Any) -> Any:
    """(e^u - 1) / u."""
    xp = namespace(u)
    near = xp.abs(u) < 0.05
    x, series = xp.where(near, u, 0.0), xp.zeros_like(u)
    for k in range(_SERIES, 0, -1):
        series = 1.0 + x / (k + 1) * (series if k < _SERIES else 1.0)
    y = xp.where(near, 1.0, u)
    return xp.where(near, series, xp.expm1(y) / y)


def distances(place: Place, low: Any) -> Any:
    """x = z - max z - lambda."""
    moved = (place.d - place.at) + (place.e - low)
    steep = place.d + (place.at - 1.0 + low) / namespace(low).where(place.a == 0.0, 1.0, place.a)
    return namespace(low).where(place.steep, steep, moved)


def powers(place: Place, low: Any) -> tuple[Any, Any]:
    """e_a(d + e - lambda) and its slope p / v, v = 1 + a (d + e - lambda), at `at` + `low`; both 0 where v <= 0.

    w = v - 1 is formed as a product, so that log(v) / a = log1p(w) / a has its digits however small a is.
    """
    d, e, a, steep, at = place
    xp = namespace(d)
    there = d > -INF
    x, r = two_sum(xp.where(there, d, 0.0), -xp.where(steep, 0.0, at))
    r = r + xp.where(there, e, 0.0) - xp.where(steep, 0.0, low)
    w, q = two_product(a + xp.zeros_like(x), x)
    q = q + a * r + xp.where(steep, low, 0.0)
    v, lost = two_sum(xp.where(steep, at, 1.0) + xp.zeros_like(w), w)
    lost = lost + q
    inside = there & (v + lost > 0.0)
    near = inside & ~steep & (w > -0.5)
    far = inside & ~near
    safe_v = xp.where(inside, v + lost, 1.0)
    sum_x, sum_w = xp.where(near, x + r, 0.0), xp.where(near, w + q, 0.0)
    left_x = xp.where(near, (x - (x + r)) + r, 0.0)
    y_near = sum_x * _log1p_over(sum_w) + left_x / (1.0 + sum_w)
    whole = xp.where(far, v + lost, 1.0)
    left = xp.where(far, lost - (whole - v), 0.0)
    y_far = (xp.log(whole) + left / whole) / xp.where(a == 0.0, 1.0, a)
    p = xp.where(inside, xp.exp(xp.where(near, y_near, y_far)), 0.0)
    return p, p / safe_v


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
