"""Time last layers of many sizes, and the matrix product that they use, against torch, with one and with two threads.

    python -m bench.last_layer              all cases, about 4 minutes; writes bench/results/last_layer.json
    python -m bench.last_layer product      only the cases whose names contain this word; writes nothing

The sizes of twelve layers are drawn with a seed, uniformly on a logarithmic scale. A layer's loss and gradients
should take at most 1.05 times as long as those of `F.cross_entropy(h @ w.T, y)`. The exit code is 1 if a target is
missed.
"""

from __future__ import annotations

import math
import random
import sys
from typing import TYPE_CHECKING

import torch
from bench.loss import both
from bench.promises import Promise, isa, main
from torch.nn.functional import cross_entropy

import softargmax as sa
from softargmax.core import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = [(64, 32, 500), (256, 128, 2000), (512, 256, 8000), (4096, 64, 1000)]
SEED, DRAWN = 24, 12
RANGES = ((1, 4096), (16, 1024), (100, 50_000))
"""The ranges of N, D and K."""
PRODUCTS = [(1024, 512, 32_768), (2048, 768, 50_257), (4096, 64, 4096), (512, 512, 512)]
TARGET_OF_PRODUCT = {"x86-64-v3": 0.97, "x86-64-v4": 1.3}
THREADS = (1, 2)


def drawn() -> list[tuple[int, ...]]:
    """Return the drawn sizes (N, D, K)."""
    rng = random.Random(SEED)
    return [tuple(round(math.exp(rng.uniform(*map(math.log, ends)))) for ends in RANGES) for _ in range(DRAWN)]


def layers(threads: int) -> Iterator[Promise]:
    """Yield forward and backward passes of last layers."""
    for n, d, k in [*NAMED, *drawn()]:
        torch.manual_seed(4)
        h, w = torch.randn(n, d).requires_grad_(), (torch.randn(k, d) / d**0.5).requires_grad_()
        y = torch.randint(k, (n,))
        sides = {
            "softargmax": both(lambda h, w, y=y: sa.linear_cross_entropy(h, w, y), h, w),
            "torch": both(lambda h, w, y=y: cross_entropy(h @ w.T, y), h, w),
        }
        name = f"linear_cross_entropy and backward {n}x{d}x{k}, threads: {threads}"
        yield Promise(name, sides, {"torch": 1 / 1.05}, multiply_adds=3 * n * d * k / 16, threads=threads)


def products(threads: int) -> Iterator[Promise]:
    """Yield products h W^T, without allocating the results."""
    for n, d, k in PRODUCTS:
        torch.manual_seed(5)
        h, w, out = torch.randn(n, d), torch.randn(k, d), torch.empty(n, k)
        arrays = h.numpy(), w.numpy().T, out.numpy()
        sides = {
            "softargmax": lambda arrays=arrays: _native.product(*arrays),
            "torch": lambda h=h, w=w, out=out: torch.mm(h, w.T, out=out),
        }
        target = TARGET_OF_PRODUCT.get(isa(), 0.0)
        name = f"product {n}x{d}x{k}, threads: {threads}"
        yield Promise(name, sides, {"torch": target}, multiply_adds=n * d * k / 16, threads=threads)


def promises() -> Iterator[Promise]:
    """Yield every case."""
    for threads in THREADS:
        yield from products(threads)
        yield from layers(threads)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "last_layer"))
