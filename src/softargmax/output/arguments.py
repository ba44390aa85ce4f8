"""Arguments of the operations of the output layers; operations.py defines what they compute."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Bare, DType, Packed


class Table(NamedTuple):
    """A vector and a bias for every node, (nodes, D) and (nodes,), in any floating dtype.

    sparse: if True, gradients are sparse tensors of the rows used. A gradient is dense if it will be differentiated
    itself, or under tracing.
    """

    weight: Packed
    bias: Array | None
    sparse: bool


class Pairs(NamedTuple):
    """Pairs of rows and nodes, (P,) each.

    starts: offsets of each row's pairs, (N + 1,); None if the rows are not sorted.
    """

    nodes: Packed
    rows: Packed
    starts: Packed | None


class LinearScores(NamedTuple):
    """h (N, D), weight (K, D), bias (K,)."""

    h: Array
    weight: Array
    bias: Array | None


class Gathered(NamedTuple):
    """A table (K, ..) and the indices (n,) of rows in it. sparse: as in `Table`."""

    table: Array
    index: Array
    sparse: bool


class PairScores(NamedTuple):
    """h (N, D), float32 or float64; everything is computed in its dtype."""

    h: Packed
    table: Table
    pairs: Pairs


class CoinLosses(NamedTuple):
    """h as in PairScores. signs (P,), int8: 1, -1, or 0 for no pair. shift (P,): added to the scores.

    to_h: if True, the kernel also computes the gradient to h.
    """

    h: Packed
    table: Table
    pairs: Pairs
    signs: Bare
    shift: Packed | None
    to_h: bool


class Tossed(NamedTuple):
    """The scores of pairs (P,), and the row of each, below `size`; the other fields as in CoinLosses."""

    x: Array
    shift: Array | None
    signs: Array
    rows: Array
    size: int


class Sums(NamedTuple):
    """Rows of a table (M, D) at positions (P,), each with a factor; `order` and `starts` group the positions by sum."""

    table: Packed
    index: Packed
    factors: Packed
    starts: Packed
    order: Packed | None


class NodeSums(NamedTuple):
    """Rows `at` (P,) of values (M, D), each with a factor, to be summed by node (P,); there are `size` nodes."""

    values: Array
    at: Array
    factors: Array
    nodes: Array
    size: int
    dtype: DType
