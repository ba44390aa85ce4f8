"""Losses of a last layer on NumPy arrays: the scores of a few rows at a time, by the core's own product.

That product gives a row the same bits in every batch, so the loss of a row has them too. The scores of a part become
their own gradient in place; the gradient to W adds up part by part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.native import fresh, view, widened
from softargmax.loss import native_rows, reference_linear
from softargmax.loss.results import LinearLossAndGradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from softargmax.loss.layer import Flat
    from softargmax.loss.options import Beside, Options

Array = np.ndarray[Any, Any]

WHOLE = 1 << 17
"""Scores that are few enough to be made all at once."""
EVEN = 24
"""Rows that two threads share evenly: the product takes twelve at a time."""
PARTS = 9
"""How many parts the rows are cut into: with what else a call needs, a ninth of the scores is less than an eighth."""


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Array:
    """The loss of every row."""
    if not finite(layer):
        return np.asarray(reference_linear.linear_loss(layer, beside, options))
    return formed(layer, beside, options, 0.0, (False, False, False))[0]


def linear_loss_and_gradient(layer: Flat, seed: Any, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed times its gradients."""
    if not finite(layer):
        return reference_linear.linear_loss_and_gradient(layer, seed, beside, options)
    rows, *found = formed(layer, beside, options, seed, (True, True, layer.bias is not None))
    gradients = (x if x is None else x.astype(of.dtype, copy=False) for x, of in zip(found, layer, strict=True))
    return LinearLossAndGradient(rows, *gradients)


def finite(layer: Flat) -> bool:
    """Whether no infinite vector could meet a gradient of 0: the definition leaves it out, a product does not."""
    return _native.finite(view(layer.h)) and _native.finite(view(layer.w))


def formed(
    layer: Flat, beside: Beside, options: Options, seed: Any, wanted: Sequence[bool]
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """The loss of every row, and seed times the `wanted` of dh, dW, db in `_kind`.

    The seed is a number, or one per row with an axis of 1.
    """
    h, w, _ = layer
    kind, shapes = _kind(layer), (h.shape, w.shape, (1, len(w)))
    rows, seed = np.empty(len(h)), np.asarray(seed, np.float64)
    dh, dw, db = (fresh(shape, kind) if it else None for shape, it in zip(shapes, wanted, strict=True))
    for part, z in _scores(layer):
        beside_part = reference_linear.piece(beside, part)
        if not any(wanted):
            rows[part] = native_rows.loss(z, beside_part, options)
            continue
        rows[part], _ = native_rows.into(z, z, seed[part] if seed.ndim else seed, beside_part, options)  # z is dz now
        later = part.start > 0
        if dh is not None:
            _native.product(z, view(w), dh[part], sparse=True)
        if dw is not None:
            _native.product(z.T, view(h[part]), dw, None, later, sparse=True)
        if db is not None:
            _native.product(np.ones((1, len(z)), kind), z, db, None, later)
    for total in (dw, db):
        if total is not None and not len(h):
            total[...] = 0
    return rows, dh, dw, None if db is None else db[0]


def _kind(layer: Flat) -> type[np.floating[Any]]:
    return np.float64 if np.float64 in (layer.h.dtype, layer.w.dtype) else np.float32


def _scores(layer: Flat) -> Iterator[tuple[slice, Array]]:
    """A few rows after the other, and their scores."""
    h, w, bias = layer
    size, classes = h.shape[0], w.shape[0]
    step = size if size * classes <= WHOLE else max(1, size // PARTS)
    if step > EVEN:
        step -= step % EVEN
    kind = _kind(layer)
    if bias is not None:
        bias = widened(bias, kind)
    memory = np.empty((step, classes), kind)
    for start in range(0, size, max(step, 1)):
        part = slice(start, min(start + step, size))
        z = memory[: part.stop - start]
        _native.product(view(h[part]), view(w.T), z, bias)
        yield part, z
