"""softmax and log_softmax along the rows of a torch tensor: the operators and their derivatives.

Letters: x = beta z the scaled score, p = softmax(x), y = log p, lse = log sum exp(x), <a, b> the sum over a row, g
(and h) an incoming gradient, t a tangent. Only the support (p != 0, y != -inf) takes part in a derivative. A row of
infinities (lse = inf) is constant: the derivative of its softmax is 0. So it is at |beta| = inf (T -> 0), where
softmax is flat between jumps.

`beta` is None where the scale is the pair of numbers hi + lo; else it is the tensor through which `temperature` is
differentiated (`beta_lo` is the rest of the pair; hi and lo are unused) and has the shape of the rows, the reduced axes
kept as 1. So have lse and every other number per row here. `dtype` is that of the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softargmax.core.torch_bridge import Operator, batch_rows
from softargmax.core.torch_rows import row_dtype, row_sum
from softargmax.normalize import torch_kernels as kernels

_FORWARD = "(Tensor z, Tensor? beta, Tensor? beta_lo, Tensor? where, int[] axes, float hi, float lo, ScalarType dtype)"
_LINEAR = "Tensor g, int[] axes, float hi, float lo, ScalarType dtype"
Gradients = tuple[Tensor | None, ...]


def only(support: Tensor, tensor: Tensor) -> Tensor:
    """The tensor in the support, exactly 0 outside of it whatever stands there; halves as float32."""
    return torch.where(support, tensor.to(row_dtype(tensor.dtype)), 0)


def probability(inside: Tensor, y: Tensor) -> Tensor:
    """exp(y) in the support."""
    return only(inside, only(inside, y).exp())


def flat(beta: Tensor) -> Tensor:
    """beta as a factor of derivatives: 0 in the limit |beta| = inf."""
    return torch.where(beta.isinf(), 0, beta)


class _Normalizer(torch.autograd.Function):
    """What both save: the result and lse, and the scores where beta is differentiated."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, beta, _, _, ctx.axes, ctx.hi, ctx.lo, _ = inputs
        ctx.dtype = z.dtype
        ctx.set_materialize_grads(False)
        saved = (*output, None if beta is None else z, beta)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)


