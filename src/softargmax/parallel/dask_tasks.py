"""The tasks of calls with Dask arrays: which functions of parts.py they call, and with which chunks.

Arrays are cut to fit the scores before (dask_chunks.py). Tasks of parts of rows join what they have found by trees.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np

from softargmax.core import check
from softargmax.core.arrays import row_dtype
from softargmax.core.dispatch import check_serves
from softargmax.loss.results import LinearLossAndGradient, LossAndGradient
from softargmax.parallel import parts
from softargmax.parallel.dask_chunks import Chunks, Places, lazy

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
Divisor = da.Array | float | None
"""The total weight of all rows, by which the gradients of a mean are divided."""


def is_like_z(name: str) -> bool:
    """True if the result of a function is laid out like z."""
    return name in (*LIKE_Z, *LIKE_Z_OF_WHOLE_ROWS)


def result_of(call: parts.Call, chunks: Chunks, arrays: Mapping[str, tuple[da.Array, Labels]], divisor: Divisor) -> Any:
    """The result of a call with arrays that are cut to fit the scores."""
    if call.implementation is not None:
        check_serves(call.implementation, "numpy")
    draws = call.options.get("num_samples")
    examples = [chunks.example(key, *one, draws if isinstance(draws, int) else 1) for key, one in arrays.items()]
    sizes, pairs, name = chunks.sizes, [x for one in arrays.values() for x in one], call.function.__name__
    dividing = divisor, () if isinstance(divisor, da.Array) else None
    if len(sizes) == 1:
        found = parts.result(call, *examples)
        if name == WITH_GRADIENT:
            return _results(functools.partial(parts.with_gradient, call), call, chunks, found, *pairs, *dividing)
        if name == WITH_LAYER_GRADIENTS:
            return _with_layer_gradients(call, chunks, found, divisor, *pairs)
        return _results(functools.partial(parts.result, call), call, chunks, found, *pairs)
    exchanges, found = parts.exchanges_of(call, sum(sizes), examples)
    place = Places((sizes,), (0,)), chunks.axes
    joined: list[Any] = []
    for _ in range(max(exchanges, 1)):
        of_part = functools.partial(parts.sent, call, sum(sizes))
        sent = _blockwise(of_part, f"{name}-of-parts", chunks, chunks.labels, object, *pairs, *place, *joined,
                          names=call.names)  # fmt: skip
        # The axis of a row is kept, with one chunk. So Dask does not fuse a task that merges the states of rows with
        # those of the parts, each of which would merge all states again.
        joined += _tree(sent, chunks.axes, parts.join, object, name=f"{name}-joined", kept=True), chunks.labels
    if is_like_z(name):
        of_rows = functools.partial(parts.states, call)
        states = _blockwise(of_rows, f"{name}-states", chunks, chunks.rows, object, *joined)
        return _results(functools.partial(parts.result_of_part, call), call, chunks, found, *pairs, states, chunks.rows)
    if name == WITH_GRADIENT:
        losses, gradients = (
            functools.partial(parts.losses_of_rows, call),
            functools.partial(parts.gradient_of_part, call),
        )
        of_all = _blockwise(losses, f"{name}-of-rows", chunks, chunks.rows, object, *joined)
        rows = of_all, chunks.rows
        weighed = "weight" in arrays and arrays["target"][0].dtype.kind != "f"
        place_of_states = 2 * parts.exchange_of_states(weighed=weighed)
        others = joined[:place_of_states] + joined[place_of_states + 2 :]
        gradient = _results(gradients, call, chunks, found.gradient, *pairs, *place, *dividing, *rows, *others)
        return LossAndGradient(_results(operator.attrgetter("loss"), call, chunks, found.loss, *rows), gradient)
    return _results(functools.partial(parts.result_of_rows, call), call, chunks, found, *joined)


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


def _results(task: Callable[..., Any], call: parts.Call, chunks: Chunks, found: Any, *pairs: Any) -> Any:
    """The arrays of the results of a call, which a task computes. `found` are the results for one row."""
    name = call.function.__name__
    if not isinstance(found, tuple):
        labels, new = _labels_of_result(chunks, found, call)
        return _blockwise(task, name, chunks, labels, found.dtype, *pairs, names=call.names, new_axes=new)
    all_results = _blockwise(task, f"{name}-results", chunks, chunks.rows, object, *pairs, names=call.names)
    several = []
    for place, (field, one) in enumerate(zip(type(found)._fields, found, strict=True)):  # type: ignore[attr-defined]
        labels, new = _labels_of_result(chunks, one, call)
        pick, of_field = operator.itemgetter(place), f"{name}-{field}"
        several.append(_blockwise(pick, of_field, chunks, labels, one.dtype, all_results, chunks.rows, new_axes=new))
    return type(found)(*several)


def _with_layer_gradients(call: parts.Call, chunks: Chunks, found: Any, divisor: Divisor, *pairs: Any) -> Any:
    """The losses of a layer, dh in chunks of rows, and the sums of the other gradients of all chunks of rows.

    The gradients of a chunk are divided and added up before they are rounded to half precision.
    """
    name, rows, given = call.function.__name__, chunks.rows, dict(zip(call.names, pairs[::2], strict=True))
    task = functools.partial(parts.of_layer, call)
    results = _blockwise(task, f"{name}-results", chunks, rows, object, *pairs, names=call.names)

    def of_rows(place: int) -> Any:
        labels, new = _labels_of_result(chunks, found[place], call)
        pick, dtype = operator.itemgetter(place), row_dtype(found[place].dtype)
        return _blockwise(pick, f"{name}-{found._fields[place]}", chunks, labels, dtype, results, rows, new_axes=new)

    def added(place: int, of: da.Array) -> Any:
        own = {chunks.own(2 + k): n for k, n in enumerate(of.shape)}
        pick, dtype = functools.partial(parts.of_one_chunk, place, len(rows)), row_dtype(found[place].dtype)
        each = _blockwise(pick, f"{name}-of-rows", chunks, (*rows, *own), dtype, results, rows,
                          new_axes=own, adjust_chunks=dict.fromkeys(rows, 1))  # fmt: skip
        return _tree(each, rows, parts.added, np.float64, every=2)  # because each sum is as large as the layer

    def divided(x: Any, of: Any) -> Any:
        return (x if divisor is None else x / divisor).astype(of)

    dh, dw = divided(of_rows(1), found.dh.dtype), divided(added(2, given["w"]), found.dw.dtype)
    db = None if found.dbias is None else divided(added(3, given["bias"]), found.dbias.dtype)
    return LinearLossAndGradient(of_rows(0), dh, dw, db)


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


def sums_of(ignore_index: int, target: Any, weight: Any, losses: Any) -> Any:
    """The sums of losses and of weights over all rows, as `parts.sums` returns them: a tree of tasks."""
    like = target if losses is None else losses
    rows, own, classes = tuple(range(like.ndim)), like.ndim, like.ndim + 1
    pairs = [losses, None if losses is None else rows]
    pairs += [None, None] if target is None else [_cut(target, like.chunks), rows]
    pairs += [None, None] if weight is None else [_cut(lazy("weight", weight), -1), (classes,)]
    task, more = functools.partial(parts.sums, ignore_index), {"dtype": np.float64, "concatenate": True}
    each = da.blockwise(task, (*rows, own), *pairs, new_axes={own: 4}, adjust_chunks=dict.fromkeys(rows, 1),
                        align_arrays=False, meta=np.empty((0,) * (own + 1)), **more)  # fmt: skip
    return _tree(each, rows, parts.joined_sums, np.float64) if rows else each


def _cut(x: da.Array, chunks: Any) -> Any:
    with dask.config.set({"array.rechunk.method": "tasks"}):
        return x.rechunk(chunks)


def number(task: Callable[..., Any], dtype: Any, sums: Any) -> Any:
    """The number that a task computes from the result of `sums_of`."""
    return da.blockwise(task, (), sums, (0,), dtype=dtype, meta=np.empty((), dtype), concatenate=True)


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
