"""The scale beta = ln(base) / temperature, kept as the unevaluated sum hi + lo.

If 1/T were rounded to one float64, the error of exp(z / T) would be 248 ulp at z = -2000 and T = 3.7. Using the
pair takes no measurable time.

For base > 1, hi is 0 at T = inf, +-inf at T = +-0, and negative for T < 0. For base = 1, hi is 0.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from softargmax.core.error_free import two_product

_EXACT = decimal.Context(prec=60, Emin=-9999, Emax=9999, traps=[])


class Scale(NamedTuple):
    """beta = hi + lo, as two numbers or as two arrays that broadcast with the scores (the reduced axes kept as 1)."""

    hi: Any
    lo: Any


UNIT = Scale(1.0, 0.0)


@lru_cache(512)
def _quotient(temperature: float, base: float | None, k: float) -> Scale:
    """beta for finite, nonzero arguments."""
    logarithm = Decimal(1) if base is None else _EXACT.ln(Decimal(base))
    beta = _EXACT.divide(logarithm, _EXACT.multiply(Decimal(temperature), Decimal(k)))
    hi = float(beta)
    if math.isinf(hi):
        return Scale(hi, 0.0)
    return Scale(hi or 0.0, float(_EXACT.subtract(beta, Decimal(hi))) or 0.0)


def scale_of_number(temperature: float, base: float | None = None, k: float = 1.0) -> Scale:
    """beta = ln(base) / (k temperature). ln(base) is 1 if `base` is None.

    `base` and k must be positive and finite. The temperature must not be NaN.
    """
    if base == 1.0 or math.isinf(temperature):
        return Scale(0.0, 0.0)  # 0 stands for the limit 0+, for both signs of the temperature
    if temperature == 0.0:
        base_below_one = base is not None and base < 1.0
        return Scale(math.copysign(math.inf, temperature) * (-1.0 if base_below_one else 1.0), 0.0)
    scale = _quotient(temperature, base, k)
    return UNIT if scale == UNIT else scale


def negated(scale: Scale) -> Scale:
    """-beta; 0 stays +0."""
    opposite = Scale(0.0 - scale.hi, 0.0 - scale.lo)
    return UNIT if isinstance(opposite.hi, float) and opposite == UNIT else opposite


def rounded(scale: Scale, digits: int) -> Scale:
    """Round hi to float32 (`digits` 24) and add the rounding error to lo. With `digits` 53 the pair is unchanged."""
    if digits == 53:
        return scale
    with np.errstate(over="ignore"):
        hi = float(np.float32(scale.hi))
    return Scale(hi, 0.0 if math.isinf(hi) else scale.hi - hi + scale.lo)


def scale_of_array(temperature: Any, base: float | None, xp: Any, k: float = 1.0) -> Scale:
    """The scale of an array of temperatures, in the array's own precision. Gradients flow through hi."""
    if k != 1.0:
        # 1 / k may be out of range. So the temperature is multiplied by k's power of two, which is exact. The
        # multiplication takes two steps, because 2.0**power may overflow.
        k, power = math.frexp(k)
        temperature = temperature * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)
    c, rest = rounded(scale_of_number(k, base), 53 if temperature.dtype == xp.float64 else 24)
    zero = xp.zeros_like(temperature)
    if c == 0.0:
        return Scale(zero, zero)
    with np.errstate(all="ignore"):
        limit = c / temperature
        infinite = xp.abs(limit) == math.inf  # here beta's gradient is 0, and c / T would give 0 * inf = NaN
        limit = xp.where(limit < 0.0, zero - math.inf, math.inf)
        hi = xp.where(infinite, limit, c / xp.where(infinite, 1.0, temperature))
        hi = xp.where(hi == 0, 0.0, hi)  # beta = 0 is always +0
        plain = (hi != 0) & (xp.abs(hi) < math.inf) & (xp.abs(temperature) < math.inf)
        divisor = xp.where(plain, temperature, 1.0)
        product, error = two_product(xp.where(plain, hi, 1.0), divisor)
        lo = ((c - product) - error + rest) / divisor
        return Scale(hi, xp.where(plain & (xp.abs(lo) < math.inf), lo, 0.0))
