"""A last layer whose classes are spread over processes: the loss, dh, dW and db have the bits of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.cases import CUTS, cuts, same
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel

N, D, CLASSES = 40, 24, 9001
RNG = np.random.default_rng(5)
TARGET = torch.from_numpy(RNG.integers(0, CLASSES, N))
TARGET[::7] = -100
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "exact": {"exact": True},
    "smooth, weight": {"label_smoothing": 0.1, "weight": torch.rand(CLASSES) + 0.5},
    "z-loss, soft-cap": {"z_loss": 0.01, "softcap": 5.0, "temperature": 1.5},
    "where": {"where": torch.from_numpy(RNG.random((N, CLASSES)) < 0.8)},
}


def layer(dtype: str, rows: int = N) -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    h, w, b = rng.standard_normal((rows, D)), rng.standard_normal((CLASSES, D)), rng.standard_normal(CLASSES)
    return [torch.from_numpy(x).to(getattr(torch, dtype)).requires_grad_() for x in (h, w, b)]


def compare(
    group: Any, dtype: str, options: dict[str, Any], broken: bool = False, target: torch.Tensor = TARGET
) -> None:
    for kind in CUTS:
        bounds, rank = cuts(kind, group.size(), CLASSES), group.rank()
        mine = slice(bounds[rank], bounds[rank + 1])
        h, w, b = layer(dtype)
        if broken:
            with torch.no_grad():
                h[3, 2] = torch.nan
                w[5000, 1] = torch.inf
        of_mine = target[:, mine] if target.ndim == 2 else target
        whole = softargmax.linear_cross_entropy(h, w, target, bias=b, **options)
        h_, w_, b_ = (x.detach().clone().requires_grad_() for x in (h, w[mine], b[mine]))
        local = {k: x[..., mine] if isinstance(x, torch.Tensor) else x for k, x in options.items()}
        found = parallel.linear_cross_entropy(h_, w_, of_mine, bias=b_, group=group, **local)
        same(found, whole)
        g = torch.linspace(0.5, 2.0, whole.numel(), dtype=whole.dtype).reshape(whole.shape)
        expected = torch.autograd.grad(whole, (h, w, b), g)
        got = torch.autograd.grad(found, (h_, w_, b_), g)
        for one, other in zip(got, (expected[0], expected[1][mine], expected[2][mine]), strict=True):
            same(one, other)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(workers: Workers, options: dict[str, Any]) -> None:
    for world in (1, 2, 3, 4):
        workers.run(world, compare, "float32", options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    for world in (1, 2, 3, 4):
        workers.run(world, compare, dtype, {})


@pytest.mark.parametrize("name", ["plain", "none", "smooth, weight", "z-loss, soft-cap", "where"])
def test_probabilities(workers: Workers, name: str) -> None:
    """Each process has its columns of the probabilities."""
    target = torch.from_numpy(RNG.dirichlet(np.full(CLASSES, 0.01), N).astype(np.float32))
    for world in (1, 2, 3, 4):
        workers.run(world, compare, "float32", OPTIONS[name], False, target)


def test_rows_and_classes_that_are_not_finite(workers: Workers) -> None:
    workers.run(3, compare, "float32", {}, True)


def in_any_order(group: Any, dtype: str) -> None:
    """The gradient of h adds up sums of 512 classes, in another order than in one process."""
    bounds, rank = cuts("even", group.size(), CLASSES), group.rank()
    mine = slice(bounds[rank], bounds[rank + 1])
    h, w, b = layer(dtype)
    whole = softargmax.linear_cross_entropy(h, w, TARGET, bias=b)
    expected = torch.autograd.grad(whole, (h, w, b))
    h_, w_, b_ = (x.detach().clone().requires_grad_() for x in (h, w[mine], b[mine]))
    reductions, all_reduce = 0, torch.distributed.all_reduce

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal reductions
        reductions += 1
        return all_reduce(*arguments, **options)

    torch.distributed.all_reduce = counted
    try:
        found = parallel.linear_cross_entropy(h_, w_, TARGET, bias=b_, group=group, reproducible=False)
    finally:
        torch.distributed.all_reduce = all_reduce
    assert reductions > 0
    got = torch.autograd.grad(found, (h_, w_, b_))
    same(found, whole)
    for one, other in zip(got[1:], (expected[1][mine], expected[2][mine]), strict=True):
        same(one, other)
    z = (h @ w.T + b).double().detach().requires_grad_()
    (dz,) = torch.autograd.grad(softargmax.cross_entropy(z, TARGET), z)
    rounding = torch.finfo(h.dtype).eps / 2
    bound = 2 * (CLASSES // 512 + 1 + group.size()) * rounding * (dz.abs() @ w.detach().double().abs())
    assert torch.all((got[0].double() - expected[0].double()).abs() <= bound)
    parts = [torch.empty_like(got[0]) for _ in range(group.size())]
    torch.distributed.all_gather(parts, got[0], group=group)
    for part in parts:
        same(part, got[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_in_any_order(workers: Workers, dtype: str) -> None:
    for world in (2, 4):
        workers.run(world, in_any_order, dtype)


def many_rows(group: Any) -> None:
    """Several parts of rows, each with its own exchanges."""
    torch.manual_seed(0)
    rows = 700
    target = torch.randint(0, CLASSES, (rows,))
    h, w, _ = layer("float32", rows)
    whole = softargmax.linear_cross_entropy(h, w, target)
    bounds, rank = cuts("ragged", group.size(), CLASSES), group.rank()
    mine = slice(bounds[rank], bounds[rank + 1])
    h_, w_ = h.detach().clone().requires_grad_(), w[mine].detach().clone().requires_grad_()
    found = parallel.linear_cross_entropy(h_, w_, target, group=group)
    same(found, whole)
    whole.backward()
    found.backward()
    for one, other in ((h_, h), (w_, w)):
        assert one.grad is not None
        assert other.grad is not None
        same(one.grad, other.grad if one is h_ else other.grad[mine])


def test_many_rows(workers: Workers) -> None:
    for world in (2, 3, 4):
        workers.run(world, many_rows)
