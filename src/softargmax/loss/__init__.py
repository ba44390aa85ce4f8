"""What training minimises: losses of scores, exact where the model is confident.

    loss = -sum_k m_k log p_k + c lse^2        m_k = w_k ((1 - e) t_k + e / n)        p = softmax(beta z)

`reference.py` names the primitives that an implementation provides; `reference_rows.py` is the definition,
`reference_linear.py` makes scores of hidden vectors a few rows at a time, and `torch_reference.py` is how tensors
differentiate both. `kernels.cpp` with `native.py`, and `torch_ops.py`, serve scores in CPU memory.
"""

from softargmax.loss.distil import distillation, linear_distillation
from softargmax.loss.of_layers import (
    linear_cross_entropy,
    linear_cross_entropy_and_gradient,
    linear_cross_entropy_terms,
)
from softargmax.loss.of_scores import cross_entropy, cross_entropy_and_gradient, cross_entropy_terms
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, LossAndGradient
from softargmax.loss.selected import linear_selected_log_softmax, selected_log_softmax

__all__ = [
    "CrossEntropyTerms",
    "LinearLossAndGradient",
    "LossAndGradient",
    "cross_entropy",
    "cross_entropy_and_gradient",
    "cross_entropy_terms",
    "distillation",
    "linear_cross_entropy",
    "linear_cross_entropy_and_gradient",
    "linear_cross_entropy_terms",
    "linear_distillation",
    "linear_selected_log_softmax",
    "selected_log_softmax",
]
