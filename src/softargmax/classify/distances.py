"""Squared distances of rows from class means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.class_means import Floats


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
