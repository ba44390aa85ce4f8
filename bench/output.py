"""Time a training step of output layers for large vocabularies against a full softmax in plain torch.

    python -m bench.output                  all cases, about 8 minutes on 2 cores; writes bench/results/output.json
    python -m bench.output hierarchical     only the cases whose names contain these words; writes nothing

There are K = 100,003 classes, D = 256, and 1024 rows whose targets follow Zipf's law. A step is a forward pass, a
backward pass and a step of the optimiser. torch's side is `F.cross_entropy(h @ w.T, y)` with Adam over all of w. Our
side uses SparseAdam for layers with sparse gradients, and Adam for the others. Further cases use plain SGD, or no
optimiser. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from bench.promises import Promise, main
from torch.nn import functional

from softargmax import nn
from softargmax.output import LogUniform, Tree, Unigram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLASSES, DIM, ROWS, SAMPLES = 100_003, 256, 1024, 1024
ZIPF = LogUniform(CLASSES)
COUNTS = (1e8 * ZIPF.probabilities).astype(int)
RATE = 1e-3


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden vectors and targets."""
    h = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(7))
    return h, ZIPF.draw(ROWS, seed=7, like=h).index


class Plain(torch.nn.Module):
    """A full softmax in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(CLASSES, DIM) / DIM**0.5)

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return functional.cross_entropy(h @ self.weight.T, y)


class Adaptive(torch.nn.Module):
    """torch's adaptive softmax."""

    def __init__(self, cutoffs: list[int]) -> None:
        super().__init__()
        self.inner = torch.nn.AdaptiveLogSoftmaxWithLoss(DIM, CLASSES, cutoffs, div_value=4.0)

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.inner(h, y).loss
        return loss


def step(layer: torch.nn.Module, how: str) -> Callable[[], object]:
    """Return a training step: a forward pass, the gradients of the parameters and of h, and the optimiser's step."""
    h, y = data()
    h.requires_grad_()
    parameters = list(layer.parameters())
    optimisers: list[Any] = []
    if how == "SGD":
        optimisers = [torch.optim.SGD(parameters, RATE)]
    elif how == "Adam":
        adam = torch.optim.SparseAdam if getattr(layer, "sparse", False) else torch.optim.Adam
        optimisers = [adam(parameters, RATE)]

    def once() -> None:
        layer(h, y).backward()
        for optimiser in optimisers:
            optimiser.step()
        h.grad = None
        for parameter in parameters:
            parameter.grad = None

    return once


def layers() -> dict[str, tuple[Callable[[], Any], float]]:
    """Return every layer, and the promised speedup of its step with Adam over torch's full softmax."""
    tree, power = Tree.huffman(COUNTS), Unigram(COUNTS)
    options: Any = {"sparse": True}
    return {
        "hierarchical (Huffman)": (partial(nn.HierarchicalSoftmax, DIM, tree, **options), 25),
        "sampled, 1024 shared": (partial(nn.SampledSoftmax, DIM, ZIPF, samples=SAMPLES, **options), 15),
        "NCE, 1024 shared": (partial(nn.NCE, DIM, ZIPF, samples=SAMPLES, **options), 15),
        "importance, 1024 shared": (partial(nn.ImportanceSampledSoftmax, DIM, ZIPF, samples=SAMPLES, **options), 0),
        "targets of the batch": (partial(nn.TargetSampledSoftmax, DIM, CLASSES, **options), 0),
        "negative sampling, 5 of each row": (partial(nn.NegativeSampling, DIM, power, samples=5, **options), 0),
        "adaptive": (partial(nn.AdaptiveSoftmax.from_counts, DIM, COUNTS), 5),
        "differentiated": (partial(nn.DifferentiatedSoftmax.from_counts, DIM, COUNTS), 0),
        "full": (partial(nn.FullSoftmax, DIM, CLASSES, bias=False), 0),
    }


def promises() -> Iterator[Promise]:
    """Yield every layer with each optimiser. The memory of a case is freed before the next case allocates memory."""
    for name, (make, promised) in layers().items():
        for how in ("Adam", "SGD", "no step"):
            layer = make()
            sides = {"softargmax": step(layer, how), "torch": step(Plain(), how)}
            targets = {"torch": promised} if promised and how == "Adam" else {}
            if name == "adaptive":
                sides["torch's adaptive"] = step(Adaptive(layer.cutoffs), how)
                if how == "Adam":
                    targets["torch's adaptive"] = 1.2
            yield Promise(f"{name}, {how}", sides, targets, rounds=5)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "output"))
