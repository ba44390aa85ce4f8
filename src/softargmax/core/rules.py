"""What derivative rules are written with: array-API functions that see the support alone, along kept rows.

Letters of every rule: x = beta z, <a, b> the sum over a row, g (and h) an incoming gradient, t a tangent. A number per
row keeps the reduced axes as 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import namespace

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


def row_dtype(dtype: Any, xp: Any) -> Any:
    """The dtype of a number per row beside a result of this dtype: float32 at least."""
    return xp.float64 if dtype == xp.float64 else xp.float32


def only(support: Any, x: Any) -> Any:
    """x in the support, exactly 0 outside of it whatever stands there; halves as float32."""
    xp = namespace(support)
    return xp.where(support, xp.astype(x, row_dtype(x.dtype, xp), copy=False), 0.0)


def row_sum(x: Any, axes: tuple[int, ...]) -> Any:
    """<1, x>."""
    return namespace(x).sum(x, axis=axes, keepdims=True) if axes else x


def slope(beta: Scale) -> Any:
    """beta as a factor of derivatives: 0 in the limit |beta| = inf, where softmax is flat between jumps."""
    if isinstance(beta.hi, float):
        return 0.0 if math.isinf(beta.hi) else beta.hi
    xp = namespace(beta.hi)
    return xp.where(xp.isinf(beta.hi), 0.0, beta.hi)


def is_number(beta: Scale) -> bool:
    """Whether all rows have one beta, along which nothing is differentiated."""
    return isinstance(beta.hi, float)


def finite_or_zero(beta: Any, value: Any) -> Any:
    """A derivative to beta: 0 in the limit where `beta` is infinite."""
    xp = namespace(value)
    return xp.where(xp.isinf(beta), 0.0, value)
