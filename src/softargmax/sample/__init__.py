"""Drawing from the softmax, and differentiable stand-ins for draws.

    g = -log(-log(1 - V))        arg max (beta z + g) ~ softmax(beta z)        gumbel_softmax = softmax((z + g) / T)

The noise of a column is a function of (seed, the row's stream, the draw, the column) and of nothing else: `philox.py`
and `philox.hpp` make it. `operations.py` has the operations, `reference.py` their definitions, `kernels.cpp` what
serves CPU memory.
"""

from softargmax.sample.draws import categorical, categorical_with_logprob, filter_scores
from softargmax.sample.policy import boltzmann_policy
from softargmax.sample.relaxed import gumbel, gumbel_softmax
from softargmax.sample.results import CategoricalWithLogprob, SpeculativeSample
from softargmax.sample.speculative import speculative_sample

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
