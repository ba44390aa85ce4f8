"""What attention returns beside its output."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class AttentionWithLse(NamedTuple):
    """What `attention_with_lse` returns: the output (..., H, L, Dv), and lse (..., H, L) in nats, with the sink's part.

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
    """What `attention_stats` returns: of every query (..., H, L) the largest score and the entropy of p in nats, and of
    every key (..., G, K) the sum of p over the queries of all heads that read it.

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
