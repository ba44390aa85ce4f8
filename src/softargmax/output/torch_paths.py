"""The loss along paths of a tree, and its derivatives: what a hierarchical softmax learns by.

A row's loss is a sum over the pairs of the row and a node on its target's path:

    x = +-(<h, w> + b)        loss = sum -log sigma(x)        d loss = sum -sigma(-x) d x

Pairs are gathered a few thousand at a time, so that memory is that of the pairs' numbers and the rows that are touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from softargmax.core import arrays
from softargmax.core.dispatch import readable
from softargmax.core.targets import in_range
from softargmax.core.torch_bridge import all_direct, direct
from softargmax.core.torch_rules import by_definition, without_autocast

if TYPE_CHECKING:
    from softargmax.output.nodes import Paths

_SIZE = 1 << 19
"""Numbers to a chunk of gathered vectors: a few of them stay in the cache."""


class Pairs(NamedTuple):
    """Rows beside the nodes of their paths, row after row, the first of each at `offsets`; a sign of 0: no pair."""

    nodes: Tensor
    signs: Tensor
    rows: Tensor
    offsets: Tensor


def targets_of(
    target: Any, like: Tensor, rows: tuple[int, ...], classes: int, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Targets (N,), which of them count, and where nobody has looked, which are out of range."""
    target = arrays.like(target, like, "target")
    if arrays.dtype_name(target.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"target: dtype {target.dtype}; it may be integers, one per row")
    if tuple(target.shape) != rows:
        raise ValueError(f"target: shape {tuple(target.shape)}; it may be that of the rows, {rows}")
    y = target.to(torch.int64).reshape(-1)
    ignored = y == ignore_index
    wrong = ((y < 0) | (y >= classes)) & ~ignored
    if not (readable(y) and y.is_cpu):
        return y, ~(ignored | wrong), wrong
    in_range(target, classes, ignore_index, "target")
    return y, ~ignored, None


def pairs_of(paths: Paths, target: Tensor, counted: Tensor, depth: int, dtype: torch.dtype) -> Pairs:
    """The pairs of rows that count; of others none.

    Where values may not be looked at, each row has as many places as the longest path.
    """
    n = len(target)
    target = torch.where(counted, target, 0)
    begin = paths.offsets[target]
    lengths = torch.where(counted, paths.offsets[target + 1] - begin, 0)
    rows = torch.arange(n, device=target.device)
    if readable(target) and target.is_cpu:
        rows = rows.repeat_interleave(lengths)
        offsets = lengths.cumsum(0) - lengths
        place = torch.arange(len(rows)) + (begin - offsets)[rows]
        return Pairs(paths.nodes[place].long(), paths.signs[place].to(dtype), rows, offsets)
    step = torch.arange(depth, device=target.device)
    there = step < lengths[:, None]
    place = torch.where(there, begin[:, None] + step, 0).reshape(-1)
    signs = torch.where(there.reshape(-1), paths.signs[place], 0) if depth else place
    nodes = paths.nodes[place].long() if depth else place
    return Pairs(nodes, signs.to(dtype), rows.repeat_interleave(depth), rows * depth)


def path_loss(h: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, *, sparse: bool) -> Tensor:
    """The loss of every row, (N,) in the dtype of h.

    Parameters
    ----------
    h : Tensor
        (N, D), float32 or float64.
    weight, bias : Tensor
        (nodes, D) and (nodes,) or None; they may be halves, their rows become h's dtype when they are gathered.
    pairs : Pairs
        Which row meets which node.
    sparse : bool
        Whether gradients to weight and bias are sparse: of the rows touched. One that is itself to be differentiated
        is dense.
    """
    tensors = tuple(x for x in (h, weight, bias, *pairs) if x is not None)
    with without_autocast(h):
        if not all_direct(tuple(x.detach() for x in tensors)):
            return _definition(h, weight, bias, *pairs)
        loss: Tensor = _PathLoss.apply(sparse, h.contiguous(), weight, bias, *pairs)  # type: ignore[no-untyped-call]
    return loss


