"""Ragged rows and running sums of a torch tensor: the operators and their derivatives (letters: torch_rows).

A row is a segment z[offsets[s] : offsets[s + 1]] along axis 0; the axes behind it are columns on their own. beta and
lse have one entry to a row, (S, ...).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from softargmax.core.torch_bridge import Operator
from softargmax.normalize import torch_kernels as kernels
from softargmax.normalize.torch_rows import flat, only, probability

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARGUMENTS = "(Tensor z, Tensor offsets, Tensor? beta, Tensor? beta_lo, float hi, float lo)"


class Segments(NamedTuple):
    """Sums over rows, and rows spread over their scores."""

    offsets: Tensor
    row: Tensor

    @staticmethod
    def of(offsets: Tensor, z: Tensor) -> Segments:
        positions = torch.arange(z.shape[0], device=z.device, dtype=offsets.dtype)
        return Segments(offsets, torch.searchsorted(offsets, positions, right=True) - 1)

    def sum(self, t: Tensor) -> Tensor:
        """<1, t>: (N, ...) to (S, ...)."""
        return t.new_zeros((self.offsets.shape[0] - 1, *t.shape[1:])).index_add(0, self.row, t)

    def spread(self, r: Tensor) -> Tensor:
        """(S, ...) to (N, ...)."""
        return r.index_select(0, self.row)


def _batch_columns(
    function: Operator[Any], size: int, dims: Sequence[int | None], arguments: Sequence[Any]
) -> tuple[Any, Any]:
    """The vmap of an operator on segments: the batch is one more axis behind, since columns are on their own."""
    if dims[1] is not None:
        raise NotImplementedError("vmap: offsets cannot be batched; make one ragged batch of all segments")
    z, offsets, *betas, hi, lo = arguments
    moved = []
    for tensor, dim in zip((z, *betas), (dims[0], *dims[2:4]), strict=True):
        last = None if tensor is None else tensor.unsqueeze(-1) if dim is None else tensor.movedim(dim, -1)
        moved.append(None if last is None else last.expand(*last.shape[:-1], size))
    result = function(moved[0], offsets, *moved[1:], hi, lo)
    return result, (-1,) * len(result) if isinstance(result, tuple) else -1


def _save(ctx: Any, inputs: tuple[Any, ...], *results: Tensor) -> None:
    z, offsets, beta, beta_lo, ctx.hi, ctx.lo = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(z, offsets, beta, beta_lo, *results)
    ctx.save_for_forward(z, offsets, beta, beta_lo, *results)


def _slope(rows: Segments, hi: float, beta: Tensor | None) -> Tensor | float:
    """beta at every score, 0 in the limit |beta| = inf."""
    return kernels.slope(hi, 0.0)[0] if beta is None else rows.spread(flat(beta))


def _tangent(rows: Segments, inside: Tensor, ctx: Any, z: Tensor, beta: Tensor | None, tz: Any, tbeta: Any) -> Tensor:
    """t = beta tz + z tbeta."""
    t = torch.zeros_like(only(inside, z)) if tz is None else only(inside, tz) * _slope(rows, ctx.hi, beta)
    return t if tbeta is None else t + only(inside, z) * rows.spread(tbeta)


class _SegmentSoftmax(torch.autograd.Function):
    """p = exp(x - lse), and lse (it tells the rows of infinities; no derivative). dp = p (dx - <p, dx>)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _save(ctx, inputs, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _glse: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * 6
        z, offsets, beta, _, p, lse = ctx.saved_tensors
        rows = Segments.of(offsets, z)
        inside = (p != 0) & (rows.spread(lse) != math.inf)
        p_, g_, z_ = only(inside, p), only(inside, g), only(inside, z)
        gx = p_ * (g_ - rows.spread(rows.sum(p_ * g_)))
        gbeta = None
        if beta is not None:
            centred = z_ - rows.spread(rows.sum(p_ * z_))
            gbeta = torch.where(beta.isinf(), 0, rows.sum(gx * centred)).to(beta.dtype)
        return (gx * _slope(rows, ctx.hi, beta)).to(z.dtype), None, gbeta, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, _offsets: None, tbeta: Tensor | None, *_: None) -> tuple[Tensor, None]:
        z, offsets, beta, _, p, lse = ctx.saved_tensors
        rows = Segments.of(offsets, z)
        inside = (p != 0) & (rows.spread(lse) != math.inf)
        p_, t = only(inside, p), _tangent(rows, inside, ctx, z, beta, tz, tbeta)
        return (p_ * (t - rows.spread(rows.sum(p_ * t)))).to(p.dtype), None


