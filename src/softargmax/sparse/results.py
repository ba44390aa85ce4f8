"""What the operations with more than one result return: tuples with names."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class Threshold(NamedTuple):
    """What `threshold` returns, one number per row each: tau, and how many probabilities are above 0.

    Examples
    --------
    >>> import softargmax
    >>> found = softargmax.threshold([1.0, 2.0, 2.5], 2.0)
    >>> float(found.tau), int(found.support_size)
    (1.75, 2)
    """

    tau: Array
    support_size: Array
