"""Drawing from the softmax, and differentiable stand-ins for draws.

    g = -log(-log(1 - V))        arg max (beta z + g) ~ softmax(beta z)        gumbel_softmax = softmax((z + g) / T)

The noise of a column is a function of (seed, the row's stream, the draw, the column) and of nothing else: `philox.py`
and `philox.hpp` make it. `operations.py` has the operations, `reference.py` their definitions, `kernels.cpp` what
serves CPU memory.
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
