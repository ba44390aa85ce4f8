"""The native operations of softargmax.output on NumPy memory, and expected results from float64 loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softargmax.core import _native
from softargmax.output import Tree, Unigram, philox_stream

Array = NDArray[Any]
Place = Callable[[Array], Array]
GROUP = 64  # a row updates the nodes of this many pairs together (`kTogether` in skipgram_sgd.hpp)


class Problem(NamedTuple):
    """Rows, nodes, and (row, node) pairs ordered by row.

    A row has a vector in `h`. A node has a vector in `weight` and a number in `bias`.
    """

    h: Array
    weight: Array
    bias: Array
    nodes: Array
    starts: Array
    signs: Array
    shift: Array
    factors: Array

    @property
    def rows(self) -> Array:
        return np.repeat(np.arange(len(self.h)), np.diff(self.starts))


def problem(
    counts: list[int], width: int, nodes: int, dtype: str, weights: str | None = None, spread: float = 1.0
) -> Problem:
    """Return a random problem in which row i has counts[i] pairs."""
    rng = np.random.default_rng([len(counts), width, nodes])
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    n = int(starts[-1])
    return Problem(
        (rng.standard_normal((len(counts), width)) * spread).astype(dtype),
        rng.standard_normal((nodes, width)).astype(weights or dtype),
        rng.standard_normal(nodes).astype(weights or dtype),
        (nodes * rng.random(n) ** 3).astype(np.int64),
        starts,
        rng.choice(np.array([-1, 0, 1], np.int8), n, p=[0.6, 0.1, 0.3]),
        rng.standard_normal(n).astype(dtype),
        rng.standard_normal(n).astype(dtype),
    )


def as_is(array: Array) -> Array:
    return array


# --- calls ------------------------------------------------------------------------------------------------------------


def dots(p: Problem, place: Place = as_is) -> Array:
    out = place(np.empty(len(p.nodes), p.h.dtype))
    pairs = {"nodes": place(p.nodes), "rows": place(p.rows)}
    _native.pair_scores(h=place(p.h), weight=place(p.weight), bias=place(p.bias), x=out, **pairs)
    return out


def row_sums(p: Problem, place: Place = as_is) -> Array:
    """Return the gradient of h: for each row, the sum of factor times weight over its pairs."""
    out = place(np.empty(p.h.shape, p.h.dtype))
    given = {"index": place(p.nodes), "factors": place(p.factors), "starts": place(p.starts)}
    _native.sums(table=place(p.weight), sums=out, order=None, totals=None, **given)
    return out


def places(index: Array, place: Place = as_is) -> tuple[Array, Array, Array]:
    order, rows, starts = (place(np.empty(len(index) + more, np.int64)) for more in (0, 0, 1))
    n = _native.places_by_row(index=place(index), order=order, rows=rows, starts=starts)
    return order, rows[:n], starts[: n + 1]


def node_sums(p: Problem, place: Place = as_is) -> tuple[Array, Array]:
    """Return the gradients of the weight and bias of all nodes that occur in pairs.

    For each node, the gradient of the weight is the sum of factor times h over the node's pairs. The gradient of the
    bias is the sum of the factors.
    """
    order, rows, starts = places(p.nodes, place)
    out, totals = place(np.empty((len(rows), p.h.shape[1]), p.h.dtype)), place(np.empty(len(rows), p.h.dtype))
    given = {"index": place(p.rows), "factors": place(p.factors), "starts": place(starts), "order": place(order)}
    _native.sums(table=place(p.h), sums=out, totals=totals, **given)
    return out, totals


def logistic_losses(p: Problem, place: Place = as_is) -> tuple[Array, Array, Array]:
    """Return the binary logistic losses of the rows, the slopes of the pairs, and the gradient of h."""
    loss, slopes, dh = (
        place(np.empty_like(x)) for x in (p.h[:, :1].reshape(-1) if p.h.size else p.h.sum(1), p.shift, p.h)
    )
    given = {name: place(getattr(p, name)) for name in ("h", "weight", "bias", "nodes", "starts", "signs", "shift")}
    _native.coin_losses(loss=loss, slopes=slopes, dh=dh, **given)
    return loss, slopes, dh


class Text(NamedTuple):
    """The arguments of `descend`: rows, their targets, and noise or paths."""

    vectors: Array
    weight: Array
    inputs: Array
    starts: Array
    target: Array
    negatives: Array | None
    paths: tuple[Array, Array, Array] | None


def text(rows: int, width: int, classes: int, dtype: str, *, tree: bool, samples: int = 3) -> Text:
    rng = np.random.default_rng([rows, width, classes, samples])
    counts = rng.integers(0, 6, rows)
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    drawn = lambda n: (classes * rng.random(n) ** 2).astype(np.int64)  # noqa: E731
    inputs, target, negatives = drawn(rows), drawn(starts[-1]), drawn(starts[-1] * samples)
    huffman = Tree.huffman(1.0 / np.arange(1, classes + 1))
    vectors, weight = (rng.standard_normal((n, width)).astype(dtype) for n in (classes, classes - tree))
    paths = tuple(map(np.asarray, huffman.paths)) if tree else None
    return Text(vectors, weight, inputs, starts, target, None if tree else negatives, paths)


def descend(t: Text, rate: float, last: float, batch: int, place: Place = as_is) -> tuple[Array, Array, float]:
    """Return copies of `vectors` and `weight` after the gradient steps, and the total loss."""
    vectors, weight = place(t.vectors.copy()), place(t.weight.copy())
    paths = (None,) * 3 if t.paths is None else tuple(map(place, t.paths))
    loss = _native.descend(
        vectors=vectors,
        weight=weight,
        inputs=place(t.inputs),
        starts=place(t.starts),
        target=place(t.target),
        negatives=None if t.negatives is None else place(t.negatives),
        **dict(zip(("offsets", "nodes", "signs"), paths, strict=True)),
        rate=rate,
        last_rate=last,
        batch=batch,
    )
    return vectors, weight, loss


def alias_draws(n: int, classes: int, first: int = 0, place: Place = as_is) -> Array:
    table = Unigram(1.0 / np.arange(1, classes + 1))._table
    out = place(np.empty(n, np.int64))
    where = {"seed": 5, "stream": 9, "purpose": philox_stream.CANDIDATES, "first": first}
    _native.alias_draws(threshold=place(table.threshold), alias=place(table.alias), index=out, **where)
    return out


def random_blocks(n: int, first: int = 0, place: Place = as_is) -> Array:
    out = place(np.empty((4, n), np.int64))
    _native.random_blocks(words=out, seed=3, stream=2**63 + 1, purpose=philox_stream.ARRIVALS, first=first)
    return out


def everything(dtype: str, place: Place = as_is) -> dict[str, Array]:
    """Return the results of all operations for several shapes, by name."""
    found: dict[str, Array] = {}
    for width in (1, 7, 16, 33, 64, 100, 257):
        for weights in {"float16", dtype}:
            p = problem([3, 0, 17, 70, 1, 1200, 0], width, 40, dtype, weights)
            named = {"dots": dots, "row sums": row_sums, "node sums": node_sums, "logistic losses": logistic_losses}
            for name, call in named.items():
                each = call(p, place)
                for i, array in enumerate(each if isinstance(each, tuple) else (each,)):
                    found[f"{name} {i} {dtype} {weights} {width}"] = array.copy()
        if dtype != "float16":
            for tree in (False, True):
                *tables, loss = descend(text(90, width, 30, dtype, tree=tree), 0.3, 0.1, 16, place)
                found |= {f"descend {tree} {i} {dtype} {width}": array.copy() for i, array in enumerate(tables)}
                found[f"descend {tree} loss {dtype} {width}"] = np.array(loss)
    if dtype == "float64":
        found |= {f"places {i}": x.copy() for i, x in enumerate(places(problem([999], 1, 70, dtype).nodes, place))}
        found |= {"alias": alias_draws(1003, 71, place=place).copy(), "blocks": random_blocks(1003, place=place).copy()}
    return found


# --- expected results -------------------------------------------------------------------------------------------------


def log_sigma(x: Array) -> Array:
    return -np.logaddexp(0.0, -x)


def true_dots(p: Problem) -> Array:
    h, w = p.h.astype(np.float64), p.weight.astype(np.float64)
    return (h[p.rows] * w[p.nodes]).sum(1) + p.bias.astype(np.float64)[p.nodes]


def true_logistic_losses(p: Problem, x: Array | None = None) -> tuple[Array, Array, Array]:
    s, x = p.signs.astype(np.float64), true_dots(p) + p.shift if x is None else x
    terms, slopes = np.where(s == 0, 0, -log_sigma(s * x)), -s * np.exp(log_sigma(-s * x))
    loss, dh = np.zeros(len(p.h)), np.zeros(p.h.shape)
    np.add.at(loss, p.rows, terms)
    np.add.at(dh, p.rows, slopes[:, None] * p.weight.astype(np.float64)[p.nodes])
    return loss, slopes, dh


def true_descent(t: Text, rate: float, last: float, batch: int) -> tuple[Array, Array, float]:
    """Return `vectors`, `weight` and the loss after gradient descent, row by row in float64.

    Nodes are updated after every GROUP pairs of a row, and the input vectors after each batch.
    """
    v, w, total, n = t.vectors.astype(np.float64), t.weight.astype(np.float64), 0.0, len(t.inputs)
    for first in range(0, n, batch):
        step, change = rate + (last - rate) * first / n, np.zeros_like(v)
        for row in range(first, min(n, first + batch)):
            h, pairs = v[t.inputs[row]], pairs_of(t, row)
            for at in range(0, len(pairs), GROUP):
                together = pairs[at : at + GROUP]
                for (k, s), x in zip(together, [s * (w[k] @ h) for k, s in together], strict=True):
                    total -= log_sigma(x) if s else 0.0
                    slope = step * s * np.exp(log_sigma(-x))
                    change[t.inputs[row]] += slope * w[k]
                    w[k] += slope * h
        v += change
    return v, w, total


def pairs_of(t: Text, row: int) -> list[tuple[int, int]]:
    """Return the nodes in the pairs of a row, and their signs."""
    pairs: list[tuple[int, int]] = []
    for target in range(t.starts[row], t.starts[row + 1]):
        y = t.target[target]
        if t.paths is None:
            samples = len(t.negatives) // len(t.target)
            noise = t.negatives[target * samples : (target + 1) * samples]
            pairs += [(y, 1), *((k, -1 if k != y else 0) for k in noise)]
        else:
            offsets, nodes, signs = t.paths
            pairs += list(zip(nodes[offsets[y] : offsets[y + 1]], signs[offsets[y] : offsets[y + 1]], strict=True))
    return pairs
