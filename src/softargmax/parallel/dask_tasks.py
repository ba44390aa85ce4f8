"""The tasks of calls with Dask arrays: which functions of parts.py they call, and with which chunks.

Arrays are cut to fit the scores before (dask_chunks.py). Tasks of parts of rows join what they have found by trees.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np

from softargmax.core import check
from softargmax.core.arrays import row_dtype
from softargmax.core.dispatch import check_serves
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, LossAndGradient
from softargmax.parallel import parts
from softargmax.parallel.dask_chunks import Chunks, Places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from softargmax.parallel.dask_chunks import Labels, Place

LIKE_Z = ("softmax", "log_softmax", "softmin", "hardmax")
"""Functions whose result is laid out like z: a softmax, or its logarithm."""
PER_ROW = (
    *("logsumexp", "entropy", "renyi_entropy", "kl_divergence", "soft_argmax"),
    *("cross_entropy", "cross_entropy_terms", "selected_log_softmax"),
)
"""Functions whose results have numbers per row."""
LIKE_Z_OF_WHOLE_ROWS = ("sparsemax", "entmax", "topk_softmax", "logcumsumexp", "filter_scores", "gumbel_softmax")
PER_ROW_OF_WHOLE_ROWS = ("sparsemax_loss", "entmax_loss")
"""Functions that need whole rows in one task, as the two above."""
OF_DRAWS = ("categorical", "categorical_with_logprob")
WITH_GRADIENT, WITH_LAYER_GRADIENTS = "cross_entropy_and_gradient", "linear_cross_entropy_and_gradient"
"""The functions that also return gradients: of scores, and of a layer."""
OF_LAYERS = ("linear_cross_entropy", "linear_cross_entropy_terms", "linear_selected_log_softmax", WITH_LAYER_GRADIENTS)
"""Functions of a layer (h, w, bias), which every task has."""
NAMES = (*LIKE_Z, *PER_ROW, WITH_GRADIENT, *LIKE_Z_OF_WHOLE_ROWS, *PER_ROW_OF_WHOLE_ROWS, *OF_DRAWS, *OF_LAYERS)
JOINED = 16
"""Number of parts whose bytes are joined by one task. Dask's option `split_every` replaces it."""


class Reduction(NamedTuple):
    """The sum or mean of the losses of all rows, in float64, rounded once, as a call in memory does."""

    dtype: Any
    mean: bool
    target: da.Array | None
    """The classes of the rows, if rows count by the weights of their classes. Otherwise all count the same."""
    weight: da.Array | None
    """The weights of the classes."""


def is_like_z(name: str) -> bool:
    """True if the result of a function is laid out like z."""
    return name in (*LIKE_Z, *LIKE_Z_OF_WHOLE_ROWS)


def result_of(
    call: parts.Call, chunks: Chunks, arrays: Mapping[str, tuple[da.Array, Labels]], reduction: Reduction | None
) -> Any:
    """The result of a call with arrays that are cut to fit the scores. Its losses are those of rows, or reduced."""
    if call.implementation is not None:
        check_serves(call.implementation, "numpy")
    draws = call.options.get("num_samples")
    examples = [chunks.example(key, *one, draws if isinstance(draws, int) else 1) for key, one in arrays.items()]
    if len(chunks.sizes) > 1:
        return _of_parts(call, chunks, arrays, examples, reduction)
    found, pairs, name = parts.result(call, *examples), _pairs(arrays), call.function.__name__
    if name == WITH_LAYER_GRADIENTS:
        return _with_layer_gradients(call, chunks, found, reduction, *pairs)
    if name == WITH_GRADIENT:
        task, dividing = functools.partial(parts.with_gradient, call), _divisor(call, chunks, reduction)
        return _results(task, call, chunks, found, reduction, *pairs, *dividing)
    return _results(functools.partial(parts.result, call), call, chunks, found, reduction, *pairs)


