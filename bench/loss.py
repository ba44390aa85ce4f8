"""Time the losses against torch and measure the memory of the last layer, for the shapes and targets that we promise.

    python -m bench.loss                    all cases, about 5 minutes on 2 cores; writes bench/results/loss.json
    python -m bench.loss linear 50257       only the cases whose names contain these words; writes nothing

Some scores come from a model that is trained first (`small_model`). Memory is measured in separate processes. It is the
peak resident memory of a forward and backward pass, minus the memory before the passes, minus the gradients. The exit
code is 1 if a target is missed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from bench.peak import measured
from bench.promises import Promise, main
from bench.small_model import trained
from torch import Tensor
from torch.nn.functional import cross_entropy, linear_cross_entropy

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# (N, D, K), the quantity that is bounded, and its bound in bytes. "beyond" is the memory beyond inputs and gradients,
# "peak" the peak memory of the process.
MEMORY: list[tuple[tuple[int, int, int], str, float]] = [
    ((1024, 512, 32_768), "beyond", 1024 * 32_768 * 4 / 8),
    ((2048, 768, 50_257), "beyond", 2048 * 50_257 * 4 / 8),
    ((256, 64, 1_000_000), "peak", 1 << 30),
]
MEASURE = """
import json, sys
import torch
import softargmax as sa
from bench.peak import peak_of
N, D, K = map(int, sys.argv[1:])
torch.set_num_threads(2)
h, w, y = torch.randn(N, D), torch.randn(K, D) / D**0.5, torch.randint(K, (N,))
small = torch.randn(4, 8, requires_grad=True)
sa.linear_cross_entropy(small, torch.randn(5, 8, requires_grad=True), torch.tensor([0, 1, 2, 3])).backward()
h.requires_grad_(), w.requires_grad_()
before, peak, _ = peak_of(lambda: sa.linear_cross_entropy(h, w, y).backward())
gradients = 4 * (h.numel() + w.numel())
print(json.dumps({"peak": peak, "beyond": peak - before - gradients, "scores": 4 * N * K}))
"""


def both(loss: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Return a call of a forward and backward pass. Each side's time includes allocating and freeing gradients."""
    return lambda: torch.autograd.grad(loss(*inputs), inputs)


def rows() -> Iterator[Promise]:
    """Yield the cases of losses that take scores."""
    yield from of_shape(512, 32_768, torch.float32)
    yield from of_shape(512, 32_768, torch.bfloat16)
    yield next(of_shape(4096, 1000, torch.float32, 2.0))


def of_shape(n: int, classes: int, dtype: torch.dtype, target: float = 6.0) -> Iterator[Promise]:
    """Yield the case of a forward and backward pass, and the case of a forward pass alone."""
    torch.manual_seed(1)
    z, y = torch.randn(n, classes).mul_(4).to(dtype), torch.randint(classes, (n,))
    leaf = z.clone().requires_grad_()
    name = f"{n}x{classes}" + (" bfloat16" if dtype == torch.bfloat16 else "")
    read = z.numel() * dtype.itemsize
    sides = {
        "softargmax": both(lambda z: sa.cross_entropy(z, y), leaf),
        "torch": both(lambda z: cross_entropy(z, y), leaf),
    }
    yield Promise(f"cross_entropy and backward {name}", sides, {"torch": target}, 3 * read)
    sides = {"softargmax": lambda: sa.cross_entropy(z, y), "torch": lambda: cross_entropy(z, y)}
    yield Promise(f"cross_entropy {name}", sides, {"torch": target}, read)


def small() -> Iterator[Promise]:
    """Yield calls whose cost is mostly overhead. A call without gradient may take at most 4 times torch's time."""
    z, y = torch.randn(4, 10), torch.randint(10, (4,))
    leaf = z.clone().requires_grad_()
    yield Promise(
        "cross_entropy 4x10",
        {"softargmax": lambda: sa.cross_entropy(z, y), "torch": lambda: cross_entropy(z, y)},
        {"torch": 0.25},
    )
    yield Promise(
        "cross_entropy and backward 4x10",
        {
            "softargmax": both(lambda z: sa.cross_entropy(z, y), leaf),
            "torch": both(lambda z: cross_entropy(z, y), leaf),
        },
        {},
    )


def arrays() -> Iterator[Promise]:
    """Yield the case on NumPy arrays, which may take at most 1.3 times the time of our own softmax."""
    rng = np.random.default_rng(3)
    z, y = rng.standard_normal((512, 32_768), np.float32) * np.float32(4), rng.integers(0, 32_768, 512)
    out = np.empty_like(z)
    yield Promise(
        "cross_entropy_and_gradient 512x32768, NumPy",
        {"softargmax": lambda: sa.cross_entropy_and_gradient(z, y), "our softmax": lambda: sa.softmax(z, out=out)},
        {"our softmax": 1 / 1.3},
        2 * z.nbytes,
    )


def layers() -> Iterator[Promise]:
    """Yield the cases of a last layer, with random weights and with the weights of a trained model."""
    for n, d, k in ((1024, 512, 32_768), (2048, 768, 50_257)):
        torch.manual_seed(4)
        h, w, y = torch.randn(n, d), torch.randn(k, d) / d**0.5, torch.randint(k, (n,))
        yield layer(f"linear_cross_entropy and backward {n}x{d}x{k}", h, w, y, 1.15, 1.4)
    h, y, w, loss = trained(1024, 512, 32_768)
    yield layer(f"linear_cross_entropy and backward, trained to a loss of {loss:.1f}", h, w, y, 1.5, 1.8)


def layer(name: str, h: Tensor, w: Tensor, y: Tensor, target: float, aim: float) -> Promise:
    """Return the case of a last layer with these hidden vectors, weights and targets."""
    h, w = h.requires_grad_(), w.requires_grad_()
    sides = {
        "softargmax": both(lambda h, w: sa.linear_cross_entropy(h, w, y), h, w),
        "torch": both(lambda h, w: cross_entropy(h @ w.T, y), h, w),
        "torch linear": both(lambda h, w: linear_cross_entropy(h, w, y), h, w),
    }
    peers = ("torch", "torch linear")
    work = 3 * h.shape[0] * h.shape[1] * w.shape[0] / 16
    return Promise(name, sides, dict.fromkeys(peers, target), 0, work, dict.fromkeys(peers, aim))


def promises() -> Iterator[Promise]:
    """Yield every case. The arrays of a group are freed before those of the next group are allocated."""
    for group in (rows, arrays, layers, small):
        yield from group()


def memory() -> tuple[dict[str, Any], bool]:
    """Measure the memory of the last layer. Return the record, and True if all cases are within their bounds."""
    found, kept = [], True
    for shape, what, bound in MEMORY:
        record = measured(MEASURE, *shape)
        verdict = "" if record[what] <= bound else " MISSED"
        kept = kept and not verdict
        name = "x".join(map(str, shape))
        mib = {key: f"{value / 2**20:.0f}" for key, value in record.items()}
        print(
            f"linear_cross_entropy {name}: scores would be {mib['scores']} MiB; beyond inputs and gradients "
            f"{mib['beyond']}, resident in all {mib['peak']} ({what} <= {bound / 2**20:.0f}){verdict}"
        )
        found.append({"name": name, **record, "what": what, "bound": bound})
    return {"memory": found}, kept


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "loss", memory))
