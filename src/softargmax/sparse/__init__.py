"""Sparse alternatives to softmax, whose probabilities may be exactly 0, and their losses.

    p = argmax_p <p, z> + H_alpha(p)      p_i = [(alpha - 1) z_i - tau]_+^(1 / (alpha - 1))      sum p = 1

alpha = 1 is softmax, alpha = 2 is sparsemax. The `*operations.py` files contain the operations, the
`reference*.py` files their definitions, and `kernels.cpp` the CPU kernels.
"""

from softargmax.sparse.entmax import entmax, sparsemax, threshold
from softargmax.sparse.entmax_loss import entmax_loss, sparsemax_loss
from softargmax.sparse.results import Threshold
from softargmax.sparse.topk_softmax import topk_softmax

__all__ = ["Threshold", "entmax", "entmax_loss", "sparsemax", "sparsemax_loss", "threshold", "topk_softmax"]
