"""Softmax over structures: the log semiring, in which logsumexp is the sum and + is the product.

    (a (x) b)_ij = (1 / beta) log sum_k exp(beta (a_ik + b_kj))      at T = 0: max_k (a_ik + b_kj)

A path of tags has a probability proportional to e^score. Sums over all paths are products of matrices in this semiring,
and their gradients are marginals. At T = 0 they give the best path.
"""

from softargmax.structure.factor_graph import FactorGraph, factor_graph
from softargmax.structure.linear_chain import LinearChain, linear_chain
from softargmax.structure.log_einsum import log_einsum
from softargmax.structure.log_matmul import log_matmul
from softargmax.structure.results import BestConfiguration, BestPath

__all__ = [
    "BestConfiguration",
    "BestPath",
    "FactorGraph",
    "LinearChain",
    "factor_graph",
    "linear_chain",
    "log_einsum",
    "log_matmul",
]
