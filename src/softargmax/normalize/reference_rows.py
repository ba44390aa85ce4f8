"""Helpers of the definitions: ragged segments as rows, and the maximum and the sum of exponentials of each row.

The definitions avoid rounding errors in two ways. First, z - m is stored as d + e, where d is the rounded difference
and e its rounding error. exp(z - m) is computed as exp(d) (1 + e). The product beta (z - m) is stored in the same way.
Second, the sum l is stored as the sum of two numbers. The term of the maximum is exactly 1. It is subtracted from
l without rounding, which gives r, and log l is computed as log1p(r).

Limits need no separate formulas, because they only make the support smaller. In a row with scores of +inf, only these
scores remain in the support, with equal probabilities. At beta = inf only the maxima of a row remain. Entries outside
the support are not used in the arithmetic, so their derivative is 0.
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
    """Ragged rows. Row s is z[offsets[s] : offsets[s + 1]]; this class moves the first axis of z to the end.

    A score of 0 is appended as an extra segment, so that there is always at least one segment. Under tracing and on
    devices the offsets cannot be checked. If they decrease or do not run from 0 to len(z), every result is NaN.
    """

    def __init__(self, z: Any, offsets: Any) -> None:
        bounds_hold(offsets, z)
        super().__init__(z, (0,))
        xp, n = self.xp, self.length
        integer = xp.__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]
        offsets = xp.astype(offsets, integer)
        starts, ends = offsets[:-1], offsets[1:]
        position = xp.arange(n + 1, dtype=integer, device=device_of(z))
        self.count = starts.shape[0]
        self.ids = xp.clip(xp.searchsorted(offsets, position, side="right") - 1, 0, self.count)
        self.last = xp.concat([xp.clip(ends - 1, 0, n), position[n:]])
        self.void = xp.concat([ends <= starts, xp.zeros_like(position[n:], dtype=xp.bool)])
        self.valid = xp.all(starts <= ends) & (offsets[0] == 0) & (offsets[-1] == n)

    def lay(self, array: Any) -> Any:
        """Lay out the scores, with the extra segment's score at the end."""
        rows = super().lay(array)
        zero = self.xp.zeros((*rows.shape[:-1], 1), dtype=rows.dtype, device=device_of(rows))
        return self.xp.concat([rows, zero], axis=-1)

    def lay_kept(self, array: Any) -> Any:
        """Lay out one number for all segments, or one number per segment. The extra segment gets the number 1."""
        row = self.xp.permute_dims(array, self.order)
        return row if row.shape[-1] == 1 else self.xp.concat([row, self.xp.ones_like(row[..., :1])], axis=-1)

    def pad(self, x: Any) -> Any:
        """Return x unchanged, because the extra segment makes padding unnecessary."""
        return x

    def _reduce(self, merge: Any, parts: tuple[Any, ...], identity: tuple[float, ...]) -> tuple[Any, ...]:
        """Reduce each segment with `merge`. The result of an empty segment is the identity.

        The result of any other segment is the value of the prefix scan at the segment's last position.
        """
        parts = scan(merge, parts, identity, self.ids)
        at = (self.xp.take(part, self.last, axis=-1) for part in parts)
        return tuple(self.xp.where(self.void, unit, part) for unit, part in zip(identity, at, strict=True))

    def top(self, x: Any) -> Any:
        """Return the maximum of each segment."""
        return self._reduce(lambda a, b: (self.xp.maximum(a[0], b[0]),), (x,), (-INF,))[0]

    def total(self, w: Any, bound: float | None = None) -> tuple[Any, Any]:  # noqa: ARG002 pairs are added without it
        """Return the sum of each segment as a pair of numbers, the sum and its rounding error."""
        high, low = self._reduce(_add_pairs, (w, self.xp.zeros_like(w)), (0.0, 0.0))
        return high, low

    def spread(self, row: Any) -> Any:
        """Broadcast one number per segment to its positions. A single number for all segments is returned unchanged."""
        return row if isinstance(row, float) or row.shape[-1:] in ((), (1,)) else self.xp.take(row, self.ids, axis=-1)

    def restore(self, rows: Any) -> Any:
        """Return rows as an array of z's shape."""
        return super().restore(self.xp.where(self.valid, rows, math.nan))

    def per_row(self, row: Any, *, keepdims: bool = False) -> Any:  # noqa: ARG002 there is no axis to keep
        """Return one number per segment, with the segments first and then z's other axes."""
        row = self.xp.where(self.valid, row[..., : self.count], math.nan)
        return self.xp.permute_dims(row, (row.ndim - 1, *range(row.ndim - 1)))


def _add_pairs(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    high, e = two_sum(a[0], b[0])
    return high, (a[1] + b[1]) + e


class Measure(NamedTuple):
    """Scores x = beta z relative to the maximum of their row: x - x_max = s + t, w = exp(s + t), r = sum w - 1.

    If there are weights, x is beta z + log weights.
    """

    m: Any  # the maximum of z, or of -z if beta is negative
    c: Any  # the maximum of (beta z - |beta| m + log weights), or 0 without weights
    s: Any
    t: Any
    w: Any
    r: Any
    sign: Any
    hi: Any  # |beta| = hi + lo
    lo: Any
    mean: Any  # the mean of sign * z under the softmax (logsumexp at beta = 0 needs it); None if beta cannot be 0


def measure(rows: Rows, z: Any, scale: Scale, where: Any = None, weights: Any = None) -> Measure:
    """Compute the numbers of each row that the definitions need."""
    xp = rows.xp
    sign, hi, lo = magnitude(rows, z, scale)
    x = rows.spread(sign) * xp.astype(rows.lay(z), rows.dtype)
    if where is not None:
        x = xp.where(rows.lay(where), x, -INF)
    if weights is not None:
        weights = xp.astype(rows.lay(weights), rows.dtype)
        weights = weights if where is None else xp.where(rows.lay(where), weights, 0.0)
        x = xp.where(weights == 0, -INF, x)
    x = rows.pad(xp.where(x == -INF, -INF, x))  # same values, but no derivative outside the support
    m = rows.top(x)
    # Where s < -2000, `below` may return t = 0. This changes no result: exp(s) is 0 there, and t is less than the
    # rounding error of log_softmax.
    s, t = below(x, rows.spread(m), scale, rows.spread(hi), rows.spread(lo), 2000.0)
    c = xp.zeros_like(m)
    if weights is not None:
        y, e = two_sum(s, xp.log(xp.where(weights == 0, 1.0, weights)) if rows.length else 0.0)
        c = rows.top(y)
        s, e_top = difference(y, rows.spread(c))
        t = t + xp.where(xp.abs(y) < INF, e, 0.0) + e_top
        c = xp.where(c == -INF, 0.0, c)
    w = xp.exp(s) * (1.0 + t)
    l, rest = rows.total(w, 1.0 if weights is None else None)  # without weights, w = exp(s + t) <= 1
    r = (l - 1.0) + rest
    mean = None
    if not isinstance(scale.hi, float) or scale.hi == 0.0:
        d, _ = difference(x, rows.spread(m))
        share = w / (1.0 + rows.spread(safe(r, xp)))
        mean = m + rows.total(xp.where(w == 0.0, 0.0, share * xp.where(w == 0.0, 0.0, d)))[0]
    return Measure(m, c, s, t, w, r, sign, hi, lo, mean)


def safe(r: Any, xp: Any) -> Any:
    """Return r, replaced by 0 in empty rows (r = -1), where log1p(r) would be -inf."""
    return xp.where(r == -1.0, 0.0, r)
