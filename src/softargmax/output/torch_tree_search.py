"""Search in a tree from the root: log-probabilities of all classes, most probable classes, and draws."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from softargmax.core import philox
from softargmax.output.torch_base import TopK, blocks
from softargmax.output.torch_class_scores import dots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.core.seeds import Source
    from softargmax.output.tree_paths import Slots

_SLACK = 1e-5  # relative margin of the lower bounds, for rounding errors


class Splits(NamedTuple):
    """The arrays of the tree's nodes: weight (nodes, D), bias (nodes,) or None, children (nodes, 2)."""

    weight: Tensor
    bias: Tensor | None
    children: Tensor


def sweep(z: Tensor, levels: Sequence[int], slots: Slots) -> Tensor:
    """Return log p of all classes, (N, K), from the scores of all nodes, one level of the tree after the other."""
    if not z.shape[1]:
        return z.sum(1, keepdim=True)
    split = torch.stack([logsigmoid(z), logsigmoid(-z)], 2)
    per_level = [split[:, :1].flatten(1)]
    for above, (begin, end) in zip(levels, pairwise(levels[1:]), strict=False):
        log_p_above = per_level[-1].index_select(1, slots.nodes[begin:end] - 2 * above)
        per_level.append((split[:, begin:end] + log_p_above.unsqueeze(2)).flatten(1))
    return torch.cat(per_level, 1).index_select(1, slots.classes)


def likeliest(h: Tensor, splits: Splits, k: int) -> TopK:
    """Return log p and the index of the k most probable classes of every row.

    A row with NaN has log p NaN and the index -1.

    All rows are searched together, one level of the tree at a time. No class is more probable than a node above it. So
    a node is expanded only if its log p reaches a lower bound of the k-th best log p.
    """
    values = h.new_full((len(h), k), math.nan)
    index = torch.full((len(h), k), -1, device=h.device)
    for part in blocks(len(h), len(splits.children) + 1):
        rows, classes, log_p = _reaching(h[part], splits, _bound(h[part], splits, k))
        order = classes.argsort()
        order = order[log_p[order].argsort(stable=True, descending=True)]
        order = order[rows[order].argsort(stable=True)]
        rows, classes, log_p = rows[order], classes[order], log_p[order]
        here = torch.arange(len(h[part]), device=h.device)
        rank = torch.arange(len(rows), device=h.device) - torch.searchsorted(rows, here)[rows]
        rows, classes, log_p, rank = (x[rank < k] for x in (rows, classes, log_p, rank))
        values[part][rows, rank], index[part][rows, rank] = log_p, classes
    return TopK(values, index)


def _bound(h: Tensor, splits: Splits, k: int) -> Tensor:
    """Return a lower bound of each row's k-th largest log p: the smallest log p of k classes found by a beam search."""
    n, classes = len(h), len(splits.children) + 1
    if k == classes:
        return h.new_full((n,), -math.inf)
    code, log_p = torch.zeros(n, 1, dtype=torch.int64, device=h.device), h.new_zeros(n, 1)
    while bool((inner := code >= 0).any()):
        rows, _ = places = inner.nonzero(as_tuple=True)
        s = h.new_zeros(code.shape)
        s[places] = dots(h, rows, splits.weight, splits.bias, code[places])
        below = splits.children[code.clamp(min=0)]
        code = torch.cat([torch.where(inner, below[..., 0], code), torch.where(inner, below[..., 1], -1)], 1)
        first = torch.where(inner, log_p + logsigmoid(s), log_p)
        log_p = torch.cat([first, torch.where(inner, log_p + logsigmoid(-s), -math.inf)], 1)
        if log_p.shape[1] > k:
            log_p, kept = log_p.topk(k, 1)
            code = code.gather(1, kept)
    least = log_p.amin(1)
    return least - _SLACK * least.abs()  # `_reaching` may round differently, and must not lose a class


def _reaching(h: Tensor, splits: Splits, bound: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, class and log p of all classes whose log p is at least the bound of their row.

    Rows with NaN are left out.
    """
    rows = torch.arange(len(h), device=h.device)
    if not len(splits.children):
        return rows, torch.zeros_like(rows), h.new_zeros(len(h))
    nodes, log_p_above = torch.zeros_like(rows), h.new_zeros(len(h))
    sound, found = ~bound.isnan(), []
    while len(rows):
        s = dots(h, rows, splits.weight, splits.bias, nodes)
        sound[rows[s.isnan()]] = False
        log_p = torch.stack([logsigmoid(s), logsigmoid(-s)], 1) + log_p_above[:, None]
        below = splits.children[nodes]
        reached = log_p >= bound[rows][:, None]
        rows = rows[:, None].expand_as(below)
        at_class, at_node = reached & (below < 0), reached & (below >= 0)
        found.append((rows[at_class], ~below[at_class], log_p[at_class]))
        rows, nodes, log_p_above = rows[at_node], below[at_node], log_p[at_node]
    rows, classes, log_p = (torch.cat(each) for each in zip(*found, strict=True))
    kept = sound[rows]
    return rows[kept], classes[kept], log_p[kept]


def descend(h: Tensor, splits: Splits, depth: int, source: Source, *, compact: bool) -> Tensor:
    """Return a class drawn for every row, or -1 if a score on the path to it is NaN.

    Let V, uniform in (0, 1), be column d of the row's random stream. At a node of level d with score s, the path
    continues with the first child if log V - log(1 - V) < s, which has probability sigma(s). If `compact`, rows that
    have reached a class are dropped. This depends on values, so it cannot be traced.
    """
    drawn = [_descend(h[part], splits, depth, source, part, compact=compact) for part in blocks(len(h), 64 * depth)]
    return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.int64, device=h.device)


def _descend(h: Tensor, splits: Splits, depth: int, source: Source, part: slice, *, compact: bool) -> Tensor:
    rows = torch.arange(len(h), device=h.device)
    noise = _logistic(h, source, rows + part.start if source.stream is None else source.stream[part], depth)
    code = torch.zeros_like(rows) if depth else ~torch.zeros_like(rows)
    sound = torch.ones_like(rows, dtype=torch.bool)
    for level in range(depth):
        if compact:
            rows = rows[code[rows] >= 0]
        here = code[rows]
        node = here.clamp(min=0)
        s = dots(h, rows, splits.weight, splits.bias, node)
        side = (noise[rows, level] >= s).long()
        sound[rows] &= (here < 0) | ~s.isnan()
        code[rows] = torch.where(here < 0, here, splits.children[node, side])
    return torch.where(sound, ~code, -1)


def _logistic(h: Tensor, source: Source, stream: Any, columns: int) -> Tensor:
    """Return log V - log(1 - V) for random V, (N, columns). Both V and 1 - V have full precision."""
    draw = torch.zeros(1, dtype=torch.int64, device=h.device)
    high, low = philox.words(h, source.seed, stream, draw, columns)

    def fraction(high: Tensor, low: Tensor) -> Tensor:
        return high[:, 0].double() * 2.0**-32 + (low[:, 0].double() + 0.5) * 2.0**-64

    return fraction(high, low).log() - fraction(high ^ philox.WORD, low ^ philox.WORD).log()
