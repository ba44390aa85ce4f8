"""Sums under the softmax along the rows of a torch tensor: the operators and their derivatives.

Letters and shapes are those of torch_rows; v are values. All of it rests on the covariance p (v - <p, v>), which is
what softmax_vjp computes; p and log p are recomputed from the scores where a derivative wants them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.torch_bridge import Operator, batch_rows
from softargmax.core.torch_rows import row_dtype, row_sum
from softargmax.normalize import torch_kernels as kernels
from softargmax.normalize.torch_rows import (
    Gradients,
    flat,
    log_softmax_rows,
    only,
    scaled_tangent,
    softmax_rows,
    softmax_vjp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# --- entropy <p, -log p>, expectation <p, v> ----------------------------------------------------------------------


class _Sum(torch.autograd.Function):
    """E = <p, v>. dE = <p (v - E), dx> + <p, dv>, with dx = beta dz + z dbeta."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.axes, ctx.hi, ctx.lo, ctx.dtype = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)


def _slopes(ctx: Any) -> tuple[Tensor, Tensor]:
    """p, and the derivative of E to x."""
    z, beta, beta_lo, where, *values = ctx.saved_tensors
    options = z, beta, beta_lo, where, ctx.axes, ctx.hi, ctx.lo, row_dtype(z.dtype)
    p, lse = softmax_rows(*options)
    if not values:  # the entropy, whose -log p has a derivative that vanishes in the mean
        return p, softmax_vjp(p, lse, -log_softmax_rows(*options)[0], ctx.axes, 1.0, 0.0, p.dtype)
    v = positions(z, ctx.axes) if values[0] is None else values[0]
    return p, softmax_vjp(p, lse, v, ctx.axes, 1.0, 0.0, p.dtype)


def positions(z: Tensor, axes: Sequence[int]) -> Tensor:
    """0..K-1 along the axes of a row, in their order."""
    sizes = [size if axis in axes else 1 for axis, size in enumerate(z.shape)]
    return torch.arange(math.prod(sizes), dtype=torch.float64, device=z.device).reshape(sizes).expand(z.shape)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients to z and beta, and p."""
    z, beta = ctx.saved_tensors[:2]
    p, slope = _slopes(ctx)
    gx = only(p != 0, slope * g)
    if beta is None:
        return (gx * kernels.slope(ctx.hi, ctx.lo)[0]).to(z.dtype), None, p
    inside = (p != 0) & ~z.isinf()
    mean = row_sum(only(inside, p) * only(inside, z), ctx.axes)  # <z, gx> = <z - mean, gx>, without cancellation
    gbeta = torch.where(beta.isinf(), 0, row_sum(gx * only(inside, z - mean), ctx.axes)).to(beta.dtype)
    return (gx * flat(beta)).to(z.dtype), gbeta, p


def _jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None) -> tuple[Tensor, Tensor]:
    """<p (v - E), dx>, and p."""
    z, beta = ctx.saved_tensors[:2]
    p, slope = _slopes(ctx)
    t = scaled_tangent(ctx, (p != 0) & ~z.isinf(), None if beta is None else z, beta, tz, tbeta)
    return row_sum(slope * t, ctx.axes), p


class _Entropy(_Sum):
    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Gradients:
        gz, gbeta = (None, None) if g is None else _backward(ctx, g)[:2]
        return gz, gbeta, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None, *_: None) -> Tensor:
        return _jvp(ctx, tz, tbeta)[0].to(ctx.dtype)


entropy_rows = Operator(
    "entropy(Tensor z, Tensor? beta, Tensor? beta_lo, Tensor? where, int[] axes, float hi, float lo, ScalarType dtype)"
    " -> Tensor",
    _Entropy,
    kernel=kernels.entropy,
    fake=kernels.row_shape,
    batch=batch_rows,
)


class _Expectation(_Sum):
    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Gradients:
        if g is None:
            return (None,) * 9
        gz, gbeta, p = _backward(ctx, g)
        gv = only(p != 0, p * g).to(ctx.saved_tensors[4].dtype) if ctx.needs_input_grad[4] else None
        return gz, gbeta, None, None, gv, *(None,) * 4

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None, _lo: None, _where: None, tv: Any, *_: None) -> Tensor:
        t, p = _jvp(ctx, tz, tbeta)
        return (t if tv is None else t + row_sum(only(p != 0, p * tv), ctx.axes)).to(ctx.dtype)


expectation_rows = Operator(
    "expectation(Tensor z, Tensor? beta, Tensor? beta_lo, Tensor? where, Tensor? values, int[] axes, float hi,"
    " float lo, ScalarType dtype) -> Tensor",
    _Expectation,
    kernel=kernels.expectation,
    fake=kernels.row_shape,
    batch=batch_rows,
)


# --- divergence <p, log p - log q> --------------------------------------------------------------------------------


class _Divergence(torch.autograd.Function):
    """D = <p, log p - log q>. dD = <p (log p - log q - D), dz_p> + <q - p, dz_q>."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.axes, ctx.dtype = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Gradients:
        if g is None:
            return (None,) * 5
        z_p, z_q, _ = ctx.saved_tensors
        slope_p, slope_q = _divergence_slopes(ctx)
        gp, gq = (only(slope != 0, slope * g) for slope in (slope_p, slope_q))
        return gp.to(z_p.dtype), gq.to(z_q.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, tp: Tensor | None, tq: Tensor | None, *_: None) -> Tensor:
        pairs = zip(_divergence_slopes(ctx), (tp, tq), strict=True)
        parts = [row_sum(slope * only(slope != 0, t), ctx.axes) for slope, t in pairs if t is not None]
        return sum(parts[1:], parts[0]).to(ctx.dtype)


def _divergence_slopes(ctx: Any) -> tuple[Tensor, Tensor]:
    """The derivatives of D to both scores, in float64: where p is near q, both are small differences.

    An infinite score is constant, and so is D where it is infinite.
    """
    z_p, z_q, where = ctx.saved_tensors
    options = None, None, where, ctx.axes, 1.0, 0.0, torch.float64
    (p, lse_p), (q, lse_q) = softmax_rows(z_p, *options), softmax_rows(z_q, *options)
    y_q = log_softmax_rows(z_q, *options)[0]
    lost = row_sum(((p != 0) & (y_q == -math.inf)).to(p.dtype), ctx.axes) > 0
    inside = (p != 0) & ~lost
    ratio = only(inside, log_softmax_rows(z_p, *options)[0]) - only(inside, y_q)
    slope_p = only(~lost, softmax_vjp(p, lse_p, ratio, ctx.axes, 1.0, 0.0, p.dtype))
    return slope_p, only(~lost & (lse_q != math.inf) & (lse_p != -math.inf), q - p)


divergence_rows = Operator(
    "kl_divergence(Tensor z_p, Tensor z_q, Tensor? where, int[] axes, ScalarType dtype) -> Tensor",
    _Divergence,
    kernel=kernels.kl_divergence,
    fake=kernels.row_shape,
    batch=batch_rows,
)
