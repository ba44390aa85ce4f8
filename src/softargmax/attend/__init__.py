"""Attention: averages of values, weighted by the softmax or entmax of query-key products.

    S = softcap(scale q k^T) + bias - slope |i - j|        p = softmax(S) over the visible keys        o = p v

The definition in `reference.py` processes a few queries at a time. The kernels in `kernels.cpp` pass over keys and
values once.
"""

from softargmax.attend.arguments import AttentionGradients
from softargmax.attend.attention import attention
from softargmax.attend.attention_vjp import attention_vjp
from softargmax.attend.attention_with_lse import attention_with_lse
from softargmax.attend.results import AttentionStats, AttentionWithLse
from softargmax.attend.scales import entropy_invariant_scale, qk_norm
from softargmax.attend.state_and_stats import attention_state, attention_stats
from softargmax.attend.varlen_paged import attention_paged, attention_varlen

__all__ = [
    "AttentionGradients",
    "AttentionStats",
    "AttentionWithLse",
    "attention",
    "attention_paged",
    "attention_state",
    "attention_stats",
    "attention_varlen",
    "attention_vjp",
    "attention_with_lse",
    "entropy_invariant_scale",
    "qk_norm",
]
