"""Calls of the compiled kernels of last layers. They compute scores and losses for a few rows at a time, called a part.

The scores come from the matrix product of the core. The bits of a row of scores, and of the loss of the row, do not
depend on the other rows of the batch. The scores of all parts are written to the same array. The gradient with respect
to W is summed over the parts.

For the gradients, nonfinite entries of h and w are replaced by 0. They are only multiplied by entries of dz that are 0
or NaN, and 0 times a nonfinite entry counts as 0. The replacement makes the bits of a row independent of all other
rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.memory import memory_of
from softargmax.core.native import widened
from softargmax.core.products import layer_scores, sound
from softargmax.core.scale import Scale
from softargmax.loss import reference, reference_divergence
from softargmax.loss.arguments import Layer, LossOptions
from softargmax.loss.reference_linear import CLASSES, beta_of, options_of_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from softargmax.core.memory import Memory
    from softargmax.loss.arguments import (
        LinearDivergence,
        LinearTerms,
        LinearTermsVjp,
    )

Array = np.ndarray[Any, Any]

# --- terms and divergences: the matrix product of the core, and the definitions of the losses -------------------------


@np.errstate(all="ignore")
def linear_terms(i: LinearTerms, r: tuple[Any, ...]) -> None:
    """Write loss, lse, entropy and z-loss of every row."""
    memory = memory_of(r[0])
    options, results = _numbers(_options(i.options, memory)), [memory.numpy(x) for x in r]
    layer = _layer(i.layer, memory)
    for part, z in _scores(layer, _bounds(_native.PARTS, layer)):
        for to, x in zip(results, reference.terms(z, options_of_rows(options, part), CLASSES), strict=True):
            to[part] = x


@np.errstate(all="ignore")
def linear_terms_vjp(i: LinearTermsVjp, dh: Any, dw: Any, db: Any) -> None:
    """Write the gradients with respect to h, W and b, for incoming gradients of loss, lse, entropy and z-loss."""
    memory = memory_of(dh)
    options, to = _numbers(_options(i.of.options, memory)), _GradientSums(i.of.layer, i.to, memory, dh, dw, db)
    incoming = (i.g_loss, i.g_lse, i.g_entropy, i.g_z)
    seeds = [None if g is None else memory.numpy(g).astype(np.float64)[:, None] for g in incoming]
    layer = _layer(i.of.layer, memory)
    for part, z in _scores(layer, _bounds(2 * _native.PARTS, layer)):
        to.make_finite(z, part)
        to.add(reference.gradient(z, [rows_of(g, part) for g in seeds], options_of_rows(options, part), CLASSES), part)


@np.errstate(all="ignore")
def linear_divergence(i: LinearDivergence, divergence: Any) -> None:
    """Write the divergence of every row."""
    memory = memory_of(divergence)
    layers = [
        _layer(Layer(*one), memory)
        for one in ((i.h_student, i.w_student, i.bias_student), (i.h_teacher, i.w_teacher, i.bias_teacher))
    ]
    bounds = _bounds(2 * _native.PARTS, *layers)
    student, teacher = (_scores(layer, bounds) for layer in layers)
    where, beta, result = memory.numpy(i.where), Scale(*map(memory.numpy, i.beta)), memory.numpy(divergence)
    for (part, z), (_, other) in zip(student, teacher, strict=True):
        result[part] = reference_divergence.divergence(
            z, other, rows_of(where, part), beta_of(beta, part), CLASSES, i.kind, i.softcap
        )


def layer_vjp(slope: Callable[[Any, Any, slice], Any], layer: Layer, other: Layer, to: str) -> tuple[Any, Any, Any]:
    """Return dz W, dz^T h and sum dz for dz = slope(scores, scores of the other layer, part).

    The definition is `reference_linear.layer_vjp`.
    """
    memory, none = memory_of(layer.h), reference.no_array(layer.h)
    layers = _layer(layer, memory), _layer(other, memory)
    kind, bounds = _precision(layers[0]), _bounds(4 * _native.PARTS, *layers)
    dtype = memory.dtypes["float64" if kind is np.float64 else "float32"]
    shapes = zip("hwb", (layer.h.shape, layer.w.shape, layer.w.shape[:1]), strict=True)
    found = [memory.empty(layer.h, tuple(n), dtype) if letter in to else none for letter, n in shapes]
    sums = _GradientSums(layer, to, memory, *found)
    for (part, z), (_, other_z) in zip(*(_scores(one, bounds) for one in layers), strict=True):
        sums.make_finite(z, part)
        sums.add(np.asarray(memory.numpy(slope(memory.array(z), memory.array(other_z), part)), kind), part)
    return found[0], found[1], found[2]


# --- memory -----------------------------------------------------------------------------------------------------------


def _layer(layer: Layer, memory: Memory) -> Layer:
    """Return the layer as NumPy arrays that share its memory. bfloat16 becomes uint16, with the same bits."""
    return Layer(*map(memory.numpy, layer))


def _options(options: LossOptions, memory: Memory) -> LossOptions:
    """Return the options as NumPy arrays that share their memory. bfloat16 becomes uint16, with the same bits."""
    arrays = {name: memory.numpy(getattr(options, name)) for name in ("target", "probabilities", "weight", "where")}
    return options._replace(**arrays, beta=Scale(*map(memory.numpy, options.beta)))


def _numbers(options: LossOptions) -> LossOptions:
    """Convert the bits of bfloat16 options to float32, for the definitions."""
    bits: dict[str, Any] = {
        name: widened(x, np.float32)
        for name, x in options._asdict().items()
        if name in ("probabilities", "weight") and x is not None and x.dtype == np.uint16
    }
    return options._replace(**bits)


class _GradientSums:
    """The gradients that `forms` names: dz W, dz^T h and sum dz. `add` adds one part of the rows to them."""

    def __init__(self, layer: Layer, forms: str, memory: Memory, dh: Any, dw: Any, db: Any) -> None:
        self.forms, self._dh, self._dw, self._db = forms, *map(memory.numpy, (dh, dw, db))
        self._memory, self._layer, self._w, self._h = memory, layer, memory.numpy(layer.w), memory.numpy(layer.h)
        if not layer.h.shape[0]:
            for x in (self._dw, self._db):
                x[...] = 0

    def make_finite(self, z: Array, part: slice) -> None:
        """Replace nonfinite entries of W and h by 0. z contains the scores of the part, not yet their gradient.

        A nonfinite entry of W makes all scores of its class nonfinite. If the scores of one row are finite, W is
        therefore finite. A nonfinite entry of h makes all scores of its row nonfinite. If the scores of one class are
        finite, h is therefore finite. Testing W itself would take a third as long as multiplying W by 3 rows.
        """
        if part.start == 0 and not _native.finite(z[:1]):
            self._w = self._memory.numpy(sound(self._layer.w, self._memory.view))
        if not _native.finite(z[:, :1]):
            self._h = self._memory.numpy(sound(self._layer.h, self._memory.view))

    def add(self, dz: Array, part: slice) -> None:
        """Add the gradients of a part of the rows. dz is the gradient with respect to the scores of the part."""
        later = part.start > 0
        if "h" in self.forms:
            _native.product(dz, self._w, self._dh[part], sparse=True)
        if "w" in self.forms:
            _native.product(dz.T, self._h[part], self._dw, None, later, sparse=True)
        if "b" in self.forms:
            _native.product(np.ones((1, len(dz)), dz.dtype), dz, self._db[None], None, later)


# --- scores -----------------------------------------------------------------------------------------------------------


def _bounds(parts: int, *layers: Layer) -> tuple[int, ...]:
    """Return the bounds of about so many parts of the rows, for layers with the same rows and classes."""
    width = min(layer.h.shape[1] for layer in layers)
    bounds: tuple[int, ...] = _native.bounds_of_parts(len(layers[0].h), width, len(layers[0].w), parts)
    return bounds


def _scores(layer: Layer, bounds: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
    """Yield each part of the rows with its scores. The scores of all parts are written to the same array."""
    memory = np.empty((max(bounds[:2]), len(layer.w)), _precision(layer))  # the first part is the largest
    for start, stop in pairwise(bounds):
        z = memory[: stop - start]
        layer_scores(layer.h[start:stop], layer.w, layer.bias, z)
        yield slice(start, stop), z


def _precision(layer: Layer) -> Any:
    """Return the dtype of the scores and of the sums."""
    return np.float64 if np.float64 in (layer.h.dtype, layer.w.dtype) else np.float32
