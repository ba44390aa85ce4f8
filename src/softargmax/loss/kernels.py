"""What serves layers in CPU memory: the core's own product, and the native loss of a few rows' scores at a time.

That product gives a row the same bits in every batch, so the loss of a row has them too. The scores of a part become
their own gradient in place; the gradient to W adds up part by part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.memory import memory_of
from softargmax.core.native import widened
from softargmax.core.native_call import Native
from softargmax.core.scale import Scale
from softargmax.loss import reference, reference_linear
from softargmax.loss.arguments import CrossEntropy, GradientOf, Layer
from softargmax.loss.results import Loss, LossAndGradient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from softargmax.loss.arguments import LinearCrossEntropy, LinearVjp

Array = np.ndarray[Any, Any]

WHOLE = 1 << 17
"""Scores that are few enough to be made all at once."""
EVEN = 24
"""Rows that two threads share evenly: the product takes twelve at a time."""
PARTS = 9
"""How many parts the rows are cut into: with what else a call needs, a ninth of the scores is less than an eighth."""

_loss = Native(_native.cross_entropy, CrossEntropy, Loss._fields)
_loss_and_gradient = Native(_native.cross_entropy_and_gradient, GradientOf, LossAndGradient._fields)


def linear_cross_entropy(i: LinearCrossEntropy, loss: Any, dh: Any, dw: Any, db: Any) -> int | None:
    """The loss, and what is to be formed; the first row whose class does not exist."""
    if not _finite(i):
        _put((loss, dh, dw, db), reference_linear.linear_cross_entropy(i))
        return None
    i, memory = _in_numpy(i), memory_of(loss)
    wrong = _first_wrong(i)
    if wrong is not None:
        return wrong
    one = np.ones((), np.float64)
    rows = _formed(i, reference_linear.seed_of(i, one), i.forms, *(memory.numpy(x) for x in (dh, dw, db)))
    loss[...] = memory.array(np.asarray(reference.reduced_losses(rows, i.asked, (1,), i.kept, i.mean, _kind(loss))))
    return None


def linear_cross_entropy_vjp(i: LinearVjp, dh: Any, dw: Any, db: Any) -> None:
    """What is asked for of the gradients."""
    if not _finite(i.of):
        _put((dh, dw, db), reference_linear.linear_cross_entropy_vjp(i.of, i.g, i.to))
        return
    of, memory = _in_numpy(i.of), memory_of(dh)
    seed = reference_linear.seed_of(of, np.asarray(memory.numpy(i.g), np.float64))
    _formed(of, seed, i.to, *(memory.numpy(x) for x in (dh, dw, db)))


def _first_wrong(i: LinearCrossEntropy) -> int | None:
    """The first row whose class does not exist, which only compiled graphs let come this far."""
    y = i.asked.target
    wrong = np.zeros(0) if y is None else ((y < 0) | (y >= len(i.layer.w))) & (y != i.asked.ignore_index)
    return int(np.argmax(wrong)) if wrong.any() else None


def _put(to: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    for x, one in zip(to, found, strict=True):
        x[...] = one


def _in_numpy(i: LinearCrossEntropy) -> LinearCrossEntropy:
    """The same memory as NumPy's arrays, of bfloat16 the bits."""
    numpy = memory_of(i.layer.h).numpy

    def there(x: Any) -> Any:
        return x if x is None or isinstance(x, float) else numpy(x)

    asked = i.asked._replace(
        target=there(i.asked.target),
        probabilities=there(i.asked.probabilities),
        weight=there(i.asked.weight),
        where=there(i.asked.where),
        beta=Scale(*map(there, i.asked.beta)),
    )
    return i._replace(layer=Layer(*map(there, i.layer)), asked=asked)


def _kind(loss: Any) -> Any:
    """NumPy's dtype for the loss: float64 for halves, which are rounded as they are written."""
    return np.float32 if loss.dtype.itemsize == 4 else np.float64


def _finite(i: LinearCrossEntropy) -> bool:
    """Whether no infinite vector could meet a gradient of 0: the definition leaves it out, a product does not."""
    view_of = memory_of(i.layer.h).view
    return bool(_native.finite(view_of(i.layer.h)) and _native.finite(view_of(i.layer.w)))


def _formed(i: LinearCrossEntropy, seed: Array, forms: str, dh: Array, dw: Array, db: Array) -> Array:
    """The loss of every row; seed times the gradients that `forms` names are written."""
    h, w, _ = i.layer
    rows = np.empty(len(h))
    if not len(h):
        for x in (dw, db):
            x[...] = 0
    for part, z in _scores(i):
        of = CrossEntropy(z, reference_linear.piece(i.asked, part), (1,), 1, False, rows.dtype)
        if not forms:
            _loss(of, loss=rows[part], states=None)
            continue
        of_part = seed if len(seed) == 1 else seed[part]
        _loss_and_gradient(GradientOf(of, of_part, i.least), loss=rows[part], gradient=z)  # z is dz now
        later = part.start > 0
        if "h" in forms:
            _native.product(z, w, dh[part], sparse=True)
        if "w" in forms:
            _native.product(z.T, h[part], dw, None, later, sparse=True)
        if "b" in forms:
            _native.product(np.ones((1, len(z)), z.dtype), z, db[None], None, later)
    return rows


def _scores(i: LinearCrossEntropy) -> Iterator[tuple[slice, Array]]:
    """A few rows after the other, and their scores."""
    h, w, bias = i.layer
    size, classes = h.shape[0], w.shape[0]
    step = size if size * classes <= WHOLE else max(1, size // PARTS)
    if step > EVEN:
        step -= step % EVEN
    kind = np.float64 if np.float64 in (h.dtype, w.dtype) else np.float32
    if bias is not None:
        bias = widened(bias, kind)
    memory = np.empty((step, classes), kind)
    for start in range(0, size, max(step, 1)):
        part = slice(start, min(start + step, size))
        z = memory[: part.stop - start]
        _native.product(h[part], w.T, z, bias)
        yield part, z
