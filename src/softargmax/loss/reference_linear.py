"""Definitions of the losses of a last layer's scores h W^T + b, computed a few rows at a time.

    dh = dz W        dW = dz^T h        db = sum dz

The array library computes the matrix products, in the dtype of the inputs (float32 for half precision). The losses are
computed by reference.py. Only NumPy arrays, torch tensors that record no derivative (`cut` in core/row_chunks.py), and
JAX arrays of a program (core/jax_rows.py) are split into parts. Otherwise all rows are computed at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import device_of, dtype_name, is_torch, kind_of, namespace
from softargmax.core.loss_reduction import total_weight
from softargmax.core.operation import along, row_sum
from softargmax.core.processes import SpreadAxes, refuse_spread
from softargmax.core.products import biased, finite
from softargmax.core.row_chunks import SIZE, cut
from softargmax.core.scale import Scale
from softargmax.loss import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from softargmax.core.jax_rows import Part as RowsOfGroups
    from softargmax.loss.arguments import Layer, LinearCrossEntropy, LinearTerms, LossOptions
    from softargmax.loss.results import CrossEntropyTerms

    Part = slice | RowsOfGroups

PARTS = 768
"""The approximate number of parts into which the rows are split. Each part has at least one row.

Measured for torch tensors with 1024 x 8192 scores and D = 16: with 768 parts, the definition has 2 % of the scores in
memory at once. With 192 parts it has 27 to 45 %, because malloc does not reuse the memory of a part. Both take the same
time. Every part reads W and adds to dW. A layer with larger D is therefore split into fewer parts, but into at
least 192.
"""
PARTS_OF_PROGRAM = 192
"""The approximate number of parts in a program of XLA for CPUs.

XLA stores about 16 arrays of the size of the scores of a part, for a loss with all options and its gradients.
"""
ON_DEVICE = 1 << 26
"""The approximate number of scores of a part on a device, which needs large products."""
CLASSES = (1,)


def _axes(i: LinearCrossEntropy) -> tuple[int, ...]:
    """Return the axis of the classes in scores."""
    if i.by_rows:
        refuse_spread(i.spread)
    return CLASSES if i.spread is None else SpreadAxes(CLASSES, i.spread)


def _layer(i: LinearCrossEntropy) -> Layer:
    """Return the layer. If classes are spread over processes, all of them have h."""
    return i.layer._replace(h=along(i.layer.h, _axes(i)))


# --- definitions ------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def linear_cross_entropy(i: LinearCrossEntropy) -> tuple[Any, ...]:
    """Return the loss, and the gradients that `forms` names."""
    axes, layer = _axes(i), _layer(i)
    rows = by_parts(lambda z, part: reference.losses(z, options_of_rows(i.options, part), axes), layer, i.options)
    loss = reference.reduced_losses(rows, i.options, axes, i.kept, i.mean, i.dtype)
    if not i.forms:
        return loss, *(reference.no_array(rows),) * 3
    return loss, *linear_cross_entropy_vjp(i, namespace(rows).ones_like(loss), i.forms)


@np.errstate(all="ignore")
def linear_cross_entropy_vjp(of: LinearCrossEntropy, g: Any, to: str) -> tuple[Any, ...]:
    """Return g times the gradients of the loss with respect to the arrays that `to` names."""
    seed, axes = seed_of(of, g), _axes(of)

    def slope(z: Any, part: Part) -> Any:
        return reference.gradient(z, (rows_of(seed, part), None, None, None), options_of_rows(of.options, part), axes)

    dh, dw, db = layer_vjp(slope, _layer(of), (of.options, seed), to)
    return row_sum(dh, SpreadAxes((), of.spread)) if of.spread and "h" in to else dh, dw, db


def linear_terms(layer: Layer, options: LossOptions) -> CrossEntropyTerms:
    """Return loss, lse, entropy and z-loss of every row."""
    found: CrossEntropyTerms = by_parts(
        lambda z, part: reference.terms(z, options_of_rows(options, part), CLASSES), layer, options
    )
    return found


def linear_terms_vjp(of: LinearTerms, g_loss: Any, g_lse: Any, g_entropy: Any, g_z: Any, to: str) -> tuple[Any, ...]:
    """Return the gradients with respect to the arrays that `to` names, for incoming gradients of the four terms."""
    seeds = [None if g is None else g[:, None] for g in (g_loss, g_lse, g_entropy, g_z)]

    def slope(z: Any, part: Part) -> Any:
        return reference.gradient(z, [rows_of(g, part) for g in seeds], options_of_rows(of.options, part), CLASSES)

    return layer_vjp(slope, of.layer, (of.options, *seeds), to)


def seed_of(of: LinearCrossEntropy, g: Any) -> Any:
    """Return the factor of the gradient of each row, as `reference.seed_of` does.

    Its shape is (N, 1), or (1, 1) if it is the same for all rows.
    """
    xp = namespace(g)
    g = xp.reshape(g, (-1, 1))
    if not of.mean:
        return g
    count = reference.weights_of_rows(xp.zeros((of.layer.h.shape[0],), dtype=g.dtype), of.options, _axes(of))
    return g / total_weight(count, xp.float64 if dtype_name(g.dtype) == "float64" else g.dtype)


# --- products ---------------------------------------------------------------------------------------------------------


def product(layer: Layer) -> Any:
    """Return h W^T + b. A score that is infinite before the bias is added stays unchanged."""
    h, w, bias = layer
    xp = namespace(h)
    z = times(h, xp.permute_dims(w, (1, 0)))
    return z if bias is None else biased(z, xp.astype(bias, z.dtype))


def times(a: Any, b: Any) -> Any:
    """Return the matrix product of a and b in the wider of their dtypes, but at least float32, even under autocast.

    A half-precision b is converted a few columns at a time, to save memory.
    """
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


def layer_vjp(
    slope: Callable[[Any, Part], Any], layer: Layer, operands: Sequence[Any], forms: str
) -> tuple[Any, Any, Any]:
    """Return dz W, dz^T h and sum dz for dz = slope(scores, part). Results not named in `forms` have shape (0,)."""
    h, w, _ = layer
    xp, none = namespace(h), reference.no_array(h)
    safe_w = finite(w) if "h" in forms else none

    def gradients(part: Part) -> Iterator[Any]:
        hidden = rows_of(h, part)
        dz = slope(product(layer._replace(h=hidden)), part)
        dz = dz if isinstance(part, slice) else part.once(dz)
        yield times(dz, safe_w) if "h" in forms else none
        yield times(xp.permute_dims(dz, (1, 0)), finite(hidden)) if "w" in forms else none
        yield xp.sum(dz, axis=0) if "b" in forms else none

    over_parts = _loop(layer, operands)
    if over_parts is not None:
        dh, (dw, db) = over_parts(lambda part: (next(found := gradients(part)), [*found]))
        return dh, dw, db
    dh, dw, db = none, none, none
    for part in parts(layer, operands):
        found = gradients(part)
        dh, dw, db = _placed(dh, next(found), part, h.shape[0]), _added(dw, next(found)), _added(db, next(found))
    return dh, dw, db


def _added(total: Any, term: Any) -> Any:
    if total.shape == (0,) != term.shape:
        return term
    total += term
    return total


def _placed(whole: Any, found: Any, part: Part, rows: int) -> Any:
    """Write the rows of a part into the array of all rows. Allocate that array at the first part.

    With a list of small results, one per part, malloc would place each result between two large temporary arrays. It
    could then not reuse the memory of these arrays. With such a list, 4096 rows of 8192 classes take 140 MiB, which is
    more than the scores. With one array they take 28 MiB.
    """
    if found.shape[0] in (0, rows):
        return found
    if whole.shape == (0,):
        whole = namespace(found).empty((rows, *found.shape[1:]), dtype=found.dtype, device=device_of(found))
    whole[part, ...] = found
    return whole


# --- a few rows at a time ---------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def by_parts(rows: Callable[[Any, Part], Any], layer: Layer, operands: Sequence[Any]) -> Any:
    """Call rows(scores, part) for every part, and join the results. They are arrays, or named tuples of arrays."""
    over_parts = _loop(layer, operands)
    if over_parts is not None:
        return over_parts(lambda part: (rows(product(part_of(layer, part)), part), []))[0]
    xp, size = namespace(layer.h), layer.h.shape[0]
    whole: list[Any] = []
    found: Any = None
    for part in parts(layer, operands):
        found = rows(product(part_of(layer, part)), part)
        each = [xp.reshape(x, (-1,)) for x in (found if isinstance(found, tuple) else (found,))]
        whole = whole or [reference.no_array(layer.h)] * len(each)
        whole = [_placed(*both, part, size) for both in zip(whole, each, strict=True)]
    return type(found)(*whole) if isinstance(found, tuple) else whole[0]


def _loop(layer: Layer, operands: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the function that computes the parts in a program of JAX, or None to compute them one by one here."""
    if kind_of(layer.h) != "jax":
        return None
    from softargmax.core.jax_rows import over_parts, step_of

    rows, classes = layer.h.shape[0], layer.w.shape[0]
    step = step_of((layer, operands), (rows, classes), (SIZE, PARTS_OF_PROGRAM), ON_DEVICE)
    return partial(over_parts, rows=rows, step=step) if step else None


