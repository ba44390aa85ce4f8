"""Scores of some classes: rows of a table that are met, and gradients that are sparse where that is asked for.

    all           z = h W^T + b                     (N, K)    scores
    a few         W[index]                          (.., D)   gathered
    pairs         x_p = <h_row(p), w_node(p)> + b   (P,)      pair_scores

Every function differentiates again, in either mode, by its definition in torch; the gradients that a loss takes once go
the quick way. A row's scores have the same bits in every batch, and so have its gradients to h.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from softargmax.core import _native
from softargmax.core.dispatch import asked_for
from softargmax.core.torch_bridge import all_direct, direct
from softargmax.core.torch_memory import view
from softargmax.core.torch_rules import by_definition, without_autocast
from softargmax.output import torch_vectors
from softargmax.output.torch_vectors import Touched

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZE = 1 << 19
"""Numbers to a chunk of gathered vectors: a few of them stay in the cache."""


def quick(*tensors: Tensor | None) -> bool:
    """Whether nobody but this backward records derivatives, and memory may be read."""
    return all_direct(tuple(x.detach() for x in tensors if x is not None)) and asked_for() != "reference"


# --- all --------------------------------------------------------------------------------------------------------------


def scores(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """h W^T + b, (N, K), in the dtype of h; a row's are the same in every batch where the core's own product serves."""
    with without_autocast(h):
        if not quick(h, weight, bias):
            return functional.linear(h, weight.to(h.dtype), None if bias is None else bias.to(h.dtype))
        found: Tensor = _Scores.apply(h, weight, bias)  # type: ignore[no-untyped-call]
    return found


def times(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """A B + bias by the core's product, in the dtype of A."""
    out = a.new_empty(a.shape[0], b.shape[1])
    wide = None if bias is None else bias.to(a.dtype).contiguous()
    _native.product(view(a), view(b), view(out), None if wide is None else view(wide))
    return out


class _Scores(torch.autograd.Function):
    """(h, weight, bias) -> h W^T + b by the core's product."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(h, weight, bias)
        return times(h, weight.mT, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, bias = ctx.saved_tensors
        wanted, once = ctx.needs_input_grad, not torch.is_grad_enabled() and direct(g)
        dh = (times(g, weight) if once else g @ weight.to(g.dtype)) if wanted[0] else None
        dw = (times(g.mT, h) if once else g.mT @ h).to(weight.dtype) if wanted[1] else None
        return dh, dw, g.sum(0).to(bias.dtype) if wanted[2] else None


# --- a few ------------------------------------------------------------------------------------------------------------


def gathered(table: Tensor, index: Tensor, *, sparse: bool) -> Tensor:
    """Rows (or numbers) of a table, index.shape + table.shape[1:].

    sparse: whether the gradient to the table is a sparse tensor of the rows that were met. One that is itself to be
    differentiated is dense.
    """
    if not quick(table, index):
        return table[index]
    found: Tensor = _Gathered.apply(sparse, table, index)  # type: ignore[no-untyped-call]
    return found


class _Gathered(torch.autograd.Function):
    """(sparse, table, index) -> table[index]."""

    @staticmethod
    def forward(ctx: Any, sparse: bool, table: Tensor, index: Tensor) -> Tensor:
        ctx.sparse = sparse
        ctx.save_for_backward(table, index)
        return table[index]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        table, index = ctx.saved_tensors
        if (again := torch.is_grad_enabled()) or not direct(g):
            return None, *by_definition(lambda x, i: x[i], (table, index), (True, False), g, again=again)
        touched, flat = Touched(index.reshape(-1)), g.reshape(index.numel(), math.prod(table.shape[1:]))
        ones = flat.new_ones(len(flat), dtype=torch.promote_types(flat.dtype, torch.float32))
        each, _ = touched.sums(flat, ones, torch.arange(len(flat)))
        return None, touched.laid_out(each.reshape(-1, *table.shape[1:]), table, sparse=ctx.sparse), None


# --- pairs ------------------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Rows beside the nodes that they meet, row after row, the first of each at `offsets`."""

    nodes: Tensor
    rows: Tensor
    offsets: Tensor


def pair_scores(h: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, *, sparse: bool) -> Tensor:
    """<h, w> + b of every pair, (P,) in the dtype of h; of sparse gradients see `gathered`.

    h (N, D) float32 or float64, weight (nodes, D), bias (nodes,) or None; they may be halves, their rows become h's
    dtype when they are met.
    """
    with without_autocast(h):
        if not quick(h, weight, bias, *pairs):
            return _definition(h, weight, bias, *pairs)
        found: Tensor = _PairScores.apply(sparse, h.contiguous(), weight, bias, *pairs)  # type: ignore[no-untyped-call]
    return found


def _definition(
    h: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, rows: Tensor, _offsets: Tensor
) -> Tensor:
    """The same in steps that torch differentiates, all pairs at once."""
    x = (h[rows] * weight[nodes].to(h.dtype)).sum(-1)
    return x if bias is None else x + bias[nodes].to(h.dtype)


class _PairScores(torch.autograd.Function):
    """(sparse, h, weight, bias, nodes, rows, offsets) -> the scores of pairs."""

    @staticmethod
    def forward(ctx: Any, sparse: bool, h: Tensor, weight: Tensor, bias: Tensor | None, *places: Tensor) -> Tensor:
        nodes, rows, _ = places
        ctx.sparse = sparse
        ctx.save_for_backward(h, weight, bias, *places)
        return torch_vectors.dots(h, rows, weight, bias, nodes)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        h, weight, bias, nodes, rows, offsets = ctx.saved_tensors
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if again or not direct(g):
            inputs = (h, weight, bias, nodes, rows, offsets)
            return None, *by_definition(_definition, inputs, wanted, g, again=again)
        dh = torch_vectors.sums(weight, nodes, g, starts_of(offsets, nodes)) if wanted[0] else None
        dw, db = to_table(h, g, rows, nodes, weight, bias, sparse=ctx.sparse, wanted=wanted[1:3])
        return None, dh, dw, db, None, None, None


def starts_of(offsets: Tensor, nodes: Tensor) -> Tensor:
    """Where every row's pairs begin, and where the last one's end."""
    return torch.cat([offsets, offsets.new_tensor([len(nodes)])])


def to_table(
    h: Tensor,
    g: Tensor,
    rows: Tensor,
    nodes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    sparse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients to weight and bias from those to the scores of pairs."""
    if not any(wanted):
        return None, None
    touched = Touched(nodes)
    dw, db = touched.sums(h, g, rows)
    dw = touched.laid_out(dw, weight, sparse=sparse)
    return dw, None if bias is None else touched.laid_out(db, bias, sparse=sparse)


def dots(h: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor) -> Tensor:
    """The score <h, w> + b of every pair; a pair's is the same whatever the others are."""
    if quick(h, rows, weight, bias, nodes):
        return torch_vectors.dots(h.contiguous(), rows, weight, bias, nodes)
    step = max(1, _SIZE // max(1, h.shape[1]))
    found = h.new_empty(len(nodes))
    for start in range(0, len(nodes), step):
        part = slice(start, start + step)
        met = weight.index_select(0, nodes[part]).to(h.dtype)
        torch.sum(met.mul_(h.index_select(0, rows[part])), -1, out=found[part])
    return found if bias is None else found.add_(bias.index_select(0, nodes).to(h.dtype))
