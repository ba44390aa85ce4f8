"""Sampling from the softmax, and relaxed draws that can be differentiated.

    g = -log(-log(1 - V))        arg max (beta z + g) ~ softmax(beta z)        gumbel_softmax = softmax((z + g) / T)

V is uniform between 0 and 1. The noise g of a column depends only on the seed, the stream of the row, the index of the
draw, and the column. `philox.py` and `philox.hpp` in the core compute its random bits.
"""

from softargmax.sample.boltzmann_policy import boltzmann_policy
from softargmax.sample.categorical import categorical, categorical_with_logprob, filter_scores
from softargmax.sample.gumbel_softmax import gumbel, gumbel_softmax
from softargmax.sample.results import CategoricalWithLogprob, SpeculativeSample
from softargmax.sample.speculative_sample import speculative_sample

__all__ = [
    "CategoricalWithLogprob",
    "SpeculativeSample",
    "boltzmann_policy",
    "categorical",
    "categorical_with_logprob",
    "filter_scores",
    "gumbel",
    "gumbel_softmax",
    "speculative_sample",
]
