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
LEAST = 1e-290
"""Lower bound of the variances of scaled features. It keeps FAR / sqrt(variance) finite."""


def power_of_two(largest: float) -> float:
    """Return a power of two near the largest absolute value of the rows, or 1 if all values are 0."""
    return float(2.0 ** np.floor(np.log2(largest))) if largest > 0 else 1.0


def scaled(X: NDArray[Any], scale: float) -> Floats:
    """Return rows divided by the scale and clipped to `FAR`, in float64."""
    with np.errstate(over="ignore"):
        found: Floats = np.clip(X.astype(np.float64) / scale, -FAR, FAR)
    return found


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
    """Add the scaled rows of each class, or their squared distances from the class's centre."""
    x, sums = scaled(block.x, scale), into[0]
    for k in range(len(sums)):
        rows = block.target == k
        found = x[rows] if centres is None else np.square(x[rows] - centres[k])
        sums[k] += (found if block.weight is None else found * block.weight[rows, None]).sum(axis=0)
