"""The primitives of this room on NumPy arrays, by the compiled core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import _native
from softargmax.core.native import beta_of, fresh, view
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.core.scale import Scale

Array = np.ndarray[Any, Any]


def _row_shape(z: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(z.shape) if axis not in axes)


def _run(kernel: Callable[..., None], z: Array, axes: Any, scale: Scale, where: Any, dtype: Any, out: Any) -> Array:
    result = fresh(z.shape, dtype) if out is None else out
    if scale is UNIT and where is None and z.dtype == dtype and dtype.kind == "f":
        kernel(z, result, axes)
    else:
        kernel(view(z), view(result), axes, *beta_of(scale), where)
    return result


def softmax(z: Array, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Array:
    """exp(beta z - lse)."""
    return _run(_native.softmax, z, axes, scale, where, dtype, out)


def log_softmax(z: Array, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any, out: Any) -> Array:
    """beta z - lse."""
    return _run(_native.log_softmax, z, axes, scale, where, dtype, out)


def softmax_with_lse(z: Array, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any) -> tuple[Array, Array]:
    """Both exp(beta z - lse) and lse, in nats."""
    out = fresh(z.shape, dtype)
    lse = np.empty(_row_shape(z, axes), np.float64 if dtype == np.float64 else np.float32)
    _native.softmax(view(z), view(out), axes, *beta_of(scale), where, lse)
    return out, lse


def logsumexp(
    z: Array, axes: tuple[int, ...], scale: Scale, weights: Any, where: Any, dtype: Any, keepdims: bool
) -> Array:
    """lse / beta."""
    lse = np.empty(_row_shape(z, axes), dtype)
    _native.logsumexp(view(z), view(lse), axes, *beta_of(scale), weights if weights is None else view(weights), where)
    return np.expand_dims(lse, axes) if keepdims else lse[()]


def _sum(
    kernel: Callable[..., None], z: Array, axes: tuple[int, ...], scale: Scale, other: Any, where: Any, dtype: Any
) -> Array:
    out = np.empty(_row_shape(z, axes), dtype)
    kernel(view(z), None if other is None else view(other), view(out), axes, *beta_of(scale), where)
    return out


def entropy(z: Array, axes: tuple[int, ...], scale: Scale, where: Any, dtype: Any) -> Array:
    """<p, -log p>."""
    return _sum(_native.entropy, z, axes, scale, None, where, dtype)


def expectation(z: Array, axes: tuple[int, ...], scale: Scale, values: Any, where: Any, dtype: Any) -> Array:
    """<p, values>; of the positions where there are none."""
    return _sum(_native.expectation, z, axes, scale, values, where, dtype)


def kl_divergence(z_p: Array, z_q: Array, axes: tuple[int, ...], where: Any, dtype: Any) -> Array:
    """<p, log p - log q>."""
    return _sum(_native.kl_divergence, z_p, axes, UNIT, z_q, where, dtype)


def logcumsumexp(z: Array, axis: int) -> Array:
    """log of the running sum of exp(z)."""
    out = fresh(z.shape, np.float32 if z.dtype.itemsize == 2 else z.dtype)
    _native.logcumsumexp(view(z), out, (axis,))
    return out


def _segments(kernel: Callable[..., None], z: Array, offsets: Array, scale: Scale, out: Array) -> Array:
    kernel(view(z), np.ascontiguousarray(offsets, np.int64), view(out), *beta_of(scale))
    return out


def segment_softmax(z: Array, offsets: Array, scale: Scale) -> Array:
    """softmax inside each segment of axis 0."""
    return _segments(_native.segment_softmax, z, offsets, scale, fresh(z.shape, z.dtype))


def segment_log_softmax(z: Array, offsets: Array, scale: Scale) -> Array:
    """log_softmax inside each segment of axis 0."""
    return _segments(_native.segment_log_softmax, z, offsets, scale, fresh(z.shape, z.dtype))


def segment_logsumexp(z: Array, offsets: Array, scale: Scale) -> Array:
    """lse / beta of each segment of axis 0."""
    dtype = np.float32 if z.dtype.itemsize == 2 else z.dtype
    return _segments(_native.segment_logsumexp, z, offsets, scale, np.empty((len(offsets) - 1, *z.shape[1:]), dtype))
