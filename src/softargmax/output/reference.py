"""Definitions of the operations of the output layers, written as differentiable array-API code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import device_of, is_torch, namespace

if TYPE_CHECKING:
    from softargmax.output.arguments import Pairs, Table


def linear_scores(h: Any, weight: Any, bias: Any) -> Any:
    """Return z = h W^T + b."""
    xp = namespace(h)
    z = h @ xp.astype(weight, h.dtype, copy=False).T
    return z if bias is None else z + xp.astype(bias, h.dtype, copy=False)


def gathered(table: Any, index: Any) -> Any:
    """Return table[index]."""
    return table[index] if is_torch(table) else namespace(table).take(table, index, axis=0)


def pair_scores(h: Any, table: Table, pairs: Pairs) -> Any:
    """Return x_p = <h_row(p), w_node(p)> + b_node(p)."""
    xp = namespace(h)

    def of_nodes(x: Any) -> Any:
        return xp.astype(gathered(x, pairs.nodes), h.dtype, copy=False)

    x = xp.sum(gathered(h, pairs.rows) * of_nodes(table.weight), axis=-1)
    return x if table.bias is None else x + of_nodes(table.bias)


def coin_losses(h: Any, table: Table, pairs: Pairs, signs: Any, shift: Any, to_h: bool) -> tuple[Any, Any, Any]:
    """Return the losses of the rows, the slopes of the pairs, and dh, which is an empty array unless `to_h` is True.

    The loss of a row is the sum of -log sigma(s_p (x_p + shift_p)) over its pairs p with s_p != 0.
    """
    loss, slopes = tossed(pair_scores(h, table, pairs), shift, signs, pairs.rows, h.shape[0])
    if not to_h:
        return loss, slopes, namespace(h).zeros(0, dtype=h.dtype, device=device_of(h))
    return loss, slopes, _weighted(table.weight, pairs.nodes, slopes, pairs.rows, h.shape[0])[0]


def tossed(x: Any, shift: Any, signs: Any, rows: Any, size: int) -> tuple[Any, Any]:
    """Return the losses of `size` rows and the slopes of their pairs, from the scores of the pairs."""
    xp, s = namespace(x), namespace(x).astype(signs, x.dtype, copy=False)
    x = (x if shift is None else x + shift) * s
    slopes = xp.where(signs == 0, 0.0, -s * xp.exp(log_sigmoid(-x)))
    return 0.0 - sums_of(rows, xp.where(signs == 0, 0.0, log_sigmoid(x)), size), slopes


def sums(table: Any, index: Any, factors: Any, starts: Any, order: Any) -> tuple[Any, Any]:
    """Return the sums of factors_p table[index_p], and the sums of factors_p.

    Sum i is over p = order[j] for j from starts[i] to starts[i + 1] - 1. If order is None, p = j.
    """
    xp = namespace(factors)
    if order is not None:
        index, factors = gathered(index, order), gathered(factors, order)
    places = xp.arange(index.shape[0], dtype=starts.dtype, device=device_of(factors))
    row = xp.searchsorted(starts, places, side="right") - 1
    return _weighted(table, index, factors, row, starts.shape[0] - 1)


def node_sums(values: Any, at: Any, factors: Any, nodes: Any, size: int, dtype: Any) -> tuple[Any, Any]:
    """Return for each node the sum of factors_p values[at_p] and the sum of factors_p, over the node's pairs p."""
    each, total = _weighted(values, at, factors, nodes, size)
    return namespace(each).astype(each, dtype, copy=False), total


def _weighted(table: Any, index: Any, factors: Any, row: Any, rows: int) -> tuple[Any, Any]:
    xp = namespace(factors)
    terms = factors[:, None] * xp.astype(gathered(table, index), factors.dtype, copy=False)
    return sums_of(row, terms, rows), sums_of(row, factors, rows)


def sums_of(row: Any, x: Any, rows: int) -> Any:
    """Return for each row the sum of x, (P, ..), over the row's pairs."""
    if is_torch(x):
        return x.new_zeros((rows, *x.shape[1:])).index_add(0, row, x)
    xp = namespace(x)
    here = xp.arange(rows, dtype=row.dtype, device=device_of(x))[:, None] == row
    here = xp.reshape(here, (*here.shape, *(1,) * (x.ndim - 1)))
    return xp.sum(xp.where(here, x, xp.zeros_like(x)), axis=1)


def log_sigmoid(x: Any) -> Any:
    """Return log sigma(x) = -log(1 + e^-x). Tensors use torch's function."""
    if is_torch(x):
        return sys.modules["torch"].nn.functional.logsigmoid(x)
    xp = namespace(x)
    return -xp.logaddexp(xp.zeros_like(x), -x)
