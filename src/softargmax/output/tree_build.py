"""Construction of trees: balanced, by counts (Huffman), from nested clusters, and by splitting a set of vectors.

A function that builds a tree over n items returns an array of children, (n - 1, 2), with one row per node. A child is
a node's number, or ~item. A node's number is smaller than the numbers of its children.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import check, philox
from softargmax.output.counts import on_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


# --- checks -----------------------------------------------------------------------------------------------------------


def children_of(values: Any) -> Integers:
    """Check that the children form a tree, and return a copy."""
    found = on_host(values, "children")
    if found.dtype.kind not in "iu" or found.ndim != 2 or found.shape[1] != 2:
        error = ValueError if found.dtype.kind in "iu" else TypeError
        raise error(f"children: expected integers of shape (K - 1, 2), got dtype {found.dtype}, shape {found.shape}")
    children: Integers = found.astype(np.int64)
    flat = children.reshape(-1)
    (places,) = np.nonzero(flat >= 0)
    if not np.array_equal(flat[places], np.arange(1, len(found))) or np.any(places >> 1 >= flat[places]):
        may = f"each node from 1 to {len(found) - 1} as a child once, in increasing order and after its parent"
        raise ValueError(f"children: expected {may}; nodes are numbered level by level")
    if not np.array_equal(np.sort(~flat[flat < 0]), np.arange(len(found) + 1 if len(found) else 0)):
        raise ValueError(f"children: expected each class k from 0 to {len(found)} once, as ~k")
    return children


def points_of(values: Any) -> NDArray[Any]:
    """Return one vector per class, scaled and centred.

    All vectors are divided by the largest absolute value of an entry. Then their mean is subtracted.
    """
    found = on_host(values, "weights")
    if found.ndim != 2 or not len(found):
        raise ValueError(f"weights: expected shape (K, D), a vector for each class, got {found.shape}")
    found = check.scores(found, "weights")
    x: NDArray[Any] = found.astype(np.float64 if found.dtype == np.float64 else np.float32)
    if not np.all(np.isfinite(x)):
        raise ValueError("weights: expected finite numbers, got some infinite or NaN")
    if x.size:
        x /= max(float(np.max(np.abs(x))), float(np.finfo(x.dtype).tiny))
        x -= np.mean(x, axis=0)
    return x


def clusters_of(values: Any) -> Any:
    """Return nested clusters unchanged. Convert cluster numbers, one per class, to lists of classes."""
    if isinstance(values, (list, tuple)) and any(map(_is_cluster, values)):
        return values
    found = on_host(values, "clusters")
    if found.ndim > 1:
        return found
    if found.dtype.kind not in "iu" or not found.size or not found.ndim:
        was = f"dtype {found.dtype}, shape {found.shape}"
        raise TypeError(f"clusters: expected integers, one per class, or a nested sequence, got {was}")
    order = np.argsort(found, kind="stable")
    starts = np.flatnonzero(np.diff(found[order])) + 1
    return [part.tolist() for part in np.split(order, starts)]


# --- balanced trees and Huffman trees ---------------------------------------------------------------------------------


def balanced(n: int) -> Integers:
    """Return the complete binary tree, in which node i has the children 2i + 1 and 2i + 2.

    If depths differ, the first items have the smaller depth.
    """
    heap = np.arange(1, 2 * n - 1).reshape(-1, 2)
    children: Integers = np.where(heap < n - 1, heap, ~(heap - (n - 1)))
    return children


def huffman(counts: NDArray[Any]) -> Integers:
    """Return a tree with the smallest sum of counts times depths and, among such trees, the smallest maximal depth.

    Uses the two queues of van Leeuwen (1976). One queue has the items sorted by count. The other queue has the new
    nodes, whose counts never decrease. Among equal counts, an item is taken before a node, and an earlier item before a
    later item.
    """
    n = len(counts)
    order = np.argsort(counts, kind="stable")
    items, made = counts[order].tolist(), [0] * (n - 1)  # Python integers do not overflow
    children = [0] * (2 * n - 2)
    item = node = 0
    for new in range(n - 1):
        total = 0
        for side in (1, 0):  # so that the first child has the larger count
            if item < n and (node == new or items[item] <= made[node]):
                child, count, item = ~item, items[item], item + 1
            else:
                child, count, node = n - 2 - node, made[node], node + 1
            children[2 * (n - 2 - new) + side] = child
            total += count
        made[new] = total
    found = np.array(children, np.int64).reshape(-1, 2)
    return np.where(found < 0, ~order[np.where(found < 0, ~found, 0)], found)


def numbered(children: Integers, root: int = 0) -> Integers:
    """Renumber the nodes level by level, from left to right."""
    level, levels = np.array([root]) if len(children) else np.empty(0, np.int64), []
    while level.size:
        levels.append(level)
        below = children[level].reshape(-1)
        level = below[below >= 0]
    order = np.concatenate([*levels, np.empty(0, np.int64)]).astype(np.int64)
    place = np.zeros(len(children) + 1, np.int64)
    place[order] = np.arange(len(order))
    found = children[order]
    return np.where(found < 0, found, place[found])


# --- clusters ---------------------------------------------------------------------------------------------------------


class _TreeBuilder:
    """Joins trees into larger trees. A tree is represented by its root: a node's number, or ~class."""

    def __init__(self) -> None:
        self.parts: list[Integers] = []
        self.nodes = 0

    def joined(self, trees: Sequence[int], weights: Sequence[float] | None) -> int:
        if len(trees) == 1:
            return trees[0]
        join = balanced(len(trees)) if weights is None else huffman(np.array(weights))
        below = np.asarray(trees)[np.where(join < 0, ~join, 0)]
        root, self.nodes = self.nodes, self.nodes + len(join)
        self.parts.append(np.where(join < 0, below, join + root))
        return root


