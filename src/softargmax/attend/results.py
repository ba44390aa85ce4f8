"""What attention returns beside its output."""

from __future__ import annotations

from typing import Any, NamedTuple


class AttentionWithLse(NamedTuple):
    """What `attention_with_lse` returns: the output (..., H, L, Dv), and lse (..., H, L) in nats, with the sink's part.

    Examples
    --------
    >>> import softargmax
    >>> q = [[[1.0]]]
    >>> softargmax.attention_with_lse(q, [[[1.0], [1.0]]], [[[2.0], [4.0]]])
    AttentionWithLse(output=array([[[3.]]]), lse=array([[1.69314718]]))
    """

    output: Any
    lse: Any
