"""logcumsumexp of a torch tensor: the operator and its derivatives.

y_i = log sum_{j <= i} exp z_j. With w_i = exp(z_i - y_i), the weight of the newest score in its prefix, the tangent is
an exponential moving average, u_i = (1 - w_i) u_{i-1} + w_i t_i, and the gradient is the same recurrence run
backwards, c_i = g_i + (1 - w_{i+1}) c_{i+1}, gz_i = w_i c_i. Both are scans of maps u -> a u + b with 0 <= a <= 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.torch_bridge import Operator
from softargmax.core.torch_rows import row_dtype
from softargmax.normalize import torch_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Sequence


def _batch(function: Operator[Any], size: int, dims: Sequence[int | None], arguments: Sequence[Any]) -> tuple[Any, Any]:
    z, axis = arguments
    return function(z.movedim(dims[0], 0), axis + 1), 0


class _LogCumSumExp(torch.autograd.Function):
    """y, and its moving averages."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, ctx.axis = inputs
        ctx.save_for_backward(z, output)
        ctx.save_for_forward(z, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        z, y = (saved.movedim(ctx.axis, -1) for saved in ctx.saved_tensors)
        w, rest = _weights(z, y)
        c = torch.where(y == -math.inf, 0, g.movedim(ctx.axis, -1))  # an empty prefix depends on nothing
        c = _scan(torch.cat([rest[..., :1], rest[..., 1:].flip(-1)], -1), c.flip(-1)).flip(-1)
        gz = torch.where(z == -math.inf, 0, w * c)
        return gz.movedim(-1, ctx.axis).to(z.dtype), None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor, _axis: None) -> Tensor:
        z, y = (saved.movedim(ctx.axis, -1) for saved in ctx.saved_tensors)
        w, rest = _weights(z, y)
        t = torch.where(z == -math.inf, 0, tz.movedim(ctx.axis, -1).to(y.dtype))
        return _scan(rest, w * t).movedim(-1, ctx.axis).to(y.dtype)


logcumsumexp_rows = Operator(
    "logcumsumexp(Tensor z, int axis) -> Tensor",
    _LogCumSumExp,
    kernel=kernels.logcumsumexp,
    fake=kernels.logcumsumexp_shape,
    batch=_batch,
)


def _weights(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """w_i = exp(z_i - y_i) and 1 - w_i, right for infinities: those of a prefix share it, the kth gets 1/k."""
    z = z.to(row_dtype(z.dtype))
    infinite, out = z == math.inf, (z == -math.inf) | ((y == math.inf) & (z != math.inf))
    d = torch.where(infinite | out, 0, z - torch.where(infinite | out, 0, y))
    share = 1 / infinite.cumsum(-1).clamp(min=1).to(d.dtype)
    w = torch.where(out, 0, torch.where(infinite, share, d.exp()))
    return w, torch.where(out, 1, torch.where(infinite, 1 - share, -d.expm1()))


def _scan(a: Tensor, b: Tensor) -> Tensor:
    """u_i = a_i u_{i-1} + b_i along the last axis, in ceil(log2 n) steps.

    (core.scan does the same for every library; what it is made of cannot be batched by `is_grads_batched`.)
    """
    step = 1
    while step < a.shape[-1]:
        b = torch.cat([b[..., :step], a[..., step:] * b[..., :-step] + b[..., step:]], -1)
        a = torch.cat([a[..., :step], a[..., step:] * a[..., :-step]], -1)
        step *= 2
    return b
