"""Losses of scores z = h W^T + b that never exist all at once: those of a few rows are made, used and forgotten.

    dh = dz W        dW = dz^T h        db = sum dz

The product is that of the library, in the inputs' dtype (halves as float32); the rest is the definition's. Libraries
whose arrays are traced or cannot be written to take all rows at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import dtype_name, is_torch, namespace
from softargmax.core.chunks import SIZE, cut
from softargmax.core.loss_reduction import together
from softargmax.core.products import biased, finite
from softargmax.core.scale import Scale
from softargmax.loss import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from softargmax.loss.arguments import Layer, LinearCrossEntropy, LinearTerms, LossOptions
    from softargmax.loss.results import CrossEntropyTerms

PARTS = 768
"""The rows are cut into about this many parts, of at least one row. Of 1024 x 8192 scores of tensors, D = 16, the
definition then needs 2 % at once; with 192 parts, whose memory malloc does not use again, 27 to 45 %, in the same time.
Every part reads W and adds to dW: the wider these are, the fewer are the parts, down to 192."""
CLASSES = (1,)


# --- definitions ------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def linear_cross_entropy(i: LinearCrossEntropy) -> tuple[Any, ...]:
    """The loss, and the gradients to what `forms` names."""
    rows = by_parts(lambda z, part: reference.losses(z, piece(i.asked, part), CLASSES), i.layer, i.asked)
    loss = reference.reduced_losses(rows, i.asked, CLASSES, i.kept, i.mean, i.dtype)
    if not i.forms:
        return loss, *(reference.no_array(rows),) * 3
    return loss, *linear_cross_entropy_vjp(i, namespace(rows).ones_like(loss), i.forms)


@np.errstate(all="ignore")
def linear_cross_entropy_vjp(of: LinearCrossEntropy, g: Any, to: str) -> tuple[Any, ...]:
    """g times the gradients of the loss to what `to` names."""
    seed = seed_of(of, g)

    def slope(z: Any, part: slice) -> Any:
        return reference.gradient(z, (rows_of(seed, part), None, None, None), piece(of.asked, part), CLASSES)

    return pulled(slope, of.layer, (of.asked, seed), to)


def linear_terms(layer: Layer, asked: LossOptions) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    found: CrossEntropyTerms = by_parts(lambda z, part: reference.terms(z, piece(asked, part), CLASSES), layer, asked)
    return found


def linear_terms_vjp(of: LinearTerms, g_loss: Any, g_lse: Any, g_entropy: Any, g_z: Any, to: str) -> tuple[Any, ...]:
    """The gradients of <g, terms> to what `to` names."""
    seeds = [None if g is None else g[:, None] for g in (g_loss, g_lse, g_entropy, g_z)]

    def slope(z: Any, part: slice) -> Any:
        return reference.gradient(z, [rows_of(g, part) for g in seeds], piece(of.asked, part), CLASSES)

    return pulled(slope, of.layer, (of.asked, *seeds), to)


def seed_of(of: LinearCrossEntropy, g: Any) -> Any:
    """What the gradient of each row's own loss is multiplied by: (N, 1), or (1, 1) for all rows."""
    xp = namespace(g)
    g = xp.reshape(g, (-1, 1))
    if not of.mean:
        return g
    count = reference.weights_of_rows(xp.zeros((of.layer.h.shape[0],), dtype=g.dtype), of.asked, CLASSES)
    return g / together(count, xp.float64 if dtype_name(g.dtype) == "float64" else g.dtype)


# --- products ---------------------------------------------------------------------------------------------------------


def product(layer: Layer) -> Any:
    """h W^T + b. A class that the product puts out of the support stays out of it."""
    h, w, bias = layer
    xp = namespace(h)
    z = times(h, xp.permute_dims(w, (1, 0)))
    return z if bias is None else biased(z, xp.astype(bias, z.dtype))


