"""The compiled kernels of this room on the memory of torch tensors, and for each the shapes of what it returns.

They are the bodies of the operators in torch_rows, torch_logsumexp, torch_sums, torch_segments and torch_cumulative,
and take what those take: `beta`, `beta_lo` in float64 or None, `hi` and `lo` otherwise, tensors of any strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from softargmax import _native
from softargmax.core.torch_bridge import Operator
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rows import maybe, per_row, row_dtype

Axes = Sequence[int]
Part = Tensor | None
Two = tuple[Tensor, Tensor]


def slope(hi: float, lo: float) -> tuple[float, float]:
    """beta as a factor of derivatives: 0 in the limit |beta| = inf, where softmax is flat between jumps."""
    return (0.0, 0.0) if math.isinf(hi) else (hi, lo)


def _scale(beta: Part, beta_lo: Part, hi: float, lo: float) -> tuple[Any, Any]:
    """The pair as numbers, or as the memory of the operator's arguments (which outlive the call)."""
    return (hi, lo) if beta is None or beta_lo is None else (view(beta), view(beta_lo))


# --- along rows ---------------------------------------------------------------------------------------------------


def _normalizer(native: Callable[..., None]) -> Callable[..., Two]:
    def kernel(
        z: Tensor, beta: Part, beta_lo: Part, where: Part, axes: Axes, hi: float, lo: float, dtype: torch.dtype
    ) -> Two:
        result, lse = fresh_like(z, dtype), per_row(z, axes, row_dtype(dtype))
        native(view(z), view(result), axes, *_scale(beta, beta_lo, hi, lo), maybe(where), view(lse))
        return result, lse

    return kernel


def normalizer_shapes(z: Tensor, _b: Part, _l: Part, _w: Part, axes: Axes, _hi: Any, _lo: Any, dtype: Any) -> Two:
    """What softmax and log_softmax return: the result, lse."""
    return torch.empty_like(z, dtype=dtype), per_row(z, axes, row_dtype(dtype))


def _vjp(native: Callable[..., None]) -> Callable[..., Tensor]:
    def kernel(y: Tensor, lse: Tensor, g: Tensor, axes: Axes, hi: float, lo: float, dtype: torch.dtype) -> Tensor:
        gz = fresh_like(y, dtype)
        native(view(y), view(g), view(gz), axes, *slope(hi, lo), view(lse))
        return gz

    return kernel


def vjp_shape(y: Tensor, _lse: Tensor, _g: Tensor, _axes: Axes, _hi: float, _lo: float, dtype: torch.dtype) -> Tensor:
    """What the vjps return: a gradient."""
    return torch.empty_like(y, dtype=dtype)


def logsumexp(
    z: Tensor, beta: Part, beta_lo: Part, weights: Part, where: Part, axes: Axes, hi: float, lo: float, dtype: Any
) -> Tensor:
    """lse / beta."""
    lse = per_row(z, axes, dtype)
    _native.logsumexp(view(z), view(lse), axes, *_scale(beta, beta_lo, hi, lo), maybe(weights), maybe(where))
    return lse


def row_shape(z: Tensor, *arguments: Any) -> Tensor:
    """What logsumexp and the sums under a softmax return: a number per row, of the last argument's dtype."""
    (axes,) = (one for one in arguments if isinstance(one, (list, tuple)))
    return per_row(z, axes, arguments[-1])


def entropy(
    z: Tensor, beta: Part, beta_lo: Part, where: Part, axes: Axes, hi: float, lo: float, dtype: torch.dtype
) -> Tensor:
    """<p, -log p>."""
    return _sum(_native.entropy, z, None, where, axes, _scale(beta, beta_lo, hi, lo), dtype)


def expectation(
    z: Tensor, beta: Part, beta_lo: Part, where: Part, values: Part, axes: Axes, hi: float, lo: float, dtype: Any
) -> Tensor:
    """<p, values>; of the positions where there are none."""
    return _sum(_native.expectation, z, values, where, axes, _scale(beta, beta_lo, hi, lo), dtype)


def kl_divergence(z_p: Tensor, z_q: Tensor, where: Part, axes: Axes, dtype: torch.dtype) -> Tensor:
    """<p, log p - log q>."""
    return _sum(_native.kl_divergence, z_p, z_q, where, axes, (1.0, 0.0), dtype)


def _sum(
    native: Callable[..., None], z: Tensor, other: Part, where: Part, axes: Axes, scale: Any, dtype: torch.dtype
) -> Tensor:
    result = per_row(z, axes, dtype)
    native(view(z), maybe(other), view(result), axes, *scale, maybe(where))
    return result


