"""Time draws against torch's pipelines and Hugging Face's warpers, for the shapes and targets that we promise.

    python -m bench.sample                  all cases, about 4 minutes on 2 cores; writes bench/results/sample.json
    python -m bench.sample top_p            only the cases whose names contain these words; writes nothing

Scores are normal. With 128,256 classes, their standard deviation is 4, as in a trained model, or 1 ("level"). At a
standard deviation of 1 and a temperature of 0.8, top-p keeps half of the vocabulary. Every side returns indices with
the same distribution. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from bench.promises import Promise, main
from torch import Tensor
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS, CLASSES, T, P, K = 64, 128_256, 0.8, 0.9, 50


def multinomial(z: Tensor) -> Tensor:
    """Return draws by softmax and multinomial, the usual code with torch."""
    return torch.multinomial(torch.softmax(z, -1), 1)[:, 0]


def warped(z: Tensor) -> Tensor:
    """Return draws after temperature and top-p, which are applied by the warpers of transformers' `generate`."""
    warpers: list[Any] = [TemperatureLogitsWarper(T), TopPLogitsWarper(P)]
    for warper in warpers:
        z = warper(None, z)
    return multinomial(z)


def of_the_top(z: Tensor) -> Tensor:
    """Return draws from the K largest scores."""
    values, index = torch.topk(z, K)
    return index.gather(1, multinomial(values)[:, None])[:, 0]


def scores(spread: float, rows: int = ROWS, classes: int = CLASSES) -> Tensor:
    """Return normal scores."""
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(5)) * spread


def case(name: str, z: Tensor, peer: str, other: Callable[[Tensor], Tensor], target: float, **options: Any) -> Promise:
    """Return a case whose sides draw from the same scores."""
    sides = {"softargmax": lambda: sa.categorical(z, **options), peer: lambda: other(z)}
    return Promise(f"{name} {'x'.join(map(str, z.shape))}", sides, {peer: target}, z.nbytes)


def promises() -> Iterator[Promise]:
    """Yield every case."""
    z, level = scores(4.0), scores(1.0)
    yield case("top_p 0.9, temperature 0.8", z, "Hugging Face", warped, 20.0, top_p=P, temperature=T)
    yield case("top_p 0.9, temperature 0.8, level", level, "Hugging Face", warped, 20.0, top_p=P, temperature=T)
    yield case("categorical", z, "torch", multinomial, 8.0)
    yield case("categorical, level", level, "torch", multinomial, 8.0)
    yield case("top_k 50", z, "torch", of_the_top, 1.5, top_k=K)
    yield case("categorical", scores(2.0, 100_000, 10), "torch", multinomial, 1.0)
    yield case("categorical", scores(1.0, 4, 10), "torch", multinomial, 0.5)  # mostly the overhead of a call


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "sample"))
