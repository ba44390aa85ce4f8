"""Time the softmax family against torch, SciPy and the scatter formula, for the shapes and targets that we promise.

    python -m bench.normalize                all cases, about 2 minutes on 2 cores; writes bench/results/normalize.json
    python -m bench.normalize softmax out=   only the cases whose names contain these words; writes nothing

In each case the sides take turns (`softargmax.measure`). The exit code is 1 if a target is missed. Run this program on
an idle machine. If the printed quartiles of a case are far apart, run the case again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import scipy.special
import torch
from bench.promises import Promise, main

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Iterator

# Number of vector multiplications (with or without an addition) per 16 float32 scores, over all passes of a kernel. In
# an exponential (1 + t) 2^k, computing t and 2^k takes 9, and the product 1. Computing a probability from t and 2^k
# takes 2. So softmax of a short row takes 9 + 1 + 2. softmax of a long row computes t and 2^k twice: 9 + 1 + 9 + 2. A
# backward pass takes 1 for the inner product and 2 for the vjp.
PER_16 = {"softmax": 21.0, "softmax of a short row": 12.0, "log_softmax": 10.0, "logsumexp": 10.0, "backward": 3.0}


def work(kernel: str, count: int) -> float:
    """Return the number of vector multiplications, of 16 floats each, that a kernel does for `count` scores."""
    return PER_16[kernel] * count / 16


def scores(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed scores. All pages of their memory are already allocated."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).mul_(4).to(dtype)


def wide() -> Iterator[Promise]:
    """Yield the cases on 512 x 32768."""
    z, size = scores(512, 32_768), 512 * 32_768
    out, moved = torch.empty_like(z), 8 * size
    a = z.numpy()
    yield Promise(
        "softmax 512x32768, out=",
        {"softargmax": lambda: sa.softmax(z, out=out), "torch": lambda: torch.softmax(z, -1, out=out)},
        {"torch": 1.2},
        moved,
        work("softmax", size),
        {"torch": 1.6},
    )
    yield Promise(
        "softmax 512x32768",
        {"softargmax": lambda: sa.softmax(z), "torch": lambda: torch.softmax(z, -1)},
        {"torch": 3.0},
        moved,
        work("softmax", size),
    )
    yield Promise(
        "softmax 512x32768, NumPy",
        {"softargmax": lambda: sa.softmax(a), "scipy": lambda: scipy.special.softmax(a, axis=-1)},
        {"scipy": 6.0},
        moved,
        work("softmax", size),
    )
    yield Promise(
        "log_softmax 512x32768",
        {"softargmax": lambda: sa.log_softmax(z), "torch": lambda: torch.log_softmax(z, -1)},
        {"torch": 3.0},
        moved,
        work("log_softmax", size),
    )
    yield Promise(
        "logsumexp 512x32768",
        {
            "softargmax": lambda: sa.logsumexp(z),
            "torch": lambda: torch.logsumexp(z, -1),
            "scipy": lambda: scipy.special.logsumexp(a, axis=-1),
        },
        {"torch": 6.0, "scipy": 10.0},
        4 * size,
        work("logsumexp", size),
    )
    g, leaf = torch.randn_like(z), z.clone().requires_grad_()
    ours, theirs = sa.softmax(leaf), torch.softmax(leaf, -1)
    yield Promise(
        "softmax backward 512x32768",
        {
            "softargmax": lambda: torch.autograd.grad(ours, leaf, g, retain_graph=True),
            "torch": lambda: torch.autograd.grad(theirs, leaf, g, retain_graph=True),
        },
        {"torch": 1.5},
        12 * size,
        work("backward", size),
    )


def bfloat16() -> Iterator[Promise]:
    """Yield the case on bfloat16."""
    z = scores(512, 32_768, dtype=torch.bfloat16)
    yield Promise(
        "softmax bfloat16 512x32768",
        {"softargmax": lambda: sa.softmax(z), "torch": lambda: torch.softmax(z, -1)},
        {"torch": 2.5},
        4 * z.numel(),
        work("softmax", z.numel()),
        {"torch": 4.0},
    )


def short_rows() -> Iterator[Promise]:
    """Yield the case on 4096 x 1024."""
    z = scores(4096, 1024)
    out = torch.empty_like(z)
    yield Promise(
        "softmax 4096x1024, out=",
        {"softargmax": lambda: sa.softmax(z, out=out), "torch": lambda: torch.softmax(z, -1, out=out)},
        {"torch": 1.5},
        8 * z.numel(),
        work("softmax of a short row", z.numel()),
    )


def columns() -> Iterator[Promise]:
    """Yield the case along axis 0."""
    z = scores(8192, 4096)
    yield Promise(
        "softmax 8192x4096, axis 0",
        {"softargmax": lambda: sa.softmax(z, axis=0), "torch": lambda: torch.softmax(z, 0)},
        {"torch": 3.0},
        8 * z.numel(),
        work("softmax", z.numel()),
    )


def one_row() -> Iterator[Promise]:
    """Yield the case of one long row."""
    z = scores(1 << 26)
    out = torch.empty_like(z)
    yield Promise(
        "softmax of 2^26, out=",
        {"softargmax": lambda: sa.softmax(z, out=out), "torch": lambda: torch.softmax(z, -1, out=out)},
        {"torch": 1.5},
        12 * z.numel(),  # z is larger than any cache, so it is read from memory twice
        work("softmax", z.numel()),
    )


def segments() -> Iterator[Promise]:
    """Yield the case of ragged rows. The peer is the scatter formula, whose index is computed before the timed call."""
    z, count = scores(1_000_000), 50_000
    cuts = np.sort(np.random.default_rng(2).integers(0, z.numel() + 1, count - 1))
    offsets = np.concatenate([[0], cuts, [z.numel()]])
    lengths = torch.from_numpy(np.diff(offsets))
    index = torch.repeat_interleave(torch.arange(count), lengths)
    places = torch.from_numpy(offsets)

    def scatter() -> torch.Tensor:
        largest = torch.full((count,), -torch.inf).scatter_reduce_(0, index, z, "amax")
        e = torch.exp(z - largest[index])
        return e / torch.zeros(count).scatter_add_(0, index, e)[index]

    assert torch.allclose(scatter(), sa.segment_softmax(z, places), rtol=1e-4)  # noqa: S101
    yield Promise(
        "segment_softmax, 10^6 scores in 50,000 segments",
        {"softargmax": lambda: sa.segment_softmax(z, places), "torch scatter": scatter},
        {"torch scatter": 5.0},
        8 * z.numel() + 8 * count,
        work("softmax of a short row", z.numel()),
    )


def small() -> Iterator[Promise]:
    """Yield the calls whose cost is mostly overhead."""
    a = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0], np.float32)
    t = torch.from_numpy(a)
    yield Promise(
        "softmax of 7, NumPy",
        {"softargmax": lambda: sa.softmax(a), "scipy": lambda: scipy.special.softmax(a)},
        {"scipy": 3.0},
    )
    yield Promise(
        "softmax of 7, tensor",
        {"softargmax": lambda: sa.softmax(t), "torch": lambda: torch.softmax(t, -1)},
        {"torch": 1 / 3},  # at most 3 times torch's time
    )


def promises() -> Iterator[Promise]:
    """Yield every case. The arrays of a group are freed before those of the next group are allocated."""
    for group in (wide, bfloat16, short_rows, columns, one_row, segments, small):
        yield from group()


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "normalize"))
