"""Arguments of the operations of the output layers, which operations.py defines."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Bare, DType, Packed


class Table(NamedTuple):
    """The vectors (nodes, D) and the biases (nodes,) of the nodes, in any floating dtype.

    sparse: if True, gradients are sparse tensors of the rows used. Under tracing, and with ``create_graph=True``,
    gradients are dense.
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
    """h (N, D), float32 or float64; its dtype is that of the computation."""

    h: Packed
    table: Table
    pairs: Pairs


class CoinLosses(NamedTuple):
    """h as in PairScores. signs (P,), int8: 1, -1, or 0 if there is no pair. shift (P,): added to the scores.

    to_h: if True, the kernel also computes the gradient to h.
    """

    h: Packed
    table: Table
    pairs: Pairs
    signs: Bare
    shift: Packed | None
    to_h: bool


class Tossed(NamedTuple):
    """The scores of pairs (P,), and their rows (P,), below `size`; the other fields as in CoinLosses."""

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
    """Rows `at` (P,) of values (M, D), with factors and nodes (P,), to be summed by node. There are `size` nodes."""

    values: Array
    at: Array
    factors: Array
    nodes: Array
    size: int
    dtype: DType
