"""What serves layers in CPU memory: the core's own product, and losses of a few rows' scores at a time.

That product gives a row the same bits in every batch, so the loss of a row has them too. The scores of a part become
their own gradient in place; the gradient to W adds up part by part.

A row's scores depend on its own vector, a class's on its own. In the gradients 0 stands in place of what is not finite
in h and w: it meets a dz that is 0, or NaN, anyway. So no other row's bits depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.memory import memory_of
from softargmax.core.native import widened
from softargmax.core.native_call import Native
from softargmax.core.products import layer_scores, sound
from softargmax.core.scale import Scale
from softargmax.loss import reference, reference_divergence, reference_linear
from softargmax.loss.arguments import CrossEntropy, GradientOf, Layer, LossOptions
from softargmax.loss.reference_linear import CLASSES, beta_of, piece, rows_of
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

WHOLE = 1 << 17
"""Scores that are few enough to be made all at once."""
EVEN = 24
"""Rows that two threads share evenly: the product takes twelve at a time."""
PARTS = 9
"""How many parts the rows are cut into: with what else a call needs, a ninth of the scores is less than an eighth."""

_loss = Native(_native.cross_entropy, CrossEntropy, Loss._fields)
_loss_and_gradient = Native(_native.cross_entropy_and_gradient, GradientOf, LossAndGradient._fields)

# --- linear_cross_entropy ---------------------------------------------------------------------------------------------


def linear_cross_entropy(i: LinearCrossEntropy, loss: Any, dh: Any, dw: Any, db: Any) -> int | None:
    """The loss, and what is to be formed; the first row whose class does not exist."""
    memory = memory_of(loss)
    layer, asked = _layer(i.layer, memory), _asked(i.asked, memory)
    wrong = _first_wrong(layer, asked)
    if wrong is not None:
        return wrong
    seed = reference_linear.seed_of(i._replace(layer=layer, asked=asked), np.ones((), np.float64))
    to = _To(i.layer, i.forms, memory, dh, dw, db)
    rows = _formed(layer, asked, seed, i.least, to)
    loss[...] = memory.array(np.asarray(reference.reduced_losses(rows, asked, CLASSES, i.kept, i.mean, _kind(loss))))
    return None


def linear_cross_entropy_vjp(i: LinearVjp, dh: Any, dw: Any, db: Any) -> None:
    """What is asked for of the gradients."""
    memory = memory_of(dh)
    layer, asked = _layer(i.of.layer, memory), _asked(i.of.asked, memory)
    g = np.asarray(memory.numpy(i.g), np.float64)
    seed = reference_linear.seed_of(i.of._replace(layer=layer, asked=asked), g)
    _formed(layer, asked, seed, i.of.least, _To(i.of.layer, i.to, memory, dh, dw, db))


def _first_wrong(layer: Layer, asked: LossOptions) -> int | None:
    """The first row whose class does not exist, which only compiled graphs let come this far."""
    y = asked.target
    wrong = np.zeros(0) if y is None else ((y < 0) | (y >= len(layer.w))) & (y != asked.ignore_index)
    return int(np.argmax(wrong)) if wrong.any() else None


def _formed(layer: Layer, asked: LossOptions, seed: Array, least: float, to: _To) -> Array:
    """The loss of every row; seed times the gradients are written."""
    rows = np.empty(len(layer.h))
    for part, z in _scores(layer, PARTS):
        of = CrossEntropy(z, piece(asked, part), CLASSES, 1, False, rows.dtype)
        if not to.forms:
            _loss(of, rows[part], None)
            continue
        _loss_and_gradient(GradientOf(of, rows_of(seed, part), least), rows[part], z)
        to.add(z, part)  # z is dz now
    return rows


def _kind(loss: Any) -> Any:
    """NumPy's dtype for the loss: float64 for halves, which are rounded as they are written."""
    return np.float32 if loss.dtype.itemsize == 4 else np.float64


# --- what the loss is made of, and divergences: the product is the core's, the rest the definition's ------------------


@np.errstate(all="ignore")
def linear_terms(i: LinearTerms, r: tuple[Any, ...]) -> None:
    """Loss, lse, entropy and z-loss of every row."""
    memory = memory_of(r[0])
    asked, results = _numbers(_asked(i.asked, memory)), [memory.numpy(x) for x in r]
    for part, z in _scores(_layer(i.layer, memory), PARTS):
        for to, x in zip(results, reference.terms(z, piece(asked, part), CLASSES), strict=True):
            to[part] = x


