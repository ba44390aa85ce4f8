"""Error-free transformations: sums and products as unevaluated pairs, in any array-API namespace.

The algorithms are by Dekker (1971) and Knuth. They are exact unless a number overflows, or the error of a product
underflows.
"""

from __future__ import annotations

import math
from typing import Any

from softargmax.core.arrays import jax_of, namespace


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return s and e with s + e = a + b exactly and s = fl(a + b), the rounded sum."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def _split(a: Any, xp: Any) -> tuple[Any, Any]:
    """Split a into upper + lower, each with half of the bits of a's significand."""
    c = (134217729.0 if a.dtype == xp.float64 else 4097.0) * a  # 2^27 + 1, 2^12 + 1
    upper = c - (c - a)
    return upper, a - upper


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return p and e with p + e = a b exactly and p = fl(a b). Both arrays have the same dtype, float32 or float64."""
    xp = namespace(a)
    p = a * b
    a1, a2 = _split(a, xp)
    b1, b2 = _split(b, xp)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def difference(x: Any, m: Any) -> tuple[Any, Any]:
    """Return d and e with d + e = x - m, for x <= m.

    Infinities follow the rules of softmax: inf - inf is 0, and d is -inf if x is -inf. If m is inf, d is -inf for every
    smaller x.
    """
    xp = namespace(x)
    inf = float("inf")
    outside = (x == -inf) | ((m == inf) & (x < inf))
    skip = outside | (x == inf)
    d, e = two_sum(xp.where(skip, 0.0, x), -xp.where(skip, 0.0, m))
    e = xp.where(d == -inf, 0.0, e)  # the difference of two huge numbers overflowed, and exp(d) is 0
    return xp.where(outside, -inf, d), e


def row_sum(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`. The bits of a row's sum do not depend on other rows or on strides.

    The sum of an empty row is 0.
    """
    xp = namespace(x)
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    shape = tuple(x.shape[i] for i in kept)
    length = math.prod(x.shape[i] for i in axes)
    rows = xp.reshape(xp.permute_dims(x, kept + axes), (*shape, length))
    if length == 0:
        return xp.sum(rows, axis=-1)  # this sum has a derivative, and new zeros would have none
    high, low = total(rows)
    # If `high` is infinite, `low` is NaN.
    return xp.where(xp.isfinite(high), high + xp.where(xp.isfinite(high), low, 0.0), high)[..., 0]


def total(x: Any, bound: float | None = None) -> tuple[Any, Any]:
    """The sum along the last axis as a pair: s, the rounded sum, and e, the sum of the rounding errors.

    The axis has at least one entry and is kept with length 1. The additions form a fixed tree, so the sum does not
    depend on strides or on other rows. A caller can subtract 1 from the sum without cancellation, as (s - 1) + e.

    `bound` is a bound of the absolute values, if one is known. An implementation may use it.
    """
    if jax_of(x) is not None:
        from softargmax.core import jax_sums

        return jax_sums.total(x, bound)
    xp = namespace(x)
    n = x.shape[-1]
    half = 1 << max(n - 1, 1).bit_length() - 1  # the largest power of two below n
    e = xp.zeros_like(x)
    if half < n:  # add the last n - half entries to the first n - half entries
        s, e = two_sum(x[..., : n - half], x[..., half:])
        x = xp.concat([s, x[..., n - half : half]], axis=-1)
        e = xp.concat([e, xp.zeros_like(x[..., n - half :])], axis=-1)
    while half > 1:
        half //= 2
        x, rounded = two_sum(x[..., :half], x[..., half:])
        e = (e[..., :half] + e[..., half:]) + rounded
    return x, e
