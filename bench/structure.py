"""Time products in the log semiring against torch's formulas, and conditional random fields against pytorch-crf.

    python -m bench.structure               all cases, about 2 minutes on 2 cores; writes bench/results/structure.json
    python -m bench.structure backward      only the cases whose names contain these words; writes nothing

"torch" is `torch.logsumexp(a[:, :, None] + b, 1)`, with a temporary of all terms. "plain product" is torch's matrix
product of the same size, which computes no exponential. In the case "far", the largest term of an element is seldom
near the largest entries of its row and column, so all elements are computed term by term. A conditional random field
has 64 sequences of 512 positions and 32 tags. The exit code is 1 if a promise is missed.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torchcrf
from bench.peak import measured
from bench.promises import Promise, main

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

SIZE = 512


def by_terms(a: Tensor, b: Tensor) -> Tensor:
    """Return the product by torch's logsumexp of all terms."""
    return torch.logsumexp(a[:, :, None] + b, 1)


def both(function: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], object]:
    """Return a call that computes a forward and a backward pass."""
    leaves = tuple(x.clone().requires_grad_() for x in leaves)
    g = torch.ones(SIZE, SIZE, dtype=leaves[0].dtype)
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def promises() -> Iterator[Promise]:
    """Yield every case."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    name = f"log_matmul {SIZE}x{SIZE}x{SIZE}"

    def sides(a: Tensor, b: Tensor) -> dict[str, Any]:
        calls = {"softargmax": lambda: sa.log_matmul(a, b), "torch": lambda: by_terms(a, b)}
        return calls | {"plain product": lambda: a @ b}

    yield Promise(name, sides(a, b), {"torch": 20, "plain product": 1 / 12}, rounds=7)
    yield Promise(f"{name}, float64", sides(a.double(), b.double()), {"torch": 20, "plain product": 1 / 12}, rounds=5)
    yield Promise(f"{name}, far", sides(1000 * a, 1000 * b), {"torch": 10}, rounds=5)
    backward = {"softargmax": both(sa.log_matmul, a, b), "torch": both(by_terms, a, b)}
    backward["plain product"] = both(torch.matmul, a, b)
    yield Promise(f"{name}, backward", backward, {"torch": 20, "plain product": 1 / 12}, rounds=5)
    warnings.filterwarnings("ignore", "where received a uint8 condition tensor")  # of pytorch-crf's masks
    yield from chains(generator)


def chains(generator: torch.Generator) -> Iterator[Promise]:
    """Yield the loss with its gradients, and the best paths, of a conditional random field."""
    sequences, length, tags = 64, 512, 32
    ours, theirs = sa.nn.LinearChainCRF(tags), torchcrf.CRF(tags, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    emissions = torch.randn(sequences, length, tags, generator=generator, requires_grad=True)
    target = torch.randint(tags, (sequences, length), generator=generator)
    loss = {
        "softargmax": lambda: torch.autograd.grad(ours(emissions, target), (emissions, *ours.parameters())),
        "pytorch-crf": lambda: torch.autograd.grad(-theirs(emissions, target), (emissions, *theirs.parameters())),
    }
    name = f"{sequences}x{length}x{tags}"
    yield Promise(f"CRF, loss and backward {name}", loss, {"pytorch-crf": 10}, rounds=7)
    fixed = emissions.detach()
    best = {"softargmax": lambda: ours.decode(fixed), "pytorch-crf": lambda: theirs.decode(fixed)}
    yield Promise(f"CRF, best paths {name}", best, {"pytorch-crf": 1}, rounds=7)


MEASURE = """
import json, sys, torch
from bench.peak import peak_of
from bench.structure import SIZE, both, by_terms
import softargmax as sa
function = {"softargmax": sa.log_matmul, "torch": by_terms}[sys.argv[1]]
a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
both(function, a[:, :8], b[:8])()
before, peak, _ = peak_of(both(function, a, b))
print(json.dumps({"peak": peak, "beyond": peak - before}))
"""


def memory() -> tuple[dict[str, Any], bool]:
    """Measure the memory of a forward and a backward pass, in a process of its own for each side."""
    found = []
    for side in ("softargmax", "torch"):
        record = measured(MEASURE, side)
        print(f"log_matmul {SIZE}, backward, {side}: {record['beyond'] >> 20} MiB")
        found.append({"name": f"log_matmul {SIZE}x{SIZE}x{SIZE}, backward, {side}", "scores": 4 * SIZE**3, **record})
    return {"memory": found}, found[0]["beyond"] < 64 << 20


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "structure", memory))
