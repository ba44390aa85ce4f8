"""Choices in long format: one row per alternative of a chooser. Checks, and the log-likelihood with its derivatives.

L(b) = sum_i w_i (z_iy - log sum_j exp z_ij)        z_ij = <x_ij, b> + offset_ij
dL = sum_i w_i (x_iy - m_i)        d2L = -sum_i w_i sum_j p_ij (x_ij - m_i)(x_ij - m_i)^T        m_i = sum_j p_ij x_ij
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils._missing import is_scalar_nan

from softargmax.classify.base import Array, affine, check_one_kind, label, numbers
from softargmax.core import _native
from softargmax.normalize import segment_log_softmax

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 16
"""Usual number of rows of a block. Its temporaries stay in the caches."""


class ChoiceSets(NamedTuple):
    """Choice sets, one after another. Set i has the rows from offsets[i] to offsets[i + 1] - 1.

    `rank` is 1 for the first choice, 2 for the second one, and 0 for alternatives without a rank. `known` is the known
    part of each score, or None. `weight` has one number per set. `label` is the number of each row's alternative, and
    `constants` the number of alternatives that have a constant: all but the first one, or none. `position` is the place
    of the alternative in the order of a model's alternatives, or None.
    """

    X: Array
    offsets: Array
    rank: Array
    known: Array | None
    weight: Array
    label: Any = None
    constants: int = 0
    position: Any = None

    def scores(self, coef: Array) -> Array:
        """Return <x, b> + the constant of the alternative + the known part, for each row."""
        z = affine(self.X, coef[None, : self.X.shape[1]], np.zeros(1))[:, 0]
        if self.constants:
            z += np.append(0.0, coef[self.X.shape[1] :])[self.label]
        return z if self.known is None else z + self.known

    def features(self) -> Array:
        """Return x, and an indicator of each alternative with a constant."""
        if not self.constants:
            return self.X
        return np.concatenate([self.X, self.label[:, None] == np.arange(1, self.constants + 1)], axis=1)

    def largest(self) -> Array:
        """Return the largest absolute value of each feature."""
        return np.append(np.maximum(self.X.max(axis=0), -self.X.min(axis=0)), np.ones(self.constants))

    def taken(self, rows: Any, offsets: Array, weight: Array) -> ChoiceSets:
        """Return the sets of some rows, with these bounds and weights."""
        known, label, position = (None if x is None else x[rows] for x in (self.known, self.label, self.position))
        return ChoiceSets(self.X[rows], offsets, self.rank[rows], known, weight, label, self.constants, position)

    def part(self, begin: int, end: int) -> ChoiceSets:
        """Return the sets from `begin` to `end` - 1."""
        rows = slice(self.offsets[begin], self.offsets[end])
        return self.taken(rows, self.offsets[begin : end + 1] - self.offsets[begin], self.weight[begin:end])

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the bounds of blocks of sets."""
        begin, last = 0, len(self.offsets) - 1
        while begin < last:
            end = int(np.searchsorted(self.offsets, self.offsets[begin] + BLOCK, side="right")) - 1
            yield begin, max(begin + 1, end)
            begin = max(begin + 1, end)


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
    choosers = labels_of(choosers, n, "choosers")
    kept = np.ones(n, bool) if available is None else column(available, n, "available")
    if kept.dtype != bool:
        wrong = ~np.isin(kept, (0, 1))
        if wrong.any():
            raise ValueError(f"available: expected booleans, or 0 and 1, got {kept[wrong][0]} in row {wrong.argmax()}")
    names, number = np.unique(choosers, return_inverse=True)
    rows = np.flatnonzero(kept)
    absent = np.bincount(number[rows], minlength=len(names)) == 0
    if absent.any():
        alone = label(names[absent.argmax()])
        raise ValueError(f"available: expected an available alternative for each chooser, got none for chooser {alone}")
    if position is not None:
        rows = rows[np.lexsort((position[rows], number[rows]))]
    elif (np.diff(number[rows]) != 0).sum() + 1 > len(names):
        rows = rows[np.argsort(number[rows], kind="stable")]
    own = number[rows]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    return Layout(rows, np.append(starts, len(own)), names[own[starts]])


def ranks_of(y: Any, available: Any, n: int) -> Array:
    """Return the rank of each row, and 0 without a rank. A choice is a rank of 1."""
    y = column(y, n, "y")
    if y.dtype.kind not in "biuf":
        raise TypeError(f"y: expected True for the chosen rows, or ranks from 1 and 0 for no rank, got {y.dtype}")
    wrong = ~np.isin(y, np.arange(n + 1))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"y: expected True for the chosen rows, or ranks from 0 to {n}, got {y[row]} in row {row}")
    rank = np.asarray(y, np.int64)
    if available is not None:
        gone = (rank > 0) & ~np.asarray(available, bool)
        if gone.any():
            raise ValueError(f"available: expected True for the chosen alternatives, got False in row {gone.argmax()}")
    return rank


