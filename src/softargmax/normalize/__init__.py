"""The softmax family: maps from scores to probabilities, and quantities derived from the normaliser.

    p_i = exp(beta z_i) / sum_j exp(beta z_j)        lse = log sum_j exp(beta z_j)        beta = ln(base) / temperature

The `*operations.py` files contain the operations, and `reference*.py` their definitions. `kernels.cpp` contains the
kernels for CPU memory.
"""

from softargmax.normalize.boltzmann import boltzmann
from softargmax.normalize.entropy import entropy, renyi_entropy
from softargmax.normalize.hardmax import hardmax
from softargmax.normalize.kl_divergence import kl_divergence
from softargmax.normalize.log_softmax import log_softmax
from softargmax.normalize.logsumexp import logcumsumexp, logsumexp, signed_logsumexp
from softargmax.normalize.results import Boltzmann, SignedLog, SoftmaxWithLse
from softargmax.normalize.segments import segment_log_softmax, segment_logsumexp, segment_softmax
from softargmax.normalize.soft_argmax import soft_argmax, spatial_soft_argmax
from softargmax.normalize.softmax import softmax
from softargmax.normalize.softmax_jacobian import softmax_jacobian
from softargmax.normalize.softmax_with_lse import softmax_with_lse
from softargmax.normalize.softmin import softmin

__all__ = [
    "Boltzmann",
    "SignedLog",
    "SoftmaxWithLse",
    "boltzmann",
    "entropy",
    "hardmax",
    "kl_divergence",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "renyi_entropy",
    "segment_log_softmax",
    "segment_logsumexp",
    "segment_softmax",
    "signed_logsumexp",
    "soft_argmax",
    "softmax",
    "softmax_jacobian",
    "softmax_with_lse",
    "softmin",
    "spatial_soft_argmax",
]
