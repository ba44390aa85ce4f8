"""Losses of a last layer on NumPy arrays: the scores of a few rows at a time, by the core's own product.

That product gives a row the same bits in every batch, so the loss of a row has them too. The scores of a part become
their own gradient in place; the gradient to W adds up part by part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import _native
from softargmax.core.native import fresh, view
from softargmax.loss import native, reference_linear
from softargmax.loss.results import LinearLossAndGradient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from softargmax.loss.layer import Flat
    from softargmax.loss.options import Beside, Options

Array = np.ndarray[Any, Any]

WHOLE = 1 << 17
"""Scores that are few enough to be made all at once."""


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Array:
    """The loss of every row."""
    if not _finite(layer):
        return np.asarray(reference_linear.linear_loss(layer, beside, options))
    rows = np.empty(layer.h.shape[0])
    for part, z in _scores(layer):
        rows[part] = native.loss(z, reference_linear.piece(beside, part), options)
    return rows


def linear_loss_and_gradient(layer: Flat, seed: Any, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed (a number, or one per row with an axis of 1) times its gradients."""
    if not _finite(layer):
        return reference_linear.linear_loss_and_gradient(layer, seed, beside, options)
    h, w, bias = layer
    kind = _kind(layer)
    rows, seed = np.empty(h.shape[0]), np.asarray(seed, np.float64)
    dh, dw, db = fresh(h.shape, kind), fresh(w.shape, kind), np.empty((1, w.shape[0]), kind)
    for part, z in _scores(layer):
        g = np.array(seed[part] if seed.ndim else seed, order="C")
        losses = native.rows_of(z, options)
        native.run(z, reference_linear.piece(beside, part), options, loss=losses, out=view(z), seed=g)  # z is dz now
        rows[part] = losses
        later = part.start > 0
        _native.product(z, view(w), dh[part])
        _native.product(z.T, view(h[part]), dw, None, later)
        _native.product(np.ones((1, len(z)), kind), z, db, None, later)
    if not h.shape[0]:
        dw[...] = db[...] = 0
    dbias = None if bias is None else db[0].astype(bias.dtype, copy=False)
    return LinearLossAndGradient(rows, dh.astype(h.dtype, copy=False), dw.astype(w.dtype, copy=False), dbias)


def _kind(layer: Flat) -> type[np.floating[Any]]:
    return np.float64 if np.float64 in (layer.h.dtype, layer.w.dtype) else np.float32


def _scores(layer: Flat) -> Iterator[tuple[slice, Array]]:
    """A few rows after the other, and their scores: an eighth of all at most, unless all are few."""
    h, w, bias = layer
    size, classes = h.shape[0], w.shape[0]
    step = size if size * classes <= WHOLE else max(1, size // 8)
    kind = _kind(layer)
    bias = None if bias is None else np.ascontiguousarray(bias, kind)
    memory = np.empty((step, classes), kind)
    for start in range(0, size, max(step, 1)):
        part = slice(start, min(start + step, size))
        z = memory[: part.stop - start]
        _native.product(view(h[part]), view(w.T), z, bias)
        yield part, z


def _finite(layer: Flat) -> bool:
    """Whether nothing infinite could meet a gradient of 0 (the definition leaves such vectors out)."""
    step = max(1, WHOLE // max(layer.w.shape[1], 1))
    parts = (x[i : i + step] for x in layer[:2] for i in range(0, len(x), step))
    return all(bool(np.isfinite(part).all()) for part in parts)
