"""logsumexp along the rows of a torch tensor: the operator and its derivatives (letters and shapes: torch_rows)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core.torch_bridge import Operator, batch_rows
from softargmax.core.torch_rows import row_dtype, row_sum
from softargmax.normalize import torch_kernels as kernels
from softargmax.normalize.torch_rows import Gradients, flat, only, softmax_rows


class _LogSumExp(torch.autograd.Function):
    """L = log sum w exp(x) / beta. dL = <p, dz> + <q, dw> / (beta <w, q>) + <p, z - L> dbeta / beta.

    Here q = softmax(x) and p = w q / <w, q>.
    (Weights that span more than the exponents of their dtype let q underflow where w is huge: the value is right, this
    gradient is not.)
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.axes, ctx.hi, ctx.lo, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Gradients:
        if g is None:
            return (None,) * 9
        z, beta, _, weights, _, _ = ctx.saved_tensors
        p, dbeta, dw = _slopes(ctx)
        gbeta = None if dbeta is None else (dbeta * g).to(beta.dtype)
        gw = None if dw is None else only(dw != 0, dw * g).to(weights.dtype)
        return logsumexp_vjp(p, g, ctx.axes, z.dtype), gbeta, None, gw, *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, tbeta: Tensor | None, _lo: None, tw: Tensor | None, *_: None) -> Tensor:
        p, dbeta, dw = _slopes(ctx)
        lse = ctx.saved_tensors[-1]
        t = torch.zeros_like(lse) if tz is None else row_sum(only(p != 0, p * tz), ctx.axes)
        if dw is not None and tw is not None:
            t = t + row_sum(only(dw != 0, dw * tw), ctx.axes)
        return (t if dbeta is None or tbeta is None else t + dbeta * tbeta).to(lse.dtype)


logsumexp_rows = Operator(
    "logsumexp(Tensor z, Tensor? beta, Tensor? beta_lo, Tensor? weights, Tensor? where, "
    "int[] axes, float hi, float lo, ScalarType dtype) -> Tensor",
    _LogSumExp,
    kernel=kernels.logsumexp,
    fake=kernels.row_shape,
    batch=batch_rows,
)


class _LogSumExpVjp(torch.autograd.Function):
    """u = p g in the support: bilinear."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        p, g, ctx.axes, ctx.dtype = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, g)
        ctx.save_for_forward(p, g)

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> Gradients:
        if h is None:
            return (None,) * 4
        p, g = ctx.saved_tensors
        return only(p != 0, h * g).to(p.dtype), row_sum(only(p != 0, p * h), ctx.axes).to(g.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, tp: Tensor | None, tg: Tensor | None, *_: None) -> Tensor:
        p, g = ctx.saved_tensors
        u = torch.zeros_like(p) if tp is None else only(p != 0, tp * g)
        return (u if tg is None else u + only(p != 0, p * tg)).to(ctx.dtype)


logsumexp_vjp = Operator(
    "logsumexp_vjp(Tensor p, Tensor g, int[] axes, ScalarType dtype) -> Tensor",
    _LogSumExpVjp,
    kernel=kernels.logsumexp_vjp,
    fake=kernels.logsumexp_vjp_shape,
    batch=batch_rows,
)


def _slopes(ctx: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dL/dz, dL/dbeta and dL/dw, each differentiable again."""
    z, beta, beta_lo, weights, where, lse = ctx.saved_tensors
    support = where
    if weights is not None:
        support = weights != 0 if where is None else (weights != 0) & where
    dtype = row_dtype(torch.promote_types(z.dtype, lse.dtype))
    p, _ = softmax_rows(z, beta, beta_lo, support, ctx.axes, ctx.hi, ctx.lo, dtype)
    dbeta, dw = None, None
    if weights is not None:
        total = row_sum(weights * p, ctx.axes)
        share = p / torch.where(total == 0, 1, total)
        p, dw = weights * share, share / (ctx.hi if beta is None else beta)
    if beta is not None:
        still = lse.isinf() | beta.isinf()
        distance = only((p != 0) & ~still & ~z.isinf(), z - torch.where(still, 0, lse))
        dbeta = flat(row_sum(p * distance, ctx.axes) / torch.where(beta.isinf(), 1, beta))
    return p, dbeta, dw
