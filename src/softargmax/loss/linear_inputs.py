"""Check the arrays of a last layer, h W^T + b. Reshape them and the options for scores of shape (N, K)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core import arrays, check
from softargmax.core._native import plain_axes
from softargmax.core.arrays import namespace
from softargmax.core.scale import Scale
from softargmax.loss.arguments import Layer, LinearCrossEntropy, LossOptions
from softargmax.loss.check_options import common_call

if TYPE_CHECKING:
    from collections.abc import Mapping


class CheckedLayer(NamedTuple):
    """h as the caller passed it, the shape (..., K) of the scores, and the layer with h reshaped to (N, D)."""

    h: Any
    shape: tuple[int, ...]
    flat: Layer


def common_layer(h: Any, w: Any, bias: Any, target: Any, options: Mapping[str, object]) -> LinearCrossEntropy | None:
    """Return the operation's arguments for the most common call in training, or None for other calls.

    The most common call has a matrix of hidden vectors, arrays of one dtype, and only options that `common_call`
    accepts. The kernel checks the class values. This function takes 5 us. The full check of all arguments takes 90 us.
    """
    common = common_call(h, target, options)
    if common is None or common.axes != (1,) or not _needs_no_conversion(w, h, 2) or w.shape[1] != h.shape[1]:
        return None
    if bias is not None and not (_needs_no_conversion(bias, h, 1) and bias.shape[0] == w.shape[0]):
        return None
    least = _rounding(common.dtype.itemsize == 8)
    dtype = common.dtype  # also the dtype of the sums
    layer = Layer(h, w, bias)
    forms = trained_letters(layer)
    return LinearCrossEntropy(layer, common.options, common.kept, common.mean, least, forms, dtype, dtype)


def trained_letters(layer: Layer) -> str:
    """Return the letters of the arrays whose gradients a later backward pass needs: "h", "w", and "b" for the bias."""
    h, w, bias = layer
    if not arrays.recorded(h):
        return ""
    b = bias is not None and bias.requires_grad
    return f"{'h' if h.requires_grad else ''}{'w' if w.requires_grad else ''}{'b' if b else ''}"


def _needs_no_conversion(x: Any, h: Any, ndim: int) -> bool:
    """True if x is an array of h's library and dtype with `ndim` axes."""
    return plain_axes(x, -1) == (ndim - 1,) and x.dtype is h.dtype


def layer_of(h: Any, w: Any, bias: Any, suffix: str = "") -> CheckedLayer:
    """Check h (..., D), w (K, D) and bias (K,). Error messages append `suffix` to these names."""
    h = check.scores(h, f"h{suffix}")
    if callable(w) and hasattr(w, "weight"):
        raise TypeError(
            f"w{suffix}: expected an array, got the layer {type(w).__name__}; "
            f"pass its weight as w{suffix} and its bias as bias{suffix}"
        )
    w = check.scores(arrays.like(w, h, f"w{suffix}"), f"w{suffix}")
    if not h.ndim:
        raise ValueError(f"h{suffix}: expected hidden vectors of shape (..., D), got a 0-d array")
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
    return CheckedLayer(h, (*rows, classes), Layer(_as_rows(h, math.prod(rows)), w, bias))


def widest_dtype(dtype: Any, *layers: CheckedLayer) -> Any:
    """Return `dtype`. If `dtype` is None, return the widest dtype of the arrays of the layers, at least float32."""
    if dtype is not None:
        return dtype
    xp = namespace(layers[0].h)
    every = {arrays.dtype_name(x.dtype) for layer in layers for x in layer.flat if x is not None}
    return xp.float64 if "float64" in every else xp.float32


def sums_of(layer: CheckedLayer) -> Any:
    """Return the dtype in which the products of the layer are summed."""
    xp = namespace(layer.h)
    every = {arrays.dtype_name(x.dtype) for x in layer.flat[:2]}
    return xp.float64 if "float64" in every else xp.float32


def negligible_probability(layer: CheckedLayer, exact: bool) -> float:
    """Return K times the largest probability that may count as 0 in gradients.

    It is the rounding unit of the sums, or 0 if `exact` is True.
    """
    double = any(arrays.dtype_name(x.dtype) == "float64" for x in layer.flat[:2])
    return 0.0 if check.flag(exact, "exact") else _rounding(double)


def _rounding(double: bool) -> float:
    """Return the rounding unit of float64, or of float32."""
    return 2.0**-53 if double else 2.0**-24


def flattened(options: LossOptions, shape: tuple[int, ...]) -> LossOptions:
    """Reshape the options for scores of shape (..., K) to options for scores of shape (N, K)."""
    rows = tuple(shape[:-1])
    size = math.prod(rows)
    target, probabilities, weight = options.target, options.probabilities, options.weight
    return options._replace(
        target=None if target is None else namespace(target).reshape(target, (size,)),
        probabilities=None if probabilities is None else _as_rows(probabilities, size),
        weight=None if weight is None else namespace(weight).reshape(weight, (1, -1)),
        where=None if options.where is None else broadcast_rows(options.where, rows, size),
        beta=flat_beta(options.beta, rows, size),
    )


def flat_beta(beta: Scale, rows: tuple[int, ...], size: int) -> Scale:
    """Return a single beta unchanged. Reshape one beta per row to shape (N, 1)."""
    return beta if isinstance(beta.hi, float) else Scale(*(broadcast_rows(part, rows, size) for part in beta))


def _as_rows(array: Any, size: int) -> Any:
    return array if array.ndim == 2 else namespace(array).reshape(array, (size, array.shape[-1]))


def broadcast_rows(array: Any, rows: tuple[int, ...], size: int) -> Any:
    """Return the array with shape (N, n), or (1, n) if it is the same for all rows. n is the size of its last axis."""
    xp, last = namespace(array), array.shape[-1]
    if math.prod(array.shape[:-1]) == 1:
        return xp.reshape(array, (1, last))
    return xp.reshape(xp.broadcast_to(array, (*rows, last)), (size, last))
