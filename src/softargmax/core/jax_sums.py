"""Accurate sums in JAX's programs, of few instructions: the compensated tree of error_free.py is slow to compile.

Rump, Ogita and Oishi (2008), Accurate floating-point summation part I, section 3: let sigma be a power of two that is
larger than all numbers by a factor of their count. The parts q = (sigma + x) - sigma then have a sum without a rounding
error, in every order, and x - q is exact.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LONGEST = 1 << 16
"""The most numbers that are summed at once. A longer row is cut into parts of this size."""
_SPARE = 4
"""How many more binary digits are summed without an error than the dtype has."""


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def total(x: Any, bound: float | None = None) -> tuple[Any, Any]:
    """The sum along the last axis as a pair, as `error_free.total` returns it. No number is above `bound` in size."""
    n, rows = x.shape[-1], x.shape[:-1]
    parts = -(-n // _LONGEST)
    if parts == 1:
        return _of_part(x, bound)
    x = jnp.pad(x, [(0, 0)] * len(rows) + [(0, parts * _LONGEST - n)])
    high, low = _of_part(x.reshape(*rows, parts, _LONGEST), bound)
    whole, rounded = total(high[..., 0])
    return whole, rounded + jnp.sum(low, axis=-2)


@total.defjvp
def _total_jvp(bound: float | None, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    slope = jnp.sum(tangents[0], axis=-1, keepdims=True)
    return total(*primals, bound), (slope, jnp.zeros_like(slope))


def _of_part(x: Any, bound: float | None) -> tuple[Any, Any]:
    """The sum of at most 2^16 numbers. It is a plain sum if sigma overflows, or if a number is not finite."""
    kind = np.finfo(x.dtype)
    unit, digits, places = float(kind.eps) / 2, kind.nmant + 1, (x.shape[-1] + 1).bit_length()
    if bound is None:
        sigma = _power_of_two(jnp.max(jnp.abs(x), axis=-1, keepdims=True), unit) * 2.0**places
    else:  # depends on x, because XLA would simplify (sigma + x) - sigma to x if sigma were a constant
        sigma = jnp.where(x[..., :1] < math.inf, bound * 2.0**places, math.nan)
    exact = jnp.isfinite(sigma)
    sigma = jnp.where(exact, sigma, 0.0)
    parts = []
    for _ in range(-(-(digits + _SPARE) // (digits - places))):
        parts.append((sigma + x) - sigma)
        x, sigma = x - parts[-1], sigma * (unit * 2.0**places)
    first, *sums, low = _sums(*parts, x)
    for one in sums[::-1]:
        low += one
    high = first + jnp.where(exact, low, 0.0)
    return high, jnp.where(exact, low - (high - first), 0.0)


def _sums(*arrays: Any) -> list[Any]:
    """The sums of several arrays along the last axis, in one loop, which XLA compiles sooner than several."""
    zeros = (np.zeros((), arrays[0].dtype),) * len(arrays)
    found = jax.lax.reduce(arrays, zeros, lambda a, b: tuple(map(jax.lax.add, a, b)), (arrays[0].ndim - 1,))
    return [x[..., None] for x in found]


def _power_of_two(x: Any, unit: float) -> Any:
    """The smallest power of two that is not below x > 0. 0 stays 0."""
    q = x / unit
    found = jnp.abs((q + x) - q)
    return jnp.where(found == 0.0, x, found)
