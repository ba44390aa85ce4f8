"""Softmax as soft addressing: a query reads the values of the keys that match it.

    S = softcap(scale q k^T) + bias - slope |i - j|        p = softmax(S) over the keys that a query sees        o = p v

`reference.py` is the definition, a few queries at a time; `kernels.cpp` one pass over keys and values.
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