class _Cluster:
    """A cluster that is being read: its remaining items, the trees built so far, and the weights of these trees."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.left = iter(items)
        self.trees: list[int] = []
        self.weights: list[float] = []
        self.has_clusters = False

    def add(self, tree: int, weight: float) -> None:
        self.trees.append(tree)
        self.weights.append(weight)


def nested(clusters: Iterable[Any], counts: Sequence[float] | None) -> Integers:
    """Build the tree of nested clusters of any depth, without recursion.

    A cluster that contains only classes becomes a balanced tree. A cluster that contains clusters becomes a Huffman
    tree if counts are passed, and otherwise a balanced tree.
    """
    forest, stack = _TreeBuilder(), [_Cluster(clusters)]
    while True:
        here = stack[-1]
        for item in here.left:
            if _is_cluster(item):
                here.has_clusters = True
                stack.append(_Cluster(item))
                break
            number = _class(item)
            here.add(~number, counts[number] if counts is not None and number < len(counts) else 0.0)
        else:
            if not here.trees:
                raise ValueError("clusters: expected classes or clusters in each cluster, got an empty cluster")
            root = forest.joined(here.trees, here.weights if here.has_clusters and counts is not None else None)
            stack.pop()
            if not stack:
                return _whole(forest, root)
            stack[-1].add(root, sum(here.weights))


def _whole(forest: _TreeBuilder, root: int) -> Integers:
    children = np.concatenate([np.empty((0, 2), np.int64), *forest.parts])
    classes = np.sort(~children[children < 0]) if len(children) else np.array([~root])
    if not np.array_equal(classes, np.arange(len(classes))):
        may = f"each class from 0 to {len(classes) - 1} once"
        raise ValueError(f"clusters: expected {may}, got some that are missing or repeated")
    return numbered(children, root)


def _is_cluster(item: Any) -> bool:
    return isinstance(item, (list, tuple, range)) or getattr(item, "ndim", 0) > 0


def _class(item: Any) -> int:
    if not check.is_integer(item):
        raise TypeError(f"clusters: expected integers (classes) and clusters, got {item!r:.60}")
    number = operator.index(item)
    if number < 0:
        raise ValueError(f"clusters: expected classes from 0 on, got {number}")
    return number


# --- recursive halving ------------------------------------------------------------------------------------------------


# _POWER is the number of steps of the power method. _MEANS is the maximum number of steps of two-means, which stops
# when no point moves.
_POWER, _MEANS = 3, 6


def halves(x: NDArray[Any], seed: int) -> Integers:
    """Build a tree of points by repeated bisection into halves of nearby points, one level at a time.

    x: (K, D), centred. Within a level of the tree, the sizes of the clusters differ by at most 1.
    """
    order, sizes, nodes = np.arange(len(x)), np.array([len(x)]), 0
    sizes, children = sizes[sizes > 1], [np.empty((0, 2), np.int64)]
    while sizes.size:
        if sizes.max() > 2:
            order = order[_bisect(x[order], sizes, _direction(seed, len(children) - 1, x))]
        parts = np.stack([(sizes + 1) // 2, sizes // 2], axis=1).reshape(-1)
        nodes += len(sizes)
        single = parts == 1
        below = np.where(single, ~order[np.cumsum(parts) - parts], nodes + np.cumsum(~single) - 1)
        children.append(below.reshape(-1, 2))
        order, sizes = order[np.repeat(~single, parts)], parts[~single]
    return np.concatenate(children)


def _direction(seed: int, level: int, x: NDArray[Any]) -> NDArray[Any]:
    """Return the start vector of the power method at a level, from the level's random stream."""
    words, _ = philox.words(np.empty(0), seed, np.array([level]), np.arange(1), x.shape[1])
    direction: NDArray[Any] = (words[0, 0] * 2.0**-32 - 0.5).astype(x.dtype)
    return direction


