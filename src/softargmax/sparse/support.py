"""What the derivatives of the sparse maps are made of.

Letters: a = alpha - 1, p the probabilities, s = p^(1 - a) where p > 0 and 0 elsewhere, <a, b> the sum over a row,
g (and h) an incoming gradient, t a tangent, x = beta z, g' = g - <s, g> / <s, 1>. A row of infinities
(tau = inf) is constant.
A number per row keeps the reduced axes as 1.
"""

from __future__ import annotations

import math
from typing import Any

from softargmax.core.arrays import device_of, kept_shape, namespace, working_dtype
from softargmax.core.rules import finite_or_zero, row_sum

_SERIES = (1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360)  # (k + 1) / (k + 2)!
_NEAR = 0.1
_MOST = 600.0  # of log s: beyond, all are taken as alike


class Support:
    """A row's p in working precision, its logarithm and s; 1, 0 and 0 outside of the support, which has no derivative.

    `alpha` is a number for all rows, or an array with one per row.
    """

    def __init__(self, p: Any, tau: Any, alpha: Any, axes: tuple[int, ...]) -> None:
        self.xp = xp = namespace(p)
        self.axes, self.dtype = axes, working_dtype(p, xp)
        self.inside = (p != 0) & (tau != math.inf)
        number = isinstance(alpha, float)
        self.a = xp.full((), alpha - 1.0, dtype=self.dtype, device=device_of(p)) if number else alpha - 1.0
        self.p = xp.where(self.inside, xp.astype(p, self.dtype), 1.0)
        self.log = xp.log(self.p)
        self.s = self.only(xp.exp(xp.clip((1.0 - self.a) * self.log, max=_MOST)))
        total = row_sum(self.s, axes)
        self.total = xp.where(total == 0, 1.0, total)

    def only(self, x: Any) -> Any:
        """The array in the support, exactly 0 outside of it whatever stands there."""
        return self.xp.where(self.inside, self.xp.astype(x, self.dtype), 0.0)

    def top(self, x: Any, among: Any) -> Any:
        """The maximum over some entries of each row, 0 where it is not finite."""
        top = _maximum(self.xp.where(among, x, -math.inf), self.axes)
        return self.xp.where(self.xp.isinf(top), 0.0, top)

    def mean(self, g: Any) -> Any:
        """<s, g> / <s, 1>."""
        return row_sum(self.s * self.only(g), self.axes) / self.total

    def centred(self, g: Any) -> Any:
        """g'; counted from a g with the largest s, beside which the others' would be lost above order 2."""
        g = self.only(g)
        g = g - self.top(g, self.inside & (self.s == _maximum(self.s, self.axes)))
        return self.only(g - self.mean(g))

    def to_beta(self, g: Any, i: Any) -> Any:
        """<s g', z>, where it does not cancel: <s g', z'>."""
        return finite_or_zero(i.beta.hi, row_sum(self.s * self.centred(g) * self.centred(i.z), self.axes))

    def by_alpha(self) -> Any:
        """w, with which dp / dalpha = -s w': l^2 (1 - v + u v) / u^2, l = log p, u = a l, v = e^u.

        -s w is the derivative of e_a(x) to a at constant x; at alpha = 1 it is -p l^2 / 2.
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
        """The derivative of p to alpha."""
        return -self.s * self.centred(self.by_alpha())


def _maximum(x: Any, axes: tuple[int, ...]) -> Any:
    """The maximum of each row, -inf where nothing is in it."""
    xp = namespace(x)
    if not axes or 0 not in x.shape:
        return xp.max(x, axis=axes, keepdims=True) if axes else x
    rows = kept_shape(x.shape, axes)
    return xp.full(rows, -math.inf, dtype=x.dtype, device=device_of(x))
