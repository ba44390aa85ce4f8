"""The primitives of this room on torch tensors in CPU memory: the compiled core, as operators with every derivative.

The loss of rows keeps their states (m, r, low), from which the backward makes p again: the scores are read once more,
the gradient is written once. What only the definition differentiates (class weights, soft targets, a temperature that
is a tensor, second derivatives) goes by `torch_rules`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core import _native
from softargmax.core.axes import squeezed
from softargmax.core.scale import UNIT, Scale
from softargmax.core.torch_bridge import Operator, all_direct, batch_rows, may_be_differentiated
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rows import along, maybe, per_row
from softargmax.core.torch_rules import pull
from softargmax.loss import reference_rows, torch_linear, torch_reference
from softargmax.loss.options import Beside, Options
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.loss.torch_usual import usual_loss as usual_loss  # noqa: PLC0414 a primitive of this module
from softargmax.normalize import operations
from softargmax.normalize.operations import LogSumExp, Scores

divergence = torch_reference.divergence
linear_divergence = torch_reference.linear_divergence
linear_loss = torch_linear.linear_loss
linear_loss_and_gradient = torch_linear.linear_loss_and_gradient
linear_terms = torch_reference.linear_terms

Numbers = tuple[Any, ...]  # axes, soft, hi, lo, ignore_index, label_smoothing, z_loss, softcap
_TENSORS = "Tensor z, Tensor target, Tensor? weight, Tensor? where, Tensor? hi, Tensor? lo"
_NUMBERS = (
    "int[] axes, bool soft, float beta, float beta_lo, int ignore_index, float smoothing, float z_loss, float softcap"
)


def loss(z: Tensor, beside: Beside, options: Options) -> Tensor:
    """The loss of every row."""
    if _differentiated(beside, options):
        return torch_reference.loss(z, beside, options)
    return cross_entropy_rows(z, *_opened(beside), *_numbers(beside, options))[0].squeeze(options.axis)


def terms(z: Tensor, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    if _differentiated(beside, options) or options.softcap is not None or beside.scale is not UNIT:
        return torch_reference.terms(z, beside, options)._replace(loss=loss(z, beside, options))
    axes, where = (options.axis,), beside.where
    lse = squeezed(operations.logsumexp.first(LogSumExp(z, None, where, UNIT, axes, torch.float64)), axes)
    entropy = squeezed(operations.entropy.first(Scores(z, where, UNIT, axes, torch.float64)), axes)
    found = loss(z, beside, options), lse, entropy, options.z_loss * lse * lse if options.z_loss else 0 * entropy
    if options.soft:
        return CrossEntropyTerms(*found)
    counts = beside.target.squeeze(options.axis) != options.ignore_index
    return CrossEntropyTerms(*(torch.where(counts, one, 0) for one in found))


def loss_and_gradient(z: Tensor, seed: Tensor, beside: Beside, options: Options) -> LossAndGradient:
    """The loss of every row, and seed times its gradient; both can be differentiated."""
    tensors, numbers = (z, *_opened(beside)), _numbers(beside, options)
    if not all_direct((*tensors, seed)):
        return torch_reference.loss_and_gradient(z, seed, beside, options)
    rows, gradient, seed = per_row(z, numbers[0], torch.float64), fresh_like(z, z.dtype), _dense(seed)
    _run(tensors, numbers, _states(z, numbers[0]), loss=view(rows), out=view(gradient), seed=view(seed))
    return LossAndGradient(rows.squeeze(options.axis), gradient)


def _differentiated(beside: Beside, options: Options) -> bool:
    """Whether something beside the scores takes part in a derivative."""
    target, weight, _, hi, lo = _opened(beside)
    others = (target if options.soft else None, weight, hi, lo)
    return any(x is not None and may_be_differentiated(x) for x in others)


def _opened(beside: Beside) -> tuple[Any, ...]:
    target, weight, (hi, lo), where = beside
    return (
        target,
        weight,
        where,
        *((None, None) if isinstance(hi, float) else (hi.double(), lo.double().expand(hi.shape))),
    )


def _numbers(beside: Beside, options: Options) -> Numbers:
    hi, lo = beside.scale if isinstance(beside.scale.hi, float) else UNIT
    beyond = options.ignore_index, options.label_smoothing, options.z_loss, options.softcap or 0.0
    return [options.axis], options.soft, hi, lo, *beyond


# --- the kernel -------------------------------------------------------------------------------------------------------


def _states(z: Tensor, axes: Any) -> Tensor:
    """m, r, low of each row in the place of its classes; a row's three lie side by side."""
    rows = [n for i, n in enumerate(z.shape) if i not in axes]
    return z.new_empty((*rows, 3), dtype=torch.float64).movedim(-1, axes[0])


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64).contiguous()


