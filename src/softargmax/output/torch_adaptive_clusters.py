"""The head and the clusters of an adaptive softmax: log-probabilities, most probable classes, draws.

    log p(r) = log p_head(r)                           for a frequent class
    log p(r) = log p_head(token) + log p_cluster(r)    for a class of a cluster

The token of a cluster is an entry of the head, after the frequent classes. Classes are numbered by rank: first the
frequent classes, from 0 on, then the classes of each cluster.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from softargmax.normalize import log_softmax
from softargmax.output.torch_base import TopK, draw_columns
from softargmax.output.torch_class_scores import scores

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cluster(NamedTuple):
    """The cluster of the ranks begin to end - 1: projection (D_i, D), weight (end - begin, D_i), bias or None."""

    begin: int
    end: int
    projection: Tensor
    weight: Tensor
    bias: Tensor | None

    def projected(self, h: Tensor) -> Tensor:
        """Return P h, (N, D_i)."""
        return scores(h, self.projection, None)

    def log_p(self, h: Tensor) -> Tensor:
        """Return the log-probabilities of the cluster's classes, given the cluster."""
        found: Tensor = log_softmax(scores(self.projected(h), self.weight, self.bias))
        return found


class Clusters(NamedTuple):
    """The weight (frequent + tokens, D) and the bias of the head, and the cluster of each token."""

    weight: Tensor
    bias: Tensor | None
    below: Sequence[Cluster]

    def head(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the frequent classes and the log-probabilities of the tokens."""
        found: Tensor = log_softmax(scores(h, self.weight, self.bias))
        return found[:, : found.shape[1] - len(self.below)], found[:, found.shape[1] - len(self.below) :]


def all_log_p(h: Tensor, clusters: Clusters) -> Tensor:
    """Return the log-probabilities of all ranks, (N, K)."""
    frequent, tokens = clusters.head(h)
    below = (tokens[:, i, None] + cluster.log_p(h) for i, cluster in enumerate(clusters.below))
    return torch.cat([frequent, *below], 1)


def likeliest(h: Tensor, clusters: Clusters, k: int) -> TopK:
    """Return the k most probable ranks of every row and their log-probabilities.

    A row with NaN has the ranks -1 and the log-probabilities NaN.

    Each row visits the clusters by decreasing probability of the cluster, which is that of its token in the head. No
    rank is more probable than its cluster. So the row stops at a cluster that is less probable than the k-th best rank
    found so far.
    """
    frequent, tokens = clusters.head(h)
    sound = ~(frequent.isnan().any(1) | tokens.isnan().any(1))
    known = frequent.topk(min(k, frequent.shape[1]), 1)
    room = 0, k - known.values.shape[1]
    values, ranks = pad(known.values, room, value=-math.inf), pad(known.indices, room, value=-1)
    tokens, order = tokens.sort(1, descending=True)
    for token, which in zip(tokens.unbind(1), order.unbind(1), strict=True):
        searched = sound & (token >= values[:, -1])
        for i, cluster in enumerate(clusters.below):
            (rows,) = (searched & (which == i)).nonzero(as_tuple=True)
            log_p = token[rows, None] + cluster.log_p(h[rows])
            sound[rows] = ~log_p.isnan().any(1)
            more = log_p.topk(min(k, log_p.shape[1]), 1)
            both = torch.cat([more.values, values[rows]], 1)
            places = both.argsort(dim=1, descending=True, stable=True)[:, :k]  # unused places have -inf and come last
            values[rows] = both.gather(1, places)
            ranks[rows] = torch.cat([more.indices + cluster.begin, ranks[rows]], 1).gather(1, places)
    return TopK(torch.where(sound[:, None], values, math.nan), torch.where(sound[:, None], ranks, -1))


def descend(h: Tensor, clusters: Clusters, seed: int, stream: Tensor) -> Tensor:
    """Return a rank drawn for every row, or -1 if the row has NaN.

    The first draw is from the head. If it is a token, a second draw is from the token's cluster.
    """
    head = torch.cat(clusters.head(h), 1)
    place = draw_columns(head, seed, stream)
    rank, size = place.clone(), head.shape[1]
    for i, cluster in enumerate(clusters.below):
        (rows,) = (place == size - len(clusters.below) + i).nonzero(as_tuple=True)
        # The random numbers of a draw depend on the column. The padding shifts the columns of the cluster beyond those
        # of the head, so the two draws have different random numbers.
        columns = pad(cluster.log_p(h[rows]), (size, 0), value=-math.inf)
        inside = draw_columns(columns, seed, stream[rows])
        rank[rows] = torch.where(inside < 0, -1, inside - size + cluster.begin)
    return rank
