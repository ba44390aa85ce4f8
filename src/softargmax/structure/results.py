"""The named tuples that functions of this room return."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class BestPath(NamedTuple):
    """Result of `LinearChain.best`: the tags of a path with the largest score, and its score.

    The tags are int64, shape (..., L), and -1 beyond the end of a sequence. They are all -1 if no path is possible.

    Examples
    --------
    >>> import softargmax
    >>> best = softargmax.linear_chain([[0.0, 1.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]).best()
    >>> best.tags, float(best.score)
    (array([1, 0]), 3.0)
    """

    tags: Array
    score: Array


@of_arrays
class BestConfiguration(NamedTuple):
    """Result of `FactorGraph.best`: the values of a configuration with the largest score, and its score.

    The values are int64, shape (..., V), in the order of `FactorGraph.variables`. They are -1 if no configuration is
    possible.

    Examples
    --------
    >>> import softargmax
    >>> best = softargmax.factor_graph("a,ab->", [0.0, 1.0], [[0.0, 3.0], [1.0, 0.0]]).best()
    >>> best.values, float(best.score)
    (array([0, 1]), 3.0)
    """

    values: Array
    score: Array
