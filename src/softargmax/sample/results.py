"""Named tuples that the sampling functions return."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class CategoricalWithLogprob(NamedTuple):
    """Result of `categorical_with_logprob`: draws, log-probabilities, and the number of classes that could be drawn.

    Examples
    --------
    >>> import softargmax
    >>> drawn = softargmax.categorical_with_logprob([1.0, 1.0, -9.0], top_k=2, seed=0)
    >>> float(drawn.logprob), int(drawn.support_size)
    (-0.693147..., 2)
    """

    index: Array
    logprob: Array
    support_size: Array


@of_arrays
class SpeculativeSample(NamedTuple):
    """Result of `speculative_sample`: the tokens, padded with -1, and the number of accepted guesses.

    Examples
    --------
    >>> import softargmax
    >>> found = softargmax.speculative_sample([[0.0, 9.0], [9.0, 0.0]], [[0.0, 9.0]], [1], temperature=0.0, seed=0)
    >>> found.tokens, int(found.accepted)
    (array([1, 0]), 1)
    """

    tokens: Array
    accepted: Array
