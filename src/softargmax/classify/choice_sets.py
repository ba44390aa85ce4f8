"""Choices in long format: one row per alternative of a chooser. Checks, and the log-likelihood with its derivatives.

L(b) = sum_i w_i (z_iy - log sum_j exp z_ij)        z_ij = <x_ij, b> + offset_ij
dL = sum_i w_i (x_iy - m_i)        d2L = -sum_i w_i sum_j p_ij (x_ij - m_i)(x_ij - m_i)^T        m_i = sum_j p_ij x_ij
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.classify.base import Array, affine, label, numbers
from softargmax.core import _native
from softargmax.normalize import segment_log_softmax

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 16
"""Usual number of rows of a block. Its temporaries stay in the caches."""


class ChoiceSets(NamedTuple):
    """Choice sets, one after another. Set i has the rows from offsets[i] to offsets[i + 1] - 1.

    `rank` is 1 for the first choice, 2 for the second one, and 0 for alternatives without a rank. `known` is the known
    part of each score, or None. `weight` has one number per set. `position` is the place of each row's alternative in
    the order of a model's alternatives, or None.
    """

    X: Array
    offsets: Array
    rank: Array
    known: Array | None
    weight: Array
    position: Array | None = None


class Likelihood(NamedTuple):
    """The log-likelihood, its gradient, minus its Hessian, and the sum of the outer products of the sets' gradients."""

    value: float
    gradient: Array
    information: Array
    outer: Array


# --- checks -----------------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """The order in which the rows of a table form choice sets, the sets' bounds, and the chooser of each set."""

    rows: Array
    offsets: Array
    choosers: Array

    def is_identity(self, n: int) -> bool:
        """True if the table has this order."""
        return len(self.rows) == n and bool((np.diff(self.rows) == 1).all())


def layout_of(choosers: Any, available: Any, n: int, position: Array | None = None) -> Layout:
    """Bring the available rows of each chooser together, in their order, or in the order of `position`."""
    choosers = column(choosers, n, "choosers")
    kept = np.ones(n, bool) if available is None else column(available, n, "available")
    if kept.dtype != bool and not np.isin(kept, (0, 1)).all():
        raise ValueError("available: expected booleans, or 0 and 1, got other values")
    names, number = np.unique(choosers, return_inverse=True)
    rows = np.flatnonzero(kept)
    if position is not None:
        rows = rows[np.lexsort((position[rows], number[rows]))]
    elif (np.diff(number[rows]) != 0).sum() + 1 > len(names):
        rows = rows[np.argsort(number[rows], kind="stable")]
    own = number[rows]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    if len(starts) < len(names):
        alone = label(names[np.setdiff1d(np.arange(len(names)), own)[0]])
        raise ValueError(f"available: expected an available alternative for each chooser, got none for chooser {alone}")
    return Layout(rows, np.append(starts, len(own)), names[own[starts]])


def ranks_of(y: Any, available: Any, n: int) -> Array:
    """Return the rank of each row, and 0 without a rank. A choice is a rank of 1."""
    y = column(y, n, "y")
    if y.dtype.kind not in "biuf" or (y.dtype.kind == "f" and not np.isin(y, np.arange(n + 1)).all()):
        raise ValueError(f"y: expected True for the chosen rows, or ranks from 1 and 0 for no rank, got {y.dtype}")
    rank = y.astype(np.int64)
    if (rank < 0).any():
        raise ValueError(f"y: expected ranks of 0 or above, got {rank.min()}")
    if available is not None and ((rank > 0) & ~np.asarray(available, bool)).any():
        row = int(((rank > 0) & ~np.asarray(available, bool)).argmax())
        raise ValueError(f"available: expected True for the chosen alternatives, got False in row {row}")
    return rank


def check_ranks(rank: Array, layout: Layout) -> None:
    """Raise ValueError if the ranks of a chooser are not 1, 2, .., each once."""
    own = np.repeat(np.arange(len(layout.choosers)), np.diff(layout.offsets))[rank > 0]
    ranked = rank[rank > 0]
    count = np.bincount(own, minlength=len(layout.choosers))
    if not count.all():
        raise ValueError(
            f"y: expected a choice for each chooser, got none for chooser {label(layout.choosers[count.argmin()])}"
        )
    order = np.lexsort((ranked, own))
    expected = np.arange(len(own)) - np.repeat(np.cumsum(count) - count, count) + 1
    wrong = ranked[order] != expected
    if wrong.any():
        at = order[wrong.argmax()]
        chooser = label(layout.choosers[own[at]])
        if ranked.max() == 1:
            raise ValueError(f"y: expected one choice for each chooser, got {count[own[at]]} for chooser {chooser}")
        raise ValueError(
            f"y: expected the ranks 1, 2, .. once for each chooser, got {ranked[at]} for chooser {chooser}"
        )


