"""The named tuples that functions of this room return."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class BestPath(NamedTuple):
    """Result of `LinearChain.best`: the tags of the best path or paths, and their scores.

    The tags have shape (..., L), or (..., K, L) for K paths, and the scores (...), or (..., K). Tags are -1 beyond the
    end of a sequence. If there is no path, or there are fewer than K, the other tags are -1 and the scores -inf. Tags
    are int64, or int32 in JAX without 64-bit mode.

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

    The values have shape (..., V), in the order of `FactorGraph.variables`. They are -1 if no configuration is
    possible. They are int64, or int32 in JAX without 64-bit mode.

    Examples
    --------
    >>> import softargmax
    >>> best = softargmax.factor_graph("a,ab->", [0.0, 1.0], [[0.0, 3.0], [1.0, 0.0]]).best()
    >>> best.values, float(best.score)
    (array([0, 1]), 3.0)
    """

    values: Array
    score: Array
