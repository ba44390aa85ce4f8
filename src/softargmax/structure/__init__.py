"""Softmax over structures: the log semiring, in which logsumexp is the sum and + is the product.

    (a (x) b)_ij = (1 / beta) log sum_k exp(beta (a_ik + b_kj))      at T = 0: max_k (a_ik + b_kj)

A path of tags has a probability proportional to e^score. Sums over all paths are products of matrices in this semiring,
and their gradients are marginals. At T = 0 they give the best path.
"""

from softargmax.structure.chain_operations import best_paths_of, marginals_of, partition_of
from softargmax.structure.contraction import plan_of
from softargmax.structure.factor_graph import FactorGraph, factor_graph
from softargmax.structure.linear_chain import LinearChain, linear_chain, sum_in_order
from softargmax.structure.log_einsum import log_einsum
from softargmax.structure.log_matmul import log_matmul
from softargmax.structure.results import BestConfiguration, BestPath

NODES = (partition_of, marginals_of, best_paths_of, sum_in_order)
"""Functions that are nodes in the graphs of torch.compile, in addition to the public ones."""
CONSTANTS = (plan_of,)
"""Functions that the compiler calls while it traces. Their results are constants of the graph."""

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