def weights_of(sample_weight: Any, layout: Layout, n: int) -> Array:
    """Return the weight of each set, which all its rows must share."""
    if sample_weight is None:
        return np.ones(len(layout.choosers))
    weight = column(numbers(sample_weight, "sample_weight"), n, "sample_weight")[layout.rows]
    starts = layout.offsets[:-1]
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise ValueError("sample_weight: expected finite numbers of 0 or above, and some above 0")
    differs = np.maximum.reduceat(weight, starts) != np.minimum.reduceat(weight, starts)
    if differs.any():
        chooser = label(layout.choosers[differs.argmax()])
        raise ValueError(f"sample_weight: expected one weight for all rows of a chooser, got several for {chooser}")
    return weight[starts]


def column(values: Any, n: int, name: str) -> Array:
    """Return a column of the table as an array."""
    found = np.asarray(values)
    if found.shape != (n,):
        raise ValueError(f"{name}: expected one entry per row of X, shape ({n},), got {found.shape}")
    return found


# --- the log-likelihood -----------------------------------------------------------------------------------------------


def scores(X: Array, coef: Array, known: Array | None) -> Array:
    """Return <x, b> + offset for each row."""
    z = affine(X, coef[None], np.zeros(1))[:, 0]
    return z if known is None else z + known


def likelihood(sets: ChoiceSets, coef: Array) -> Likelihood:
    """Return the log-likelihood and its derivatives. The temporaries have the size of a block."""
    size, value = len(coef), 0.0
    gradient, information, outer = np.zeros(size), np.zeros((size, size)), np.zeros((size, size))
    for block in _blocks(sets):
        counts, starts = np.diff(block.offsets), block.offsets[:-1]
        log_p = segment_log_softmax(scores(block.X, coef, block.known), block.offsets)
        chosen = np.flatnonzero(block.rank)
        value += float(block.weight @ log_p[chosen])
        p = np.exp(log_p)[:, None]
        mean = np.add.reduceat(p * block.X, starts)
        centred = block.X - np.repeat(mean, counts, axis=0)
        slopes = centred[chosen]
        weighted = slopes * block.weight[:, None]
        gradient += weighted.sum(axis=0)
        _native.product(weighted.T, weighted, outer, adds=True)
        _native.product((centred * (p * np.repeat(block.weight, counts)[:, None])).T, centred, information, adds=True)
    return Likelihood(value, gradient, information, outer)


def _blocks(sets: ChoiceSets) -> Iterator[ChoiceSets]:
    """Yield whole choice sets with one choice each. A ranking is a sequence of choices among those that remain.

    This is the model of Plackett and Luce.
    """
    bounds = sets.offsets
    begin = 0
    while begin < len(bounds) - 1:
        end = max(begin + 1, int(np.searchsorted(bounds, bounds[begin] + BLOCK, side="right")) - 1)
        rows = slice(bounds[begin], bounds[end])
        known = None if sets.known is None else sets.known[rows]
        block = ChoiceSets(
            sets.X[rows], bounds[begin : end + 1] - bounds[begin], sets.rank[rows], known, sets.weight[begin:end]
        )
        most = int(block.rank.max())
        yield from (block,) if most == 1 else (_stage(block, number) for number in range(1, most + 1))
        begin = end


def _stage(block: ChoiceSets, number: int) -> ChoiceSets:
    """Return the choice of rank `number`: the sets that have it, without the alternatives chosen before."""
    starts, counts = block.offsets[:-1], np.diff(block.offsets)
    has = np.maximum.reduceat(block.rank, starts) >= number
    kept = np.repeat(has, counts) & ((block.rank == 0) | (block.rank >= number))
    left = np.add.reduceat(kept.astype(np.int64), starts)[has]
    known = None if block.known is None else block.known[kept]
    chosen = (block.rank[kept] == number).astype(np.int64)
    return ChoiceSets(block.X[kept], np.append(0, np.cumsum(left)), chosen, known, block.weight[has])
