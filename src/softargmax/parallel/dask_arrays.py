"""Calls of public functions with Dask arrays: a Dask array in gives a Dask array out, and nothing is computed yet.

The chunks of z decide. Chunks along the axis of a row are parts of the rows (parts.py): a cut inside a block of 4096
scores is moved to the end of the block, and results are cut like z again. Other arrays are cut to fit z. Arguments are
checked when the graph is made, by a call for one row without scores. It also tells the dtype of the result.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from softargmax.core import check
from softargmax.core.arrays import axes_of, is_dask, one_axis
from softargmax.core.dispatch import requested_name
from softargmax.core.seeds import seed_of
from softargmax.parallel import parts
from softargmax.parallel.dask_chunks import OF_CLASSES, OF_ROWS, ROWWISE, Chunks, lazy
from softargmax.parallel.dask_tasks import (
    LIKE_Z,
    NAMES,
    OF_LAYERS,
    PER_ROW,
    WITH_GRADIENT,
    WITH_LAYER_GRADIENTS,
    Reduction,
    is_like_z,
    result_of,
)
from softargmax.sample.operations import FILTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LISTS = ("where", "weights", *ROWWISE, *OF_CLASSES)
"""Arguments that may be lists."""


def call(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call a public function some of whose arguments are Dask arrays."""
    name = function.__name__
    if name not in NAMES:
        raise NotImplementedError(f"Dask arrays are supported by {', '.join(NAMES)}; for {name}, pass x.compute()")
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    given = dict(bound.arguments)
    if given.get("out") is not None:
        raise TypeError("out: not supported with Dask arrays")
    if given.get("reduction") in ("mean", "sum"):
        return _reduced(function, given, bound.signature)
    return _of_rows(function, given, bound.signature)


def _of_rows(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    signature: inspect.Signature,
    reduction: Reduction | None = None,
) -> Any:
    """Call a function that returns the losses of rows. With a reduction, the result has their sum or mean."""
    by_position = tuple(key for key, x in signature.parameters.items() if x.kind is not x.KEYWORD_ONLY)
    always = by_position[0], "z_q", "w"
    arrays = {key: lazy(key, x) for key, x in given.items() if key in always or _is_array(key, x)}
    plain = {key: x for key, x in given.items() if key not in arrays}
    with dask.config.set({"array.rechunk.method": "tasks"}):  # by default, a cluster would write all chunks to disks
        return _of_arrays(function, by_position, arrays, plain, reduction)


def _is_array(name: str, x: Any) -> bool:
    if name in OF_ROWS:
        return x is not None
    return is_dask(x) or (isinstance(x, np.ndarray) and x.ndim > 0) or (name in _LISTS and isinstance(x, list | tuple))


def _of_arrays(
    function: Callable[..., Any],
    by_position: tuple[str, ...],
    arrays: dict[str, da.Array],
    plain: dict[str, Any],
    reduction: Reduction | None = None,
) -> Any:
    name, z = function.__name__, arrays[by_position[0]]
    if name == "kl_divergence":
        shape = np.broadcast_shapes(*(arrays[key].shape for key in by_position))
        arrays |= {key: da.broadcast_to(arrays[key], shape) for key in by_position}
        z = arrays[by_position[0]]
    axes: tuple[int, ...]
    if name in OF_LAYERS:
        cuts, axes = (*z.chunks[:-1], arrays["w"].shape[:1]), (z.ndim - 1,)
    else:
        of_loss = "target" in arrays or "index" in arrays
        cuts, axes = z.chunks, (one_axis(plain["axis"], z.ndim),) if of_loss else axes_of(plain["axis"], z.ndim)
    spreads = _spreads(name, {**plain, **arrays})
    if spreads and len(axes) > 1:
        flat, of_one_axis = _with_one_axis(arrays, z, axes), {**plain, "axis": -1, "keepdims": False}
        found = _of_arrays(function, by_position, flat, {key: of_one_axis[key] for key in plain})
        return _with_axes(found, name, z, axes, keepdims=plain.get("keepdims", False))
    chunks = Chunks.of(cuts, axes, spreads=spreads)
    _add_defaults(name, chunks, arrays, plain)
    placed = {key: chunks.placed(key, x) for key, x in arrays.items()}
    along = tuple(chunks.along(labels) for _, labels in placed.values())
    of_parts = parts.Call(function, plain, by_position, tuple(placed), along, requested_name())
    found = result_of(of_parts, chunks, placed, reduction)
    if name == WITH_GRADIENT:
        return found._replace(gradient=found.gradient.rechunk(cuts))
    if name == WITH_LAYER_GRADIENTS:
        return found._replace(dh=found.dh.rechunk(z.chunks))
    return found.rechunk(cuts) if is_like_z(name) else found