def _run(tensors: tuple[Any, ...], numbers: Numbers, states: Tensor, **results: Any) -> None:
    z, target, weight, where, hi, lo = tensors
    axes, soft, beta, beta_lo, ignore_index, label_smoothing, z_loss, softcap = numbers
    _native.cross_entropy(
        view(z),
        None if soft else target.to(torch.int64).contiguous().view(-1).numpy(),
        view(states.movedim(axes[0], -1)),
        axes,
        other=view(target) if soft else None,
        weight=maybe(weight),
        where=maybe(where),
        hi=beta if hi is None else view(hi),
        lo=beta_lo if lo is None else view(lo),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
        **results,
    )


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, numbers = arguments[:6], arguments[6:]
    z, axes = tensors[0], numbers[0]
    rows, states = per_row(z, axes, torch.float64), _states(z, axes)
    _run(tensors, numbers, states, loss=view(rows))
    return rows, states


def _backward(g: Tensor, states: Tensor, *arguments: Any) -> Tensor:
    tensors, numbers = arguments[:6], arguments[6:]
    gradient, g = fresh_like(tensors[0], tensors[0].dtype), _dense(g)  # the kernel sees an address: it has to live on
    axis = numbers[0][0]
    states = states.movedim(axis, -1).contiguous().movedim(-1, axis)
    _run(tensors, numbers, states, given=True, out=view(gradient), seed=view(g))
    return gradient


# --- the operators ----------------------------------------------------------------------------------------------------


class _CrossEntropy(torch.autograd.Function):
    """The losses of rows, and their states, which are constants. dloss = <gradient, dz>."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.numbers = inputs[6:]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        saved = output[1], *inputs[:6]
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _states: None) -> tuple[Tensor | None, ...]:
        gz = None if g is None else cross_entropy_vjp(g, *ctx.saved_tensors, *ctx.numbers)
        return gz, *(None,) * 13

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, *_: Any) -> tuple[Tensor, None]:
        axis = ctx.numbers[0][0]
        one = torch.ones_like(ctx.saved_tensors[0].select(axis, 0)).unsqueeze(axis)
        slope = cross_entropy_vjp(one, *ctx.saved_tensors, *ctx.numbers)
        return one * 0 if tz is None else along(slope, tz, ctx.numbers[0]), None


cross_entropy_rows = Operator(
    f"cross_entropy({_TENSORS}, {_NUMBERS}) -> (Tensor, Tensor)",
    _CrossEntropy,
    kernel=_forward,
    fake=lambda z, *rest: (per_row(z, rest[5], torch.float64), _states(z, rest[5])),
    batch=batch_rows,
)


class _CrossEntropyVjp(torch.autograd.Function):
    """u = g times the gradient of the loss to z. du = dg gradient + g H dz, with the Hessian by the definition."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.numbers, ctx.dtype = inputs[8:], output.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:8])
        ctx.save_for_forward(*inputs[:8])

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> tuple[Tensor | None, ...]:
        if h is None:
            return (None,) * 16
        g, states, *rest = ctx.saved_tensors
        slope = cross_entropy_vjp(torch.ones_like(g), states, *rest, *ctx.numbers)
        return along(slope, h, ctx.numbers[0]).to(g.dtype), None, _hessian(ctx, h), *(None,) * 13

    @staticmethod
    def jvp(ctx: Any, tg: Tensor | None, _states: None, tz: Tensor | None, *_: Any) -> Tensor:
        g, states, *rest = ctx.saved_tensors
        u = cross_entropy_vjp(torch.zeros_like(g) if tg is None else tg, states, *rest, *ctx.numbers)
        return u if tz is None else u + _hessian(ctx, tz).to(u.dtype)


def _hessian(ctx: Any, h: Tensor) -> Tensor:
    """g H h."""
    g, _, z, target, weight, where, hi, lo = ctx.saved_tensors
    axes, soft, beta, beta_lo, ignore_index, label_smoothing, z_loss, softcap = ctx.numbers
    beside = Beside(target, weight, Scale(beta, beta_lo) if hi is None else Scale(hi, lo), where)
    options = Options(
        axes[0], z.shape[axes[0]], "none", ignore_index, label_smoothing, z_loss, softcap or None, soft, torch.float64
    )

    def gradient(z: Tensor) -> tuple[Tensor, ...]:
        return (reference_rows.gradient(z, (g, None, None, None), beside, options),)

    found: Tensor = pull(gradient, (z,), (0,), (h.to(z.dtype),))[0]
    return found


cross_entropy_vjp = Operator(
    f"cross_entropy_vjp(Tensor g, Tensor states, {_TENSORS}, {_NUMBERS}) -> Tensor",
    _CrossEntropyVjp,
    kernel=_backward,
    fake=lambda _g, _states, z, *_rest: torch.empty_like(z),
    batch=batch_rows,
)
