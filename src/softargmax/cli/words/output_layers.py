"""The output layers by name. A new layer is one line in `LAYERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax.nn as layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.words.vocabulary import Ints

SHARED, OWN = 1024, 16  # number of negative samples that all rows of a step share, and number drawn for each row


class LayerFactory:
    """Builds output layers from the size D of hidden vectors, the counts of the K classes, and a seed."""

    def __init__(self, dim: int, counts: Ints, seed: int) -> None:
        self.dim, self.counts, self.seed = dim, counts, seed

    def init_bias(self, layer: Any) -> Any:
        """Initialise a layer's bias to the log frequencies of the classes, which saves training time."""
        shares = (self.counts + 1) / (self.counts.sum() + len(self.counts))
        order = getattr(layer, "order", slice(None))  # some layers sort the classes by frequency
        layer.bias.data.copy_(layer.bias.new_tensor(np.log(shares))[order])
        return layer

    def sampling(self, kind: Any, samples: int = SHARED, **options: Any) -> Any:
        """Return a layer that draws negative samples with probabilities proportional to counts**(3/4)."""
        from softargmax.output import Unigram  # imported here, because no other command needs it

        most = int(np.count_nonzero(self.counts))
        return kind(self.dim, Unigram(self.counts), samples=min(samples, most), seed=self.seed, sparse=True, **options)

    def hierarchical(self) -> Any:
        """Return a hierarchical softmax on the Huffman tree of the counts."""
        from softargmax.output import Tree

        return layers.HierarchicalSoftmax(self.dim, Tree.huffman(self.counts), sparse=True)


LAYERS: dict[str, Callable[[LayerFactory], Any]] = {
    "full": lambda build: build.init_bias(layers.FullSoftmax(build.dim, len(build.counts))),
    "sampled": lambda build: build.init_bias(build.sampling(layers.SampledSoftmax)),
    "importance": lambda build: build.init_bias(build.sampling(layers.ImportanceSampledSoftmax)),
    "target": lambda build: build.init_bias(layers.TargetSampledSoftmax(build.dim, len(build.counts), sparse=True)),
    "nce": lambda build: build.init_bias(build.sampling(layers.NCE, log_z=0.0)),
    "negative": lambda build: build.sampling(layers.NegativeSampling, OWN),
    "hierarchical": LayerFactory.hierarchical,
    "adaptive": lambda build: layers.AdaptiveSoftmax.from_counts(build.dim, build.counts),
    "differentiated": lambda build: build.init_bias(layers.DifferentiatedSoftmax.from_counts(build.dim, build.counts)),
}