def _of_parts(
    call: parts.Call,
    chunks: Chunks,
    arrays: Mapping[str, tuple[da.Array, Labels]],
    examples: Sequence[Any],
    reduction: Reduction | None,
) -> Any:
    """The result of a call with chunks that cut rows. The examples are parts of one row, without scores."""
    length, pairs, name = sum(chunks.sizes), _pairs(arrays), call.function.__name__
    exchanges, found = parts.exchanges_of(call, length, examples)
    place = Places((chunks.sizes,), (0,)), chunks.axes
    joined: list[Any] = []
    for _ in range(max(exchanges, 1)):
        of_part = functools.partial(parts.sent, call, length)
        sent = _blockwise(of_part, f"{name}-of-parts", chunks, chunks.labels, object, *pairs, *place, *joined,
                          names=call.names)  # fmt: skip
        # The axis of a row is kept, with one chunk. So Dask does not fuse a task that merges the states of rows with
        # those of the parts, each of which would merge all states again.
        joined += _tree(sent, chunks.axes, parts.join, object, name=f"{name}-joined", kept=True), chunks.labels
    if is_like_z(name):
        of_rows = functools.partial(parts.states, call)
        states = _blockwise(of_rows, f"{name}-states", chunks, chunks.rows, object, *joined)
        task = functools.partial(parts.result_of_part, call)
        return _results(task, call, chunks, found, None, *pairs, states, chunks.rows)
    if name == WITH_GRADIENT:
        losses = functools.partial(parts.losses_of_rows, call)
        rows = _blockwise(losses, f"{name}-of-rows", chunks, chunks.rows, object, *joined), chunks.rows
        weighed = "weight" in arrays and arrays["target"][0].dtype.kind != "f"
        place_of_states = 2 * parts.exchange_of_states(weighed=weighed)
        others = joined[:place_of_states] + joined[place_of_states + 2 :]
        task, dividing = functools.partial(parts.gradient_of_part, call), _divisor(call, chunks, reduction)
        needed = *pairs, *place, *dividing, *rows, *others
        gradient = _result(task, f"{name}-gradient", call, chunks, found.gradient, None, *needed, names=call.names)
        loss = _result(operator.attrgetter("loss"), f"{name}-loss", call, chunks, found.loss, reduction, *rows)
        return LossAndGradient(loss, gradient)
    if reduction is None:
        return _results(functools.partial(parts.result_of_rows, call), call, chunks, found, None, *joined)
    # The classes of the rows come with what parts have sent. So Dask fuses this task with the one that joins it.
    task = functools.partial(parts.sums_of_rows, call, reduction.target is not None)
    return _reduced(task, name, chunks, found, reduction, *joined)


def _pairs(arrays: Mapping[str, tuple[da.Array, Labels]]) -> list[Any]:
    """The arrays and their labels, as `_blockwise` takes them."""
    return [x for one in arrays.values() for x in one]


def _tree(
    each: da.Array,
    axes: Labels,
    join: Callable[..., Any],
    dtype: Any,
    *,
    every: int = 0,
    name: str = "",
    kept: bool = False,
) -> Any:
    """Join the chunks of an array along some axes by a tree of tasks, `every` of them at a time.

    The result has one chunk along these axes if they are `kept`, and otherwise not these axes.
    """
    every, meta = (
        every or dask.config.get("split_every", JOINED),
        np.empty((0,) * (each.ndim - len(axes) * (not kept)), dtype),
    )
    options = {"axis": axes, "dtype": dtype, "meta": meta, "name": name or None, "split_every": every, "keepdims": kept}
    return da.reduction(each, _same, join, concatenate=False, **options)


def _same(x: Any, **_: Any) -> Any:
    return x


def _results(
    task: Callable[..., Any], call: parts.Call, chunks: Chunks, found: Any, reduction: Reduction | None, *pairs: Any
) -> Any:
    """The arrays of the results of a call, which a task computes. `found` are the results for one row."""
    name = call.function.__name__
    if not isinstance(found, tuple) or (reduction is not None and isinstance(found, CrossEntropyTerms)):
        return _result(task, name, call, chunks, found, reduction, *pairs, names=call.names)
    all_results = _blockwise(task, f"{name}-results", chunks, chunks.rows, object, *pairs, names=call.names)
    several = []
    for place, (field, one) in enumerate(zip(type(found)._fields, found, strict=True)):  # type: ignore[attr-defined]
        pick, of_losses = operator.itemgetter(place), reduction if field == "loss" else None
        several.append(_result(pick, f"{name}-{field}", call, chunks, one, of_losses, all_results, chunks.rows))
    return type(found)(*several)


