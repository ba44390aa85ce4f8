"""The means and variances of the rows of each class, and those of two parts of the rows together.

Rows are scaled such that the squared distances of training rows do not overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softargmax.classify.rows import Block, Sums, Training

    Floats = NDArray[np.float64]

FAR = 1e140
"""Scaled rows are clipped to this absolute value. Rows are scaled such that the largest training number is near 1."""
TOGETHER = 512
"""Number of rows that are scaled at a time."""
LEAST = 1e-290
"""Lower bound of the variances of scaled features. It keeps FAR / sqrt(variance) finite."""


def power_of_two(largest: float) -> float:
    """Return a power of two near the largest absolute value of the rows, or 1 if all values are 0."""
    return float(2.0 ** np.floor(np.log2(largest))) if largest > 0 else 1.0


def scaled(X: NDArray[Any], scale: float, out: Floats | None = None) -> Floats:
    """Return rows divided by the scale and clipped to `FAR`, in float64."""
    with np.errstate(over="ignore"):
        found: Floats = np.divide(X, scale, out=out, dtype=np.float64)
    return np.clip(found, -FAR, FAR, out=found)


class Means(NamedTuple):
    """The means of the scaled rows of each class, which can be joined with those of more rows."""

    scale: float
    counts: Floats
    """The sum of the sample weights of each class, shape (K,)."""
    means: Floats
    """The weighted means, shape (K, D), or 0 for a class without weight."""

    @classmethod
    def of(cls, training: Training, classes: int, before: Self | None = None) -> Self:
        """Return the means of training data. The scale is at least that of the means `before`."""
        scale, counts = power_of_two(training.largest()), training.per_class(classes)
        if before is not None:
            scale = max(scale, before.scale)
        sums = training.usual_blocks().sum(_add_rows, (np.zeros((classes, training.X.shape[1])),), scale)[0]
        return cls(scale, counts, sums / np.where(counts > 0, counts, 1)[:, None])

    def joined(self, more: Self) -> Joined:
        """Return the means of these rows and of more rows, which have this scale or a larger one."""
        total, ratio = self.counts + more.counts, self.scale / more.scale
        share, apart = (more.counts / np.where(total > 0, total, 1))[:, None], more.means - self.means * ratio
        together = type(self)(more.scale, total, self.means * ratio + share * apart)
        return Joined(together, ratio, self.counts[:, None], share, apart)


class Joined(NamedTuple):
    """The means of two parts of the rows together, and what joins their squared distances from the means.

    For each class, let S be the sum of (x - mean)(x - mean)^T over scaled rows, and n the weight of the class in the
    first part. Then S = ratio^2 S_1 + S_2 + n share apart apart^T.
    """

    together: Means
    ratio: float
    """The first scale divided by the second one: a power of two, at most 1."""
    n: Floats
    """The weight of each class in the first part, shape (K, 1)."""
    share: Floats
    """The share of the second part in the weight of each class, shape (K, 1)."""
    apart: Floats
    """The means of the second part minus those of the first one, shape (K, D)."""

    @property
    def rows(self) -> Floats:
        """A row r of each class, shape (K, D), with r r^T = n share apart apart^T."""
        return np.asarray(np.sqrt(self.n * self.share) * self.apart)

    def variances(self, one: Floats, other: Floats) -> Floats:
        """Return the diagonal of S divided by the weight of both parts, from those of each part."""
        first = one * self.ratio * self.ratio + self.share * np.square(self.apart)
        return np.asarray((1 - self.share) * first + self.share * other)


def variances(training: Training, of: Means) -> Floats:
    """Return the weighted mean squared distance of each class from its mean, for each scaled feature."""
    into = (np.zeros(of.means.shape),)
    sums = training.usual_blocks().sum(_add_rows, into, of.scale, of.means)[0]
    return np.asarray(sums / np.where(of.counts > 0, of.counts, 1)[:, None])


def _add_rows(into: Sums, block: Block, scale: float, centres: Floats | None = None) -> None:
    """Add the scaled rows of each class, or their squared distances from the class's centre.

    Rows are taken class by class, into arrays that are allocated once. In a worker of Dask, which returns freed memory
    to the operating system at once, new arrays for 10,485 rows of 100 features take three times as long as the sums.
    """
    order = np.argsort(block.target, kind="stable")
    sums, width = np.zeros(into[0].shape), block.x.shape[1]
    given, rows, near = (np.empty((TOGETHER, width), dtype) for dtype in (block.x.dtype, np.float64, np.float64))
    for start in range(0, len(order), TOGETHER):
        some = order[start : start + TOGETHER]
        of, x = block.target[some], rows[: len(some)]
        scaled(np.take(block.x, some, axis=0, out=given[: len(some)], mode="clip"), scale, x)
        if centres is not None:
            x -= np.take(centres, of, axis=0, out=near[: len(some)], mode="clip")
            np.square(x, out=x)
        if block.weight is not None:
            x *= block.weight[some, None]
        firsts = np.flatnonzero(np.diff(of, prepend=-1))
        sums[of[firsts]] += np.add.reduceat(x, firsts, axis=0)
    into[0][...] += sums
