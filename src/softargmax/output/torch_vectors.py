"""Vectors of a table that are met one by one, by the compiled core: inner products, sums, which rows were met.

A product has the same bits whatever is beside it; a sum depends on the order of its terms, and on nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from softargmax.core import _native
from softargmax.core.torch_memory import view

if TYPE_CHECKING:
    from torch import Tensor


def dots(h: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor) -> Tensor:
    """<h, w> + b of every pair of a row of h (float32 or float64) and a node, in the dtype of h."""
    out, weight = h.new_empty(len(nodes)), weight.contiguous()
    offset = None if bias is None else view(bias)
    _native.pair_scores(view(h), view(weight), offset, nodes.numpy(), rows.numpy(), view(out))
    return out


def sums(table: Tensor, index: Tensor, factors: Tensor, starts: Tensor) -> Tensor:
    """sum factors table[index] over the places from each start to the next, in the dtype of the factors."""
    out = factors.new_empty(len(starts) - 1, table.shape[1])
    table, factors = table.contiguous(), factors.contiguous()
    _native.sums(view(out), view(table), index.numpy(), view(factors), starts.numpy(), None, None)
    return out


class Touched:
    """The rows of a table that an index (P,) meets, each once and in order."""

    def __init__(self, index: Tensor) -> None:
        self.order, rows, starts = (index.new_empty(len(index) + more) for more in (0, 0, 1))
        n = _native.places_by_row(index.numpy(), self.order.numpy(), rows.numpy(), starts.numpy())
        self.rows, self._starts = rows[:n], starts[: n + 1]

    def sums(self, values: Tensor, factors: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """sum factors values[at] over every row's places, and of the factors alone.

        `at`: for every place, which of the values it takes.
        """
        each, total = factors.new_empty(len(self.rows), values.shape[1]), factors.new_empty(len(self.rows))
        values, factors = values.contiguous(), factors.contiguous()
        places = at.numpy(), view(factors), self._starts.numpy(), self.order.numpy()
        _native.sums(view(each), view(values), *places, view(total))
        return each, total

    def laid_out(self, values: Tensor, like: Tensor, *, sparse: bool) -> Tensor:
        """The gradient to a table from that to its touched rows."""
        values = values.to(like.dtype)
        if not sparse:
            return torch.zeros_like(like).index_copy_(0, self.rows, values)
        shape, index = like.shape, self.rows[None]
        return torch.sparse_coo_tensor(index, values, shape, is_coalesced=True, check_invariants=False)