def _result(
    task: Callable[..., Any],
    token: str,
    call: parts.Call,
    chunks: Chunks,
    found: Any,
    reduction: Reduction | None,
    *pairs: Any,
    names: Sequence[str] = (),
) -> Any:
    """The array that a task computes. If it has losses, or terms of losses, a reduction gives their sum or mean."""
    if reduction is None:
        labels, new = _labels_of_result(chunks, found, call)
        return _blockwise(task, token, chunks, labels, found.dtype, *pairs, names=names, new_axes=new)
    sums = functools.partial(parts.sums_of, call, task)
    return _reduced(sums, token, chunks, found, reduction, *pairs, *_target(chunks, reduction), names=names)


def _reduced(
    task: Callable[..., Any],
    token: str,
    chunks: Chunks,
    found: Any,
    reduction: Reduction,
    *pairs: Any,
    names: Sequence[str] = (),
) -> Any:
    """The sum or mean of losses, or of each of their terms. A task computes the sums of its rows (`parts.sums`)."""
    terms = len(found) if isinstance(found, CrossEntropyTerms) else 1
    sums = _sums(task, f"{token}-sums", chunks, reduction.weight, terms, *pairs, names=names)
    dtype, mean = reduction.dtype, reduction.mean
    numbers = [_number(functools.partial(parts.reduced, dtype, mean, k), dtype, sums) for k in range(terms)]
    return CrossEntropyTerms(*numbers) if isinstance(found, CrossEntropyTerms) else numbers[0]


def _divisor(call: parts.Call, chunks: Chunks, reduction: Reduction | None) -> tuple[Any, Labels | None]:
    """The total weight of all rows, by which the gradients of a mean are divided, or None, and its labels."""
    if reduction is None or not reduction.mean:
        return None, None
    if reduction.target is None:
        return math.prod(chunks.shape[k] for k in chunks.rows) or math.inf, None
    task = functools.partial(parts.sums, call.options["ignore_index"], None)
    sums = _sums(task, "weights-of-rows", chunks, reduction.weight, 1, *_target(chunks, reduction))
    return _number(parts.total_weight, np.float64, sums), ()


def _target(chunks: Chunks, reduction: Reduction) -> tuple[da.Array | None, Labels | None]:
    return (None, None) if reduction.target is None else chunks.placed("target", reduction.target)


def _sums(
    task: Callable[..., Any],
    token: str,
    chunks: Chunks,
    weight: da.Array | None,
    terms: int,
    *pairs: Any,
    names: Sequence[str] = (),
) -> Any:
    """The sums over all rows of what a task returns for some of them. Its last argument are the class weights."""
    rows, own = chunks.rows, chunks.own(2)
    of_classes = (None, None) if weight is None else (weight.rechunk(-1), (chunks.own(3),))
    each = _blockwise(task, token, chunks, (*rows, own), np.float64, *pairs, *of_classes, names=names,
                      new_axes={own: 4 * terms}, adjust_chunks=dict.fromkeys(rows, 1))  # fmt: skip
    return _tree(each, tuple(range(len(rows))), parts.joined_sums, np.float64) if rows else each


def _number(task: Callable[..., Any], dtype: Any, sums: Any) -> Any:
    """The number that a task computes from sums over all rows."""
    return da.blockwise(task, (), sums, (0,), dtype=dtype, meta=np.empty((), dtype), concatenate=True)