def logsumexp_vjp(p: Tensor, g: Tensor, _axes: Axes, dtype: torch.dtype) -> Tensor:
    """Multiply: p g, 0 where p is."""
    gz = torch.mul(p, g, out=fresh_like(p, dtype))
    return gz if bool(g.isfinite().all()) else gz.masked_fill_(p == 0, 0)


def logsumexp_vjp_shape(p: Tensor, _g: Tensor, _axes: Axes, dtype: torch.dtype) -> Tensor:
    """What logsumexp_vjp returns: a gradient."""
    return torch.empty_like(p, dtype=dtype)


softmax, softmax_vjp = _normalizer(_native.softmax), _vjp(_native.softmax_vjp)
log_softmax, log_softmax_vjp = _normalizer(_native.log_softmax), _vjp(_native.log_softmax_vjp)


# --- into memory that is given ------------------------------------------------------------------------------------


def _into(name: str, native: Callable[..., None]) -> Operator[None]:
    def kernel(
        out: Tensor, z: Tensor, beta: Part, beta_lo: Part, where: Part, axes: Axes, hi: float, lo: float
    ) -> None:
        native(view(z), view(out), axes, *_scale(beta, beta_lo, hi, lo), maybe(where))
        torch.autograd.graph.increment_version(out)

    arguments = "Tensor z, Tensor? beta, Tensor? beta_lo, Tensor? where, int[] axes, float hi, float lo"
    return Operator(f"{name}(Tensor(a!) out, {arguments}) -> ()", None, kernel=kernel, fake=lambda *_arguments: None)


softmax_out = _into("softmax_out", _native.softmax)
log_softmax_out = _into("log_softmax_out", _native.log_softmax)


# --- ragged rows, running sums ------------------------------------------------------------------------------------


def _bounds(offsets: Tensor) -> Any:
    return offsets.to(torch.int64).contiguous().numpy()


def _segment_normalizer(native: Callable[..., None]) -> Callable[..., Two]:
    def kernel(z: Tensor, offsets: Tensor, beta: Part, beta_lo: Part, hi: float, lo: float) -> Two:
        result, lse = fresh_like(z, z.dtype), segment_shape(z, offsets)
        native(view(z), _bounds(offsets), view(result), *_scale(beta, beta_lo, hi, lo), view(lse))
        return result, lse

    return kernel


def segment_shapes(z: Tensor, offsets: Tensor, *_options: Any) -> Two:
    """What segment_softmax and segment_log_softmax return: the result, lse."""
    return torch.empty_like(z), segment_shape(z, offsets)


def segment_logsumexp(z: Tensor, offsets: Tensor, beta: Part, beta_lo: Part, hi: float, lo: float) -> Tensor:
    """lse / beta of each segment."""
    lse = segment_shape(z, offsets)
    _native.segment_logsumexp(view(z), _bounds(offsets), view(lse), *_scale(beta, beta_lo, hi, lo))
    return lse


def segment_shape(z: Tensor, offsets: Tensor, *_options: Any) -> Tensor:
    """What segment_logsumexp returns: a number per segment and column."""
    return z.new_empty((offsets.shape[0] - 1, *z.shape[1:]), dtype=row_dtype(z.dtype))


def _segment_alone(native: Callable[..., None]) -> Callable[..., Tensor]:
    def kernel(z: Tensor, offsets: Tensor, beta: Part, beta_lo: Part, hi: float, lo: float) -> Tensor:
        result = fresh_like(z, z.dtype)
        native(view(z), _bounds(offsets), view(result), *_scale(beta, beta_lo, hi, lo))
        return result

    return kernel


segment_softmax_alone = _segment_alone(_native.segment_softmax)
segment_log_softmax_alone = _segment_alone(_native.segment_log_softmax)
segment_softmax = _segment_normalizer(_native.segment_softmax)
segment_log_softmax = _segment_normalizer(_native.segment_log_softmax)


def logcumsumexp(z: Tensor, axis: int) -> Tensor:
    """The lse of every prefix."""
    y = fresh_like(z, row_dtype(z.dtype))
    _native.logcumsumexp(view(z), view(y), (axis,))
    return y


def logcumsumexp_shape(z: Tensor, _axis: int) -> Tensor:
    """What logcumsumexp returns."""
    return torch.empty_like(z, dtype=row_dtype(z.dtype))
