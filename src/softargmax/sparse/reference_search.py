"""The search for the root of each row (reference_root.py).

The root is lambda or q, which `reference_root.py` defines. tau follows from it.

Steps are taken until all rows have converged. A row that has converged does not change, so its result does not depend
on other rows. JAX has a loop that can be traced, `jax.lax.while_loop`. torch has none: under tracing or on a device,
its search takes exactly `TRACED_STEPS` steps. This is enough for all but contrived rows.
"""

from __future__ import annotations

from typing import Any

from softargmax.core.arrays import jax_of, namespace
from softargmax.core.check import inspectable
from softargmax.core.row_layout import INF

MAX_STEPS, TRACED_STEPS = 300, 24


def search_shift(d: Any, e: Any, a: Any) -> Any:
    """Return lambda >= 0 with sum [1 + a (d + e - lambda)]_+^(1/a) = 1, for a <= 1. Newton's method starts at 0.

    At orders below 1, lambda may be in the thousands. Therefore the size of a step is relative to 1 - a lambda, the
    base of the power for the largest score (d = e = 0).
    """
    xp = namespace(d)
    n = _sum(xp.astype(d > -INF, d.dtype))
    log_n = xp.log(xp.where(n == 0.0, 1.0, n))
    high = log_n * mean_decay(a * log_n) * (1.0 + 1e-6) + 1e-30  # (1 - n^-a) / a
    low = at = xp.zeros_like(a)

    def bases(at: Any) -> Any:
        return xp.where(d > -INF, 1.0 + a * ((xp.where(d > -INF, d, 0.0) - at) + e), 0.0)

    def step(at: Any, low: Any, high: Any) -> tuple[Any, Any, Any, Any]:
        v = bases(at)
        inside = v > 0.0
        x = xp.where(inside, (d - at) + e, 0.0)
        safe = xp.where(inside, v, 1.0)
        y = xp.where(a == 0.0, x, xp.log1p(a * x) / xp.where(a == 0.0, 1.0, a))
        p = xp.where(inside, xp.exp(y), 0.0)
        s, slope = _sum(p), _sum(p / safe)
        log_s = xp.log(xp.where(s > 0.0, s, 1.0))
        change = s * log_s * mean_decay(a * log_s) / xp.where(slope > 0.0, slope, 1.0)
        low, high = xp.where(s >= 1.0, at, low), xp.where(s >= 1.0, high, at)
        following = at + change
        outside = (xp.abs(change) > 1e-9) & ((following < low) | (following > high))
        following = xp.where(outside, low + (high - low) / 2, following)
        crossed = xp.any(inside ^ (bases(following) > 0.0), axis=-1, keepdims=True)
        size = xp.abs(change) / xp.clip(1.0 - a * at, min=1.0)
        return following, low, high, ((size <= 1e-9) & ~crossed) | (size <= 2.0**-50) | (following == at)

    return _until(step, at, low, high)[0]


def search_smallest_in_support(d: Any, e: Any, a: Any) -> tuple[Any, Any]:
    """Return o, the smallest score with p > 0, for a > 1. Scores and o are sums d + e of two floats.

    Let the threshold be at a score z. If the p of all higher scores then sum to less than 1, z has p > 0. A bisection
    finds t such that the sum of (t + a d)^(1/a) is about 1, which gives a score close to o. Then the search moves from
    score to score until it reaches o.
    """
    xp = namespace(d)
    a = xp.where(a > 1.0, a, 1.0)  # rows with a <= 1 do not use the result
    n = _sum(xp.astype(d > -INF, d.dtype))
    low = xp.exp(-a * xp.log(xp.where(n == 0.0, 1.0, n)))
    high = xp.ones_like(a)

    def halve(_: Any, low: Any, high: Any) -> tuple[Any, Any, Any, Any]:
        at = xp.sqrt(low) * xp.sqrt(high)
        over = _sum(_roots(at + a * d, d > -INF, a)) >= 1.0
        low, high = xp.where(over, low, at), xp.where(over, at, high)
        return at, low, high, high <= low * (1.0 + 1e-3)

    t = _until(halve, low, low, high)[0]

    def in_support(o: Any, rest: Any) -> Any:
        above = (d > o) | ((d == o) & (e > rest))
        x = xp.where(above, d, 0.0) - xp.where(o > -INF, o, 0.0) + (e - xp.where(o > -INF, rest, 0.0))
        return _sum(_roots(a * x, above, a)) < 1.0

    def smallest(mask: Any) -> tuple[Any, Any]:
        first = xp.min(xp.where(mask, d, INF), axis=-1, keepdims=True)
        return first, xp.min(xp.where(mask & (d == first), e, INF), axis=-1, keepdims=True)

    def largest(mask: Any) -> tuple[Any, Any]:
        first = xp.max(xp.where(mask, d, -INF), axis=-1, keepdims=True)
        return first, xp.max(xp.where(mask & (d == first), e, -INF), axis=-1, keepdims=True)

    def move(o: Any, rest: Any, high: Any) -> tuple[Any, Any, Any, Any]:
        up, up_rest = smallest((d > o) | ((d == o) & (e > rest)))
        down, down_rest = largest((d < o) | ((d == o) & (e < rest)))
        here, there = in_support(o, rest), (down > -INF) & in_support(down, down_rest)
        falls, climbs = here & there, ~here & (up < INF)
        moved = xp.where(falls, down, xp.where(climbs, up, o))
        return moved, xp.where(falls, down_rest, xp.where(climbs, up_rest, rest)), high, ~(falls | climbs)

    o, rest = smallest((d > -INF) & (d > -t / xp.where(a > 0.0, a, 1.0)))
    empty = o == INF
    o, rest, _ = _until(move, xp.where(empty, 0.0, o), xp.where(empty, 0.0, rest), high)
    return o, rest