def _with_layer_gradients(
    call: parts.Call, chunks: Chunks, found: Any, reduction: Reduction | None, *pairs: Any
) -> Any:
    """The losses of a layer, dh in chunks of rows, and the sums of the other gradients of all chunks of rows.

    The gradients of a chunk are divided and added up before they are rounded to half precision.
    """
    name, rows, given = call.function.__name__, chunks.rows, dict(zip(call.names, pairs[::2], strict=True))
    task = functools.partial(parts.of_layer, call)
    results = _blockwise(task, f"{name}-results", chunks, rows, object, *pairs, names=call.names)

    def added(place: int, of: da.Array) -> Any:
        own = {chunks.own(2 + k): n for k, n in enumerate(of.shape)}
        pick, dtype = functools.partial(parts.of_one_chunk, place, len(rows)), row_dtype(found[place].dtype)
        each = _blockwise(pick, f"{name}-of-rows", chunks, (*rows, *own), dtype, results, rows,
                          new_axes=own, adjust_chunks=dict.fromkeys(rows, 1))  # fmt: skip
        return _tree(each, rows, parts.added, np.float64, every=2)  # because each sum is as large as the layer

    divisor, _ = _divisor(call, chunks, reduction)

    def divided(x: Any, of: Any) -> Any:
        return (x if divisor is None else x / divisor).astype(of)

    loss = _result(operator.itemgetter(0), f"{name}-loss", call, chunks, found.loss, reduction, results, rows)
    wide = found.dh.astype(row_dtype(found.dh.dtype))
    dh = divided(_result(operator.itemgetter(1), f"{name}-dh", call, chunks, wide, None, results, rows), found.dh.dtype)
    dw = divided(added(2, given["w"]), found.dw.dtype)
    db = None if found.dbias is None else divided(added(3, given["bias"]), found.dbias.dtype)
    return LinearLossAndGradient(loss, dh, dw, db)


def _labels_of_result(chunks: Chunks, found: Any, call: parts.Call) -> tuple[Labels, dict[int, int]]:
    """The labels of a result, and the sizes of the axes that scores do not have."""
    name, ndim, shape = call.function.__name__, len(chunks.cuts), np.shape(found)
    if is_like_z(name):
        return chunks.labels, {}
    if name == WITH_GRADIENT and len(shape) == ndim:
        return chunks.labels, {} if len(chunks.sizes) > 1 else {k: chunks.shape[k] for k in chunks.axes}
    several = name == "selected_log_softmax" and len(shape) == ndim
    kept = call.options.get("keepdims") or several
    labels = tuple(ndim + k if k in chunks.axes else k for k in chunks.labels) if kept else chunks.rows
    new = {label: shape[k] for k, label in enumerate(labels) if label >= ndim}
    more = {chunks.own(2 + k): n for k, n in enumerate(shape[len(labels) :])}
    return (*labels, *more), {**new, **more}


def _blockwise(
    function: Callable[..., Any],
    name: str,
    chunks: Chunks,
    labels: Labels,
    dtype: Any,
    *pairs: Any,
    names: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Call a function of arrays in tasks. `names` are those of the first arrays, if these are arguments of the user."""
    kept = tuple(k for k in labels if k in chunks.labels)
    planned = tuple(
        _Planned(key, x.dtype, tuple(cut[0] if len(cut) == 1 else None for cut in x.chunks), of)
        for key, x, of in zip(names, pairs[::2], pairs[1::2], strict=False)
        if x.dtype != object
    )
    task, meta = functools.partial(_in_chunk, function, planned), np.empty((0,) * len(labels), dtype)
    # With concatenate=False, Dask keeps tasks that join parts apart from those that compute them.
    return da.blockwise(
        task, labels, Places(chunks.cuts, kept), kept, *pairs, token=name, dtype=dtype, meta=meta,
        align_arrays=False, concatenate=False, **more
    )  # fmt: skip


class _Planned(NamedTuple):
    """What Dask knows of an array before it is computed."""

    name: str
    dtype: Any
    shape: tuple[int | None, ...]
    """That of all chunks, with None for an axis that is cut like the scores."""
    labels: Labels

    def check(self, chunk: Any, place: Place) -> None:
        """Raise if a chunk is another one: results would be wrong without an error."""
        shape = tuple(place.shape[k] if n is None else n for k, n in zip(self.labels, self.shape, strict=True))
        if (chunk.shape, chunk.dtype) != (shape, self.dtype):
            raise ValueError(
                f"{self.name}: expected {self.dtype} of shape {shape}, as the Dask array says, got {chunk.dtype} of "
                f"shape {chunk.shape}"
            )


def _in_chunk(function: Callable[..., Any], planned: Sequence[_Planned], place: Place, *arguments: Any) -> Any:
    """Call a function. An error names the chunk of the scores."""
    with check.located(f"chunk {place.chunk}"):
        for array, x in zip(planned, arguments, strict=False):
            array.check(parts.block(x), place)
        return function(*arguments)
