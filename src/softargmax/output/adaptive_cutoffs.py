"""Cut-offs of the adaptive softmax that minimise the modelled cost of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check
from softargmax.core.check import integer
from softargmax.core.signature import public
from softargmax.core.types import Array, PerRow
from softargmax.output.counts import at_least, counts_of, powers

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from softargmax.output.philox_stream import Floats, Ints

BATCH = 1024
"""Default of `batch`, the number of rows of a training step."""
MOST = 3
"""By default, `adaptive_cutoffs` chooses the number of clusters from 0 to this limit.

By default, `AdaptiveSoftmax` makes the vectors of each cluster 4 times shorter than those of the cluster before it. The
vectors of a fourth cluster would be very short.
"""


class StepCost(NamedTuple):
    r"""Cost model of a training step: the cost g of the head or of one cluster, in multiply-adds.

    .. math:: g(k, B, d) = c + \max(m,\ k B (d + s) + k d u)

    k is the number of classes, B the number of rows, and d the length of the vectors.

    Attributes
    ----------
    call : float
        c, the fixed cost of the head or of a cluster.
    least : float
        m, the minimum cost of the matrix products of the head or of a cluster.
    score : float
        s, the additional cost per score (its exponential, memory traffic).
    parameter : float
        u, the additional cost per parameter (the optimiser, memory traffic).

    Examples
    --------
    >>> from softargmax.output import StepCost, adaptive_cutoffs
    >>> counts = [2**20 // k for k in range(1, 2001)]
    >>> adaptive_cutoffs(counts, dim=64), adaptive_cutoffs(counts, dim=64, cost=StepCost(call=1e5))
    ((103, 720), (54, 368, 1014))
    """

    # The defaults are fitted to 69 measured times of a head or a cluster, with B x k from 32 x 64 to 1024 x 32768
    # scores, and d from 4 to 256. Each time includes forward, backward and Adam's step, in float32 on 2 threads of an
    # AMD EPYC with AVX-512, whose model was not recorded. The root mean square of the relative error is 18%. One
    # multiply-add took 0.025 ns.
    call: float = 2e7
    least: float = 1e6
    score: float = 75.0
    parameter: float = 150.0

    def of(self, classes: PerRow, rows: PerRow, width: int) -> Array:
        """Return the cost g of a head or cluster with k classes, B rows and vectors of length d."""
        products = classes * (rows * (width + self.score) + width * self.parameter)
        return self.call + np.maximum(self.least, products)


def integers(values: Any, name: str) -> tuple[int, ...]:
    """Check a sequence of integers and return it as a tuple."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected a sequence of integers, got {values!r}")
    return tuple(integer(value, name) for value in values)


class Ranked(NamedTuple):
    """The classes sorted by decreasing count. shares[r] is the share of the first r classes in the total count."""

    order: Ints
    shares: Floats


def ranked(counts: ArrayLike) -> Ranked:
    """Check the counts and sort the classes."""
    found = counts_of(counts)
    if not found.any():
        raise ValueError("counts: expected at least one above 0, got only zeros")
    q = powers(found, 1.0)
    order = np.argsort(-q, kind="stable")
    return Ranked(order, np.concatenate([[0.0], np.cumsum(q[order])]))


