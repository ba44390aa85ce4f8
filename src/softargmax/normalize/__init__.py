"""The softmax family: scores to probabilities, and what follows from the normaliser.

    p_i = exp(beta z_i) / sum_j exp(beta z_j)        lse = log sum_j exp(beta z_j)        beta = ln(base) / temperature

`reference.py` is the definition; `kernels.cpp` with `native.py`, and `torch_ops.py`, serve CPU memory.
"""

from softargmax.normalize.probabilities import SoftmaxWithLse, hardmax, log_softmax, softmax, softmax_with_lse, softmin

__all__ = [
    "SoftmaxWithLse",
    "hardmax",
    "log_softmax",
    "softmax",
    "softmax_with_lse",
    "softmin",
]