class _Linear(torch.autograd.Function):
    """What both vjps save. They are linear in g."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *saved, ctx.axes, ctx.hi, ctx.lo, ctx.dtype = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)


def scaled_tangent(ctx: Any, inside: Tensor, z: Tensor | None, beta: Tensor | None, tz: Any, tbeta: Any) -> Tensor:
    """t = beta tz + z tbeta."""
    slope, _ = kernels.slope(ctx.hi, ctx.lo)
    t = only(inside, inside if tz is None else tz) * (0 if tz is None else slope if beta is None else flat(beta))
    return t if z is None or tbeta is None else t + only(inside, z) * tbeta


# --- softmax --------------------------------------------------------------------------------------------------------


class _Softmax(_Normalizer):
    """p = exp(x - lse), and lse. dp = p (dx - <p, dx>), dlse = <p, dx>, with dx = beta dz + z dbeta."""

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, glse: Tensor | None) -> Gradients:
        p, lse, z, beta = ctx.saved_tensors
        (hi, lo), dtype = (ctx.hi, ctx.lo) if beta is None else (1.0, 0.0), ctx.dtype
        gz, gbeta = None, None
        if g is not None:
            gz = softmax_vjp(p, lse, g, ctx.axes, hi, lo, dtype if beta is None else row_dtype(dtype))
        if glse is not None:
            gp = only(p != 0, p * glse) * kernels.slope(hi, lo)[0]
            gz = gp if gz is None else gz + gp
        if beta is not None and gz is not None:
            # <z, p (g - <p, g>)> = <z - <p, z>, p (g - <p, g>)>: the covariance of z and g, without cancellation.
            inside = (p != 0) & ~z.isinf()
            mean = row_sum(only(inside, p) * only(inside, z), ctx.axes)
            gbeta = row_sum(gz * only(inside, z - mean), ctx.axes) + (0 if glse is None else mean * glse)
            gbeta = torch.where(beta.isinf(), 0, gbeta).to(beta.dtype)
            gz = gz * flat(beta)
        return None if gz is None else gz.to(dtype), gbeta, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None, *_: None) -> tuple[Tensor, Tensor]:
        p, lse, z, beta = ctx.saved_tensors
        inside = p != 0 if z is None else (p != 0) & ~z.isinf()
        t = scaled_tangent(ctx, p != 0, None if z is None else only(inside, z), beta, tz, tbeta)
        return softmax_vjp(p, lse, t, ctx.axes, 1.0, 0.0, p.dtype), row_sum(only(p != 0, p) * t, ctx.axes)


softmax_rows = Operator(
    f"softmax{_FORWARD} -> (Tensor, Tensor)",
    _Softmax,
    kernel=kernels.softmax,
    fake=kernels.normalizer_shapes,
    batch=batch_rows,
)


class _SoftmaxVjp(_Linear):
    """u = beta p (g - <p, g>), which is symmetric too. du = beta (p (dg - <p, dg>) + dp (g - <p, g>) - p <dp, g>)."""

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> Gradients:
        if h is None:
            return (None,) * 7
        p, lse, g = ctx.saved_tensors
        inside = (p != 0) & (lse != math.inf)
        p_, g_, h_ = only(inside, p), only(inside, g), only(inside, h)
        gp = h_ * (g_ - row_sum(p_ * g_, ctx.axes)) - g_ * row_sum(p_ * h_, ctx.axes)
        gg = softmax_vjp(p, lse, h, ctx.axes, ctx.hi, ctx.lo, g.dtype)
        return (gp * kernels.slope(ctx.hi, ctx.lo)[0]).to(p.dtype), None, gg, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tp: Tensor | None, _tlse: None, tg: Tensor | None, *_: None) -> Tensor:
        p, lse, g = ctx.saved_tensors
        u = softmax_vjp(p, lse, torch.zeros_like(g) if tg is None else tg, ctx.axes, ctx.hi, ctx.lo, ctx.dtype)
        if tp is None:
            return u
        inside = (p != 0) & (lse != math.inf)
        p_, g_, t_ = only(inside, p), only(inside, g), only(inside, tp)
        du = t_ * (g_ - row_sum(p_ * g_, ctx.axes)) - p_ * row_sum(t_ * g_, ctx.axes)
        return u + (du * kernels.slope(ctx.hi, ctx.lo)[0]).to(ctx.dtype)


softmax_vjp = Operator(
    f"softmax_vjp(Tensor p, Tensor lse, {_LINEAR}) -> Tensor",
    _SoftmaxVjp,
    kernel=kernels.softmax_vjp,
    fake=kernels.vjp_shape,
    batch=batch_rows,
)


# --- log_softmax ----------------------------------------------------------------------------------------------------


class _LogSoftmax(_Normalizer):
    """y = x - lse, and lse, which only tells the rows of infinities. dy = dx - <p, dx> with p = exp(y)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _Normalizer.setup_context(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _glse: None) -> Gradients:
        if g is None:
            return (None,) * 8
        y, lse, z, beta = ctx.saved_tensors
        if beta is None:
            return log_softmax_vjp(y, lse, g, ctx.axes, ctx.hi, ctx.lo, ctx.dtype), *(None,) * 7
        gx = log_softmax_vjp(y, lse, g, ctx.axes, 1.0, 0.0, row_dtype(ctx.dtype))
        inside = (y != -math.inf) & (lse != math.inf)
        mean = row_sum(probability(inside, y) * only(inside, z), ctx.axes)
        gbeta = row_sum(only(inside, g) * only(inside, z - mean), ctx.axes)
        gbeta = torch.where(beta.isinf(), 0, gbeta).to(beta.dtype)
        return (gx * flat(beta)).to(ctx.dtype), gbeta, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None, *_: None) -> tuple[Tensor, None]:
        y, lse, z, beta = ctx.saved_tensors
        inside = (y != -math.inf) & (lse != math.inf)
        t = scaled_tangent(ctx, inside, z, beta, tz, tbeta)
        return only(inside, t - row_sum(probability(inside, y) * t, ctx.axes)).to(y.dtype), None


log_softmax_rows = Operator(
    f"log_softmax{_FORWARD} -> (Tensor, Tensor)",
    _LogSoftmax,
    kernel=kernels.log_softmax,
    fake=kernels.normalizer_shapes,
    batch=batch_rows,
)


class _LogSoftmaxVjp(_Linear):
    """u = beta (g - p <1, g>), p = exp(y). du = beta (dg - p <1, dg> - p dy <1, g>)."""

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> Gradients:
        if h is None:
            return (None,) * 7
        y, lse, g = ctx.saved_tensors
        inside = (y != -math.inf) & (lse != math.inf)
        h_ = only(inside, h) * kernels.slope(ctx.hi, ctx.lo)[0]
        ph = probability(inside, y) * h_
        gy = -ph * row_sum(only(inside, g), ctx.axes)
        gg = only(inside, h_ - row_sum(ph, ctx.axes))
        return gy.to(y.dtype), None, gg.to(g.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, ty: Tensor | None, _tlse: None, tg: Tensor | None, *_: None) -> Tensor:
        y, lse, g = ctx.saved_tensors
        u = log_softmax_vjp(y, lse, torch.zeros_like(g) if tg is None else tg, ctx.axes, ctx.hi, ctx.lo, ctx.dtype)
        if ty is None:
            return u
        inside = (y != -math.inf) & (lse != math.inf)
        du = probability(inside, y) * only(inside, ty) * row_sum(only(inside, g), ctx.axes)
        return u - (du * kernels.slope(ctx.hi, ctx.lo)[0]).to(ctx.dtype)


log_softmax_vjp = Operator(
    f"log_softmax_vjp(Tensor y, Tensor lse, {_LINEAR}) -> Tensor",
    _LogSoftmaxVjp,
    kernel=kernels.log_softmax_vjp,
    fake=kernels.vjp_shape,
    batch=batch_rows,
)
