"""Kernels for last layers in CPU memory: the core's matrix product, and the losses of a few rows of scores at a time.

The core's product gives a row the same bits in every batch, so the loss of a row has the same bits too. The kernels
overwrite the scores of a part with their gradient. They add up the gradient with respect to W part by part.

In the gradients, 0 replaces the entries of h and w that are not finite. This does not change a result, because the
entries of dz that they meet are 0 or NaN. It keeps the bits of a row independent of the other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.memory import memory_of
from softargmax.core.native import widened
from softargmax.core.operation import Native
from softargmax.core.products import layer_scores, sound
from softargmax.core.scale import Scale
from softargmax.loss import reference, reference_divergence, reference_linear
from softargmax.loss.arguments import CrossEntropy, GradientOf, Layer, LossOptions
from softargmax.loss.reference_linear import CLASSES, beta_of, options_of_rows, rows_of
from softargmax.loss.results import Loss, LossAndGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from softargmax.core.memory import Memory
    from softargmax.loss.arguments import (
        LinearCrossEntropy,
        LinearDivergence,
        LinearTerms,
        LinearTermsVjp,
        LinearVjp,
    )

Array = np.ndarray[Any, Any]

LARGE = 1 << 20
"""A part may have this many scores: 4 MiB in float32."""
EVEN = 24
"""Parts are multiples of this number of rows, so that two threads share them evenly: the product takes 12 at a time."""
PARTS = 9
"""Number of parts of many rows. One part's scores and the other memory of a call take less than 1/8 of all scores."""

_loss = Native(_native.cross_entropy, CrossEntropy, Loss._fields)
_loss_and_gradient = Native(_native.cross_entropy_and_gradient, GradientOf, LossAndGradient._fields)

# --- linear_cross_entropy ---------------------------------------------------------------------------------------------


def linear_cross_entropy(i: LinearCrossEntropy, loss: Any, dh: Any, dw: Any, db: Any) -> int | None:
    """Write the loss and the gradients in `forms`. Return the first row whose class is out of range, or None."""
    memory = memory_of(loss)
    layer, options = _layer(i.layer, memory), _options(i.options, memory)
    wrong = _first_wrong(layer, options)
    if wrong is not None:
        return wrong
    seed = reference_linear.seed_of(i._replace(layer=layer, options=options), np.ones((), np.float64))
    to = _GradientSums(i.layer, i.forms, memory, dh, dw, db)
    rows = _loss_and_gradients(layer, options, seed, i.least, to)
    loss[...] = memory.array(np.asarray(reference.reduced_losses(rows, options, CLASSES, i.kept, i.mean, _kind(loss))))
    return None


def linear_cross_entropy_vjp(i: LinearVjp, dh: Any, dw: Any, db: Any) -> None:
    """Write the gradients that `to` names."""
    memory = memory_of(dh)
    layer, options = _layer(i.of.layer, memory), _options(i.of.options, memory)
    g = np.asarray(memory.numpy(i.g), np.float64)
    seed = reference_linear.seed_of(i.of._replace(layer=layer, options=options), g)
    _loss_and_gradients(layer, options, seed, i.of.least, _GradientSums(i.of.layer, i.to, memory, dh, dw, db))


def _first_wrong(layer: Layer, options: LossOptions) -> int | None:
    """Return the first row whose class is out of range, or None. Only compiled graphs have not checked this before."""
    y = options.target
    wrong = np.zeros(0) if y is None else ((y < 0) | (y >= len(layer.w))) & (y != options.ignore_index)
    return int(np.argmax(wrong)) if wrong.any() else None


def _loss_and_gradients(layer: Layer, options: LossOptions, seed: Array, least: float, to: _GradientSums) -> Array:
    """Return the loss of every row, and add seed times the gradients to `to`."""
    rows = np.empty(len(layer.h))
    for part, z in _scores(layer, PARTS):
        of = CrossEntropy(z, options_of_rows(options, part), CLASSES, 1, False, rows.dtype)
        if not to.forms:
            _loss(of, rows[part], None)
            continue
        to.see(z, part)
        _loss_and_gradient(GradientOf(of, rows_of(seed, part), least), rows[part], z)
        to.add(z, part)  # z holds dz now
    return rows


