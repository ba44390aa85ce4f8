"""The benchmark cases of ``softargmax bench``, by room (a subpackage of softargmax).

`ROOMS` maps the name of each room to a function that yields its cases. A case compares softargmax with torch and SciPy,
if they are installed. The cases here need no checkout of the repository. The repository's folder ``bench/`` has all
cases, with more shapes and with the required ratios of run times.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax
from softargmax.measure import OURS, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Sides = dict[str, "Callable[[], object]"]


def scores(*shape: int) -> np.ndarray[Any, Any]:
    """Return normally distributed float32 scores. Filling the array causes its page faults before any timing."""
    return np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(4)


def torch_side(z: np.ndarray[Any, Any], make: Callable[[Any, Any], Callable[[], object]]) -> Sides:
    """Return {"torch": make(torch, t)} with a tensor t that shares the memory of z, or {} if torch is not installed."""
    if find_spec("torch") is None:
        return {}
    import torch

    return {"torch": make(torch, torch.from_numpy(z))}


def scipy_side(make: Callable[[Any], Callable[[], object]]) -> Sides:
    """Return {"scipy": make(scipy.special)}, or {} if SciPy is not installed."""
    if find_spec("scipy") is None:
        return {}
    import scipy.special

    return {"scipy": make(scipy.special)}


def short() -> Iterator[Case]:
    """Yield the cases that the tour measures. They take a few seconds."""
    z = scores(512, 32768)
    out = np.empty_like(z)
    sides: Sides = {OURS: lambda: softargmax.softmax(z, out=out)}
    sides |= torch_side(z, lambda torch, t: partial(torch.softmax, t, -1, out=torch.from_numpy(out)))
    yield Case("softmax 512 x 32768, out=", sides, bytes=2 * z.nbytes)

    sides = {OURS: lambda: softargmax.logsumexp(z)}
    sides |= torch_side(z, lambda torch, t: lambda: torch.logsumexp(t, -1))
    sides |= scipy_side(lambda special: lambda: special.logsumexp(z, axis=-1))
    yield Case("logsumexp 512 x 32768", sides, bytes=z.nbytes)

    seven = np.array([1.0, 2, 3, 4, 1, 2, 3])
    sides = {OURS: lambda: softargmax.softmax(seven)}
    sides |= scipy_side(lambda special: lambda: special.softmax(seven))
    yield Case("softmax of 7 numbers", sides)


def normalize() -> Iterator[Case]:
    """Yield the cases of the softmax family: long rows, short rows, rows along axis 0, and 7 numbers."""
    yield from short()
    z = scores(512, 32768)
    sides: Sides = {OURS: lambda: softargmax.softmax(z)}
    sides |= torch_side(z, lambda torch, t: lambda: torch.softmax(t, -1))
    sides |= scipy_side(lambda special: lambda: special.softmax(z, axis=-1))
    yield Case("softmax 512 x 32768, fresh", sides, bytes=2 * z.nbytes)

    sides = {OURS: lambda: softargmax.log_softmax(z)}
    sides |= torch_side(z, lambda torch, t: lambda: torch.log_softmax(t, -1))
    yield Case("log_softmax 512 x 32768, fresh", sides, bytes=2 * z.nbytes)

    short_rows = scores(4096, 1024)
    out = np.empty_like(short_rows)
    sides = {OURS: lambda: softargmax.softmax(short_rows, out=out)}
    sides |= torch_side(short_rows, lambda torch, t: partial(torch.softmax, t, -1, out=torch.from_numpy(out)))
    yield Case("softmax 4096 x 1024, out=", sides, bytes=2 * short_rows.nbytes)

    tall = scores(8192, 4096)
    sides = {OURS: lambda: softargmax.softmax(tall, axis=0)}
    sides |= torch_side(tall, lambda torch, t: lambda: torch.softmax(t, 0))
    yield Case("softmax 8192 x 4096, axis 0", sides, bytes=2 * tall.nbytes)


def loss() -> Iterator[Case]:
    """Yield the cases of the losses: cross-entropy of scores, and of a last layer that never stores its scores."""
    z = scores(512, 32768)
    y = np.random.default_rng(1).integers(0, z.shape[1], len(z))
    sides: Sides = {OURS: lambda: softargmax.cross_entropy(z, y)}
    sides |= torch_side(z, lambda torch, t: partial(torch.nn.functional.cross_entropy, t, torch.from_numpy(y)))
    yield Case("cross_entropy 512 x 32768", sides, bytes=z.nbytes)

    sides = {OURS: lambda: softargmax.cross_entropy_and_gradient(z, y)}
    sides |= torch_side(z, lambda torch, t: torch_gradients(torch, lambda z: z, y, t))
    yield Case("cross_entropy_and_gradient 512 x 32768", sides, bytes=2 * z.nbytes)

    h, w = scores(1024, 512), scores(32768, 512) * np.float32(0.02)
    y_h = np.random.default_rng(2).integers(0, len(w), len(h))
    sides = {OURS: lambda: softargmax.linear_cross_entropy_and_gradient(h, w, y_h)}
    sides |= torch_side(h, lambda torch, t: torch_gradients(torch, torch.matmul, y_h, t, torch.from_numpy(w).mT))
    yield Case("linear_cross_entropy_and_gradient 1024 x 512 x 32768", sides)


def torch_gradients(torch: Any, score: Callable[..., Any], y: Any, *inputs: Any) -> Callable[[], object]:
    """Return a function that computes torch's cross-entropy and the gradients with respect to the inputs."""
    leaves, target = [t.detach().requires_grad_() for t in inputs], torch.from_numpy(y)
    return lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(score(*leaves), target), leaves)


ROOMS: dict[str, Callable[[], Iterator[Case]]] = {"normalize": normalize, "loss": loss}