@np.errstate(all="ignore")
def linear_terms_vjp(i: LinearTermsVjp, dh: Any, dw: Any, db: Any) -> None:
    """The gradients of <g, terms>."""
    memory = memory_of(dh)
    asked, to = _numbers(_asked(i.of.asked, memory)), _To(i.of.layer, i.to, memory, dh, dw, db)
    given = (i.g_loss, i.g_lse, i.g_entropy, i.g_z)
    seeds = [None if g is None else memory.numpy(g).astype(np.float64)[:, None] for g in given]
    for part, z in _scores(_layer(i.of.layer, memory), 2 * PARTS):
        to.add(reference.gradient(z, [rows_of(g, part) for g in seeds], piece(asked, part), CLASSES), part)


@np.errstate(all="ignore")
def linear_divergence(i: LinearDivergence, divergence: Any) -> None:
    """That of every row."""
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


def pulled(slope: Callable[[Any, Any, slice], Any], layer: Layer, other: Layer, to: str) -> tuple[Any, Any, Any]:
    """dz W, dz^T h and sum dz for dz = slope(scores, the other layer's, part), as `reference_linear.pulled`."""
    memory, none = memory_of(layer.h), reference.no_array(layer.h)
    own, kind = _layer(layer, memory), _precision(_layer(layer, memory))
    dtype = memory.dtypes["float64" if kind is np.float64 else "float32"]
    shapes = zip("hwb", (layer.h.shape, layer.w.shape, layer.w.shape[:1]), strict=True)
    found = [memory.empty(layer.h, tuple(n), dtype) if letter in to else none for letter, n in shapes]
    sums = _To(layer, to, memory, *found)
    both = zip(_scores(own, 4 * PARTS), _scores(_layer(other, memory), 4 * PARTS), strict=True)
    for (part, z), (_, beside) in both:
        sums.add(np.asarray(memory.numpy(slope(memory.array(z), memory.array(beside), part)), kind), part)
    return found[0], found[1], found[2]


# --- memory -----------------------------------------------------------------------------------------------------------


def _layer(layer: Layer, memory: Memory) -> Layer:
    """The same memory as NumPy's arrays, of bfloat16 the bits."""
    return Layer(*map(memory.numpy, layer))


def _asked(asked: LossOptions, memory: Memory) -> LossOptions:
    """The same of what stands beside the scores."""
    arrays = {name: memory.numpy(getattr(asked, name)) for name in ("target", "probabilities", "weight", "where")}
    return asked._replace(**arrays, beta=Scale(*map(memory.numpy, asked.beta)))


def _numbers(asked: LossOptions) -> LossOptions:
    """With numbers in place of bits, for definitions."""
    bits: dict[str, Any] = {
        name: widened(x, np.float32)
        for name, x in asked._asdict().items()
        if name in ("probabilities", "weight") and x is not None and x.dtype == np.uint16
    }
    return asked._replace(**bits)


class _To:
    """Where the gradients go that `forms` names: dz W, dz^T h and the sum of dz, part by part of the rows."""

    def __init__(self, layer: Layer, forms: str, memory: Memory, dh: Any, dw: Any, db: Any) -> None:
        self.forms, self._dh, self._dw, self._db = forms, *map(memory.numpy, (dh, dw, db))
        self._w = memory.numpy(sound(layer.w, memory.view)) if "h" in forms else None
        self._h = memory.numpy(sound(layer.h, memory.view)) if "w" in forms else None
        if not layer.h.shape[0]:
            for x in (self._dw, self._db):
                x[...] = 0

    def add(self, dz: Array, part: slice) -> None:
        """What the gradient to the scores of a part adds."""
        later = part.start > 0
        if "h" in self.forms:
            _native.product(dz, self._w, self._dh[part], sparse=True)
        if self._h is not None:
            _native.product(dz.T, self._h[part], self._dw, None, later, sparse=True)
        if "b" in self.forms:
            _native.product(np.ones((1, len(dz)), dz.dtype), dz, self._db[None], None, later)


# --- scores -----------------------------------------------------------------------------------------------------------


def _scores(layer: Layer, parts: int) -> Iterator[tuple[slice, Array]]:
    """A few rows after the other, and their scores."""
    size, classes = layer.h.shape[0], layer.w.shape[0]
    step = size if size * classes <= WHOLE else max(1, size // parts)
    if step > EVEN:
        step -= step % EVEN
    memory = np.empty((step, classes), _precision(layer))
    for start in range(0, size, max(step, 1)):
        part = slice(start, min(start + step, size))
        z = memory[: part.stop - start]
        layer_scores(layer.h[part], layer.w, layer.bias, z)
        yield part, z


def _precision(layer: Layer) -> Any:
    """The dtype of the scores and of sums."""
    return np.float64 if np.float64 in (layer.h.dtype, layer.w.dtype) else np.float32
