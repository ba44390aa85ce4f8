"""Softmax as soft addressing: a query reads the values of the keys that match it.

    S = softcap(scale q k^T) + bias        p = softmax(S) over the keys that a query sees        o = p v

`reference.py` is the definition, a few queries at a time.
"""

from softargmax.attend.attention import attention, attention_with_lse
from softargmax.attend.results import AttentionWithLse
from softargmax.attend.scales import entropy_invariant_scale, qk_norm

__all__ = ["AttentionWithLse", "attention", "attention_with_lse", "entropy_invariant_scale", "qk_norm"]
