"""The covariances of the rows of each class, from triangular factors of the rows.

Rows are scaled (`class_means.py`), and factors are computed from deviations from the class means. So a factor R is not
rounded to zero where directions differ much in length, unlike R^T R, a sum of products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from sklearn.covariance import shrunk_covariance
from threadpoolctl import threadpool_limits

from softargmax.classify.class_means import Means, scaled, variances
from softargmax.classify.rows import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from softargmax.classify.base import Array
    from softargmax.classify.rows import Block, Sums, Training


class Moments(NamedTuple):
    """The means of the scaled rows of each class, and the factors R of their deviations from the means.

    R^T R is the sum of (x - mean)(x - mean)^T. They can be joined with those of more rows.
    """

    means: Means
    factors: list[Array]

    @classmethod
    def of(cls, training: Training, classes: int, before: Self | None = None) -> Self:
        """Return the moments of training data. The scale is at least that of the moments `before`."""
        means = Means.of(training, classes, None if before is None else before.means)
        return cls(means, triangular_factors(training, means))

    def joined(self, more: Self) -> Self:
        """Return the moments of these rows and of more rows, which have this scale or a larger one."""
        joined = self.means.joined(more.means)
        parts = zip(self.factors, more.factors, joined.rows, strict=True)
        factors = _factors(np.concatenate([r * joined.ratio, s, [row]]) for r, s, row in parts)
        return type(self)(joined.together, factors)

    def estimates(self, shrinkage: float | None) -> list[Array]:
        """Return the shrunk covariance of each class, or the factors if there is no shrinkage."""
        if shrinkage is None:
            return self.factors
        pairs = zip(self.factors, np.maximum(self.means.counts, 1), strict=True)
        return [np.asarray(shrunk_covariance(r.T @ r / n, shrinkage)) for r, n in pairs]


def ledoit_wolf(training: Training, means: Means) -> list[Array]:
    """Return the covariance of each class, shrunk by the estimate of Ledoit and Wolf on standardised features.

    A constant feature gets the standard deviation that scales to 1.
    """
    spreads = np.sqrt(variances(training, means))
    spreads[spreads == 0] = 1 / means.scale
    factors = triangular_factors(training, means, spreads)
    fourths = training.usual_blocks().sum(_add_fourth_powers, (np.zeros(len(spreads)),), means, spreads)[0]
    found = map(_ledoit_wolf, factors, fourths, means.counts)
    return [covariance * spread[:, None] * spread for covariance, spread in zip(found, spreads, strict=True)]


def _ledoit_wolf(r: Array, fourth: float, n: float) -> Array:
    """Return the estimate of Ledoit and Wolf (2004) from n rows x, from R with R^T R = sum x x^T, and sum |x|^4."""
    covariance, size = r.T @ r / n, r.shape[1]
    squares = np.square(covariance).sum()
    distance = squares / size - (np.trace(covariance) / size) ** 2  # from the multiple of the identity
    noise = (fourth / n - squares) / (size * n)
    share = min(max(noise / distance, 0.0), 1.0) if distance > 0 else 0.0
    return np.asarray(shrunk_covariance(covariance, share))


def _add_fourth_powers(into: Sums, block: Block, means: Means, divisors: Array) -> None:
    for k, rows in enumerate(_standardised(block, means, divisors)):
        into[0][k] += np.square(np.square(rows).sum(axis=1)).sum()


def _standardised(block: Block, means: Means, divisors: Array | float) -> Iterator[Array]:
    """Yield (x - mean) / divisor for the scaled rows x of each class."""
    x = scaled(block.x, means.scale)
    for k, (centre, divisor) in enumerate(zip(means.means, np.broadcast_to(divisors, means.means.shape), strict=True)):
        rows = x[block.target == k]
        rows -= centre
        rows /= divisor
        yield rows


def triangular_factors(training: Training, means: Means, divisors: Array | float = 1.0) -> list[Array]:
    """Return for each class the triangular factor R of (x - mean) / divisor = Q R, where x has the scaled rows.

    `divisors` has one number for each class and feature. R is the factor of the factors of all blocks, one below the
    other.
    """
    size = means.means.shape[1]
    # A factor has up to D rows, so longer blocks are a quarter of the work.
    blocks = training.blocks(max(BLOCK // max(size, 1), 4 * size, 1))
    empty = [np.empty((0, size))] * len(means.counts)
    return list(blocks.fold(_factors_of_block, _joined_factors, empty, means, divisors))


def _factors_of_block(block: Block, means: Means, divisors: Array | float) -> list[Array]:
    return _factors(_standardised(block, means, divisors))


def _joined_factors(one: list[Array], other: list[Array]) -> list[Array]:
    return _factors(map(np.concatenate, zip(one, other, strict=True)))


def _factors(of_classes: Iterable[Array]) -> list[Array]:
    """Return R of rows = Q R for the rows of each class. LAPACK's bits depend on its threads, so there is only one."""
    with threadpool_limits(1, user_api="blas"):  # here, because the rows may be in another process
        return [np.asarray(np.linalg.qr(rows, mode="r")) for rows in of_classes]


def whitening(factors: list[Array], rows: float, tol: float) -> Array:
    """Return A, shape (D, rank), with A^T C A = I, where C is the covariance of scaled rows around the class means.

    Directions in which the scaled features have a standard deviation of at most tol are dropped.
    """
    r = np.concatenate(factors)
    spread = np.sqrt(np.square(r).sum(axis=0) / rows)
    spread[spread == 0] = 1.0
    with threadpool_limits(1, user_api="blas"):
        _, s, vt = np.linalg.svd(r / (spread * np.sqrt(rows)), full_matrices=False)
    kept = s > tol
    return np.asarray((vt[kept] / spread).T / s[kept])


def axes_of_factor(r: Array, rows: float) -> tuple[Array, Array]:
    """Return the eigenvalues and eigenvectors (columns) of the covariance R^T R / rows."""
    size = r.shape[1]
    _, s, vt = np.linalg.svd(r, full_matrices=len(r) < size)  # D directions, even from fewer rows
    lengths = np.zeros(size)
    lengths[: len(s)] = np.square(s) / rows
    return lengths, vt.T
