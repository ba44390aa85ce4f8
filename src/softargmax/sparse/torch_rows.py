"""The sparse maps along the rows of a torch tensor: the operators and their derivatives.

Letters: a = alpha - 1, p the probabilities, s = p^(1 - a) where p > 0 and 0 elsewhere, <a, b> the sum over a row,
g (and h) an incoming gradient, t a tangent, g' = g - <s, g> / <s, 1>. A row of infinities (tau = inf) is constant.

`alpha` is None where all rows have the order `order`; else it is a float64 tensor with the shape of the rows, the
reduced axes kept as 1. So has tau, and every other number per row here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax import _native
from softargmax.core.torch_bridge import Operator, batch_rows
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rows import maybe, per_row, row_dtype, row_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

Gradients = tuple[Tensor | None, ...]
_OF_SCORES = "Tensor z, Tensor? alpha, Tensor? where, int[] axes, float order"
_OF_P = "Tensor p, Tensor tau, Tensor? alpha, Tensor g, int[] axes, float order"
_SERIES = (1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360)  # (k + 1) / (k + 2)!
_NEAR = 0.1


# --- the kernels ----------------------------------------------------------------------------------------------------


def orders(alpha: Tensor | None, order: float) -> Any:
    """alpha as the kernels take it."""
    return order if alpha is None else view(alpha)


def _entmax(
    z: Tensor, alpha: Tensor | None, where: Tensor | None, axes: Sequence[int], order: float
) -> tuple[Tensor, Tensor]:
    p, tau = _shapes(z, alpha, where, axes, order, fresh_like)
    _native.sparse(view(z), view(p), axes, orders(alpha, order), maybe(where), view(tau))
    return p, tau


def _shapes(
    z: Tensor,
    _alpha: Tensor | None,
    _where: Tensor | None,
    axes: Sequence[int],
    _order: float,
    like: Any = lambda z, dtype: torch.empty_like(z, dtype=dtype),
) -> tuple[Tensor, Tensor]:
    return like(z, z.dtype), per_row(z, axes, row_dtype(z.dtype))


def _entmax_out(
    out: Tensor, z: Tensor, alpha: Tensor | None, where: Tensor | None, axes: Sequence[int], order: float
) -> None:
    _native.sparse(view(z), view(out), axes, orders(alpha, order), maybe(where))
    torch.autograd.graph.increment_version(out)


def _threshold(
    z: Tensor, alpha: Tensor | None, where: Tensor | None, axes: Sequence[int], order: float
) -> tuple[Tensor, Tensor]:
    tau, support = _row_shapes(z, alpha, where, axes, order)
    counts = support.view(-1).numpy()
    _native.sparse(view(z), None, axes, orders(alpha, order), maybe(where), view(tau), counts)
    return tau, support


def _row_shapes(
    z: Tensor, _alpha: Tensor | None, _where: Tensor | None, axes: Sequence[int], _order: float
) -> tuple[Tensor, Tensor]:
    return per_row(z, axes, row_dtype(z.dtype)), per_row(z, axes, torch.int64)


def _vjp(p: Tensor, tau: Tensor, alpha: Tensor | None, g: Tensor, axes: Sequence[int], order: float) -> Tensor:
    gz = fresh_like(p, p.dtype)
    _native.sparse_vjp(view(p), view(tau), view(g), view(gz), axes, orders(alpha, order))
    return gz


# --- formulas ---------------------------------------------------------------------------------------------------------


def _row_max(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The maximum of each row, -inf where nothing is in it."""
    if not x.numel():
        return per_row(x, axes, x.dtype).fill_(-math.inf)
    return x.amax(tuple(axes), keepdim=True) if axes else x


