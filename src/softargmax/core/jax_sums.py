"""Accurate sums in JAX's programs, of few instructions: the compensated tree of error_free.py is slow to compile.

Rump, Ogita and Oishi (2008), Accurate floating-point summation part I, section 3: let sigma be a power of two that is
larger than all numbers by a factor of their count. The parts q = (sigma + x) - sigma then have a sum without a rounding
error, in every order, and x - q is exact.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LONGEST = 1 << 16
"""The most numbers that are summed at once. A longer row is cut into parts of this size."""
_SPARE = 4
"""How many more binary digits are summed without an error than the dtype has."""


@jax.custom_jvp
def total(x: Any) -> tuple[Any, Any]:
    """The sum along the last axis as a pair, as `error_free.total` returns it."""
    n, rows = x.shape[-1], x.shape[:-1]
    parts = -(-n // _LONGEST)
    if parts == 1:
        return _of_part(x)
    x = jnp.pad(x, [(0, 0)] * len(rows) + [(0, parts * _LONGEST - n)])
    high, low = _of_part(x.reshape(*rows, parts, _LONGEST))
    whole, rounded = total(high[..., 0])
    return whole, rounded + jnp.sum(low, axis=-2)


@total.defjvp
def _total_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    slope = jnp.sum(tangents[0], axis=-1, keepdims=True)
    return total(*primals), (slope, jnp.zeros_like(slope))


def _of_part(x: Any) -> tuple[Any, Any]:
    """The sum of at most 2^16 numbers. It is a plain sum if sigma overflows, or if a number is not finite."""
    kind = np.finfo(x.dtype)
    unit, digits, places = float(kind.eps) / 2, kind.nmant + 1, (x.shape[-1] + 1).bit_length()
    plain = jnp.sum(x, axis=-1, keepdims=True)
    sigma = _power_of_two(jnp.max(jnp.abs(x), axis=-1, keepdims=True), unit) * 2.0**places
    sums = []
    for _ in range(-(-(digits + _SPARE) // (digits - places))):
        q = (sigma + x) - sigma
        sums.append(jnp.sum(q, axis=-1, keepdims=True))
        x, sigma = x - q, sigma * (unit * 2.0**places)
    low = jnp.sum(x, axis=-1, keepdims=True)
    for one in sums[:0:-1]:
        low += one
    high = sums[0] + low
    exact = jnp.isfinite(high)
    return jnp.where(exact, high, plain), jnp.where(exact, low - (high - sums[0]), 0.0)


def _power_of_two(x: Any, unit: float) -> Any:
    """The smallest power of two that is not below x > 0. 0 stays 0."""
    q = x / unit
    found = jnp.abs((q + x) - q)
    return jnp.where(found == 0.0, x, found)
