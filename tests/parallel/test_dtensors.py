"""DTensors in give DTensors out, on meshes with one and two dimensions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.parallel.cases import same, scores
from tests.parallel.workers import Workers

import softargmax

COLUMNS = 9001


def on_mesh(
    group: Any, name: str, shape: tuple[int, ...], placements: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Compare a function of a DTensor, and its gradient, with those of the whole tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    places = [Replicate() if one == "r" else Shard(int(one)) for one in placements]
    z = scores().requires_grad_()
    target = [torch.tensor([17, 4096, 8191, 0, COLUMNS - 1, -100])] if name == "cross_entropy" else []
    spread = distribute_tensor(z.detach(), mesh, places).requires_grad_()
    whole = getattr(softargmax, name)(z, *target, **options)
    found = getattr(softargmax, name)(spread, *target, **options)
    assert isinstance(found, DTensor)
    assert found.shape == whole.shape
    same(found.full_tensor(), whole)
    g = torch.arange(whole.numel(), dtype=torch.float32).reshape(whole.shape)
    whole.backward(g)
    found.backward(distribute_tensor(g, mesh, found.placements))
    assert isinstance(spread.grad, DTensor)
    assert spread.grad.placements == tuple(places)
    assert z.grad is not None
    same(spread.grad.full_tensor(), z.grad)


MESHES = [((4,), ("1",)), ((4,), ("0",)), ((4,), ("r",)), ((2, 2), ("0", "1")), ((2, 2), ("1", "r"))]


@pytest.mark.parametrize(("shape", "placements"), MESHES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "entropy"])
def test_maps_and_sums(workers: Workers, name: str, shape: tuple[int, ...], placements: tuple[str, ...]) -> None:
    workers.run(4, on_mesh, name, shape, placements, {})


@pytest.mark.parametrize(("shape", "placements"), MESHES)
def test_losses(workers: Workers, shape: tuple[int, ...], placements: tuple[str, ...]) -> None:
    options = {"reduction": "none", "label_smoothing": 0.1, "weight": torch.rand(COLUMNS) + 0.5}
    workers.run(4, on_mesh, "cross_entropy", shape, placements, options)


def with_options(group: Any, name: str, placement: int, options: dict[str, Any]) -> None:
    """Scores of three axes. Masks are tensors, and DTensors that are laid out in another way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    z = torch.randn(3, 4200, 5, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mask = torch.rand(3, 4200, 5, generator=torch.Generator().manual_seed(3)) < 0.8
    target = [torch.arange(15).reshape(3, 5) * 280] if name == "cross_entropy" else []
    whole = getattr(softargmax, name)(z, *target, axis=1, where=mask, **options)
    (expected,) = torch.autograd.grad(whole.square().sum(), z)
    for where in (mask, distribute_tensor(mask, mesh, [Replicate()]), distribute_tensor(mask, mesh, [Shard(0)])):
        spread = distribute_tensor(z.detach(), mesh, [Shard(placement)]).requires_grad_()
        found = getattr(softargmax, name)(spread, *target, axis=1, where=where, **options)
        assert found.shape == whole.shape
        same(found.full_tensor(), whole)
        (got,) = torch.autograd.grad(found.square().sum(), spread)
        same(got.full_tensor(), expected)


@pytest.mark.parametrize("placement", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {}),
        ("log_softmax", {}),
        ("logsumexp", {"keepdims": True}),
        ("entropy", {"keepdims": True}),
        ("cross_entropy", {"reduction": "none"}),
        ("cross_entropy", {}),
    ],
)
def test_axis_mask_and_keepdims(workers: Workers, name: str, options: dict[str, Any], placement: int) -> None:
    workers.run(4, with_options, name, placement, options)


