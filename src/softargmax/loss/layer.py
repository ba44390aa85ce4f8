"""A model's last layer, z = h W^T + b, and what stands beside its scores: checked, and laid out as rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.dispatch import namespace
from softargmax.core.scale import Scale
from softargmax.loss.options import Beside


class Flat(NamedTuple):
    """What primitives take: h (N, D), w (K, D), bias (K,) or None; dtypes may differ."""

    h: Any
    w: Any
    bias: Any


class Layer(NamedTuple):
    """The layer as it was given, the shape of its scores, and the layer as rows."""

    h: Any
    shape: tuple[int, ...]
    flat: Flat


def layer_of(h: Any, w: Any, bias: Any, suffix: str = "") -> Layer:
    """Check h (..., D), w (K, D) and bias (K,); `suffix` completes their names."""
    h = check.scores(h, f"h{suffix}")
    w = check.scores(arrays.like(w, h, f"w{suffix}"), f"w{suffix}")
    if not h.ndim:
        raise ValueError(f"h{suffix}: 0-d; it may be hidden vectors of shape (..., D)")
    if w.ndim != 2 or w.shape[1] != h.shape[-1]:
        raise ValueError(f"w{suffix}: shape {tuple(w.shape)}; beside h it may be (K, {h.shape[-1]})")
    classes = w.shape[0]
    if bias is not None:
        bias = check.scores(arrays.like(bias, h, f"bias{suffix}"), f"bias{suffix}")
        if tuple(bias.shape) != (classes,):
            raise ValueError(f"bias{suffix}: shape {tuple(bias.shape)}; it may be one per class, ({classes},)")
    rows = tuple(h.shape[:-1])
    return Layer(h, (*rows, classes), Flat(_as_rows(h, math.prod(rows)), w, bias))


def wide_of(dtype: Any, *layers: Layer) -> Any:
    """The dtype of the result: the one asked for, else the widest of the layers', float32 for halves."""
    if dtype is not None:
        return dtype
    xp = namespace(layers[0].h)
    every = {arrays.dtype_name(x.dtype) for layer in layers for x in layer.flat if x is not None}
    return xp.float64 if "float64" in every else xp.float32


def least_of(layer: Layer, exact: bool) -> float:
    """The probability from which on a class counts in gradients: all below it together are lost in the rounding."""
    if not isinstance(exact, (bool, np.bool_)):
        raise TypeError(f"exact: {exact!r}; it may be True or False")
    rounding = 2.0**-53 if any(arrays.dtype_name(x.dtype) == "float64" for x in layer.flat[:2]) else 2.0**-24
    return 0.0 if exact else rounding / max(layer.shape[-1], 1)


def flattened(beside: Beside, shape: tuple[int, ...]) -> Beside:
    """The arrays beside scores of shape (..., K) as those beside scores of shape (N, K)."""
    rows = tuple(shape[:-1])
    size = math.prod(rows)
    target, weight, scale, where = beside
    if target is not None:
        target = _as_rows(target, size)
    if weight is not None:
        weight = namespace(weight).reshape(weight, (1, -1))
    if not isinstance(scale.hi, float):
        scale = Scale(*(_spread(part, rows, size) for part in scale))
    return Beside(target, weight, scale, None if where is None else _spread(where, rows, size))


def _as_rows(array: Any, size: int) -> Any:
    return array if array.ndim == 2 else namespace(array).reshape(array, (size, array.shape[-1]))


def _spread(array: Any, rows: tuple[int, ...], size: int) -> Any:
    """One row for all, or one per row."""
    xp, last = namespace(array), array.shape[-1]
    if math.prod(array.shape[:-1]) == 1:
        return xp.reshape(array, (1, last))
    return xp.reshape(xp.broadcast_to(array, (*rows, last)), (size, last))
