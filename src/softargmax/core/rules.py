"""Array-API functions for derivative rules. They use only the entries of the support.

Letters in the rules: x = beta z; <a, b> is the sum over a row; g (and h) is an incoming gradient; t is a tangent.
Arrays with one number per row keep the reduced axes, with size 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import namespace, row_dtype

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


def only(support: Any, x: Any) -> Any:
    """x in the support and exactly 0 outside, even for NaN and inf; half precision becomes float32."""
    xp = namespace(support)
    return xp.where(support, xp.astype(x, row_dtype(x.dtype), copy=False), 0.0)


def row_sum(x: Any, axes: tuple[int, ...]) -> Any:
    """<1, x>, the sum over a row."""
    return namespace(x).sum(x, axis=axes, keepdims=True) if axes else x


def slope(beta: Scale) -> Any:
    """beta as a factor in derivatives: 0 in the limit |beta| = inf, where softmax is constant between jumps."""
    if isinstance(beta.hi, float):
        return 0.0 if math.isinf(beta.hi) else beta.hi
    xp = namespace(beta.hi)
    return xp.where(xp.isinf(beta.hi), 0.0, beta.hi)


def is_number(beta: Scale) -> bool:
    """True if all rows share one beta, which has no derivative."""
    return isinstance(beta.hi, float)


def finite_or_zero(beta: Any, value: Any) -> Any:
    """A derivative with respect to beta, with 0 where `beta` is infinite."""
    xp = namespace(value)
    return xp.where(xp.isinf(beta), 0.0, value)