def _add_defaults(name: str, chunks: Chunks, arrays: dict[str, da.Array], plain: dict[str, Any]) -> None:
    """Add the arrays that a function makes of the places of scores and rows, of which a task sees some."""
    if "seed" in plain:
        plain |= {"seed": seed_of(np.empty(0), plain["seed"], plain["generator"]), "generator": None}
        if "stream" not in arrays:
            del plain["stream"]
            arrays["stream"] = chunks.numbers_of_rows()
    if name == "soft_argmax" and "values" not in arrays and len(chunks.sizes) > 1:
        del plain["values"]
        arrays["values"] = da.arange(sum(chunks.sizes), chunks=(chunks.sizes,), dtype=np.float64)


def _with_one_axis(arrays: Mapping[str, Any], z: Any, axes: tuple[int, ...]) -> dict[str, Any]:
    """The arrays of a call in which the axes of a row are joined into one last axis."""
    rows = tuple(k for k in range(z.ndim) if k not in axes)

    def flat(name: str, x: Any) -> Any:
        if name in OF_CLASSES or x.ndim == 0:
            return x
        if name not in ROWWISE:
            x = da.broadcast_to(x, z.shape)
        elif x.ndim < z.ndim:
            return x
        return x.transpose((*rows, *axes)).reshape((*(x.shape[k] for k in rows), -1))

    return {name: flat(name, x) for name, x in arrays.items()}


def _with_axes(found: Any, name: str, z: Any, axes: tuple[int, ...], *, keepdims: bool) -> Any:
    """A result with the axes that a row has in z."""
    if not is_like_z(name):
        return da.expand_dims(found, axes) if keepdims else found
    order = (*(k for k in range(z.ndim) if k not in axes), *axes)
    shaped = found.reshape(tuple(z.shape[k] for k in order))
    return shaped.transpose(tuple(np.argsort(order))).rechunk(z.chunks)


def _spreads(name: str, given: Mapping[str, Any]) -> bool:
    """True if a function can be computed from parts of rows."""
    plain_draws = name == "categorical" and given["replace"] is True and all(given.get(key) is None for key in FILTERS)
    return requested_name() != "reference" and (name in (*LIKE_Z, *PER_ROW, WITH_GRADIENT) or plain_draws)


def _reduced(function: Callable[..., Any], given: Mapping[str, Any], signature: inspect.Signature) -> Any:
    """Call a function whose losses are reduced. Tasks add up the losses of rows in float64."""
    target, weight, mean = lazy("target", given["target"]), given.get("weight"), given["reduction"] == "mean"
    reduction = Reduction(_dtype_of_rows(given), mean, None, None)
    if mean and target.dtype.kind != "f":
        reduction = reduction._replace(target=target, weight=None if weight is None else lazy("weight", weight))
    return _of_rows(function, {**given, "reduction": "none", "dtype": np.float64}, signature, reduction)


def _dtype_of_rows(given: Mapping[str, Any]) -> Any:
    scores = [lazy(key, given[key]).dtype for key in ("z", "h", "w", "bias") if given.get(key) is not None]
    floating = [check.scores(np.empty(0, dtype)).dtype for dtype in scores]
    return check.dtype_of_rows(given["dtype"], np.empty(0, np.result_type(*floating)))
