"""Nests of alternatives: a tree, and the log-likelihood of the nested logit with its gradient.

    V_n = s_n log sum_k exp(V_k / s_n)        q_k = exp((V_k - V_n) / s_n)        log p_j = sum of log q on j's path

V is the score of an alternative, or the value of a nest n with the children k. s_n is the scale of the nest, and 1 for
the root. Let G_k be the derivative of log p_y with respect to V_k. From the root to the alternatives,

    G_k = q_k G_n + [k on y's path] (1 / s_n - [k is a nest] / s_k)        dV_n / ds_n = entropy of q in n
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from softargmax.classify.base import Array, label
from softargmax.normalize import segment_log_softmax, segment_logsumexp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.classify.choice_sets import ChoiceSets

Nests: TypeAlias = "Mapping[str, Sequence[Any] | Nests]"
"""The name of each nest, and its alternatives, or nests inside it."""


class Tree(NamedTuple):
    """Nests with a scale, and the path of each alternative.

    `alternatives` are in the order of the tree. `paths` has a column per alternative: the numbers of the nests around
    it, from the inside to the outside. The number -1 fills up paths that are shorter than others. A nest with a single
    child has no scale, and is left out.
    """

    names: tuple[str, ...]
    alternatives: tuple[Any, ...]
    paths: Array


def tree_of(nests: Any) -> Tree:
    """Check the nests."""
    names: list[str] = []
    found: dict[Any, list[int]] = {}

    def walk(inner: Any, path: list[int]) -> None:
        if not isinstance(inner, Mapping):
            for one in inner:
                if one in found:
                    raise ValueError(f"nests: expected each alternative in one nest, got {label(one)} in two")
                found[one] = path
            return
        for name, members in inner.items():
            if isinstance(members, str) or not hasattr(members, "__iter__") or not len(members):
                raise ValueError(f"nests: expected alternatives in nest {name!r}, got {members!r}")
            if not isinstance(members, Mapping) and any(isinstance(one, Mapping) for one in members):
                raise ValueError(f"nests: expected a list of alternatives, or a dict of nests, got both in {name!r}")
            if name in names:
                raise ValueError(f"nests: expected different names, got {name!r} twice")
            if len(members) == 1:
                walk(members, path)
                continue
            names.append(str(name))
            walk(members, [len(names) - 1, *path])

    if not isinstance(nests, Mapping) or not nests:
        raise TypeError(f"nests: expected a dict of names and alternatives, got {type(nests).__name__}")
    walk(nests, [])
    depth = max(map(len, found.values()))
    paths = np.array([[-1] * (depth - len(path)) + path for path in found.values()], np.int64).T
    return Tree(tuple(names), tuple(found), paths)


class Level(NamedTuple):
    """How the items of a level form those of the next one: bounds, and the number of the nest of each new item."""

    offsets: Array
    nest: Array


def levels_of(tree: Tree, offsets: Array, number: Array) -> list[Level]:
    """Return the levels of choice sets, from the inside to the outside. The last level has the sets.

    Rows have the order of the tree, and `number` is the position of each row's alternative in it.
    """
    own = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    paths = tree.paths[:, number]
    levels: list[Level] = []
    first = np.arange(len(own))  # the first row of each item
    for depth in range(len(paths)):
        # Two rows belong to the same nest if the outer parts of their paths are the same. Nests without a scale differ
        # for each alternative, so that they have one child.
        outer = [own[first], *(np.where(p < 0, -2 - number, p)[first] for p in paths[depth:])]
        starts = np.flatnonzero(np.any([np.diff(x, prepend=-1) != 0 for x in outer], axis=0))
        levels.append(Level(np.append(starts, len(first)), paths[depth][first[starts]]))
        first = first[starts]
    starts = np.flatnonzero(np.diff(own[first], prepend=-1))
    return [*levels, Level(np.append(starts, len(first)), np.full(len(starts), -1))]


class Row(NamedTuple):
    """A level with its values: the scale of each nest, the nest of each item, log q, and the items on the chosen path.

    An item is a row or a nest of the level before.
    """

    level: Level
    scale: Array
    parent: Array
    log_q: Array
    chosen: Array


def _upward(levels: list[Level], z: Array, chosen: Array, scales: Array) -> list[Row]:
    """Return all levels, from the rows to the choice sets."""
    value, found = z, []
    for level in levels:
        scale = np.where(level.nest < 0, 1.0, scales[level.nest]) if len(scales) else np.ones(len(level.nest))
        parent = np.repeat(np.arange(len(scale)), np.diff(level.offsets))
        items = value / scale[parent]
        found.append(Row(level, scale, parent, segment_log_softmax(items, level.offsets), chosen))
        value, chosen = scale * segment_logsumexp(items, level.offsets), parent[chosen]
    return found


def log_probabilities(levels: list[Level], z: Array, scales: Array) -> Array:
    """Return log p of each row."""
    rows = np.arange(len(z))
    return sum((row.log_q[row.chosen] for row in _upward(levels, z, rows, scales)), np.zeros(len(z)))


def set_gradients(sets: ChoiceSets, levels: list[Level], coef: Array, scales: Array) -> tuple[Array, Array]:
    """Return log p of each set's choice, and its gradient with respect to the coefficients and scales."""
    z, chosen = sets.scores(coef), np.flatnonzero(sets.rank)
    found = _upward(levels, z, chosen, scales)
    log_p = sum((row.log_q[row.chosen] for row in found), np.zeros(len(chosen)))
    owner, slope = np.arange(len(chosen)), np.zeros(len(chosen))  # of each nest: its set, and G
    by_scale = np.zeros(len(chosen) * len(scales))
    for level, scale, parent, log_q, on_path in reversed(found):
        path = parent[on_path]
        slope[path] -= 1.0 / scale[path]
        q = np.exp(log_q)
        change = -slope * np.add.reduceat(q * log_q, level.offsets[:-1])
        change[path] -= log_q[on_path] / scale[path]
        scaled = level.nest >= 0
        at = owner[scaled] * len(scales) + level.nest[scaled]
        by_scale += np.bincount(at, change[scaled], minlength=len(by_scale))
        owner, slope = owner[parent], slope[parent] * q
        slope[on_path] += 1.0 / scale[path]
    by_coef = np.empty((len(sets.weight), len(coef)))
    for begin, end in sets.blocks():
        block, rows = sets.part(begin, end), slice(sets.offsets[begin], sets.offsets[end])
        by_coef[begin:end] = np.add.reduceat(slope[rows, None] * block.features(), block.offsets[:-1])
    return log_p, np.concatenate([by_coef, by_scale.reshape(len(by_coef), len(scales))], axis=1)