def with_weights(group: Any, axis: int) -> None:
    """Weights of each score, in one process and in parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (group.size(),))
    torch.manual_seed(0)
    z, weights = torch.randn(6, COLUMNS), torch.rand(6, COLUMNS)
    parts = (distribute_tensor(x, mesh, [Shard(axis)]) for x in (z, weights))
    found = softargmax.logsumexp(next(parts), weights=next(parts))
    same(found.full_tensor(), softargmax.logsumexp(z, weights=weights))


@pytest.mark.parametrize("axis", [0, 1])
def test_weights(workers: Workers, axis: int) -> None:
    workers.run(4, with_weights, axis)


def test_the_mean_over_rows_that_are_whole_in_all_processes(workers: Workers) -> None:
    workers.run(4, on_mesh, "cross_entropy", (4,), ("1",), {})


def last_layer(
    group: Any, shape: tuple[int, ...], of_h: tuple[str, ...], of_w: tuple[str, ...], name: str, options: dict[str, Any]
) -> None:
    """Compare the loss of a sharded layer, and its gradients, with those of the whole layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    placements = [[Replicate() if one == "r" else Shard(int(one)) for one in of] for of in (of_h, of_w)]
    torch.manual_seed(0)
    h, w = torch.randn(12, 16), torch.randn(COLUMNS, 16)
    target = torch.randint(0, COLUMNS, (12,))
    whole = [x.clone().requires_grad_() for x in (h, w)]
    parts = [distribute_tensor(x, mesh, of).requires_grad_() for x, of in zip((h, w), placements, strict=True)]
    expected, found = (getattr(softargmax, name)(*x, target, **options) for x in (whole, parts))
    assert isinstance(found, DTensor)
    same(found.full_tensor(), expected)
    expected.sum().backward()
    found.sum().backward()
    for one, other in zip(parts, whole, strict=True):
        assert isinstance(one.grad, DTensor)
        assert other.grad is not None
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "of_h", "of_w"),
    [
        ((4,), ("r",), ("0",)),
        ((4,), ("0",), ("r",)),
        ((2, 2), ("0", "r"), ("r", "0")),
        ((2, 2), ("r", "r"), ("0", "r")),
    ],
)
def test_last_layers(workers: Workers, shape: Any, of_h: Any, of_w: Any) -> None:
    workers.run(4, last_layer, shape, of_h, of_w, "linear_cross_entropy", {"reduction": "none"})
    for options in ({}, {"softcap": 5.0, "temperature": 1.5}):
        workers.run(4, last_layer, shape, of_h, of_w, "linear_selected_log_softmax", options)


def divergence(group: Any, shape: tuple[int, ...], placements: tuple[str, ...]) -> None:
    """Compare the divergence of two DTensors, and both gradients, with those of whole tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    places = [Replicate() if one == "r" else Shard(int(one)) for one in placements]
    whole = [x.requires_grad_() for x in (scores(), scores(spread=3.0).roll(1, 0))]
    spread = [distribute_tensor(x.detach(), mesh, places).requires_grad_() for x in whole]
    expected, found = softargmax.kl_divergence(*whole), softargmax.kl_divergence(*spread)
    assert isinstance(found, DTensor)
    same(found.full_tensor(), expected)
    g = torch.arange(6.0)
    expected.backward(g)
    found.backward(distribute_tensor(g, mesh, found.placements))
    for one, other in zip(spread, whole, strict=True):
        assert isinstance(one.grad, DTensor)
        assert other.grad is not None
        same(one.grad.full_tensor(), other.grad)


@pytest.mark.parametrize(("shape", "placements"), MESHES)
def test_divergence(workers: Workers, shape: tuple[int, ...], placements: tuple[str, ...]) -> None:
    workers.run(4, divergence, shape, placements)


def one_row(group: Any) -> None:
    """Axes of size 1 that are sharded, and arguments that all rows share."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    z = torch.randn(1, 9)
    found = softargmax.softmax(distribute_tensor(z, mesh, [Shard(0)]))
    assert isinstance(found, DTensor)
    same(found.full_tensor(), softargmax.softmax(z))
    found = softargmax.softmax(distribute_tensor(z.T.contiguous(), mesh, [Shard(1)]))
    same(found.full_tensor(), torch.ones(9, 1))
    scores = torch.randn(8, 9)
    whole, shared = (torch.ones(1, 1).requires_grad_() for _ in range(2))
    softargmax.softmax(scores, temperature=whole).square().sum().backward()
    spread = distribute_tensor(scores, mesh, [Shard(0)])
    softargmax.softmax(spread, temperature=shared).square().sum().backward()
    assert shared.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(shared.grad, whole.grad)


def test_axes_of_size_one(workers: Workers) -> None:
    workers.run(4, one_row)


def refused(group: Any, name: str, placement: int, options: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    z = distribute_tensor(torch.zeros(4, 8), init_device_mesh("cpu", (4,)), [Shard(placement)])
    more = [torch.zeros(4, dtype=torch.int64)] if name == "cross_entropy" else []
    getattr(softargmax, name)(z, *more, **options)


@pytest.mark.parametrize(
    ("name", "placement", "options", "message"),
    [
        ("sparsemax", 1, {}, "DTensors are supported by softmax, log_softmax, logsumexp, entropy,"),
        ("cross_entropy", 0, {"reduction": "max"}, "reduction: expected"),
        ("softmax", 1, {"axis": 5}, "axis: expected an integer from -2 to 1, got 5"),
        ("softmax", 1, {"axis": None}, "axis: expected an integer from -2 to 1, got None"),
    ],
)
def test_what_is_refused(workers: Workers, name: str, placement: int, options: dict[str, Any], message: str) -> None:
    for _, text in workers.errors(4, refused, name, placement, options):
        assert text.startswith(message)
