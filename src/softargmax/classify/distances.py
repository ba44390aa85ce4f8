"""Squared distances of rows from class means.

Rows are scaled such that the squared distances of training rows do not overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

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


def means(training: Training, scale: float, counts: Floats) -> Floats:
    """Return the weighted mean of the scaled rows of each class, shape (K, D), or 0 for a class without weight."""
    sums = training.usual_blocks().sum(_add_rows, (np.zeros((len(counts), training.X.shape[1])),), scale)[0]
    return np.asarray(sums / np.where(counts > 0, counts, 1)[:, None])


def variances(training: Training, scale: float, counts: Floats, centres: Floats) -> Floats:
    """Return the weighted mean squared distance of each class from its centre, for each scaled feature."""
    into = (np.zeros(centres.shape),)
    sums = training.usual_blocks().sum(_add_rows, into, scale, centres)[0]
    return np.asarray(sums / np.where(counts > 0, counts, 1)[:, None])


def _add_rows(into: Sums, block: Block, scale: float, centres: Floats | None = None) -> None:
    """Add the scaled rows of each class, or their squared distances from the class's centre."""
    x, sums = scaled(block.x, scale), into[0]
    for k in range(len(sums)):
        rows = block.target == k
        found = x[rows] if centres is None else np.square(x[rows] - centres[k])
        sums[k] += (found if block.weight is None else found * block.weight[rows, None]).sum(axis=0)


def square_sums(deviations: Callable[[int, Any], Floats], rows: int, classes: int) -> Floats:
    """Return |deviations(k, row)|^2 for each row and each class k, shape (n, K).

    If a squared distance of a row overflows, all K squared distances of the row are replaced. They are computed again,
    from the deviations divided by the row's largest deviation. Then the smallest one is subtracted from all K, and the
    differences are multiplied by 1e300.
    """
    far = np.empty((rows, classes))
    with np.errstate(over="ignore"):
        for k in range(classes):
            far[:, k] = np.square(deviations(k, slice(None))).sum(axis=1)
    beyond = ~np.isfinite(far).all(axis=1)
    if beyond.any():
        found = np.stack([deviations(k, beyond) for k in range(classes)], axis=1)
        relative = np.square(found / np.abs(found).max(axis=(1, 2), keepdims=True)).sum(axis=2)
        far[beyond] = (relative - relative.min(axis=1, keepdims=True)) * 1e300
    return far
