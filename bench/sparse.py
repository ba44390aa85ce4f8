"""Time the sparse maps against the entmax package and our own softmax, for the shapes and targets that we promise.

    python -m bench.sparse                  all cases, about 6 minutes on 2 cores; writes bench/results/sparse.json
    python -m bench.sparse sparsemax        only the cases whose names contain these words; writes nothing

Scores are normal, heavy-tailed (Cauchy) or all equal. Equal scores give every map its largest support. "entmax, k" is
the package with its argument k, a bound on the size of the support. Short rows have the lengths that are usual in a
router of experts. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import entmax as peer
import torch
from bench.promises import Promise, main
from torch import Tensor

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Map = Callable[[Tensor], Tensor]

ROWS, CLASSES, HINT = 512, 32_768, 100
ORDERS = (1.25, 1.7)
SHORT = ((262_144, 8), (32_768, 64))


def scores() -> Iterator[tuple[str, Tensor]]:
    """Yield the names and scores of three kinds of rows."""
    generator = torch.Generator().manual_seed(7)
    yield "normal", torch.randn(ROWS, CLASSES, generator=generator)
    yield "heavy-tailed", torch.empty(ROWS, CLASSES).cauchy_(generator=generator)
    yield "all equal", torch.zeros(ROWS, CLASSES)


def both(function: Map, leaf: Tensor, g: Tensor) -> Callable[[], object]:
    """Return a call that computes a forward and a backward pass."""
    return lambda: torch.autograd.grad(function(leaf), leaf, g)


def of_map(name: str, ours: Map, theirs: Map, hinted: Map, z: Tensor) -> Iterator[Promise]:
    """Yield three cases of a map: against the package, against our softmax, and with a backward pass."""
    read, out, leaf, g = z.nbytes, torch.empty_like(z), z.clone().requires_grad_(), torch.randn(z.shape)
    sides = {"softargmax": lambda: ours(z), "entmax": lambda: theirs(z), "entmax, k": lambda: hinted(z)}
    yield Promise(name, sides, {"entmax": 30, "entmax, k": 6}, 2 * read, rounds=7)
    function = sa.sparsemax if name.startswith("sparsemax") else sa.entmax
    sides = {
        "softargmax": lambda: function(z, out=out),
        "our softmax": lambda: sa.softmax(z, out=out),
    }
    yield Promise(f"{name}, out=", sides, {"our softmax": 1 / 3}, 2 * read)
    sides = {"softargmax": both(ours, leaf, g), "entmax": both(theirs, leaf, g)}
    yield Promise(f"{name}, and backward", sides, {"entmax": 20}, 5 * read, rounds=5)


def of_order(name: str, alpha: float, z: Tensor) -> Iterator[Promise]:
    """Yield three cases of the map of order `alpha`: two forward passes, and a forward and backward pass."""
    out, leaf, g = torch.empty_like(z), z.clone().requires_grad_(), torch.randn(z.shape)
    sides = {"softargmax": lambda: sa.entmax(z, alpha), "entmax": lambda: peer.entmax_bisect(z, alpha)}
    yield Promise(f"entmax {alpha:g}, {name}", sides, {"entmax": 60}, 2 * z.nbytes, rounds=3)
    sides = {
        "softargmax": lambda: sa.entmax(z, alpha, out=out),
        "our softmax": lambda: sa.softmax(z, out=out),
    }
    yield Promise(f"entmax {alpha:g}, {name}, out=", sides, {"our softmax": 1 / 3}, 2 * z.nbytes)
    sides = {
        "softargmax": both(lambda z: sa.entmax(z, alpha), leaf, g),
        "entmax": both(lambda z: peer.entmax_bisect(z, alpha), leaf, g),
    }
    yield Promise(f"entmax {alpha:g}, {name}, and backward", sides, {"entmax": 20}, 5 * z.nbytes, rounds=3)


def of_short_rows(shape: tuple[int, int]) -> Iterator[Promise]:
    """Yield the cases of sparsemax and 1.5-entmax on short rows. Their cost is mostly the work done once per row."""
    z = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    out = torch.empty_like(z)
    maps = {"sparsemax": (sa.sparsemax, peer.sparsemax), "entmax 1.5": (sa.entmax, peer.entmax15)}
    for name, (ours, theirs) in maps.items():
        sides = {"softargmax": lambda ours=ours: ours(z), "entmax": lambda theirs=theirs: theirs(z)}
        yield Promise(f"{name}, {shape[0]}x{shape[1]}", sides, {"entmax": 3}, 2 * z.nbytes, rounds=7)
        sides = {
            "softargmax": lambda ours=ours: ours(z, out=out),
            "our softmax": lambda: sa.softmax(z, out=out),
        }
        yield Promise(f"{name}, {shape[0]}x{shape[1]}, out=", sides, {}, 2 * z.nbytes)


def promises() -> Iterator[Promise]:
    """Yield every case. Each kind of rows is freed before the next kind is allocated."""
    for shape in SHORT:
        yield from of_short_rows(shape)
    for kind, z in scores():
        name = f"{kind} {ROWS}x{CLASSES}"
        hinted = {"sparsemax": lambda z: peer.sparsemax(z, k=HINT), "entmax15": lambda z: peer.entmax15(z, k=HINT)}
        yield from of_map(f"sparsemax, {name}", sa.sparsemax, peer.sparsemax, hinted["sparsemax"], z)
        yield from of_map(f"entmax 1.5, {name}", sa.entmax, peer.entmax15, hinted["entmax15"], z)
        for alpha in ORDERS:
            yield from of_order(name, alpha, z)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "sparse"))
