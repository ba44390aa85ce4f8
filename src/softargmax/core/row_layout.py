"""Row layout of the definitions: the axes of a row are joined into one last axis."""

from __future__ import annotations

import math
from typing import Any

from softargmax.core.arrays import device_of, kept_shape, namespace, working_dtype
from softargmax.core.error_free import difference, total, two_product
from softargmax.core.scale import UNIT, Scale, rounded

INF = math.inf


class Rows:
    """The layout of z as rows along the last axis. `pad` turns rows of length 0 into rows of one -inf."""

    def __init__(self, z: Any, axes: tuple[int, ...]) -> None:
        self.xp = namespace(z)
        self.dtype = working_dtype(z, self.xp)
        self.shape, self.axes = tuple(z.shape), axes
        self.order = tuple(i for i in range(z.ndim) if i not in axes) + axes
        self.outer = tuple(z.shape[i] for i in self.order[: z.ndim - len(axes)])
        self.length = math.prod(z.shape[i] for i in axes)

    def lay(self, array: Any) -> Any:
        """Convert an array to rows. It must broadcast to z's shape."""
        array = self.xp.broadcast_to(array, self.shape)
        return self.xp.reshape(self.xp.permute_dims(array, self.order), (*self.outer, self.length))

    def lay_kept(self, array: Any) -> Any:
        """Convert an array with one number per row (the reduced axes kept as 1) to rows of length 1."""
        array = self.xp.permute_dims(array, self.order)
        return self.xp.reshape(array, (*array.shape[: len(self.outer)], 1))

    def restore(self, rows: Any) -> Any:
        """Convert rows to an array of z's shape. This is the inverse of `lay`."""
        rows = self.xp.reshape(rows[..., : self.length], tuple(self.shape[i] for i in self.order))
        return self.xp.permute_dims(rows, tuple(self.order.index(i) for i in range(len(self.order))))

    def per_row(self, row: Any, *, keepdims: bool = False) -> Any:
        """Convert rows of length 1 to an array with one number per row."""
        kept = kept_shape(self.shape, self.axes)
        return self.xp.reshape(row, kept if keepdims else self.outer)

    def top(self, x: Any) -> Any:
        """The maximum of each row."""
        return self.xp.max(x, axis=-1, keepdims=True)

    def total(self, w: Any, bound: float | None = None) -> tuple[Any, Any]:
        """The rounded sum of each row, and the sum of its rounding errors. See `error_free.total`."""
        return total(w, bound)

    def spread(self, row: Any) -> Any:
        """Return one number per row in a shape that broadcasts with the rows' scores."""
        return row

    def pad(self, x: Any) -> Any:
        """Pad rows of length 0 to rows of one -inf."""
        return x if self.length else with_identity(x)

    def pad_with(self, x: Any, value: float) -> Any:
        """Pad an array laid out like the scores: rows of length 0 become rows of one `value`."""
        if self.length:
            return x
        return self.xp.full((*x.shape[:-1], 1), value, dtype=x.dtype, device=device_of(x))


def with_identity(x: Any) -> Any:
    """Append a score of -inf to each row, which does not change the row's softmax."""
    xp = namespace(x)
    return xp.concat([x, xp.full((*x.shape[:-1], 1), -INF, dtype=x.dtype, device=device_of(x))], axis=-1)


def magnitude(rows: Rows, z: Any, scale: Scale) -> tuple[Any, Any, Any]:
    """The sign of beta, and |beta| = hi + lo, in the working dtype."""
    xp = rows.xp
    if isinstance(scale.hi, float):
        sign = -1.0 if scale.hi < 0.0 else 1.0
        pair = rounded(scale, 53 if rows.dtype == xp.float64 else 24)
        hi, lo = (xp.full((), sign * part, dtype=rows.dtype, device=device_of(z)) for part in pair)
        return sign, hi, lo
    hi, lo = (rows.lay_kept(xp.astype(part, rows.dtype)) for part in scale)
    sign = xp.where(hi < 0.0, xp.full_like(hi, -1.0), 1.0)
    return sign, sign * hi, sign * lo


def below(x: Any, top: Any, scale: Scale, hi: Any, lo: Any, reach: float) -> tuple[Any, Any]:
    """Return |beta| (x - top) as a sum of two numbers.

    Where the first number is below -reach, the second may be replaced by 0. At beta = inf, the first number is -inf for
    all scores that are not equal to top.
    """
    if scale is UNIT:
        return difference(x, top)
    # If |beta| < 1, x - top may overflow although beta (x - top) is finite. x / 4 - top / 4 cannot overflow.
    xp = namespace(x)
    quarter = xp.where(hi < 1.0, xp.full_like(hi, 0.25), 1.0)
    return _times(hi / quarter, lo / quarter, *difference(x * quarter, top * quarter), reach)


def _times(hi: Any, lo: Any, d: Any, e: Any, reach: float) -> tuple[Any, Any]:
    """(hi + lo) (d + e) as a pair, for d <= 0 <= hi. At hi = inf, only entries with d = 0 stay in the support."""
    xp = namespace(d)
    infinite = hi == INF
    outside = (d == -INF) | (infinite & (d < 0.0))
    b, y = xp.where(infinite, 0.0, hi), xp.where(outside, 0.0, d)
    s = b * y
    near = s > -reach
    _, q = two_product(b, xp.where(near, y, 0.0))
    q = q + (b * xp.where(near, e, 0.0) + lo * xp.where(near, y, 0.0))
    return xp.where(outside, -INF, s), xp.where(near & (xp.abs(q) < 1.0), q, 0.0)