@public
def adaptive_cutoffs(
    counts: ArrayLike,
    *,
    dim: int,
    clusters: int | None = None,
    batch: int = BATCH,
    div_value: float = 1.0,
    cost: StepCost | None = None,
) -> tuple[int, ...]:
    r"""Return the cut-offs of an adaptive softmax that minimise the cost of a step.

    .. math:: C = g(k_0, B, D) + \sum_{i=1}^{J} \left[g(k_i, p_i B, D_i) + (p_i B + u) D D_i + B (D + s) + D u\right]

    Parameters
    ----------
    counts : array_like
        How often each class occurs, at least 0, with the classes in any order. Shape (K,).
    dim : int
        D, the length of the hidden vectors.
    clusters : int, optional
        J, the number of clusters, from 0 to K - 1. The default is the best number from 0 to 3.
    batch : int
        B, the number of rows of a step.
    div_value : float
        v: cluster i has vectors of length :math:`D_i = \max(1, \lfloor D / v^i \rfloor)`. The default 1, as in the
        article by Grave et al., gives all vectors the length D. A larger v is not recommended, even for a layer with
        short vectors. The cost model counts the time that short vectors save, but not the accuracy that they lose, so
        with a larger v it puts few classes in the head.
    cost : StepCost, optional
        The cost model, with the function g and the constants s and u of the formula. The default constants were
        measured on a CPU.

    Returns
    -------
    tuple of int
        The first rank of each cluster, where rank 0 is the class with the largest count. This is the argument `cutoffs`
        of `AdaptiveSoftmax`.

    Raises
    ------
    ValueError
        If a count is negative, NaN or infinite, if all counts are 0, or if an argument is out of range.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    The head has the :math:`k_0` most frequent classes and, for each cluster, a token: an extra class that stands for
    the cluster. Cluster i has :math:`k_i` classes, whose share in the counts is :math:`p_i`. So a share :math:`p_i` of
    the rows needs cluster i. Each of these rows needs a projection and the scores of the cluster's classes. The model
    of Grave et al. has s = u = 0. So it leaves out the exponentials, which take most of the time if :math:`D_i` is
    small, and the optimiser, which takes most of the time if there are few rows.

    The minimum is exact. A dynamic program over the ranks finds it in :math:`O(J K \log K)` time. It relies on a
    property: as the first rank of a cluster increases, its best last rank never decreases. The property holds because
    k p, the number of classes in a cluster times their share in the counts, is a Monge array in the first and the last
    rank of the cluster. Any increasing convex function of k p is also a Monge array.

    References
    ----------
    Grave, Joulin, Cissé, Grangier & Jégou (2017), Efficient softmax approximation for GPUs, section 4. ICML.
    arXiv:1609.04309. Burkard, Klinz & Rudolf (1996), Perspectives of Monge properties in optimization. Discrete Applied
    Mathematics 70.

    See Also
    --------
    softargmax.nn.AdaptiveSoftmax : its `from_counts` uses this function.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.output import adaptive_cutoffs
    >>> len(adaptive_cutoffs(1e9 / np.arange(1, 50_001), dim=256, clusters=3))
    3
    """
    shares = ranked(counts).shares
    classes, width, rows = len(shares) - 1, at_least(dim, "dim", 1), at_least(batch, "batch", 1)
    value = check.positive(div_value, "div_value")
    most = min(MOST, classes - 1) if clusters is None else at_least(clusters, "clusters", 0)
    if most >= classes:
        raise ValueError(f"clusters: expected at most {classes - 1} for {classes} classes, got {most}")

    model = StepCost() if cost is None else cost
    if not isinstance(model, StepCost):
        raise TypeError(f"cost: expected a StepCost, got {type(cost).__name__}")
    token = rows * (width + model.score) + width * model.parameter

    def cluster(d: int, begin: Ints, end: Ints) -> Floats:
        visits = rows * (shares[end] - shares[begin])
        found: Floats = model.of(end - begin, visits, d) + (visits + model.parameter) * width * d + token
        return found

    after, ends = np.full(classes + 1, np.inf), []
    after[classes] = 0.0
    for d in reversed(widths(width, value, most)):
        after, end = _cheapest(partial(cluster, d), after)
        ends.append(end)
        if clusters is None:
            after[classes] = 0.0
    cut, cutoffs = 1 + int(np.argmin(model.of(np.arange(1, classes + 1), rows, width) + after[1:])), []
    while cut < classes:
        cutoffs.append(cut)
        cut = int(ends.pop()[cut])
    return tuple(cutoffs)


def widths(dim: int, div_value: float, clusters: int) -> list[int]:
    """Return the length :math:`D_i` of the projected vectors of each cluster."""
    return [max(1, int(dim // div_value**i)) for i in range(1, clusters + 1)]


def _cheapest(cost: Callable[[Ints, Ints], Floats], after: Floats) -> tuple[Floats, Ints]:
    """Return the minimum over b > a of cost(a, b) + after[b], and the minimising b, for every a from 1 to K - 1.

    The search is by divide and conquer. The best b for the middle a is an upper bound of the best b for smaller a, and
    a lower bound for larger a. All intervals of one level of the recursion are searched together. For a = 0 and a = K,
    the returned minimum is inf.
    """
    least, best, last = np.full(len(after), np.inf), np.zeros(len(after), np.int64), len(after) - 1
    a_low, a_high, b_low, b_high = (np.array([x]) for x in (1, last - 1, 2, last))
    while a_low.size:
        a = (a_low + a_high) // 2
        begin = np.maximum(b_low, a + 1)
        lengths = b_high - begin + 1
        starts = np.cumsum(lengths) - lengths
        b = np.arange(lengths.sum()) + np.repeat(begin - starts, lengths)
        costs = cost(np.repeat(a, lengths), b) + after[b]
        least[a] = np.minimum.reduceat(costs, starts)
        reached = np.flatnonzero(costs == np.repeat(least[a], lengths))
        best[a] = b[reached[np.searchsorted(reached, starts)]]
        halves = (a_low, a - 1, b_low, best[a]), (a + 1, a_high, best[a], b_high)
        a_low, a_high, b_low, b_high = (np.concatenate(pair) for pair in zip(*halves, strict=True))
        some = a_low <= a_high
        a_low, a_high, b_low, b_high = (x[some] for x in (a_low, a_high, b_low, b_high))
    return least, best
