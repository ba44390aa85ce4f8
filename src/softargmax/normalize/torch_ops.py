"""The room's primitives for torch tensors in CPU memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax import _native, normalize
from softargmax.core.torch_bridge import Operator, all_direct, compile_whole, direct, write_into
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rows import row_dtype
from softargmax.normalize import torch_kernels as kernels
from softargmax.normalize.torch_cumulative import logcumsumexp_rows
from softargmax.normalize.torch_logsumexp import logsumexp_rows
from softargmax.normalize.torch_rows import log_softmax_rows, softmax_rows
from softargmax.normalize.torch_segments import segment_log_softmax_rows, segment_logsumexp_rows, segment_softmax_rows
from softargmax.normalize.torch_sums import divergence_rows, entropy_rows, expectation_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.core.scale import Scale

Axes = tuple[int, ...]

compile_whole(getattr(normalize, name) for name in normalize.__all__)


def softmax(
    z: Tensor, axes: Axes, scale: Scale, where: Tensor | None, dtype: torch.dtype, out: Tensor | None
) -> Tensor:
    """exp(x - lse)."""
    if where is None and type(scale.hi) is float and z.dtype is dtype and direct(z, out):
        return _at_once(_native.softmax, z, axes, scale, out)
    return _normalized(softmax_rows, kernels.softmax_out, z, axes, scale, where, dtype, out)


def log_softmax(
    z: Tensor, axes: Axes, scale: Scale, where: Tensor | None, dtype: torch.dtype, out: Tensor | None
) -> Tensor:
    """x - lse."""
    if where is None and type(scale.hi) is float and z.dtype is dtype and direct(z, out):
        return _at_once(_native.log_softmax, z, axes, scale, out)
    return _normalized(log_softmax_rows, kernels.log_softmax_out, z, axes, scale, where, dtype, out)


def softmax_with_lse(
    z: Tensor, axes: Axes, scale: Scale, where: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """exp(x - lse), and lse in the unit of x."""
    p, lse = softmax_rows(z, *_betas(scale, _rows(z, axes)), where, axes, *_numbers(scale), dtype)
    return p, _squeezed(lse, axes)


def logsumexp(
    z: Tensor,
    axes: Axes,
    scale: Scale,
    weights: Tensor | None,
    where: Tensor | None,
    dtype: torch.dtype,
    keepdims: bool,
) -> Tensor:
    """lse / beta, the smooth maximum."""
    weights = None if weights is None else weights.expand(z.shape)
    lse = logsumexp_rows(z, *_betas(scale, _rows(z, axes)), weights, where, axes, *_numbers(scale), dtype)
    return lse if keepdims else _squeezed(lse, axes)


def entropy(z: Tensor, axes: Axes, scale: Scale, where: Tensor | None, dtype: torch.dtype) -> Tensor:
    """<p, -log p>."""
    return _squeezed(entropy_rows(z, *_betas(scale, _rows(z, axes)), where, axes, *_numbers(scale), dtype), axes)


def expectation(
    z: Tensor, axes: Axes, scale: Scale, values: Tensor | None, where: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """<p, values>; of the positions 0..K-1 where there are none."""
    if values is not None:  # its gradient is summed over the rows before it is rounded
        values = values.to(row_dtype(values.dtype)).expand(z.shape)
    arguments = z, *_betas(scale, _rows(z, axes)), where, values, axes, *_numbers(scale), dtype
    return _squeezed(expectation_rows(*arguments), axes)


def kl_divergence(z_p: Tensor, z_q: Tensor, axes: Axes, where: Tensor | None, dtype: torch.dtype) -> Tensor:
    """<p, log p - log q>."""
    return _squeezed(divergence_rows(z_p, z_q, where, axes, dtype), axes)


def segment_softmax(z: Tensor, offsets: Tensor, scale: Scale) -> Tensor:
    """exp(x - lse), row by ragged row."""
    return _segments(segment_softmax_rows, kernels.segment_softmax_alone, z, offsets, scale)


def segment_log_softmax(z: Tensor, offsets: Tensor, scale: Scale) -> Tensor:
    """x - lse, row by ragged row."""
    return _segments(segment_log_softmax_rows, kernels.segment_log_softmax_alone, z, offsets, scale)


def segment_logsumexp(z: Tensor, offsets: Tensor, scale: Scale) -> Tensor:
    """lse / beta of each ragged row."""
    return segment_logsumexp_rows(z, offsets, *_betas(scale, _segment_rows(z, offsets)), *_numbers(scale))


def logcumsumexp(z: Tensor, axis: int) -> Tensor:
    """The lse of everything up to each score."""
    if z.ndim == 0:
        return logcumsumexp_rows(z.reshape(1), 0).reshape(())
    return logcumsumexp_rows(z, axis)


def _at_once(native: Any, z: Tensor, axes: Axes, scale: Scale, out: Tensor | None) -> Tensor:
    """The kernel alone: nothing to differentiate, to trace or to convert (of 7 scores, that is most of the time)."""
    result = fresh_like(z, z.dtype) if out is None else out
    native(view(z), view(result), axes, scale.hi, scale.lo)
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return result


def _normalized(
    rows: Any,
    into: Operator[None],
    z: Tensor,
    axes: Axes,
    scale: Scale,
    where: Tensor | None,
    dtype: torch.dtype,
    out: Tensor | None,
) -> Tensor:
    arguments = z, *_betas(scale, _rows(z, axes)), where, axes, *_numbers(scale)
    if out is not None:
        return write_into(into, out, arguments, ("z", "temperature"))
    result: Tensor = rows(*arguments, dtype)[0]
    return result


def _betas(scale: Scale, rows: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
    """The parts of a scale that is a tensor, one pair to a row, so that torch sums the gradient of what rows share."""
    if isinstance(scale.hi, float):
        return None, None
    return scale.hi.double().expand(rows), scale.lo.double().expand(rows)


def _rows(z: Tensor, axes: Axes) -> list[int]:
    return [1 if axis in axes else size for axis, size in enumerate(z.shape)]


def _segments(rows: Any, alone: Any, z: Tensor, offsets: Tensor, scale: Scale) -> Tensor:
    """By the operator, which returns lse too for its derivatives, or by the kernel alone where there are none."""
    arguments = z, offsets, *_betas(scale, _segment_rows(z, offsets)), *_numbers(scale)
    result: Tensor = alone(*arguments) if all_direct(arguments) else rows(*arguments)[0]
    return result


def _segment_rows(z: Tensor, offsets: Tensor) -> tuple[int, ...]:
    return (offsets.shape[0] - 1, *z.shape[1:])


def _numbers(scale: Scale) -> tuple[float, float]:
    return (scale.hi, scale.lo) if isinstance(scale.hi, float) else (1.0, 0.0)


def _squeezed(lse: Tensor, axes: Axes) -> Tensor:
    return lse.squeeze(axes) if axes else lse
