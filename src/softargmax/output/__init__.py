"""Output layers for large vocabularies: samplers of negatives, trees, cut-offs and word vectors.

    hierarchical: p(y) = prod over the path of sigma(+-(<h, w_node> + b_node))

Samplers and trees use NumPy (`samplers.py`, `tree.py`). The layers are torch modules in `softargmax.nn`. `WordVectors`
trains embeddings without torch.
"""

from softargmax.output.adaptive_cutoffs import StepCost, adaptive_cutoffs
from softargmax.output.keyed_vectors import KeyedVectors
from softargmax.output.samplers import Learned, LogUniform, Negatives, Sampler, Uniform, Unigram
from softargmax.output.target_partitions import Partition, partitions
from softargmax.output.tree import Tree
from softargmax.output.tree_paths import Paths
from softargmax.output.word_vectors import WordVectors

__all__ = [
    "KeyedVectors",
    "Learned",
    "LogUniform",
    "Negatives",
    "Partition",
    "Paths",
    "Sampler",
    "StepCost",
    "Tree",
    "Uniform",
    "Unigram",
    "WordVectors",
    "adaptive_cutoffs",
    "partitions",
]