def _row_top(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The same, 0 where it is not finite."""
    top = _row_max(x, axes)
    return torch.where(top.isinf(), 0.0, top)


class Support:
    """A row's p in float64, its logarithm and s; 1, 0 and 0 outside of the support, where nothing is differentiated."""

    def __init__(self, p: Tensor, tau: Tensor, alpha: Tensor | None, axes: Sequence[int], order: float) -> None:
        self.inside = (p != 0) & (tau != math.inf)
        self.axes = axes
        self.a = torch.tensor(order - 1.0, dtype=torch.float64) if alpha is None else alpha - 1.0
        self.p = torch.where(self.inside, p.double(), 1.0)
        self.log = self.p.log()
        self.s = self.only(((1.0 - self.a) * self.log).clamp(max=600.0).exp())  # beyond, all are taken as alike
        self.total = row_sum(self.s, axes)
        self.total = torch.where(self.total == 0, 1.0, self.total)

    def only(self, x: Tensor) -> Tensor:
        """The tensor in the support, exactly 0 outside of it whatever stands there."""
        return torch.where(self.inside, x.double(), 0.0)

    def mean(self, g: Tensor) -> Tensor:
        """<s, g> / <s, 1>."""
        return row_sum(self.s * self.only(g), self.axes) / self.total

    def centred(self, g: Tensor) -> Tensor:
        """g'; counted from a g with the largest s, beside which the others' would be lost above order 2."""
        g = self.only(g)
        most = self.inside & (self.s == _row_max(self.s, self.axes))
        g = g - _row_top(torch.where(most, g, -math.inf), self.axes)
        return self.only(g - self.mean(g))

    def by_alpha(self) -> Tensor:
        """w, with which dp / dalpha = -s w': l^2 (1 - v + u v) / u^2, l = log p, u = a l, v = e^u.

        -s w is the derivative of e_a(x) to a at constant x; at alpha = 1 it is -p l^2 / 2.
        """
        u = self.log * self.a
        near = u.abs() < _NEAR
        x = torch.where(near, u, 0.0)
        series = torch.zeros_like(u)
        for coefficient in reversed(_SERIES):
            series = coefficient + x * series
        far = torch.where(near, 1.0, u)
        share = torch.where(near, series, (far * far.exp() - torch.expm1(far)) / (far * far))
        return self.only(self.log * self.log * share)

    def to_alpha(self) -> Tensor:
        """The derivative of p to alpha."""
        return -self.s * self.centred(self.by_alpha())


# --- the map ----------------------------------------------------------------------------------------------------------


class _Entmax(torch.autograd.Function):
    """p, and tau, which only tells the rows of infinities. dp = s ((dz)' - w' dalpha)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, alpha, _, ctx.axes, ctx.order = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, alpha)
        ctx.save_for_forward(*output, alpha)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _tau: None) -> Gradients:
        if g is None:
            return (None,) * 5
        p, tau, alpha = ctx.saved_tensors
        gz = entmax_vjp(p, tau, alpha, g, ctx.axes, ctx.order) if ctx.needs_input_grad[0] else None
        galpha = None
        if alpha is not None and ctx.needs_input_grad[1]:
            row = Support(p, tau, alpha, ctx.axes, ctx.order)
            galpha = row_sum(row.to_alpha() * row.centred(g), ctx.axes)
        return gz, galpha, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, talpha: Tensor | None, *_: Any) -> tuple[Tensor, None]:
        p, tau, alpha = ctx.saved_tensors
        dp = torch.zeros_like(p) if tz is None else entmax_vjp(p, tau, alpha, tz, ctx.axes, ctx.order)
        if talpha is not None:
            dp = dp + (Support(p, tau, alpha, ctx.axes, ctx.order).to_alpha() * talpha).to(p.dtype)
        return dp, None


entmax_rows = Operator(
    f"entmax({_OF_SCORES}) -> (Tensor, Tensor)", _Entmax, kernel=_entmax, fake=_shapes, batch=batch_rows
)
entmax_out = Operator[None](
    f"entmax_out(Tensor(a!) out, {_OF_SCORES}) -> ()", None, kernel=_entmax_out, fake=lambda *_arguments: None
)


class _EntmaxVjp(torch.autograd.Function):
    """u = s g', linear and symmetric in g: <h, u> = <g, s h'>. To s, <h, u> has the derivative h' g'."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        p, tau, alpha, g, ctx.axes, ctx.order = inputs
        ctx.dtype = output.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, tau, alpha, g)
        ctx.save_for_forward(p, tau, alpha, g)

    @staticmethod
    def backward(ctx: Any, h: Tensor | None) -> Gradients:
        if h is None:
            return (None,) * 6
        p, tau, alpha, g = ctx.saved_tensors
        row = Support(p, tau, alpha, ctx.axes, ctx.order)
        to_s = row.centred(g) * row.centred(h)
        gp = ((1.0 - row.a) * row.s / row.p * to_s).to(p.dtype)
        galpha = None if alpha is None else -row_sum(row.s * row.log * to_s, ctx.axes)
        gg = entmax_vjp(p, tau, alpha, h, ctx.axes, ctx.order).to(g.dtype)
        return gp, None, galpha, gg, None, None

    @staticmethod
    def jvp(ctx: Any, tp: Tensor | None, _tau: None, talpha: Tensor | None, tg: Tensor | None, *_: Any) -> Tensor:
        p, tau, alpha, g = ctx.saved_tensors
        u = torch.zeros_like(p) if tg is None else entmax_vjp(p, tau, alpha, tg, ctx.axes, ctx.order)
        if tp is None and talpha is None:
            return u
        row = Support(p, tau, alpha, ctx.axes, ctx.order)
        rate = 0.0 if tp is None else (1.0 - row.a) / row.p * row.only(tp)  # of change of s
        rate = rate if talpha is None else rate - row.log * talpha
        return u + (row.s * row.centred(rate * row.centred(g))).to(ctx.dtype)


