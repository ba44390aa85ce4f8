"""Losses computed from scores: cross-entropy, distillation and selected log-probabilities.

    loss = -sum_k m_k log p_k + c lse^2        m_k = w_k ((1 - e) t_k + e / n)        p = softmax(beta z)

The small losses of confident rows are accurate. `operations.py` contains the operations for scores.
`linear_operations.py` contains those for a last layer, whose scores are computed a few rows at a time. `reference*.py`
are the definitions, and `reference.py` explains the symbols. `kernels.cpp` and `kernels.py` are the kernels for CPU
memory.
"""

from softargmax.loss.cross_entropy import cross_entropy, cross_entropy_and_gradient, cross_entropy_terms
from softargmax.loss.distillation import distillation, linear_distillation
from softargmax.loss.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_and_gradient,
    linear_cross_entropy_terms,
)
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, LossAndGradient
from softargmax.loss.selected_log_softmax import linear_selected_log_softmax, selected_log_softmax

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
