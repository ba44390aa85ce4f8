"""Cut the data into slices with few distinct targets each, for target sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.signature import public
from softargmax.output.counts import at_least, on_host

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Partition(NamedTuple):
    """A slice of the data, and the distinct targets in it.

    Examples
    --------
    >>> from softargmax.output import partitions
    >>> partitions([3, 3, 1, 2], most=2)[1].classes
    array([2])
    """

    start: int
    stop: int
    classes: NDArray[np.integer[Any]]


@public
def partitions(targets: ArrayLike, *, most: int) -> list[Partition]:
    r"""Cut the data into consecutive slices with a limited number of distinct targets.

    .. math:: D = D_1 D_2 \cdots, \qquad |\{y : y \in D_i\}| \le \text{most}, \qquad \text{each as long as possible}

    Parameters
    ----------
    targets : array_like of int
        The targets in the order of the data, (n,).
    most : int
        The maximum number of distinct targets of a slice, 1 or more.

    Returns
    -------
    list of Partition
        The slices, in order. A slice has the positions from `start` to `stop` - 1. Its `classes` are its distinct
        targets, sorted, which `TargetSampledSoftmax.use` accepts.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The time is O(n log n). Remove ignored targets before the call, because they would count as a class.

    References
    ----------
    Jean, Cho, Memisevic & Bengio (2015), On using very large target vocabulary for neural machine translation, section
    3.1. ACL. arXiv:1412.2007.

    Examples
    --------
    >>> from softargmax.output import partitions
    >>> [(part.start, part.stop) for part in partitions([7, 7, 1, 7, 2, 2, 1], most=2)]
    [(0, 4), (4, 7)]
    """
    y, limit = on_host(targets, "targets"), at_least(most, "most", 1)
    if y.dtype.kind not in "iu" and y.size:
        raise TypeError(f"targets: expected integers, got dtype {y.dtype}")
    if y.ndim != 1:
        raise ValueError(f"targets: expected shape (n,), got {y.shape}")
    before = _before(y)
    found: list[Partition] = []
    start = 0
    while start < y.size:
        (fresh,) = np.nonzero(before[start:] < start)  # where a class occurs for the first time since `start`
        stop = start + int(fresh[limit]) if fresh.size > limit else y.size
        found.append(Partition(start, stop, np.unique(y[start:stop])))
        start = stop
    return found


def _before(y: Any) -> Any:
    """Return the position of the previous occurrence of each target, or -1."""
    order = np.argsort(y, kind="stable")
    before = np.full(y.size, -1)
    same = y[order[1:]] == y[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