def check_ranks(rank: Array, layout: Layout) -> None:
    """Raise ValueError if the ranks of a chooser are not 1, 2, .., each once."""
    own = np.repeat(np.arange(len(layout.choosers)), np.diff(layout.offsets))[rank > 0]
    ranked = rank[rank > 0]
    count = np.bincount(own, minlength=len(layout.choosers))
    if not count.all():
        chooser = label(layout.choosers[count.argmin()])
        raise ValueError(f"y: expected a choice for each chooser, got none for chooser {chooser}")
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
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any() or not weight.any():
        got = f"{weight[wrong][0]} in row {layout.rows[wrong.argmax()]}" if wrong.any() else "only zeros"
        raise ValueError(f"sample_weight: expected finite numbers of 0 or above, and some above 0, got {got}")
    differs = np.maximum.reduceat(weight, starts) != np.minimum.reduceat(weight, starts)
    if differs.any():
        chooser = label(layout.choosers[differs.argmax()])
        raise ValueError(f"sample_weight: expected one weight for all rows of a chooser, got several for {chooser}")
    return np.asarray(weight[starts])


def column(values: Any, n: int, name: str) -> Array:
    """Return a column of the table as an array."""
    found = np.asarray(values)
    if found.shape != (n,):
        raise ValueError(f"{name}: expected one entry per row of X, shape ({n},), got {found.shape}")
    return found


def labels_of(values: Any, n: int, name: str) -> Array:
    """Return a column of labels. Missing labels, and mixtures of strings and numbers, are errors."""
    found = column(values, n, name)
    missing = np.array([one is None or is_scalar_nan(one) for one in found] if found.dtype.kind in "fO" else [], bool)
    if missing.any():
        raise ValueError(f"{name}: expected a label in each row, got {found[missing][0]} in row {missing.argmax()}")
    check_one_kind(found, name)
    return found


def finite(values: Array, rows: Array, name: str) -> None:
    """Raise ValueError if a number in one of these rows is NaN or inf."""
    wrong = np.logical_not(np.isfinite(values)).reshape(len(values), -1)
    bad: Array = np.asarray(wrong.any(axis=1))[rows]
    if bad.any():
        row = int(rows[bad.argmax()])
        raise ValueError(f"{name}: expected finite numbers, got {values[row]} in row {row}")


# --- the log-likelihood -----------------------------------------------------------------------------------------------


def likelihood(sets: ChoiceSets, coef: Array) -> Likelihood:
    """Return the log-likelihood and its derivatives. The temporaries have the size of a block."""
    size, value = len(coef), 0.0
    gradient, information, outer = np.zeros(size), np.zeros((size, size)), np.zeros((size, size))
    for begin, end in sets.blocks():
        each = np.zeros((end - begin, size))  # the gradient of each set
        for choice, owner in choices(sets.part(begin, end)):
            counts, starts, X = np.diff(choice.offsets), choice.offsets[:-1], choice.features()
            log_p = segment_log_softmax(choice.scores(coef), choice.offsets)
            chosen = np.flatnonzero(choice.rank)
            value += float(choice.weight @ log_p[chosen])
            p = np.exp(log_p)[:, None]
            centred = X - np.repeat(np.add.reduceat(p * X, starts), counts, axis=0)
            each[owner] += centred[chosen] * choice.weight[:, None]
            weighted = centred * (p * np.repeat(choice.weight, counts)[:, None])
            _native.product(weighted.T, centred, information, adds=True)
        gradient += each.sum(axis=0)
        _native.product(each.T, each, outer, adds=True)
    return Likelihood(value, gradient, information, outer)


def choices(block: ChoiceSets) -> Iterator[tuple[ChoiceSets, Array]]:
    """Yield sets with one choice each, and the number of the set in the block.

    A ranking is a sequence of choices among those that remain: the model of Plackett and Luce.
    """
    starts, counts = block.offsets[:-1], np.diff(block.offsets)
    most = int(block.rank.max())
    if most == 1:
        yield block, np.arange(len(starts))
        return
    for number in range(1, most + 1):
        has = np.maximum.reduceat(block.rank, starts) >= number
        kept = np.repeat(has, counts) & ((block.rank == 0) | (block.rank >= number))
        offsets = np.append(0, np.cumsum(np.add.reduceat(kept.astype(np.int64), starts)[has]))
        remaining = block.taken(kept, offsets, block.weight[has])
        yield remaining._replace(rank=(remaining.rank == number).astype(np.int64)), np.flatnonzero(has)
