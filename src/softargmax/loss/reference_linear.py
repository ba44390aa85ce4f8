"""Losses of scores z = h W^T + b that never exist all at once: those of a few rows are made, used and forgotten.

    dh = dz W        dW = dz^T h        db = sum dz

The product is that of the library, in the inputs' dtype (halves as float32); the rest is `reference`'s. Libraries whose
arrays are traced or cannot be written to take all rows at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import dtype_name
from softargmax.core.chunks import SIZE, cut
from softargmax.core.dispatch import namespace
from softargmax.core.scale import Scale
from softargmax.loss import reference_rows as reference
from softargmax.loss.layer import Flat
from softargmax.loss.options import Beside
from softargmax.loss.reference_divergence import divergence
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from softargmax.loss.options import Divergence, Options

COPIES = 192  # of the scores' size: what the definition's float64 temporaries add up to, times 8


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Any:
    """The loss of every row."""
    return by_parts(lambda z, part: reference.loss(z, piece(beside, part), options), layer, beside)


def linear_terms(layer: Flat, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    found: CrossEntropyTerms = by_parts(
        lambda z, part: reference.terms(z, piece(beside, part), options), layer, beside.scale
    )
    return found


def linear_divergence(student: Flat, teacher: Flat, scale: Scale, where: Any, options: Divergence) -> Any:
    """The divergence of every row."""

    def rows(z: Any, part: slice) -> Any:
        hidden = Flat(teacher.h[part, :], teacher.w, teacher.bias)
        beside = piece(Beside(None, None, scale, where), part)
        return divergence(z, product(hidden), beside.scale, beside.where, options)

    return by_parts(rows, student, (scale, where))


@np.errstate(all="ignore")
def linear_loss_and_gradient(layer: Flat, seed: Any, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed (a number) times its gradients."""
    h, w, bias = layer
    xp = namespace(h)
    safe_w = finite(w)
    losses, dhs, dw, db = [], [], None, None
    for part in parts(layer, beside):
        hidden = h[part, :]
        z = product(Flat(hidden, w, bias))
        found = reference.loss_and_gradient(z, seed, piece(beside, part), options)
        losses.append(xp.reshape(xp.asarray(found.loss), (-1,)))
        dhs.append(xp.astype(times(found.gradient, safe_w), h.dtype))
        more = times(xp.permute_dims(found.gradient, (1, 0)), finite(hidden))
        dw, db = _added(dw, more), _added(db, xp.sum(found.gradient, axis=0))
    dbias = None if bias is None else xp.astype(db, bias.dtype)
    return LinearLossAndGradient(xp.concat(losses), xp.concat(dhs, axis=0), xp.astype(dw, w.dtype), dbias)


def _added(total: Any, more: Any) -> Any:
    if total is None:
        return more
    total += more
    return total


def product(layer: Flat) -> Any:
    """h W^T + b. A class that the product puts out of the support stays out of it."""
    h, w, bias = layer
    xp = namespace(h)
    z = times(h, xp.permute_dims(w, (1, 0)))
    if bias is None:
        return z
    return xp.where(xp.abs(z) == reference.INF, z, z + xp.astype(bias, z.dtype))


def times(a: Any, b: Any) -> Any:
    """a b in the wider dtype of the two, at least float32; of halves, b is widened a part at a time."""
    xp = namespace(a)
    kind = xp.float64 if "float64" in (dtype_name(a.dtype), dtype_name(b.dtype)) else xp.float32
    a = xp.astype(a, kind, copy=False)
    step = max(1, 8 * SIZE // max(b.shape[0], 1))
    if b.dtype == kind or b.shape[1] <= step:
        return a @ xp.astype(b, kind, copy=False)
    columns = (b[:, start : start + step] for start in range(0, b.shape[1], step))
    return xp.concat([a @ xp.astype(part, kind) for part in columns], axis=1)


def finite(array: Any) -> Any:
    """The array with 0 in place of NaN and infinities: these meet a gradient that is 0, or NaN, anyway."""
    xp = namespace(array)
    return xp.where(xp.isfinite(array), array, 0.0)


# --- a few rows at a time ---------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def by_parts(rows: Callable[[Any, slice], Any], layer: Flat, beside: Sequence[Any]) -> Any:
    """rows(scores, part) of every part, put together: an array, or a named tuple of them."""
    xp = namespace(layer.h)
    found = [rows(product(Flat(layer.h[part, :], *layer[1:])), part) for part in parts(layer, beside)]
    if isinstance(found[0], tuple):
        joined = (xp.concat([xp.reshape(xp.asarray(x), (-1,)) for x in each]) for each in zip(*found, strict=True))
        return type(found[0])(*joined)
    return xp.concat([xp.reshape(xp.asarray(x), (-1,)) for x in found])


def parts(layer: Flat, beside: Sequence[Any]) -> Iterator[slice]:
    """Slices of the rows, so small that what the definition makes of their scores is an eighth of all scores."""
    size, classes = layer.h.shape[0], layer.w.shape[0]
    whole = size * classes <= SIZE or not cut((*layer, *beside))
    step = max(size, 1) if whole else max(1, min(SIZE // classes, size // COPIES))
    return (slice(start, min(start + step, size)) for start in range(0, max(size, 1), step))


def piece(beside: Beside, part: slice) -> Beside:
    """What stands beside the scores of a part of the rows."""
    target, weight, scale, where = beside
    if not isinstance(scale.hi, float):
        scale = Scale(_rows(scale.hi, part), _rows(scale.lo, part))
    return Beside(_rows(target, part), weight, scale, _rows(where, part))


def _rows(array: Any, part: slice) -> Any:
    return array if array is None or array.shape[0] == 1 else array[part, :]
