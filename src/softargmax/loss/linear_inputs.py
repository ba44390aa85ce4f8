"""A model's last layer, z = h W^T + b, and what stands beside its scores: checked, and laid out as rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import arrays, check
from softargmax.core.arrays import namespace
from softargmax.core.scale import Scale
from softargmax.loss.arguments import Layer, LossOptions


class Given(NamedTuple):
    """The layer as it was given, the shape of its scores, and the layer as rows."""

    h: Any
    shape: tuple[int, ...]
    flat: Layer


def layer_of(h: Any, w: Any, bias: Any, suffix: str = "") -> Given:
    """Check h (..., D), w (K, D) and bias (K,); `suffix` completes their names."""
    h = check.scores(h, f"h{suffix}")
    if callable(w) and hasattr(w, "weight"):
        raise TypeError(f"w{suffix}: {type(w).__name__}, a layer; give its weight, and its bias as bias{suffix}=")
    w = check.scores(arrays.like(w, h, f"w{suffix}"), f"w{suffix}")
    if not h.ndim:
        raise ValueError(f"h{suffix}: expected hidden vectors of shape (..., D), got 0-d")
    if w.ndim != 2 or w.shape[1] != h.shape[-1]:
        raise ValueError(f"w{suffix}: expected shape (K, {h.shape[-1]}), with the width of h, got {tuple(w.shape)}")
    classes = w.shape[0]
    if bias is not None:
        bias = check.scores(arrays.like(bias, h, f"bias{suffix}"), f"bias{suffix}")
        if tuple(bias.shape) != (classes,):
            raise ValueError(
                f"bias{suffix}: expected one number per class, shape ({classes},), got {tuple(bias.shape)}"
            )
    rows = tuple(h.shape[:-1])
    return Given(h, (*rows, classes), Layer(_as_rows(h, math.prod(rows)), w, bias))


def wide_of(dtype: Any, *layers: Given) -> Any:
    """The dtype of the result: the one asked for, else the widest of the layers', float32 for halves."""
    if dtype is not None:
        return dtype
    xp = namespace(layers[0].h)
    every = {arrays.dtype_name(x.dtype) for layer in layers for x in layer.flat if x is not None}
    return xp.float64 if "float64" in every else xp.float32


def sums_of(layer: Given) -> Any:
    """The dtype that products of the layer are added up in."""
    xp = namespace(layer.h)
    every = {arrays.dtype_name(x.dtype) for x in layer.flat[:2]}
    return xp.float64 if "float64" in every else xp.float32


def least_of(layer: Given, exact: bool) -> float:
    """The probability from which on a class counts in gradients: all below it together are lost in the rounding."""
    rounding = 2.0**-53 if any(arrays.dtype_name(x.dtype) == "float64" for x in layer.flat[:2]) else 2.0**-24
    return 0.0 if check.flag(exact, "exact") else rounding / max(layer.shape[-1], 1)


def flattened(asked: LossOptions, shape: tuple[int, ...]) -> LossOptions:
    """What stands beside scores of shape (..., K) as what stands beside scores of shape (N, K)."""
    rows = tuple(shape[:-1])
    size = math.prod(rows)
    target, probabilities, weight = asked.target, asked.probabilities, asked.weight
    return asked._replace(
        target=None if target is None else namespace(target).reshape(target, (size,)),
        probabilities=None if probabilities is None else _as_rows(probabilities, size),
        weight=None if weight is None else namespace(weight).reshape(weight, (1, -1)),
        where=None if asked.where is None else spread(asked.where, rows, size),
        beta=flat_beta(asked.beta, rows, size),
    )


def flat_beta(beta: Scale, rows: tuple[int, ...], size: int) -> Scale:
    """One beta for all rows, or one per row."""
    return beta if isinstance(beta.hi, float) else Scale(*(spread(part, rows, size) for part in beta))


def _as_rows(array: Any, size: int) -> Any:
    return array if array.ndim == 2 else namespace(array).reshape(array, (size, array.shape[-1]))


def spread(array: Any, rows: tuple[int, ...], size: int) -> Any:
    """One row for all, or one per row."""
    xp, last = namespace(array), array.shape[-1]
    if math.prod(array.shape[:-1]) == 1:
        return xp.reshape(array, (1, last))
    return xp.reshape(xp.broadcast_to(array, (*rows, last)), (size, last))
