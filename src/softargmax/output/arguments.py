"""Arguments of the operations of the output layers; operations.py defines what they compute."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Bare, DType, Packed


class Table(NamedTuple):
    """A vector and a bias for every node, (nodes, D) and (nodes,), in any floating dtype.

    sparse: whether their gradients are sparse tensors of the rows that were met. A gradient is dense where it is itself
    to be differentiated, or where values may not be looked at.
    """

    weight: Packed
    bias: Array | None
    sparse: bool


class Pairs(NamedTuple):
    """Pairs of rows and nodes, (P,) each.

    starts: where every row's pairs begin, and where the last one's end, (N + 1,); None if rows are in any order.
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
    """A table (K, ..) and which of its rows, (n,). sparse: as of `Table`."""

    table: Array
    index: Array
    sparse: bool


class PairScores(NamedTuple):
    """h (N, D), float32 or float64; everything is computed in its dtype."""

    h: Packed
    table: Table
    pairs: Pairs


class CoinLosses(NamedTuple):
    """h as of PairScores. signs (P,) of int8: 1, -1, or 0 for no coin. shift (P,): what is added to the scores.

    to_h: whether the kernel forms the gradient to h meanwhile.
    """

    h: Packed
    table: Table
    pairs: Pairs
    signs: Bare
    shift: Packed | None
    to_h: bool


class Tossed(NamedTuple):
    """The scores of pairs (P,) and which of the `size` rows each belongs to; the rest as of CoinLosses."""

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