def times(a: Any, b: Any) -> Any:
    """a b in the wider dtype of the two, at least float32, whatever autocast says; halves of b widened part by part."""
    xp = namespace(a)
    kind = xp.float64 if "float64" in (dtype_name(a.dtype), dtype_name(b.dtype)) else xp.float32
    a = xp.astype(a, kind, copy=False)
    step = max(1, 8 * SIZE // max(b.shape[0], 1))
    with _without_autocast(a):
        if b.dtype == kind or b.shape[1] <= step:
            return a @ xp.astype(b, kind, copy=False)
        columns = (b[:, start : start + step] for start in range(0, b.shape[1], step))
        return xp.concat([a @ xp.astype(part, kind) for part in columns], axis=1)


def _without_autocast(like: Any) -> AbstractContextManager[Any]:
    if not is_torch(like):
        return nullcontext()
    from softargmax.core.torch_private import without_autocast

    return without_autocast(like)


def pulled(slope: Callable[[Any, slice], Any], layer: Layer, beside: Sequence[Any], forms: str) -> tuple[Any, Any, Any]:
    """dz W, dz^T h and sum dz for dz = slope(scores, part), as `forms` names them; of shape (0,) what it does not."""
    h, w, _ = layer
    xp, none = namespace(h), reference.no_array(h)
    safe_w = finite(w) if "h" in forms else none
    dh, dw, db = none, none, none
    for part in parts(layer, beside):
        hidden = rows_of(h, part)
        dz = slope(product(layer._replace(h=hidden)), part)
        if "h" in forms:
            dh = _placed(dh, times(dz, safe_w), part, h.shape[0])
        if "w" in forms:
            dw = _added(dw, times(xp.permute_dims(dz, (1, 0)), finite(hidden)))
        if "b" in forms:
            db = _added(db, xp.sum(dz, axis=0))
    return dh, dw, db


def _added(total: Any, more: Any) -> Any:
    if total.shape == (0,) != more.shape:
        return more
    total += more
    return total


def _placed(whole: Any, found: Any, part: slice, rows: int) -> Any:
    """The rows of a part, put into an array of all rows, which the first part makes.

    A list of the parts' small results would lie between their large ones and keep malloc from using that memory again:
    4096 rows of 8192 classes of a tensor took 140 MiB so, more than their scores, and 28 in one array.
    """
    if found.shape[0] == rows:
        return found
    if whole.shape == (0,):
        whole = namespace(found).empty((rows, *found.shape[1:]), dtype=found.dtype, device=found.device)
    whole[part, ...] = found
    return whole


# --- a few rows at a time ---------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def by_parts(rows: Callable[[Any, slice], Any], layer: Layer, beside: Sequence[Any]) -> Any:
    """rows(scores, part) of every part, put together: an array, or a named tuple of them."""
    xp, size = namespace(layer.h), layer.h.shape[0]
    whole: list[Any] = []
    found: Any = None
    for part in parts(layer, beside):
        found = rows(product(part_of(layer, part)), part)
        each = [xp.reshape(x, (-1,)) for x in (found if isinstance(found, tuple) else (found,))]
        whole = whole or [reference.no_array(layer.h)] * len(each)
        whole = [_placed(*both, part, size) for both in zip(whole, each, strict=True)]
    return type(found)(*whole) if isinstance(found, tuple) else whole[0]


def parts(layer: Layer, beside: Sequence[Any]) -> Iterator[slice]:
    """Slices of the rows, so small that what the definition makes of their scores is below an eighth of all scores."""
    size, classes = layer.h.shape[0], layer.w.shape[0]
    arrays = (x for one in (layer, *beside) for x in (one if isinstance(one, tuple) else (one,)) if not _is_plain(x))
    whole = size * classes <= SIZE or not cut(tuple(arrays))
    fewest = max(size // PARTS, min(layer.h.shape[1] // 16, size // 192))
    step = max(size, 1) if whole else max(1, min(SIZE // classes, fewest))
    return (slice(start, min(start + step, size)) for start in range(0, max(size, 1), step))


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, int | float)


def part_of(layer: Layer, part: slice) -> Layer:
    """The layer of a part of the rows."""
    return layer._replace(h=rows_of(layer.h, part))


def piece(asked: LossOptions, part: slice) -> LossOptions:
    """What stands beside the scores of a part of the rows."""
    target = rows_of(asked.target, part)
    probabilities, where = rows_of(asked.probabilities, part), rows_of(asked.where, part)
    return asked._replace(target=target, probabilities=probabilities, where=where, beta=beta_of(asked.beta, part))


def beta_of(beta: Scale, part: slice) -> Scale:
    """That of a part of the rows."""
    return beta if isinstance(beta.hi, float) else Scale(*(rows_of(x, part) for x in beta))


def rows_of(array: Any, part: slice) -> Any:
    """Those of an array with numbers per row, or the one for all."""
    if array is None or array.shape[0] == 1 or part == slice(0, array.shape[0]):
        return array
    return array[part, ...]
