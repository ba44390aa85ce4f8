"""Sums and means over the rows of all processes: DTensors whose rows are sharded, and what DDP and FSDP need."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.parallel.cases import COLUMNS, same, scores
from tests.parallel.workers import Workers

import softargmax

ROWS = 6  # on four processes: 2, 2, 2 and 0
TARGET = torch.tensor([17, 4096, -100, 0, COLUMNS - 1, -100])
WEIGHT = torch.rand(COLUMNS, generator=torch.Generator().manual_seed(0)) + 0.5
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "weight": {"weight": WEIGHT},
    "list": {"weight": WEIGHT.tolist()},
    "smooth": {"label_smoothing": 0.1, "weight": WEIGHT, "z_loss": 0.01, "dtype": torch.float64},
}
MESHES = [((4,), ("0",)), ((2, 2), ("0", "1")), ((2, 2), ("1", "0")), ((2, 2), ("0", "r"))]


def finite_scores(dtype: str = "float32") -> torch.Tensor:
    return scores(dtype).nan_to_num(0.0, 50.0, -50.0)


def on_mesh(
    group: Any,
    name: str,
    shape: tuple[int, ...],
    placements: tuple[str, ...],
    target: Any,
    options: dict[str, Any],
    dtype: str = "float32",
) -> None:
    """Compare results and gradients with those of the whole tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    places = [Replicate() if one == "r" else Shard(int(one)) for one in placements]
    z = finite_scores(dtype).requires_grad_()
    spread = distribute_tensor(z.detach(), mesh, places).requires_grad_()
    whole, found = (getattr(softargmax, name)(x, target, **options) for x in (z, spread))
    both = zip(found, whole, strict=True) if isinstance(whole, tuple) else [(found, whole)]
    for one, other in both:
        assert isinstance(one, DTensor)
        same(one.full_tensor(), other)
        for g in (1.0, 0.3):
            (expected,) = torch.autograd.grad(other.sum() * g, z, retain_graph=True)
            (got,) = torch.autograd.grad(one.sum() * g, spread, retain_graph=True)
            assert isinstance(got, DTensor)
            same(got.full_tensor(), expected)


@pytest.mark.parametrize(("shape", "placements"), MESHES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_classes(workers: Workers, options: dict[str, Any], shape: Any, placements: Any) -> None:
    workers.run(4, on_mesh, "cross_entropy", shape, placements, TARGET, options)


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"reduction": "none"}], ids=[*OPTIONS.keys(), "none"])
def test_terms(workers: Workers, options: dict[str, Any]) -> None:
    for shape, placements in MESHES[:2]:
        workers.run(4, on_mesh, "cross_entropy_terms", shape, placements, TARGET, options)
    workers.run(4, on_mesh, "cross_entropy_terms", (4,), ("1",), TARGET, options)


def test_selected_classes(workers: Workers) -> None:
    for index in (TARGET, torch.stack([TARGET, TARGET.flip(0), TARGET], -1)):
        for shape, placements in (*MESHES, ((4,), ("1",))):
            workers.run(4, on_mesh, "selected_log_softmax", shape, placements, index, {})


def test_probabilities_and_dtypes(workers: Workers) -> None:
    target = torch.softmax(finite_scores(), -1)
    workers.run(4, on_mesh, "cross_entropy", (4,), ("0",), target, {})
    for dtype in ("bfloat16", "float64"):
        workers.run(4, on_mesh, "cross_entropy", (4,), ("0",), TARGET, {}, dtype)


def test_ignored_rows(workers: Workers) -> None:
    """If all rows are ignored, the mean and its gradient are 0. If those of some processes are, the others decide."""
    for target in (torch.full((ROWS,), -100), torch.tensor([5, 6, -100, -100, -100, -100])):
        workers.run(4, on_mesh, "cross_entropy", (4,), ("0",), target, {})


def last_layer(group: Any, options: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    whole = [torch.randn(ROWS, 16).requires_grad_(), torch.randn(COLUMNS, 16).requires_grad_()]
    places = [[Shard(0)], [Replicate()]]
    parts = [distribute_tensor(x.detach(), mesh, of).requires_grad_() for x, of in zip(whole, places, strict=True)]
    expected, found = (softargmax.linear_cross_entropy(*x, TARGET, **options) for x in (whole, parts))
    same(found.full_tensor(), expected)
    expected.backward()
    found.backward()
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-6, atol=1e-7)


def test_last_layers(workers: Workers) -> None:
    for options in (OPTIONS["plain"], OPTIONS["sum"], OPTIONS["weight"]):
        workers.run(4, last_layer, options)


def trained(group: Any, kind: str) -> None:
    """The gradient of a mean over all rows, in a model whose gradients a framework averages over the processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard
    from torch.nn.parallel import DistributedDataParallel

    mesh, rank = init_device_mesh("cpu", (4,)), group.rank()
    torch.manual_seed(0)
    x, target = torch.randn(8, 6, dtype=torch.float64), torch.tensor([1, -100, 4, 0, -100, -100, 2, 3])
    model = torch.nn.Linear(6, 5, dtype=torch.float64)
    softargmax.cross_entropy(model(x), target).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    if kind == "DDP":
        wrapped: Any = DistributedDataParallel(model)
    else:
        wrapped = fully_shard(model, mesh=mesh)
        if kind == "FSDP, divided by 1":
            wrapped.set_gradient_divide_factor(1.0)
    mine = slice(2 * rank, 2 * rank + 2)
    z, y = (DTensor.from_local(one, mesh, [Shard(0)]) for one in (wrapped(x[mine]), target[mine]))
    loss = softargmax.cross_entropy(z, y)
    (loss if kind == "FSDP, divided by 1" else loss * mesh.size()).backward()
    for p, other in zip(model.parameters(), expected, strict=True):
        found = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["DDP", "FSDP", "FSDP, divided by 1"])
def test_frameworks_that_average_gradients(workers: Workers, kind: str) -> None:
    workers.run(4, trained, kind)