def dots(h: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor) -> Tensor:
    """The score <h, w> + b of every pair; a pair's is the same whatever the others are."""
    step = max(1, _SIZE // max(1, h.shape[1]))
    found = h.new_empty(len(nodes))
    for start in range(0, len(nodes), step):
        part = slice(start, start + step)
        gathered = weight.index_select(0, nodes[part]).to(h.dtype)
        torch.sum(gathered.mul_(h.index_select(0, rows[part])), -1, out=found[part])
    return found if bias is None else found.add_(bias.index_select(0, nodes).to(h.dtype))


def _definition(
    h: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, signs: Tensor, rows: Tensor, _offsets: Tensor
) -> Tensor:
    """The same in steps that torch differentiates, all pairs at once."""
    x = (h[rows] * weight[nodes].to(h.dtype)).sum(-1)
    if bias is not None:
        x = x + bias[nodes].to(h.dtype)
    terms = torch.where(signs == 0, 0, functional.logsigmoid(x * signs))
    return 0.0 - h.new_zeros(h.shape[0]).index_add(0, rows, terms)


class _PathLoss(torch.autograd.Function):
    """(sparse, h, weight, bias, *pairs) -> the losses of rows. Of pairs none has a sign of 0."""

    @staticmethod
    def forward(ctx: Any, sparse: bool, h: Tensor, weight: Tensor, bias: Tensor | None, *pairs: Tensor) -> Tensor:
        nodes, signs, rows, _ = pairs
        x = dots(h, rows, weight, bias, nodes).mul_(signs)
        ctx.sparse = sparse
        ctx.save_for_backward(h, weight, bias, *pairs, x)
        return 0.0 - h.new_zeros(h.shape[0]).index_add_(0, rows, functional.logsigmoid(x))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        h, weight, bias, nodes, signs, rows, offsets, x = ctx.saved_tensors
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if again or not direct(g):
            inputs = (h, weight, bias, nodes, signs, rows, offsets)
            return None, *by_definition(_definition, inputs, wanted, g, again=again)
        # Not torch.sigmoid: a number's bits are others there at the end of a vector.
        dx = (1 + x.exp()).reciprocal_().mul_(signs).mul_(g.index_select(0, rows)).neg_()
        touched = _Touched(nodes)
        dh = _to_rows(weight, dx, Pairs(nodes, signs, rows, offsets), touched, h) if wanted[0] else None
        dw = _laid_out(touched, touched.sums(h, dx, rows), weight, ctx.sparse) if wanted[1] else None
        db = None
        if bias is not None and wanted[2]:
            db = _laid_out(touched, touched.totals(dx), bias, ctx.sparse)
        return None, dh, dw, db, None, None, None, None


class _Touched:
    """The nodes that occur among pairs, in order, and the pairs by node."""

    def __init__(self, nodes: Tensor) -> None:
        by_node, self.order = torch.sort(nodes, stable=True)
        found: Any = torch.unique_consecutive(by_node, return_inverse=True, return_counts=True)
        self.nodes, self.places, self.counts = found

    def index(self) -> Tensor:
        """For every pair, its node's place among the touched."""
        return torch.empty_like(self.order).index_copy_(0, self.order, self.places)

    def sums(self, h: Tensor, dx: Tensor, rows: Tensor) -> Tensor:
        """sum dx h over every node's pairs."""
        starts = self.counts.cumsum(0) - self.counts
        return _bags(rows[self.order], h, starts, dx[self.order])

    def totals(self, dx: Tensor) -> Tensor:
        """sum dx over every node's pairs."""
        return dx.new_zeros(len(self.nodes)).index_add_(0, self.places, dx[self.order])


def _to_rows(weight: Tensor, dx: Tensor, pairs: Pairs, touched: _Touched, h: Tensor) -> Tensor:
    """sum dx w over every row's pairs."""
    if weight.dtype == h.dtype:
        return _bags(pairs.nodes, weight, pairs.offsets, dx)
    return _bags(touched.index(), weight.index_select(0, touched.nodes).to(h.dtype), pairs.offsets, dx)


def _bags(index: Tensor, table: Tensor, offsets: Tensor, factors: Tensor) -> Tensor:
    """sum factors table[index] over every bag, without gathering."""
    if not len(index):
        return table.new_zeros(len(offsets), table.shape[1])
    return functional.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=factors)


def _laid_out(touched: _Touched, values: Tensor, like: Tensor, sparse: bool) -> Tensor:
    """The gradient to a parameter from that to its touched rows."""
    values = values.to(like.dtype)
    if sparse:
        shape, index = like.shape, touched.nodes[None]
        return torch.sparse_coo_tensor(index, values, shape, is_coalesced=True, check_invariants=False)
    return torch.zeros_like(like).index_copy_(0, touched.nodes, values)
