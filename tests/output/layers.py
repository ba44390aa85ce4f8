"""Small output layers of every kind, with random parameters, for tests that apply to all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from softargmax import nn
from softargmax.output import Tree, Unigram

F64 = torch.float64


def counts(k: int) -> Any:
    return np.random.default_rng(0).integers(1, 50, k) ** 2


def sampler(k: int) -> Unigram:
    return Unigram(counts(k))


LAYERS: dict[str, Any] = {
    "full": nn.FullSoftmax,
    "sampled": lambda d, k, **o: nn.SampledSoftmax(d, sampler(k), samples=min(k, 6), **o),
    "sampled of rows": lambda d, k, **o: nn.SampledSoftmax(d, sampler(k), samples=4, unique=False, shared=False, **o),
    "distinct of rows": lambda d, k, **o: nn.SampledSoftmax(d, sampler(k), samples=min(k, 3), shared=False, **o),
    "in batch": lambda d, k, **o: nn.SampledSoftmax(d, sampler(k), samples=min(k, 6), in_batch=sampler(k), **o),
    "importance": lambda d, k, **o: nn.ImportanceSampledSoftmax(d, sampler(k), samples=6, least_ess=4, most=20, **o),
    "target": nn.TargetSampledSoftmax,
    "nce": lambda d, k, **o: nn.NCE(d, sampler(k), samples=6, log_z="learned", **o),
    "nce of rows": lambda d, k, **o: nn.NCE(d, sampler(k), samples=6, shared=False, log_z=0.5, **o),
    "nce by context": lambda d, k, **o: nn.NCE(d, sampler(k), samples=min(k, 6), unique=True, log_z="context", **o),
    "negative": lambda d, k, **o: nn.NegativeSampling(d, sampler(k), samples=5, **o),
    "negative, shared": lambda d, k, **o: nn.NegativeSampling(d, sampler(k), samples=5, shared=True, **o),
    "adaptive": lambda d, k, **o: nn.AdaptiveSoftmax.from_counts(d, counts(k), clusters=min(2, k - 1), **o),
    "differentiated": lambda d, k, **o: nn.DifferentiatedSoftmax.from_counts(d, counts(k), **o),
    "hierarchical": lambda d, k, **o: nn.HierarchicalSoftmax(d, Tree.huffman(counts(k)), **o),
}
DISTRIBUTIONS = [name for name in LAYERS if not name.startswith("negative")]
SPARSE = [name for name in LAYERS if name not in ("full", "adaptive", "differentiated")]


def layer_of(name: str, dim: int = 5, k: int = 40, scale: float = 0.7, **options: Any) -> Any:
    layer = LAYERS[name](dim, k, **options)
    generator = torch.Generator().manual_seed(k)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, scale, generator=generator)
    return layer


def drawn(*shape: int, dtype: Any = F64, seed: int = 9) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)