def _kind(loss: Any) -> Any:
    """Return the NumPy dtype for the loss: float64 for half precision, because writing the loss rounds it."""
    return np.float32 if loss.dtype.itemsize == 4 else np.float64


# --- terms and divergences: the core's product, and the definitions of the losses -------------------------------------


@np.errstate(all="ignore")
def linear_terms(i: LinearTerms, r: tuple[Any, ...]) -> None:
    """Write loss, lse, entropy and z-loss of every row."""
    memory = memory_of(r[0])
    options, results = _numbers(_options(i.options, memory)), [memory.numpy(x) for x in r]
    for part, z in _scores(_layer(i.layer, memory), PARTS):
        for to, x in zip(results, reference.terms(z, options_of_rows(options, part), CLASSES), strict=True):
            to[part] = x


@np.errstate(all="ignore")
def linear_terms_vjp(i: LinearTermsVjp, dh: Any, dw: Any, db: Any) -> None:
    """Write the gradients of <g, terms>."""
    memory = memory_of(dh)
    options, to = _numbers(_options(i.of.options, memory)), _GradientSums(i.of.layer, i.to, memory, dh, dw, db)
    incoming = (i.g_loss, i.g_lse, i.g_entropy, i.g_z)
    seeds = [None if g is None else memory.numpy(g).astype(np.float64)[:, None] for g in incoming]
    for part, z in _scores(_layer(i.of.layer, memory), 2 * PARTS):
        to.see(z, part)
        to.add(reference.gradient(z, [rows_of(g, part) for g in seeds], options_of_rows(options, part), CLASSES), part)


@np.errstate(all="ignore")
def linear_divergence(i: LinearDivergence, divergence: Any) -> None:
    """Write the divergence of every row."""
    memory = memory_of(divergence)
    student, teacher = (
        _scores(_layer(Layer(*one), memory), 2 * PARTS)
        for one in ((i.h_student, i.w_student, i.bias_student), (i.h_teacher, i.w_teacher, i.bias_teacher))
    )
    where, beta, result = memory.numpy(i.where), Scale(*map(memory.numpy, i.beta)), memory.numpy(divergence)
    for (part, z), (_, other) in zip(student, teacher, strict=True):
        result[part] = reference_divergence.divergence(
            z, other, rows_of(where, part), beta_of(beta, part), CLASSES, i.kind, i.softcap
        )


def layer_vjp(slope: Callable[[Any, Any, slice], Any], layer: Layer, other: Layer, to: str) -> tuple[Any, Any, Any]:
    """Return dz W, dz^T h and sum dz for dz = slope(scores, other layer's scores, part).

    The counterpart of `reference_linear.layer_vjp`.
    """
    memory, none = memory_of(layer.h), reference.no_array(layer.h)
    own, kind = _layer(layer, memory), _precision(_layer(layer, memory))
    dtype = memory.dtypes["float64" if kind is np.float64 else "float32"]
    shapes = zip("hwb", (layer.h.shape, layer.w.shape, layer.w.shape[:1]), strict=True)
    found = [memory.empty(layer.h, tuple(n), dtype) if letter in to else none for letter, n in shapes]
    sums = _GradientSums(layer, to, memory, *found)
    both = zip(_scores(own, 4 * PARTS), _scores(_layer(other, memory), 4 * PARTS), strict=True)
    for (part, z), (_, other_z) in both:
        sums.see(z, part)
        sums.add(np.asarray(memory.numpy(slope(memory.array(z), memory.array(other_z), part)), kind), part)
    return found[0], found[1], found[2]


# --- memory -----------------------------------------------------------------------------------------------------------


