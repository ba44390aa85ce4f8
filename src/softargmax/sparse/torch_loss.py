"""The Fenchel-Young loss of classes along the rows of a torch tensor: the operators and their derivatives.

Letters as in `torch_rows`; t is one at the target's class and 0 elsewhere, u = g (p - t) the gradient of <g, loss>. The
loss keeps the root of every row, five numbers in the place of its classes, from which the backward makes p again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax import _native
from softargmax.core.torch_bridge import Operator, batch_rows
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rows import along, maybe, per_row, row_sum
from softargmax.sparse.torch_rows import Gradients, Support, entmax_rows, entmax_vjp, orders

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_SCORES = "Tensor z, Tensor target, Tensor? alpha, Tensor? where, int[] axes, float order, int ignore_index"
_OF_ROOTS = "Tensor g, Tensor roots, " + _OF_SCORES


# --- the kernel -------------------------------------------------------------------------------------------------------


def _roots(z: Tensor, axis: int) -> Tensor:
    rows = [size for i, size in enumerate(z.shape) if i != axis]
    return z.new_empty((*rows, 5), dtype=torch.float64).movedim(-1, axis)


def _run(arguments: tuple[Any, ...], roots: Tensor, **results: Any) -> None:
    z, target, alpha, where, axes, order, ignore_index = arguments
    _native.sparse_loss(
        view(z),
        target.to(torch.int64).contiguous().view(-1).numpy(),
        view(roots.movedim(axes[0], -1)),
        axes,
        orders(alpha, order),
        where=maybe(where),
        ignore_index=ignore_index,
        **results,
    )


def _loss(*arguments: Any) -> tuple[Tensor, Tensor]:
    rows, roots = _shapes(*arguments)
    _run(arguments, roots, loss=view(rows))
    return rows, roots


def _shapes(
    z: Tensor, _target: Tensor, _alpha: Any, _where: Any, axes: Sequence[int], *_: Any
) -> tuple[Tensor, Tensor]:
    return per_row(z, axes, torch.float64), _roots(z, axes[0])


def _vjp(g: Tensor, roots: Tensor, *arguments: Any) -> Tensor:
    z, axis = arguments[0], arguments[4][0]
    gradient, seed = fresh_like(z, z.dtype), g.to(torch.float64).contiguous()
    roots = roots.movedim(axis, -1).contiguous().movedim(-1, axis)
    _run(arguments, roots, given=True, out=view(gradient), seed=view(seed))
    return gradient


# --- formulas ---------------------------------------------------------------------------------------------------------


def _support(arguments: tuple[Any, ...]) -> tuple[Support, Tensor, Tensor]:
    """What the second derivatives are made of, p and tau; rows that are ignored have no support."""
    z, target, alpha, where, axes, order, ignore_index = arguments
    z = torch.where(target == ignore_index, 0.0, z)
    p, tau = entmax_rows(z, alpha, where, axes, order)
    tau = torch.where(target == ignore_index, torch.inf, tau)
    return Support(p, tau, alpha, axes, order), p, tau


def _by_alpha(row: Support) -> Tensor:
    """The loss' derivative to alpha, that of H(p) at constant p: H = -sum p l E(a l) / alpha, E(u) = (e^u - 1) / u.

    With w of `Support.by_alpha` and v = p^a: l E(a l) = v l - a w, and its derivative l^2 E'(a l) = w.
    """
    p, w, alpha = row.only(row.p), row.by_alpha(), row.a + 1.0
    v = (row.a * row.log).exp()
    return row_sum(p * (v * row.log - row.a * w), row.axes) / (alpha * alpha) - row_sum(p * w, row.axes) / alpha


class _Loss(torch.autograd.Function):
    """The losses of rows, and their roots, which are constants. dloss = <p - t, dz> + dH / dalpha dalpha."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, target, alpha, where, *ctx.numbers = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], z, target, alpha, where)
        ctx.save_for_forward(output[1], z, target, alpha, where)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _roots: None) -> Gradients:
        if g is None:
            return (None,) * 7
        roots, *tensors = ctx.saved_tensors
        gz = loss_vjp(g, roots, *tensors, *ctx.numbers) if ctx.needs_input_grad[0] else None
        galpha = None
        if tensors[2] is not None and ctx.needs_input_grad[2]:
            galpha = g * _by_alpha(_support((*tensors, *ctx.numbers))[0])
        return gz, None, galpha, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, _target: None, talpha: Tensor | None, *_: Any) -> tuple[Tensor, None]:
        roots, *tensors = ctx.saved_tensors
        one = per_row(tensors[0], ctx.numbers[0], torch.float64).fill_(1.0)
        moved = one * 0.0 if tz is None else along(loss_vjp(one, roots, *tensors, *ctx.numbers), tz, ctx.numbers[0])
        if talpha is not None:
            moved = moved + _by_alpha(_support((*tensors, *ctx.numbers))[0]) * talpha
        return moved, None


loss_rows = Operator(
    f"entmax_loss({_OF_SCORES}) -> (Tensor, Tensor)", _Loss, kernel=_loss, fake=_shapes, batch=batch_rows
)


class _LossVjp(torch.autograd.Function):
    """u = g (p - t). du = dg (p - t) + g dp."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.axes, ctx.order, ctx.ignore_index = inputs
        ctx.dtype = output.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> Gradients:
        if h is None:
            return (None,) * 9
        numbers = ctx.axes, ctx.order, ctx.ignore_index
        g, roots, z, target, alpha, where = ctx.saved_tensors
        slope = loss_vjp(torch.ones_like(g), roots, z, target, alpha, where, *numbers)
        row, p, tau = _support((z, target, alpha, where, *numbers))
        gh = g * h
        gz = entmax_vjp(p, tau, alpha, gh.to(p.dtype), ctx.axes, ctx.order)
        galpha = None if alpha is None else row_sum(row.to_alpha() * row.centred(gh), ctx.axes)
        return along(slope, h, ctx.axes).to(g.dtype), None, gz, None, galpha, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tg: Any, _roots: None, tz: Any, _target: None, talpha: Any, *_: Any) -> Tensor:
        numbers = ctx.axes, ctx.order, ctx.ignore_index
        g, roots, z, target, alpha, where = ctx.saved_tensors
        u = loss_vjp(torch.zeros_like(g) if tg is None else tg, roots, z, target, alpha, where, *numbers)
        if tz is None and talpha is None:
            return u
        row, p, tau = _support((z, target, alpha, where, *numbers))
        if tz is not None:
            u = u + (g * entmax_vjp(p, tau, alpha, tz, ctx.axes, ctx.order)).to(u.dtype)
        if talpha is not None:
            u = u + (g * row.to_alpha() * talpha).to(u.dtype)
        return u


loss_vjp = Operator(
    f"entmax_loss_vjp({_OF_ROOTS}) -> Tensor",
    _LossVjp,
    kernel=_vjp,
    fake=lambda _g, _roots, z, *_rest: torch.empty_like(z),
    batch=batch_rows,
)
