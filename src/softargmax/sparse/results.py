"""The named tuple that `threshold` returns."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class Threshold(NamedTuple):
    """Result of `threshold`: for each row, tau and the number of probabilities above 0.

    Examples
    --------
    >>> import softargmax
    >>> result = softargmax.threshold([1.0, 2.0, 2.5], 2.0)
    >>> float(result.tau), int(result.support_size)
    (1.75, 2)
    """

    tau: Array
    support_size: Array
