"""The loss along paths of a tree: what a hierarchical softmax learns by.

A row's loss is a sum over the pairs of the row and a node on its target's path:

    x = +-(<h, w> + b)        loss = sum -log sigma(x)        d loss = sum -sigma(-x) d x
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softargmax.core.dispatch import readable
from softargmax.output.arguments import Pairs, Table
from softargmax.output.torch_scores import coin_losses

if TYPE_CHECKING:
    from softargmax.output.nodes import Paths


def pairs_of(paths: Paths, target: Tensor, counted: Tensor, depth: int) -> tuple[Pairs, Tensor]:
    """The pairs of rows that count and their signs; of others none.

    Where values may not be looked at, each row has as many places as the longest path, and a sign of 0 is no pair.
    """
    n = len(target)
    target = torch.where(counted, target, 0)
    begin = paths.offsets[target]
    lengths = torch.where(counted, paths.offsets[target + 1] - begin, 0)
    rows = torch.arange(n + 1, device=target.device)
    if readable(target) and target.is_cpu:
        rows = rows[:-1].repeat_interleave(lengths)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        place = torch.arange(len(rows)) + (begin - starts[:-1])[rows]
        return Pairs(paths.nodes[place].long(), rows, starts), paths.signs[place]
    step = torch.arange(depth, device=target.device)
    there = step < lengths[:, None]
    place = torch.where(there, begin[:, None] + step, 0).reshape(-1)
    signs = torch.where(there.reshape(-1), paths.signs[place], 0) if depth else place
    nodes = paths.nodes[place].long() if depth else place
    return Pairs(nodes, rows[:-1].repeat_interleave(depth), rows * depth), signs


def path_loss(h: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, signs: Tensor, *, sparse: bool) -> Tensor:
    """The loss of every row, (N,) in the dtype of h."""
    return coin_losses(h, Table(weight, bias, sparse), pairs, signs)
