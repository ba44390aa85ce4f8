"""Attention: averages of values, weighted by the softmax or entmax of query-key products.

    S = softcap(scale q k^T) + bias - slope |i - j|        p = softmax(S) over the visible keys        o = p v

`reference.py` is the definition; it processes a few queries at a time. `kernels.cpp` holds the kernels, which pass over
keys and values once.
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
