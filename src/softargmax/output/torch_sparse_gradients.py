"""Sparse gradients with respect to tables of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from softargmax.core.torch_readable import as_they_are
from softargmax.output.kernels import visited_sums

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.output.arguments import NodeSums


def sparse_sums(i: NodeSums, table: Tensor, *, totals: bool) -> tuple[Tensor, Tensor | None] | None:
    """Return the results of `node_sums` as sparse tensors.

    The result is None if kernels may not run on the tensors (`as_they_are` is False), for example under tracing.
    """
    if not as_they_are(i.nodes, i.values, i.at, i.factors):
        return None
    rows, sums, total = visited_sums(i, totals=totals)
    sums = sums.to(i.dtype).reshape(len(rows), *table.shape[1:])
    return _sparse_tensor(rows, sums, i.size), None if total is None else _sparse_tensor(rows, total, i.size)


def _sparse_tensor(rows: Tensor, values: Tensor, size: int) -> Tensor:
    shape = size, *values.shape[1:]
    return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True, check_invariants=False)
