"""Arguments of the operations that operations.py defines for the output layers."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Bare, DType, Packed


class Table(NamedTuple):
    """One vector per node, (nodes, D), and one bias per node, (nodes,), in any floating dtype.

    A node is a class, or an inner node of a tree.

    sparse: if True, gradients are sparse tensors that contain only the nodes that occur in a pair. Under tracing, on
    devices other than the CPU, and with ``create_graph=True``, gradients are dense.
    """

    weight: Packed
    bias: Array | None
    sparse: bool


class Pairs(NamedTuple):
    """Pairs of a row of h and a node. Pair p has the row rows[p] and the node nodes[p], p < P.

    starts, (N + 1,): row r has the pairs from starts[r] to starts[r + 1] - 1. `starts` is None if the pairs are
    not sorted by row.
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
    """A table (K, ..) and the indices (n,) of the rows to gather. `sparse` has the same meaning as in `Table`."""

    table: Array
    index: Array
    sparse: bool


class PairScores(NamedTuple):
    """Hidden vectors h (N, D), float32 or float64, and pairs to score. Computations use the dtype of h."""

    h: Packed
    table: Table
    pairs: Pairs


class CoinLosses(NamedTuple):
    """Inputs of the binary logistic losses of pairs. h, table and pairs are as in `PairScores`.

    signs (P,), int8: 1 or -1, and 0 for an unused pair. shift (P,): added to the scores.

    to_h: if True, the kernel also computes the gradient with respect to h.
    """

    h: Packed
    table: Table
    pairs: Pairs
    signs: Bare
    shift: Packed | None
    to_h: bool


class Tossed(NamedTuple):
    """Scores x of pairs, (P,), and the row of each pair, from 0 to `size` - 1. Other fields are as in `CoinLosses`."""

    x: Array
    shift: Array | None
    signs: Array
    rows: Array
    size: int


class Sums(NamedTuple):
    """Weighted sums of rows of a table (M, D). Term p is factors[p] * table[index[p]], p < P.

    Sum i has the terms p = order[j] for j from starts[i] to starts[i + 1] - 1. If order is None, p = j.
    """

    table: Packed
    index: Packed
    factors: Packed
    starts: Packed
    order: Packed | None


class NodeSums(NamedTuple):
    """Weighted sums by node: term p adds factors[p] * values[at[p]] to the sum of node nodes[p], p < P.

    The values have shape (M, D). There are `size` nodes. `dtype` is the dtype of the sums.
    """

    values: Array
    at: Array
    factors: Array
    nodes: Array
    size: int
    dtype: DType
