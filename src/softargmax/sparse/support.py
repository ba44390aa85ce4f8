"""Quantities shared by the derivatives of the sparse maps.

Notation: x = beta z and a = alpha - 1. p are the probabilities. s = p^(1 - a) where p > 0, and 0 elsewhere. g and h are
incoming gradients, and t is a tangent. <s, g> is the sum of s g over a row, and g' = g - <s, g> / <s, 1>.

The p of a row of infinities (tau = inf) are constants. In arrays with one number per row, the reduced axes have size 1.
"""

from __future__ import annotations

import math
from typing import Any

from softargmax.core.arrays import device_of, kept_shape, namespace, working_dtype
from softargmax.core.operation import finite_or_zero, row_sum

_SERIES = (1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360)  # (k + 1) / (k + 2)!
_NEAR = 0.1
_MAX_LOG_S = 600.0  # larger values of log s are clipped


class Support:
    """p, log p and s = p^(2 - alpha) in working precision.

    The support is the set of entries with p > 0. If tau is +inf, for example in a row with scores of +inf, p is
    constant, and the support counts as empty. Outside the support, `p` is 1, and `log` and `s` are 0, so that all
    members are finite.

    `alpha` is a number for all rows, or an array with one order per row.
    """

    def __init__(self, p: Any, tau: Any, alpha: Any, axes: tuple[int, ...]) -> None:
        self.xp = xp = namespace(p)
        self.axes, self.dtype = axes, working_dtype(p, xp)
        self.inside = (p != 0) & (tau != math.inf)
        number = isinstance(alpha, float)
        self.a = xp.full((), alpha - 1.0, dtype=self.dtype, device=device_of(p)) if number else alpha - 1.0
        self.p = xp.where(self.inside, xp.astype(p, self.dtype), 1.0)
        self.log = xp.log(self.p)
        self.s = self.only(xp.exp(xp.clip((1.0 - self.a) * self.log, max=_MAX_LOG_S)))
        total = row_sum(self.s, axes)
        self.total = xp.where(total == 0, 1.0, total)

    def only(self, x: Any) -> Any:
        """Return x in the support, and exactly 0 outside the support, even where x is NaN."""
        return self.xp.where(self.inside, self.xp.astype(x, self.dtype), 0.0)

    def top(self, x: Any, candidates: Any) -> Any:
        """Return the maximum of x over the candidates of each row, or 0 if the maximum is infinite."""
        top = _maximum(self.xp.where(candidates, x, -math.inf), self.axes)
        return self.xp.where(self.xp.isinf(top), 0.0, top)

    def mean(self, g: Any) -> Any:
        """Return <s, g> / <s, 1>."""
        return row_sum(self.s * self.only(g), self.axes) / self.total

    def centred(self, g: Any) -> Any:
        """Return g' = g - <s, g> / <s, 1>.

        Above order 2, the entry with the largest s dominates the quotient, which is then close to the g of that entry.
        So that the difference does not cancel, the g of that entry is first subtracted from every g.
        """
        g = self.only(g)
        g = g - self.top(g, self.inside & (self.s == _maximum(self.s, self.axes)))
        return self.only(g - self.mean(g))

    def to_beta(self, g: Any, i: Any) -> Any:
        """Return <s g', z>, computed as <s g', z'>. Both are equal, but the second form does not cancel."""
        return finite_or_zero(i.beta.hi, row_sum(self.s * self.centred(g) * self.centred(i.z), self.axes))

    def by_alpha(self) -> Any:
        """Return w = l^2 (1 - v + u v) / u^2, with l = log p, u = a l and v = e^u. Then dp / dalpha = -s w'.

        -s w is the derivative of p = [1 + a y]_+^(1/a) with respect to a at constant y. At alpha = 1, -s w is
        -p l^2 / 2.
        """
        xp = self.xp
        u = self.log * self.a
        near = xp.abs(u) < _NEAR
        x = xp.where(near, u, 0.0)
        series = xp.zeros_like(u)
        for coefficient in reversed(_SERIES):
            series = coefficient + x * series
        far = xp.where(near, 1.0, u)
        share = xp.where(near, series, (far * xp.exp(far) - xp.expm1(far)) / (far * far))
        return self.only(self.log * self.log * share)

    def to_alpha(self) -> Any:
        """Return the derivative of p with respect to alpha."""
        return -self.s * self.centred(self.by_alpha())


def _maximum(x: Any, axes: tuple[int, ...]) -> Any:
    """Return the maximum of each row, or -inf for an empty row."""
    xp = namespace(x)
    if not axes or 0 not in x.shape:
        return xp.max(x, axis=axes, keepdims=True) if axes else x
    rows = kept_shape(x.shape, axes)
    return xp.full(rows, -math.inf, dtype=x.dtype, device=device_of(x))
