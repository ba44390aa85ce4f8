"""The loss of a hierarchical softmax along the paths of a tree.

A row's loss is a sum over the nodes on its target's path:

    x = +-(<h, w> + b)        loss = sum -log sigma(x)        d loss = sum -sigma(-x) d x
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softargmax.core.arrays import readable
from softargmax.output.arguments import Pairs, Table
from softargmax.output.torch_class_scores import coin_losses

if TYPE_CHECKING:
    from softargmax.output.tree_paths import Paths


def pairs_of(paths: Paths, target: Tensor, counted: Tensor, depth: int) -> tuple[Pairs, Tensor]:
    """Return the pairs of a row and a node on its target's path, and their signs. Ignored rows have no pairs.

    Under tracing, and on devices other than the CPU, each row has as many pairs as the longest path has nodes. A sign
    of 0 marks an unused pair.
    """
    n = len(target)
    if readable(target):
        return _pairs_in_memory(paths, target, counted)
    target = torch.where(counted, target, 0)
    begin = paths.offsets[target]
    lengths = torch.where(counted, paths.offsets[target + 1] - begin, 0)
    rows = torch.arange(n + 1, device=target.device)
    step = torch.arange(depth, device=target.device)
    there = step < lengths[:, None]
    place = torch.where(there, begin[:, None] + step, 0).reshape(-1)
    signs = torch.where(there.reshape(-1), paths.signs[place], 0) if depth else place
    nodes = paths.nodes[place].long() if depth else place
    return Pairs(nodes, rows[:-1].repeat_interleave(depth), rows * depth), signs


def _pairs_in_memory(paths: Paths, target: Tensor, counted: Tensor) -> tuple[Pairs, Tensor]:
    """Return the result of `pairs_of`, by NumPy. For a few rows, this takes half the time of the same code in torch."""
    offsets, nodes, signs = (x.numpy() for x in paths)
    y = np.where(counted.numpy(), target.numpy(), 0)
    begin = offsets[y]
    lengths = np.where(counted.numpy(), offsets[y + 1] - begin, 0)
    starts = np.zeros(len(y) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    place = np.arange(starts[-1]) + np.repeat(begin - starts[:-1], lengths)
    pairs = nodes[place].astype(np.int64), np.repeat(np.arange(len(y)), lengths), starts
    return Pairs(*map(torch.from_numpy, pairs)), torch.from_numpy(signs[place])


def path_loss(h: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, signs: Tensor, *, sparse: bool) -> Tensor:
    """Return the loss of every row, (N,), in the dtype of h."""
    return coin_losses(h, Table(weight, bias, sparse), pairs, signs)
