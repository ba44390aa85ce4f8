"""Scores of some classes: rows of a table that are met, and gradients that are sparse where that is asked for.

    all           z = h W^T + b                     (N, K)    scores
    a few         W[index]                          (.., D)   gathered
    pairs         x_p = <h_row(p), w_node(p)> + b   (P,)      pair_scores

Every function differentiates again, in either mode, by its definition in torch; the gradients that a loss takes once go
the quick way. A row's scores have the same bits in every batch, and so have its gradients to h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from softargmax import _native
from softargmax.core.dispatch import asked_for
from softargmax.core.torch_bridge import all_direct, direct
from softargmax.core.torch_memory import view
from softargmax.core.torch_rules import by_definition, without_autocast

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
        touched, flat = Touched(index.reshape(-1)), g.reshape(index.numel(), *table.shape[1:])
        places = torch.arange(len(flat), device=flat.device)
        each = touched.totals(flat) if flat.ndim == 1 else touched.sums(flat, flat.new_ones(len(flat)), places)
        return None, touched.laid_out(each, table, sparse=ctx.sparse), None


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
        return dots(h, rows, weight, bias, nodes)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        h, weight, bias, nodes, rows, offsets = ctx.saved_tensors
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if again or not direct(g):
            inputs = (h, weight, bias, nodes, rows, offsets)
            return None, *by_definition(_definition, inputs, wanted, g, again=again)
        touched = Touched(nodes)
        dh = _to_rows(weight, g, nodes, offsets, touched, h) if wanted[0] else None
        dw = touched.laid_out(touched.sums(h, g, rows), weight, sparse=ctx.sparse) if wanted[1] else None
        db = None
        if bias is not None and wanted[2]:
            db = touched.laid_out(touched.totals(g), bias, sparse=ctx.sparse)
        return None, dh, dw, db, None, None, None


def dots(h: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor) -> Tensor:
    """The score <h, w> + b of every pair; a pair's is the same whatever the others are."""
    step = max(1, _SIZE // max(1, h.shape[1]))
    found = h.new_empty(len(nodes))
    for start in range(0, len(nodes), step):
        part = slice(start, start + step)
        met = weight.index_select(0, nodes[part]).to(h.dtype)
        torch.sum(met.mul_(h.index_select(0, rows[part])), -1, out=found[part])
    return found if bias is None else found.add_(bias.index_select(0, nodes).to(h.dtype))


class Touched:
    """The rows of a table that an index (P,) meets, each once and in order, and the places by row."""

    def __init__(self, index: Tensor) -> None:
        by_row, self.order = torch.sort(index, stable=True)
        found: Any = torch.unique_consecutive(by_row, return_inverse=True, return_counts=True)
        self.rows, self.places, self.counts = found

    def index(self) -> Tensor:
        """For every place, its row's place among the touched."""
        return torch.empty_like(self.order).index_copy_(0, self.order, self.places)

    def sums(self, values: Tensor, factors: Tensor, at: Tensor) -> Tensor:
        """sum factors values[at] over every row's places; `at`: for every place, which of the values it takes."""
        starts = self.counts.cumsum(0) - self.counts
        return _bags(at[self.order], values, starts, factors[self.order])

    def totals(self, x: Tensor) -> Tensor:
        """sum x over every row's places."""
        return x.new_zeros(len(self.rows)).index_add_(0, self.places, x[self.order])

    def laid_out(self, values: Tensor, like: Tensor, *, sparse: bool) -> Tensor:
        """The gradient to a table from that to its touched rows."""
        values = values.to(like.dtype)
        if not sparse:
            return torch.zeros_like(like).index_copy_(0, self.rows, values)
        shape, index = like.shape, self.rows[None]
        return torch.sparse_coo_tensor(index, values, shape, is_coalesced=True, check_invariants=False)


def _to_rows(weight: Tensor, g: Tensor, nodes: Tensor, offsets: Tensor, touched: Touched, h: Tensor) -> Tensor:
    """sum g w over every row's pairs."""
    if weight.dtype == h.dtype:
        return _bags(nodes, weight, offsets, g)
    return _bags(touched.index(), weight.index_select(0, touched.rows).to(h.dtype), offsets, g)


def _bags(index: Tensor, table: Tensor, offsets: Tensor, factors: Tensor) -> Tensor:
    """sum factors table[index] over every bag, without gathering."""
    if not len(index):
        return table.new_zeros(len(offsets), table.shape[1])
    return functional.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=factors)