def _bisect(x: NDArray[Any], sizes: Integers, direction: NDArray[Any]) -> Integers:
    """Order the points so that the first half of each cluster is on one side of a plane.

    The clusters of a level form an array (G, S, D) for G clusters of at most S points, since their sizes differ by at
    most 1. Each step projects every point x_i on a direction v, which gives p_i. Then it replaces v by sum_i f_i x_i.
    In a step of the power method, which finds the direction of largest variance, f = p - mean p. In a step of
    two-means, f is -1 / n for the n points with the smallest p (the first half), and 1 / m for the other m points. So v
    is the mean of the second half minus the mean of the first half. In both steps f sums to 0 over a cluster, so the
    points of a cluster need not be centred.
    """
    starts, place = np.cumsum(sizes) - sizes, np.arange(sizes.max())
    size, there = sizes[:, None], place < sizes[:, None]
    index = starts[:, None] + np.where(there, place, 0)
    block, first = x[index], (size + 1) // 2
    v = np.broadcast_to(direction, (len(sizes), x.shape[1]))

    def projected() -> NDArray[Any]:
        p: NDArray[Any] = np.matmul(block, v[:, :, None])[:, :, 0]
        return p

    def summed(f: NDArray[Any]) -> NDArray[Any]:
        v: NDArray[Any] = np.matmul(np.where(there, f, 0).astype(x.dtype)[:, None, :], block)[:, 0, :]
        v /= np.maximum(np.sqrt(np.sum(v * v, axis=1, keepdims=True)), np.finfo(x.dtype).tiny)
        return v

    for _ in range(_POWER):
        p = projected()
        v = summed(p - np.sum(p, axis=1, keepdims=True, where=there) / size)
    low = there & False
    for _ in range(_MEANS):
        order = np.argsort(np.where(there, projected(), np.inf), axis=1, kind="stable")
        before, low = low, np.argsort(order, axis=1, kind="stable") < first
        if np.array_equal(before, low):
            break
        v = summed(np.where(low, -1 / first, 1 / (size - first)))
    order = np.argsort(np.where(there, ~low, 2), axis=1, kind="stable")
    parted: Integers = np.take_along_axis(index, order, axis=1)[there]
    return parted