def parts(layer: Layer, operands: Sequence[Any]) -> Iterator[slice]:
    """Return slices of the rows. Each slice needs less memory than an eighth of all scores.

    If there are few scores, or the arrays cannot be split, one slice has all rows. So it is for classes that are spread
    over processes, which exchange numbers for each slice: only derivatives, which are recorded, compute them here.
    """
    size, classes = layer.h.shape[0], layer.w.shape[0]
    arrays = (x for one in (layer, *operands) for x in (one if isinstance(one, tuple) else (one,)) if not _is_plain(x))
    on_device = is_torch(layer.h) and not layer.h.is_cpu
    most = ON_DEVICE if on_device else SIZE
    whole = size * classes <= most or not cut(tuple(arrays), on_devices=True)
    fewest = size if on_device else max(size // PARTS, min(layer.h.shape[1] // 16, size // 192))
    step = max(size, 1) if whole else max(1, min(most // classes, fewest))
    return (slice(start, min(start + step, size)) for start in range(0, max(size, 1), step))


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, int | float)


def part_of(layer: Layer, part: Part) -> Layer:
    """Return the layer for a part of the rows."""
    return layer._replace(h=rows_of(layer.h, part))


def options_of_rows(options: LossOptions, part: Part) -> LossOptions:
    """Return the options for a part of the rows."""
    target = rows_of(options.target, part)
    probabilities, where = rows_of(options.probabilities, part), rows_of(options.where, part)
    return options._replace(target=target, probabilities=probabilities, where=where, beta=beta_of(options.beta, part))


def beta_of(beta: Scale, part: Part) -> Scale:
    """Return beta for a part of the rows."""
    return beta if isinstance(beta.hi, float) else Scale(*(rows_of(x, part) for x in beta))


def rows_of(array: Any, part: Part) -> Any:
    """Return a part of the rows of an array. A single row, which counts for all rows, is returned unchanged."""
    if array is None or array.shape[0] == 1 or part == slice(0, array.shape[0]):
        return array
    return array[part, ...] if isinstance(part, slice) else part.rows_of(array)