def _layer(layer: Layer, memory: Memory) -> Layer:
    """Return the layer as NumPy arrays on the same memory; bfloat16 as its bits."""
    return Layer(*map(memory.numpy, layer))


def _options(options: LossOptions, memory: Memory) -> LossOptions:
    """Return the options with NumPy arrays on the same memory; bfloat16 as its bits."""
    arrays = {name: memory.numpy(getattr(options, name)) for name in ("target", "probabilities", "weight", "where")}
    return options._replace(**arrays, beta=Scale(*map(memory.numpy, options.beta)))


def _numbers(options: LossOptions) -> LossOptions:
    """Convert bfloat16 bits to float32, for the definitions."""
    bits: dict[str, Any] = {
        name: widened(x, np.float32)
        for name, x in options._asdict().items()
        if name in ("probabilities", "weight") and x is not None and x.dtype == np.uint16
    }
    return options._replace(**bits)


class _GradientSums:
    """Adds up the gradients that `forms` names, part by part of the rows: dz W, dz^T h and the sum of dz."""

    def __init__(self, layer: Layer, forms: str, memory: Memory, dh: Any, dw: Any, db: Any) -> None:
        self.forms, self._dh, self._dw, self._db = forms, *map(memory.numpy, (dh, dw, db))
        self._memory, self._layer, self._w, self._h = memory, layer, memory.numpy(layer.w), memory.numpy(layer.h)
        if not layer.h.shape[0]:
            for x in (self._dw, self._db):
                x[...] = 0

    def see(self, z: Array, part: slice) -> None:
        """Replace nonfinite entries of W and of h in a part, before its scores z become their gradient.

        A nonfinite entry of W makes all scores of its class nonfinite, and one of h all scores of its row. So a row and
        a column of finite scores show that there are none. To read all of W takes a third of its product with 3 rows.
        """
        if part.start == 0 and not _native.finite(z[:1]):
            self._w = self._memory.numpy(sound(self._layer.w, self._memory.view))
        if not _native.finite(z[:, :1]):
            self._h = self._memory.numpy(sound(self._layer.h, self._memory.view))

    def add(self, dz: Array, part: slice) -> None:
        """Add the contribution of dz, the gradient with respect to the scores of a part."""
        later = part.start > 0
        if "h" in self.forms:
            _native.product(dz, self._w, self._dh[part], sparse=True)
        if "w" in self.forms:
            _native.product(dz.T, self._h[part], self._dw, None, later, sparse=True)
        if "b" in self.forms:
            _native.product(np.ones((1, len(dz)), dz.dtype), dz, self._db[None], None, later)


# --- scores -----------------------------------------------------------------------------------------------------------


def _scores(layer: Layer, parts: int) -> Iterator[tuple[slice, Array]]:
    """Yield parts of the rows, each with its scores; all parts share one array."""
    size, classes = layer.h.shape[0], layer.w.shape[0]
    step = _rows_at_once(layer, parts)
    memory = np.empty((step, classes), _precision(layer))
    for start in range(0, size, max(step, 1)):
        part = slice(start, min(start + step, size))
        z = memory[: part.stop - start]
        layer_scores(layer.h[part], layer.w, layer.bias, z)
        yield part, z


def _rows_at_once(layer: Layer, parts: int) -> int:
    """Return the number of rows of a part: 1/parts of all rows, or more if its scores are few or small beside W.

    Every part reads all of W, which takes as long as some 20 rows of scores.
    """
    (size, width), classes = layer.h.shape, layer.w.shape[0]
    rows = max(size // parts, LARGE // max(classes, 1), width // 8, 1)
    if rows >= size:
        return size
    return rows - rows % EVEN if rows > EVEN else rows


def _precision(layer: Layer) -> Any:
    """Return the dtype of the scores and of the sums."""
    return np.float64 if np.float64 in (layer.h.dtype, layer.w.dtype) else np.float32