def search_smallest_p(x: Any, e: Any, a: Any) -> Any:
    """Return q such that the sum of (q^a + a (x + e))^(1/a) over all x + e >= 0 is 1, for a > 1.

    x + e is a score minus the smallest score with p > 0. Newton's method starts above the root and descends to it.
    """
    xp = namespace(x)
    ties = _sum(xp.astype((x == 0.0) & (e == 0.0), x.dtype))
    ties = xp.where(ties == 0.0, 1.0, ties)  # a row with an empty support has no root
    above = (x > 0.0) | ((x == 0.0) & (e > 0.0))

    def step(q: Any, low: Any, high: Any) -> tuple[Any, Any, Any, Any]:
        log_q = xp.log(xp.where(q > 0.0, q, 1.0))
        v = xp.where(above, xp.where(q > 0.0, xp.exp(a * log_q), 0.0) + a * (x + e), 1.0)
        p = xp.where(above, xp.exp(xp.log(v) / xp.where(a > 0.0, a, 1.0)), 0.0)
        factor = xp.where(q > 0.0, xp.exp((a - 1.0) * log_q), 0.0)
        change = (ties * q + _sum(p) - 1.0) / (ties + _sum(p / v) * factor)
        following = xp.clip(q - change, 0.0, 1.0)
        return following, low, high, xp.abs(change) <= 1e-9 * following

    at = 1.0 / ties
    return _until(step, at, at, at)[0]


def _until(step: Any, at: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Take steps until every row has converged. A row that has converged does not change."""
    xp = namespace(at)

    def advance(taken: Any, converged: Any, *old: Any) -> tuple[Any, ...]:
        *moved, small = step(*old)
        return taken + 1, converged | small, *(xp.where(converged, x, y) for x, y in zip(old, moved, strict=True))

    def unfinished(taken: Any, converged: Any, at: Any, *_: Any) -> Any:
        return (taken < MAX_STEPS) & xp.any(~(converged | xp.isnan(at)))

    state: tuple[Any, ...] = 0, xp.zeros_like(at, dtype=xp.bool), at, low, high
    jax = jax_of(at)
    if jax is not None and isinstance(at, jax.core.Tracer):
        # This loop compiles one step, not 24 steps. Compiling entmax under jit takes 1.5 s instead of 12.6 s.
        state = jax.lax.while_loop(lambda x: unfinished(*x), lambda x: advance(*x), state)
    elif jax is not None or inspectable(at):
        while unfinished(*state):
            state = advance(*state)
    else:
        for _ in range(TRACED_STEPS):
            state = advance(*state)
    return state[2:]


def _roots(v: Any, inside: Any, a: Any) -> Any:
    """Return v^(1/a) where `inside` is True and v is above 0, else 0."""
    xp = namespace(v)
    inside = inside & (v > 0.0)
    return xp.where(inside, xp.exp(xp.log(xp.where(inside, v, 1.0)) / xp.where(a > 0.0, a, 1.0)), 0.0)


def mean_decay(u: Any) -> Any:
    """Return (1 - e^-u) / u."""
    xp = namespace(u)
    near = xp.abs(u) < 1e-5
    x = xp.where(near, 1.0, u)
    return xp.where(near, 1.0 - u / 2, -xp.expm1(-x) / x)


def _sum(x: Any) -> Any:
    return namespace(x).sum(x, axis=-1, keepdims=True)