entmax_vjp = Operator(
    f"entmax_vjp({_OF_P}) -> Tensor",
    _EntmaxVjp,
    kernel=_vjp,
    fake=lambda p, *_rest: torch.empty_like(p),
    batch=batch_rows,
)


# --- its threshold ----------------------------------------------------------------------------------------------------


class _Threshold(torch.autograd.Function):
    """tau, and the number of p > 0. dtau = a <s, dz> / <s, 1> + ((tau + 1) / a - a <s, w> / <s, 1>) dalpha."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, alpha, where, ctx.axes, ctx.order = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(z, alpha, where, output[0])
        ctx.save_for_forward(z, alpha, where, output[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _support: None) -> Gradients:
        if g is None:
            return (None,) * 5
        row, by_alpha = _Threshold.slopes(ctx)
        gz = row.s / row.total * (row.a * g)
        return gz.to(ctx.saved_tensors[0].dtype), None if by_alpha is None else g * by_alpha, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, talpha: Tensor | None, *_: Any) -> tuple[Tensor, None]:
        row, by_alpha = _Threshold.slopes(ctx)
        tau = ctx.saved_tensors[3]
        moved = torch.zeros_like(tau) if tz is None else row.a * row.mean(tz)
        return (moved if talpha is None or by_alpha is None else moved + by_alpha * talpha).to(tau.dtype), None

    @staticmethod
    def slopes(ctx: Any) -> tuple[Support, Tensor | None]:
        """What tau's derivatives are made of: its own to alpha is m + lambda + a dlambda / da."""
        z, alpha, where, _ = ctx.saved_tensors
        p, tau = entmax_rows(z, alpha, where, ctx.axes, ctx.order)
        row = Support(p, tau, alpha, ctx.axes, ctx.order)
        if alpha is None:
            return row, None
        level = _row_top(torch.where(row.inside, z.double(), -math.inf), ctx.axes)
        log = _row_top(
            torch.where(row.inside, row.log, -math.inf), ctx.axes
        )  # of the largest p, e_a(x) with x = -lambda
        x = torch.where(row.a == 0, log, torch.expm1(row.a * log) / torch.where(row.a == 0, 1.0, row.a))
        shift = level - x
        return row, torch.where(tau.isinf(), 0.0, shift - row.a * row.mean(row.by_alpha()))


threshold_rows = Operator(
    f"entmax_threshold({_OF_SCORES}) -> (Tensor, Tensor)",
    _Threshold,
    kernel=_threshold,
    fake=_row_shapes,
    batch=batch_rows,
)
