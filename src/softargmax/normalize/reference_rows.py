"""Rows of scores laid out for the reference, and what its formulas need of each row.

Two things keep it exact. The difference z - m carries its rounding error (d + e = z - m, so exp(d) (1 + e)), and so
does its product with beta. The sum is a pair, so that the maximum's own term, exactly 1, comes out of it without
rounding, and log l = log1p(r).

A limit needs no formula of its own, it shrinks the support: a row that holds +inf is the row of its infinities, all
equal, and at beta = inf a row is its maxima. Nothing outside the support enters arithmetic, so it has no derivative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.arrays import device_of
from softargmax.core.error_free import difference, two_sum
from softargmax.core.offsets import bounds_hold
from softargmax.core.prefix_scan import scan
from softargmax.core.row_layout import INF, Rows, below, magnitude

if TYPE_CHECKING:
    from softargmax.core.scale import Scale


class Segments(Rows):
    """Ragged rows along z's first axis, [offsets[s], offsets[s + 1]): each is a stretch of the last axis here.

    A score of 0 is appended as a segment of its own, so that there always is one. Offsets that are not non-decreasing
    from 0 to len(z) (they cannot be looked at everywhere) make every result NaN.
    """

    def __init__(self, z: Any, offsets: Any) -> None:
        bounds_hold(offsets, z)
        super().__init__(z, (0,))
        xp, n = self.xp, self.length
        integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
        offsets = xp.astype(offsets, integer)
        starts, ends = offsets[:-1], offsets[1:]
        place = xp.arange(n + 1, dtype=integer, device=device_of(z))
        self.count = starts.shape[0]
        self.ids = xp.clip(xp.searchsorted(offsets, place, side="right") - 1, 0, self.count)
        self.last = xp.concat([xp.clip(ends - 1, 0, n), place[n:]])
        self.void = xp.concat([ends <= starts, xp.zeros_like(place[n:], dtype=xp.bool)])
        self.sound = xp.all(starts <= ends) & (offsets[0] == 0) & (offsets[-1] == n)

    def lay(self, array: Any) -> Any:
        """With the last segment's score at the end."""
        rows = super().lay(array)
        zero = self.xp.zeros((*rows.shape[:-1], 1), dtype=rows.dtype, device=device_of(rows))
        return self.xp.concat([rows, zero], axis=-1)

    def lay_kept(self, array: Any) -> Any:
        """A number for all segments, or one for each and 1 for the last."""
        row = self.xp.permute_dims(array, self.order)
        return row if row.shape[-1] == 1 else self.xp.concat([row, self.xp.ones_like(row[..., :1])], axis=-1)

    def pad(self, x: Any) -> Any:
        """Nothing is empty."""
        return x

    def _reduce(self, merge: Any, parts: tuple[Any, ...], identity: tuple[float, ...]) -> tuple[Any, ...]:
        """Each segment's merge: the prefix at its last place."""
        parts = scan(merge, parts, identity, self.ids)
        at = (self.xp.take(part, self.last, axis=-1) for part in parts)
        return tuple(self.xp.where(self.void, unit, part) for unit, part in zip(identity, at, strict=True))

    def top(self, x: Any) -> Any:
        """The maximum of each segment."""
        return self._reduce(lambda a, b: (self.xp.maximum(a[0], b[0]),), (x,), (-INF,))[0]

    def total(self, w: Any) -> tuple[Any, Any]:
        """The sum of each segment as a pair."""
        high, low = self._reduce(_add_pairs, (w, self.xp.zeros_like(w)), (0.0, 0.0))
        return high, low

    def spread(self, row: Any) -> Any:
        """A number per segment, to each of its places; one for all of them stays."""
        return row if isinstance(row, float) or row.shape[-1:] in ((), (1,)) else self.xp.take(row, self.ids, axis=-1)

    def restore(self, rows: Any) -> Any:
        """Rows as an array of z's shape."""
        return super().restore(self.xp.where(self.sound, rows, math.nan))

    def per_row(self, row: Any, *, keepdims: bool = False) -> Any:  # noqa: ARG002 there is no axis to keep
        """Segments first, then z's other axes."""
        row = self.xp.where(self.sound, row[..., : self.count], math.nan)
        return self.xp.permute_dims(row, (row.ndim - 1, *range(row.ndim - 1)))


def _add_pairs(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    high, e = two_sum(a[0], b[0])
    return high, (a[1] + b[1]) + e


class Measure(NamedTuple):
    """Rows of scores x = |beta| z, seen from their maximum: x - x_max = s + t, w = exp(s + t), r = sum w - 1."""

    m: Any  # the maximum of sign z, in the unit of z
    c: Any  # the maximum of x - |beta| m + log weights: 0 without weights
    s: Any
    t: Any
    w: Any
    r: Any
    sign: Any
    hi: Any  # |beta| = hi + lo
    lo: Any
    mean: Any  # sum p x / |beta| where beta may be 0 (else None): there it carries the smooth maximum's derivative


def measure(rows: Rows, z: Any, scale: Scale, where: Any = None, weights: Any = None) -> Measure:
    """Everything that the family's formulas need of each row."""
    xp = rows.xp
    sign, hi, lo = magnitude(rows, z, scale)
    x = rows.spread(sign) * xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    if weights is not None:
        weights = xp.astype(rows.lay(weights), rows.dtype)
        weights = weights if where is None else xp.where(rows.lay(where), weights, 0.0)
        x = xp.where(weights == 0, -INF, x)
    x = rows.pad(xp.where(x == -INF, -INF, x))  # the same values; outside the support without a derivative
    m = rows.top(x)
    # Beyond -2000 exp is 0, and in log_softmax the second part is less than a rounding.
    s, t = below(x, rows.spread(m), scale, rows.spread(hi), rows.spread(lo), 2000.0)
    c = xp.zeros_like(m)
    if weights is not None:
        y, e = two_sum(s, xp.log(xp.where(weights == 0, 1.0, weights)) if rows.length else 0.0)
        c = rows.top(y)
        s, e_top = difference(y, rows.spread(c))
        t = t + xp.where(xp.abs(y) < INF, e, 0.0) + e_top
        c = xp.where(c == -INF, 0.0, c)
    w = xp.exp(s) * (1.0 + t)
    l, rest = rows.total(w)
    r = (l - 1.0) + rest
    mean = None
    if not isinstance(scale.hi, float) or scale.hi == 0.0:
        d, _ = difference(x, rows.spread(m))
        share = w / (1.0 + rows.spread(safe(r, xp)))
        mean = m + rows.total(xp.where(w == 0.0, 0.0, share * xp.where(w == 0.0, 0.0, d)))[0]
    return Measure(m, c, s, t, w, r, sign, hi, lo, mean)


def safe(r: Any, xp: Any) -> Any:
    """r, and 0 for an empty row, whose logarithm nothing uses."""
    return xp.where(r == -1.0, 0.0, r)
