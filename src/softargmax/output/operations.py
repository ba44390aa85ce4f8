"""Operations of the output layers: results, derivative rules and kernels.

    all scores         z = h W^T + b                            (N, K)    linear_scores
    some rows of W     W[index]                                 (n, D)    gathered
    scores of pairs    x_p = <h_row(p), w_node(p)> + b          (P,)      pair_scores
    binary losses      sum -log sigma(s_p (x_p + shift_p))      (N,)      coin_losses
    gradients          sum f_p w_index(p)                                 sums (by row), node_sums (by node)

The arguments are in arguments.py, and the definitions in reference.py. The native kernels compute first-order gradients
as weighted sums of vectors. A gradient that will be differentiated again is computed by the definition. A row's scores
and its gradient with respect to h have the same bits in every batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, followed, namespace
from softargmax.core.operation import Operation
from softargmax.core.record import Gradients, Result, Wanted, gradient
from softargmax.output import kernels, reference
from softargmax.output.arguments import (
    CoinLosses,
    Gathered,
    LinearScores,
    NodeSums,
    Pairs,
    PairScores,
    Sums,
    Table,
    Tossed,
)

# --- weighted sums of vectors -----------------------------------------------------------------------------------------


class WeightedSums(NamedTuple):
    """Weighted sums of vectors, and the sums of the factors (the weights)."""

    sums: Any
    totals: Any


sums: Operation[Sums, WeightedSums] = Operation(
    "sums",
    Sums,
    WeightedSums(
        Result("factors", shape=lambda i: (i.starts.shape[0] - 1, i.table.shape[1])),
        Result("factors", shape=lambda i: (i.starts.shape[0] - 1,), spare=True),
    ),
    definition=reference.sums,
    kernels={"cpu": _native.sums},
    constant={"index", "starts", "order"},
)

node_sums: Operation[NodeSums, WeightedSums] = Operation(
    "node_sums",
    NodeSums,
    WeightedSums(
        Result("values", "dtype", lambda i: (i.size, i.values.shape[1])),
        Result("factors", shape=lambda i: (i.size,), spare=True),
    ),
    definition=reference.node_sums,
    kernels={"cpu": kernels.node_sums},
    constant={"at", "nodes"},
)


def _by_node(table: Any, i: NodeSums, *, sparse: bool, totals: bool) -> tuple[Any, Any]:
    """Return the gradient with respect to the table, in the table's shape.

    With `totals`, also return the sums of the factors, which are the gradient with respect to the bias.
    """
    if sparse:
        from softargmax.output.torch_sparse_gradients import sparse_sums

        found = sparse_sums(i, table, totals=totals)
        if found is not None:
            return found
    each, total = node_sums(i) if totals else (node_sums.first(i), None)
    return each if table.ndim == 2 else namespace(each).reshape(each, tuple(table.shape)), total


# --- all scores: dh = g W, dW = g^T h, db = sum g ---------------------------------------------------------------------


class Scores(NamedTuple):
    """The scores (N, K), in the dtype of h."""

    z: Any


def _linear_scores_vjp(i: LinearScores, r: Scores, g: Scores, wanted: Wanted) -> Gradients:
    if followed(g.z):
        return linear_scores.derived(i).defined_vjp(i, r, g, wanted)
    return {
        "h": linear_scores.first(LinearScores(g.z, i.weight.T, None)) if "h" in wanted else None,
        "weight": linear_scores.first(LinearScores(g.z.T, i.h.T, None)) if "weight" in wanted else None,
        "bias": namespace(g.z).sum(g.z, axis=0) if "bias" in wanted else None,
    }


linear_scores: Operation[LinearScores, Scores] = Operation(
    "linear_scores",
    LinearScores,
    Scores(Result("h", shape=lambda i: (i.h.shape[0], i.weight.shape[0]))),
    definition=reference.linear_scores,
    kernels={"cpu": kernels.linear_scores},
    vjp=_linear_scores_vjp,
)


# --- rows of a table: dtable_k = sum g_p over the positions p with index_p = k ----------------------------------------


class Rows(NamedTuple):
    """The gathered rows of the table, (n, ..)."""

    rows: Any


def _gathered_vjp(i: Gathered, r: Rows, g: Rows, wanted: Wanted) -> Gradients:
    if followed(g.rows):
        return gathered.derived(i).defined_vjp(i, r, g, wanted)
    xp, n, device = namespace(g.rows), i.index.shape[0], device_of(g.rows)
    ones = xp.ones(n, dtype=xp.float64 if g.rows.dtype == xp.float64 else xp.float32, device=device)
    flat = xp.reshape(g.rows, (n, math.prod(i.table.shape[1:])))
    to_rows = NodeSums(flat, xp.arange(n, device=device), ones, i.index, i.table.shape[0], i.table.dtype)
    return {"table": _by_node(i.table, to_rows, sparse=i.sparse, totals=False)[0]}


gathered: Operation[Gathered, Rows] = Operation(
    "gathered",
    Gathered,
    Rows(Result("table", shape=lambda i: (i.index.shape[0], *i.table.shape[1:]))),
    definition=reference.gathered,
    kernels={"cpu": kernels.gathered},
    vjp=_gathered_vjp,
    constant={"index"},
)


# --- pairs: dh_r = sum g_p w_node(p), dw_k = sum g_p h_row(p), db_k = sum g_p -----------------------------------------


class ScoresOfPairs(NamedTuple):
    """The scores of the pairs (P,), in the dtype of h."""

    x: Any


def _pair_gradients(h: Any, table: Table, pairs: Pairs, g: Any, wanted: Wanted) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "h" in wanted and pairs.starts is not None:
        found["h"] = sums.first(Sums(table.weight, pairs.nodes, g, pairs.starts, None))
    elif "h" in wanted:
        found["h"] = node_sums.first(NodeSums(table.weight, pairs.nodes, g, pairs.rows, h.shape[0], h.dtype))
    if "weight" in wanted or "bias" in wanted:
        w = table.weight
        to_nodes = NodeSums(h, pairs.rows, g, pairs.nodes, w.shape[0], w.dtype)
        found["weight"], found["bias"] = _by_node(w, to_nodes, sparse=table.sparse, totals="bias" in wanted)
    return found


def _pair_scores_vjp(i: PairScores, r: ScoresOfPairs, g: ScoresOfPairs, wanted: Wanted) -> Gradients:
    if followed(g.x):
        return pair_scores.derived(i).defined_vjp(i, r, g, wanted)
    return _pair_gradients(*i, g.x, wanted)


pair_scores: Operation[PairScores, ScoresOfPairs] = Operation(
    "pair_scores",
    PairScores,
    ScoresOfPairs(Result("h", shape=lambda i: tuple(i.pairs.nodes.shape))),
    definition=reference.pair_scores,
    kernels={"cpu": _native.pair_scores},
    vjp=_pair_scores_vjp,
    constant={"nodes", "rows", "starts"},
)


# --- binary losses: slope_p = d loss / d x_p = -s_p sigma(-s_p (x_p + shift_p)) ---------------------------------------
# The gradients dh, dw and db are those of pairs, with g_p = slope_p.


class LossesOfCoins(NamedTuple):
    """The losses (N,), the slopes (P,), and the gradient with respect to h: dh = sum slope_p w_p, (N, D).

    All three have the dtype of h. One pass over the vectors of the pairs computes them.
    """

    loss: Any
    slopes: Any
    dh: Any


class TossedScores(NamedTuple):
    """The losses of the rows and the slopes of their pairs."""

    loss: Any
    slopes: Any


tossed: Operation[Tossed, TossedScores] = Operation(
    "tossed",
    Tossed,
    TossedScores(Result("x", shape=lambda i: (i.size,)), Result("x")),
    definition=reference.tossed,
    constant={"signs", "rows", "slopes"},
)


def _coin_losses_vjp(i: CoinLosses, r: LossesOfCoins, g: LossesOfCoins, wanted: Wanted) -> Gradients:
    if followed(g.loss, i.h, i.table, i.shift):
        return _by_scores(i, g, wanted)
    slopes = r.slopes * reference.gathered(g.loss, i.pairs.rows)
    found = {"h": r.dh * g.loss[:, None]} if i.to_h else {}
    return _pair_gradients(i.h, i.table, i.pairs, slopes, wanted - found.keys()) | found | {"shift": slopes}


def _by_scores(i: CoinLosses, g: LossesOfCoins, wanted: Wanted) -> Gradients:
    """Return gradients of `coin_losses` that can be differentiated again, computed from the scores of the pairs."""
    of = PairScores(i.h, i.table, i.pairs)
    coins = Tossed(pair_scores.first(of), i.shift, i.signs, i.pairs.rows, i.h.shape[0])
    to_scores = tossed.derived(coins).defined_vjp(coins, None, TossedScores(g.loss, None), {"x"} | ({"shift"} & wanted))
    rest = wanted - {"shift"}
    to_x = ScoresOfPairs(to_scores["x"])
    found = pair_scores.derived(of).defined_vjp(of, None, to_x, rest) if rest else {}
    return {**found, "shift": to_scores.get("shift")}


coin_losses: Operation[CoinLosses, LossesOfCoins] = Operation(
    "coin_losses",
    CoinLosses,
    LossesOfCoins(
        Result("h", shape=lambda i: (i.h.shape[0],)),
        Result("h", shape=lambda i: tuple(i.pairs.nodes.shape), spare=True),
        gradient("h", "to_h")._replace(spare=True),
    ),
    definition=reference.coin_losses,
    kernels={"cpu": kernels.coin_losses},
    vjp=_coin_losses_vjp,
    saved={"h", *Table._fields, *Pairs._fields, "signs", "shift", "to_h", "slopes", "dh"},
    constant={"nodes", "rows", "starts", "signs", "slopes", "dh"},
)