segment_softmax_rows = Operator(
    f"segment_softmax{_ARGUMENTS} -> (Tensor, Tensor)",
    _SegmentSoftmax,
    kernel=kernels.segment_softmax,
    fake=kernels.segment_shapes,
    batch=_batch_columns,
)


class _SegmentLogSoftmax(torch.autograd.Function):
    """y = x - lse, and lse (no derivative). dy = dx - <p, dx> with p = exp(y)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _save(ctx, inputs, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _glse: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * 6
        z, offsets, beta, _, y, lse = ctx.saved_tensors
        rows = Segments.of(offsets, z)
        inside = (y != -math.inf) & (rows.spread(lse) != math.inf)
        p_, g_, z_ = probability(inside, y), only(inside, g), only(inside, z)
        gx = g_ - p_ * rows.spread(rows.sum(g_))
        gbeta = None
        if beta is not None:
            centred = z_ - rows.spread(rows.sum(p_ * z_))
            gbeta = torch.where(beta.isinf(), 0, rows.sum(g_ * only(inside, centred))).to(beta.dtype)
        return (gx * _slope(rows, ctx.hi, beta)).to(z.dtype), None, gbeta, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, _offsets: None, tbeta: Tensor | None, *_: None) -> tuple[Tensor, None]:
        z, offsets, beta, _, y, lse = ctx.saved_tensors
        rows = Segments.of(offsets, z)
        inside = (y != -math.inf) & (rows.spread(lse) != math.inf)
        p_, t = probability(inside, y), _tangent(rows, inside, ctx, z, beta, tz, tbeta)
        return only(inside, t - rows.spread(rows.sum(p_ * t))).to(y.dtype), None


segment_log_softmax_rows = Operator(
    f"segment_log_softmax{_ARGUMENTS} -> (Tensor, Tensor)",
    _SegmentLogSoftmax,
    kernel=kernels.segment_log_softmax,
    fake=kernels.segment_shapes,
    batch=_batch_columns,
)


class _SegmentLogSumExp(torch.autograd.Function):
    """L = log sum exp(x) / beta. dL = <p, dz> + <p, z - L> dbeta / beta, p = softmax(x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * 6
        rows, p, dbeta = _logsumexp_slopes(ctx)
        z, beta = ctx.saved_tensors[0], ctx.saved_tensors[2]
        gbeta = None if dbeta is None else (dbeta * g).to(beta.dtype)
        return only(p != 0, p * rows.spread(g)).to(z.dtype), None, gbeta, None, None, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor | None, _offsets: None, tbeta: Tensor | None, *_: None) -> Tensor:
        rows, p, dbeta = _logsumexp_slopes(ctx)
        lse = ctx.saved_tensors[4]
        t = torch.zeros_like(lse) if tz is None else rows.sum(only(p != 0, p * tz))
        return (t if dbeta is None or tbeta is None else t + dbeta * tbeta).to(lse.dtype)


segment_logsumexp_rows = Operator(
    f"segment_logsumexp{_ARGUMENTS} -> Tensor",
    _SegmentLogSumExp,
    kernel=kernels.segment_logsumexp,
    fake=kernels.segment_shape,
    batch=_batch_columns,
)


def _logsumexp_slopes(ctx: Any) -> tuple[Segments, Tensor, Tensor | None]:
    """The rows, dL/dz and dL/dbeta, each differentiable again."""
    z, offsets, beta, beta_lo, lse = ctx.saved_tensors
    rows = Segments.of(offsets, z)
    p = segment_softmax_rows(z, offsets, beta, beta_lo, ctx.hi, ctx.lo)[0]
    if beta is None:
        return rows, p, None
    still = lse.isinf() | beta.isinf()
    inside = (p != 0) & ~rows.spread(still)
    distance = only(inside, z - rows.spread(torch.where(still, 0, lse)))
    return rows, p, flat(rows.sum(p * distance) / torch.where(beta.isinf(), 1, beta))
