"""Scores of classes and binary logistic losses, as functions for the output layers.

Products are computed in the dtype of h, even under autocast. Weights can have half precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core.arrays import readable, trained
from softargmax.core.dispatch import requested_name
from softargmax.core.torch_compile import compile_function
from softargmax.core.torch_private import without_autocast
from softargmax.core.torch_spreadable import spreadable
from softargmax.loss import linear_cross_entropy, linear_selected_log_softmax
from softargmax.output import operations
from softargmax.output.arguments import CoinLosses, Gathered, LinearScores, Pairs, PairScores, Table

_SIZE = 1 << 19
"""The number of floats in a chunk of gathered vectors. A chunk of this size fits in the cache."""


@spreadable
def scores(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return h W^T + b, (N, K), in the dtype of h."""
    with without_autocast(h):
        found: Tensor = operations.linear_scores.first(LinearScores(h, weight, bias))
    return found


@spreadable
def rows_of_table(table: Tensor, index: Tensor, *, sparse: bool) -> Tensor:
    """Return table[index], the rows of a matrix or the numbers of a vector."""
    found: Tensor = operations.gathered.first(Gathered(table, index, sparse))
    return found


@spreadable
def of_pairs(weight: Tensor, bias: Tensor | None, pairs: Pairs, *, sparse: bool) -> tuple[Table, Pairs]:
    """Return the vectors of classes, and the pairs of rows and classes."""
    return Table(weight, bias, sparse), pairs


_OF_LAYERS = {function.__name__: function for function in (linear_cross_entropy, linear_selected_log_softmax)}


@spreadable
def in_any_order(function: str, h: Tensor, weight: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Call a function for a last layer. If classes are spread over processes, they add up dh in any order."""
    found: Tensor = _OF_LAYERS[function](h, weight, y, **options)
    return found


def pair_scores(h: Tensor, table: Table, pairs: Pairs) -> Tensor:
    """Return <h, w> + b of every pair, (P,), in the dtype of h, float32 or float64."""
    with without_autocast(h):
        found: Tensor = operations.pair_scores.first(PairScores(h, table, pairs))
    return found


def coin_losses(h: Tensor, table: Table, pairs: Pairs, signs: Tensor, shift: Tensor | None = None) -> Tensor:
    """Return the loss of every row, (N,): the sum of the binary logistic losses of its pairs.

    signs (P,): 1 or -1, and 0 for an unused pair. shift (P,): added to the scores.
    """
    i = CoinLosses(h, table, pairs, signs.to(torch.int8), shift, to_h=trained(h) and _by_kernel(h))
    with without_autocast(h):
        found: Tensor = operations.coin_losses.first(i)
    return found


def dots(h: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor) -> Tensor:
    """Return the score <h, w> + b of every pair, without gradients. A score's bits do not depend on other pairs."""
    h, bias = h.detach(), None if bias is None else bias.detach()
    table, pairs = of_pairs(weight.detach(), bias, Pairs(nodes, rows, None), sparse=False)
    if _by_kernel(h):
        return pair_scores(h, table, pairs)
    step = max(1, _SIZE // max(1, h.shape[1]))
    parts = (slice(start, start + step) for start in range(0, max(1, len(nodes)), step))
    return torch.cat([pair_scores(h, table, Pairs(pairs.nodes[part], rows[part], None)) for part in parts])


def _by_kernel(h: Tensor) -> bool:
    """True if a native kernel computes the result: h is `readable`, and "reference" is not requested."""
    return readable(h) and requested_name() != "reference"


# torch.compile must know these functions before a layer is called.
for _function in (scores, rows_of_table, in_any_order, pair_scores, coin_losses):
    compile_function(_function)
