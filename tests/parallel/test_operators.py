"""Torch operators with DTensors of which every process has some rows: nothing is sent, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax
from softargmax.core.dispatch import requesting
from softargmax.core.processes import spreading
from softargmax.normalize import operations
from softargmax.output import operations as output_operations

T, W = torch.linspace(0.5, 2.0, 6)[:, None], torch.linspace(0.1, 2.0, 9)
TARGET = torch.tensor([0, 8, 3, 3, -100, 5])

CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": softargmax.softmax,
    "softmax of rows with temperatures": lambda z: softargmax.softmax(z, temperature=T, where=z > -1),
    "softmax in other axes": lambda z: softargmax.softmax(z.reshape(6, 3, 3).mT, axis=1),
    "log_softmax": softargmax.log_softmax,
    "logsumexp": lambda z: softargmax.logsumexp(z, weights=W),
    "entropy": softargmax.entropy,
    "kl_divergence": lambda z: softargmax.kl_divergence(z, z.flip(0)),
    "renyi_entropy": lambda z: softargmax.renyi_entropy(z, 2.0),
    "logcumsumexp": softargmax.logcumsumexp,
    "losses": lambda z: softargmax.cross_entropy(z, TARGET, label_smoothing=0.1, weight=W, reduction="none"),
    "soft losses": lambda z: softargmax.cross_entropy(z, softargmax.softmax(z.detach()), reduction="none"),
    "sparsemax": softargmax.sparsemax,
    "entmax": lambda z: softargmax.entmax(z, alpha=1.5, temperature=T),
    "entmax_loss": lambda z: softargmax.entmax_loss(z, TARGET, reduction="none"),
}
Records = list[tuple[Any, Any]]


def operators(function: Callable[[Any], Any], z: torch.Tensor) -> Records:
    """The operations that a call computes, and the records of their arguments."""
    found: Records = []

    def serve(operation: Any, i: Any, first: bool, out: Any) -> Any:
        found.append((operation, i))
        with requesting(None):
            return operation.first(i) if first else operation(i)

    with spreading(serve):
        function(z)
    return found


def scores() -> torch.Tensor:
    return torch.randn(6, 9, generator=torch.Generator().manual_seed(2))


def by_rows(group: Any, name: str) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = DeviceMesh.from_group(group, "cpu")
    for operation, i in operators(CALLS[name], scores()):
        of = operation.torch
        assert of.sharded
        flat = of.flatten(i)
        first = next(place for place, x in enumerate(flat) if isinstance(x, torch.Tensor))
        plain, spread = list(flat), list(flat)
        for place, x in enumerate(flat):
            if isinstance(x, torch.Tensor):
                spread[place] = distribute_tensor(x, mesh, [Shard(0) if place == first else Replicate()])
        plain[first] = plain[first].clone().requires_grad_(operation.differentiable)
        spread[first].requires_grad_(operation.differentiable)
        sent = CommDebugMode()
        expected = of.overload(*plain)
        with sent:
            found = of.overload(*spread)
        assert sent.get_total_counts() == 0, (operation.name, sent.get_comm_counts())
        results = list(zip(*(x if of.many else (x,) for x in (found, expected)), strict=True))
        for one, other in results:
            if other.numel():
                assert one.placements == (Shard(0),), operation.name
                same(one.full_tensor(), other)
        if results[0][1].requires_grad:
            g = torch.randn(results[0][1].shape, dtype=results[0][1].dtype, generator=torch.Generator().manual_seed(1))
            (wanted,) = torch.autograd.grad(results[0][1], plain[first], g)
            g_ = distribute_tensor(g, mesh, [Shard(0)])
            with sent:
                (gradient,) = torch.autograd.grad(results[0][0], spread[first], g_)
            assert gradient.placements == (Shard(0),)
            same(gradient.full_tensor(), wanted)
        assert sent.get_total_counts() == 0, (operation.name, sent.get_comm_counts())


@pytest.mark.parametrize("name", CALLS)
def test_rows_of_each_process(workers: Workers, name: str) -> None:
    for world in (1, 2, 3):
        workers.run(world, by_rows, name)


def softmax_operator(z: Any, axis: int) -> Any:
    """The operator of the softmax along an axis."""
    return operations.softmax.torch.overload(z, None, None, None, 1.0, 0.0, [axis], None, z.dtype)[0]


def along_axes(group: Any) -> None:
    """Rows along both axes of one array, of which every process has some rows or some columns."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, z = DeviceMesh.from_group(group, "cpu"), torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    for place in (0, 1):
        for axis in (1, 0, 1):
            x, x_ = z.clone().requires_grad_(), distribute_tensor(z, mesh, [Shard(place)]).requires_grad_()
            expected, found = softmax_operator(x, axis), softmax_operator(x_, axis)
            same(found.full_tensor(), expected)
            expected.square().sum().backward()
            found.square().sum().backward()
            assert x.grad is not None
            assert x_.grad is not None
            same(x_.grad.full_tensor(), x.grad)


def test_other_axes(workers: Workers) -> None:
    """Torch finds the placement of each call, and brings whole rows together."""
    workers.run(3, along_axes)


def in_a_graph(group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch._dynamo.reset()
    mesh, z = init_device_mesh("cpu", (group.size(),)), torch.randn(8, 6, generator=torch.Generator().manual_seed(2))
    of = operations.softmax.torch.overload
    f = lambda z: of(2 * z, None, None, None, 1.0, 0.0, [1], None, torch.float32)[0]  # noqa: E731 dynamo traces it
    found = []
    for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        x = distribute_tensor(z, mesh, [Shard(0)]).requires_grad_()
        o = call(x)
        o.square().sum().backward()
        assert x.grad is not None
        found.append((o, x.grad))
    for one, other in zip(*found, strict=True):
        assert one.placements == other.placements == (Shard(0),)
        same(other.full_tensor(), one.full_tensor())
    torch._dynamo.reset()


def test_graphs(workers: Workers) -> None:
    workers.run(4, in_a_graph)


def without_rule(group: Any) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    z = distribute_tensor(torch.zeros(4, 6), DeviceMesh.from_group(group, "cpu"), [Shard(0)])
    return output_operations.linear_scores.torch.overload(z, z, None)


def test_operators_without_a_rule(workers: Workers) -> None:
    for _, text in workers.errors(2, without_rule):
        assert "softargmax.linear_scores.default does not have a sharding strategy registered" in text


def of_all_rows(group: Any) -> None:
    """A mean needs the rows of all processes, and so does its gradient."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(group, "cpu")
    ((operation, i),) = operators(lambda z: softargmax.cross_entropy(z, TARGET), scores())
    flat = operation.torch.flatten(i)
    x, x_ = scores().requires_grad_(), distribute_tensor(scores(), mesh, [Shard(0)]).requires_grad_()
    others = [distribute_tensor(x, mesh, [Replicate()]) if isinstance(x, torch.Tensor) else x for x in flat[1:]]
    expected, found = operation.torch.overload(x, *flat[1:])[0], operation.torch.overload(x_, *others)[0]
    same(found.full_tensor(), expected)
    expected.backward()
    found.backward()
    assert x.grad is not None
    assert x_.grad is not None
    same(x_.grad.full_tensor(), x.grad)


def test_a_mean_of_all_rows(workers: Workers) -> None:
    workers.run(3, of_all_rows)
