"""Named tuples that the attention functions return."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class AttentionWithLse(NamedTuple):
    """Result of `attention_with_lse`: the output (..., H, L, Dv) and lse (..., H, L). lse includes the sink.

    Examples
    --------
    >>> import softargmax
    >>> q = [[[1.0]]]
    >>> softargmax.attention_with_lse(q, [[[1.0], [1.0]]], [[[2.0], [4.0]]])
    AttentionWithLse(output=array([[[3.]]]), lse=array([[1.69314718]]))
    """

    output: Array
    lse: Array


@of_arrays
class AttentionStats(NamedTuple):
    """Result of `attention_stats`: the largest score, and statistics of p.

    `max_score` and `entropy` have shape (..., H, L): the largest score of each query, and the entropy of its p in nats.
    `key_mass` has shape (..., G, K): for each key, the sum of p over the queries of all heads that share the key.

    Examples
    --------
    >>> import softargmax
    >>> q = [[[1.0], [0.0]]]
    >>> softargmax.attention_stats(q, [[[0.0], [0.0]]])
    AttentionStats(max_score=array([[0., 0.]]), entropy=array([[0.69314718, 0.69314718]]), key_mass=array([[1., 1.]]))
    """

    max_score: Array
    entropy: Array
    key_mass: Array
