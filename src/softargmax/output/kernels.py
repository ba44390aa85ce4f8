"""Calls of the compiled kernels for NumPy arrays and tensors, with the Python code around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import is_torch, namespace
from softargmax.core.memory import memory_of
from softargmax.core.operation import Native
from softargmax.output.arguments import CoinLosses, Gathered, LinearScores, NodeSums

_coin_losses = Native(_native.coin_losses, CoinLosses, ("loss", "slopes", "dh"))


def linear_scores(i: LinearScores, z: Any) -> None:
    """Write h W^T + b to z with the native matrix product."""
    memory = memory_of(z)
    bias = None if i.bias is None else memory.packed(namespace(z).astype(i.bias, z.dtype, copy=False))
    _native.product(
        a=memory.view(i.h),
        b=memory.view(i.weight.T),
        out=memory.view(z),
        bias=None if bias is None else memory.view(bias),
    )


def gathered(i: Gathered, rows: Any) -> None:
    """Write table[index] to `rows`."""
    xp = namespace(rows)
    if is_torch(rows):
        xp.index_select(i.table, 0, i.index, out=rows)
    else:
        xp.take(i.table, i.index, axis=0, out=rows)


def coin_losses(i: CoinLosses, loss: Any, slopes: Any, dh: Any) -> None:
    """Write the losses. Also write the slopes if `slopes` is not None, and dh if ``i.to_h`` is True."""
    _coin_losses(i, loss, slopes, dh if i.to_h else None)


def node_sums(i: NodeSums, sums: Any, totals: Any) -> None:
    """Write the sums of the nodes in ``i.nodes``, and 0 for all other nodes."""
    found = visited_sums(i, totals=totals is not None)
    _scatter(sums, found.rows, found.sums)
    if totals is not None:
        _scatter(totals, found.rows, found.totals)


def _scatter(to: Any, rows: Any, x: Any) -> None:
    """Set an array to 0, then write x to some of its rows."""
    if is_torch(to):
        to.zero_().index_copy_(0, rows, x if x.dtype is to.dtype else x.to(to.dtype))
    else:
        to[...] = 0.0
        to[rows] = x


class Visited(NamedTuple):
    """The distinct nodes of the pairs in increasing order, and one sum per node, in the dtype of the factors."""

    rows: Any
    sums: Any
    totals: Any
    """The sums of the factors; None unless requested."""


def visited_sums(i: NodeSums, *, totals: bool) -> Visited:
    """Return for each visited node the sum of factors_p values[at_p] over the pairs p of the node.

    With `totals`, also return the sum of factors_p.
    """
    memory, count = memory_of(i.factors), i.nodes.shape[0]
    nodes, values, at, factors = (memory.packed(x) for x in (i.nodes, i.values, i.at, i.factors))
    order, rows, starts = (np.empty(count + more, np.int64) for more in (0, 0, 1))
    n = _native.places_by_row(index=memory.view(nodes), order=order, rows=rows, starts=starts)
    each = memory.empty(values, (n, values.shape[1]), factors.dtype)
    total = memory.empty(values, (n,), factors.dtype) if totals else None
    _native.sums(
        table=memory.view(values),
        index=memory.view(at),
        factors=memory.view(factors),
        starts=starts[: n + 1],
        order=order,
        sums=memory.view(each),
        totals=None if total is None else memory.view(total),
    )
    return Visited(memory.array(rows[:n]), each, total)
