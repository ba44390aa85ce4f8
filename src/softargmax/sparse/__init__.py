"""Sparse maps: what to use in place of softmax where most probabilities should be exactly 0, and their losses.

    p = argmax_p <p, z> + H_alpha(p)      p_i = [(alpha - 1) z_i - tau]_+^(1 / (alpha - 1))      sum p = 1

alpha = 1 is softmax, 2 sparsemax. `reference.py` is the definition, `operations.py` the record of each operation;
`kernels.cpp` serves CPU memory.
"""

from softargmax.sparse.entmax import entmax, sparsemax, threshold
from softargmax.sparse.entmax_loss import entmax_loss, sparsemax_loss
from softargmax.sparse.results import Threshold
from softargmax.sparse.topk_softmax import topk_softmax

__all__ = ["Threshold", "entmax", "entmax_loss", "sparsemax", "sparsemax_loss", "threshold", "topk_softmax"]
