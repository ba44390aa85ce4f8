"""The output layers by name. A new one is one line in `LAYERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax.nn as layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.words.vocabulary import Ints

SHARED, OWN = 1024, 16  # negatives of a step for all its rows, or for each row alone


class Given:
    """Arguments of a layer: D, the counts of the K classes, and a seed."""

    def __init__(self, dim: int, counts: Ints, seed: int) -> None:
        self.dim, self.counts, self.seed = dim, counts, seed

    def begun(self, layer: Any) -> Any:
        """The layer with the logarithms of the classes' shares for a bias: what counting says it need not learn."""
        shares = (self.counts + 1) / (self.counts.sum() + len(self.counts))
        order = getattr(layer, "order", slice(None))  # of the classes in the layer, if it has one of its own
        layer.bias.data.copy_(layer.bias.new_tensor(np.log(shares))[order])
        return layer

    def sampling(self, kind: Any, samples: int = SHARED, **options: Any) -> Any:
        """A layer with negatives by the counts to the power 3/4."""
        from softargmax.output import Unigram  # here: the command's other parts need not load it

        most = int(np.count_nonzero(self.counts))
        return kind(self.dim, Unigram(self.counts), samples=min(samples, most), seed=self.seed, sparse=True, **options)

    def hierarchical(self) -> Any:
        """The layer on the Huffman tree."""
        from softargmax.output import Tree

        return layers.HierarchicalSoftmax(self.dim, Tree.huffman(self.counts), sparse=True)


LAYERS: dict[str, Callable[[Given], Any]] = {
    "full": lambda given: given.begun(layers.FullSoftmax(given.dim, len(given.counts))),
    "sampled": lambda given: given.begun(given.sampling(layers.SampledSoftmax)),
    "importance": lambda given: given.begun(given.sampling(layers.ImportanceSampledSoftmax)),
    "target": lambda given: given.begun(layers.TargetSampledSoftmax(given.dim, len(given.counts), sparse=True)),
    "nce": lambda given: given.begun(given.sampling(layers.NCE, log_z=0.0)),
    "negative": lambda given: given.sampling(layers.NegativeSampling, OWN),
    "hierarchical": Given.hierarchical,
    "adaptive": lambda given: layers.AdaptiveSoftmax.from_counts(given.dim, given.counts),
    "differentiated": lambda given: given.begun(layers.DifferentiatedSoftmax.from_counts(given.dim, given.counts)),
}
