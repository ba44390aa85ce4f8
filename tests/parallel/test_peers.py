"""Bugs of other libraries, by name. Torch's functions or the formulas show them, and ours have the results of one
process.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.workers import Workers
from torch.nn import functional

import softargmax

CLASSES = 12


def scores(rows: int = 4, classes: int = CLASSES) -> torch.Tensor:
    return torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def mesh_of(group: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (group.size(),))


def spread(group: Any, x: torch.Tensor, axis: int) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(x, mesh_of(group), [Shard(axis)]).requires_grad_()


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


# --- label smoothing over classes that are spread ---------------------------------------------------------------------


def smoothing(group: Any) -> tuple[float, float]:
    """Megatron-LM#737, #7464: smoothing over this process's classes only. So each process has another loss."""
    z, target = scores().requires_grad_(), torch.tensor([0, 5, 11, 3])
    loss = functional.cross_entropy(z, target, label_smoothing=0.1)
    (expected,) = torch.autograd.grad(loss, z)
    of_mine = functional.log_softmax(z, -1).tensor_split(group.size(), -1)[group.rank()]
    over_mine = 0.9 * functional.cross_entropy(z, target) - 0.1 * of_mine.mean()
    ours = spread(group, z.detach(), 1)
    found = softargmax.cross_entropy(ours, target, label_smoothing=0.1)
    found.backward()
    assert close(found.full_tensor(), loss)
    assert close(ours.grad.full_tensor(), expected)
    return float(over_mine), float(loss)


def test_label_smoothing(workers: Workers) -> None:
    found = workers.run(4, smoothing)
    assert len({over_its_classes for over_its_classes, _ in found}) == 4
    assert all(abs(over_its_classes - loss) > 1e-3 * loss for over_its_classes, loss in found)


# --- a log-softmax beside a loss --------------------------------------------------------------------------------------


def beside_a_loss(group: Any) -> None:
    """pytorch#190746: inside loss_parallel, the gradient of a log_softmax is the incoming gradient."""
    from torch.distributed.tensor.parallel import loss_parallel

    z, g = scores().requires_grad_(), scores() ** 2
    (expected,) = torch.autograd.grad(functional.log_softmax(z, -1), z, g)
    of_torch, ours = (spread(group, z.detach(), 1) for _ in range(2))
    with loss_parallel():
        functional.log_softmax(of_torch, -1).backward(spread(group, g, 1).detach())
    assert close(of_torch.grad.full_tensor(), g)
    softargmax.log_softmax(ours).backward(spread(group, g, 1).detach())
    assert close(ours.grad.full_tensor(), expected)


def test_log_softmax_beside_a_loss(workers: Workers) -> None:
    workers.run(4, beside_a_loss)


# --- means over tokens ------------------------------------------------------------------------------------------------


def means(group: Any, ignored: int) -> tuple[float, float]:
    """torchtitan#1842, prime-rl#1957: the mean of the processes' means weighs their tokens differently. ms-swift#10085:
    a process without tokens makes it NaN.
    """
    z, target = scores(8).requires_grad_(), torch.arange(8)
    target[:ignored] = -100
    loss = functional.cross_entropy(z, target)
    (expected,) = torch.autograd.grad(loss, z)
    mine = slice(2 * group.rank(), 2 * group.rank() + 2)
    mean = functional.cross_entropy(z[mine], target[mine]).detach()
    dist.all_reduce(mean, group=group)
    ours = spread(group, z.detach(), 0)
    found = softargmax.cross_entropy(ours, spread_classes(group, target))
    found.backward()
    assert close(found.full_tensor(), loss)
    assert close(ours.grad.full_tensor(), expected)
    return float(mean / group.size()), float(loss)


def spread_classes(group: Any, target: torch.Tensor) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(target, mesh_of(group), [Shard(0)])


def test_mean_of_means(workers: Workers) -> None:
    for mean, loss in workers.run(4, means, 1):
        assert abs(mean - loss) > 0.01 * loss
    for mean, loss in workers.run(4, means, 3):
        assert math.isnan(mean)
        assert math.isfinite(loss)


# --- keys of another layer --------------------------------------------------------------------------------------------


def of_two_layers(group: Any, options: dict[str, Any]) -> None:
    """diffusers#14265: the backward pass of a layer used the keys that had visited last, those of another layer."""
    generator = torch.Generator().manual_seed(2)
    arrays = [torch.randn(1, 2, 24, 4, dtype=torch.float64, generator=generator) for _ in range(5)]

    def gradients(arrays: list[torch.Tensor], attention: Any, **options: Any) -> Any:
        q, *keys = leaves = [x.clone().requires_grad_() for x in arrays]
        first = q + attention(q, *keys[:2], causal=True, **options)
        second = first + attention(first, *keys[2:], causal=True, **options)
        return torch.autograd.grad(second.square().sum(), leaves)

    def mine(x: torch.Tensor) -> torch.Tensor:
        return x.tensor_split(group.size(), -2)[group.rank()]

    found = gradients([mine(x) for x in arrays], softargmax.parallel.attention, group=group, **options)
    for one, other in zip(found, gradients(arrays, softargmax.attention), strict=True):
        assert close(one, mine(other))


@pytest.mark.parametrize("by", ["heads", "keys", "parts"])
def test_keys_of_several_layers(workers: Workers, by: str) -> None:
    workers.run(3, of_two_layers, {"by": by})


# --- fewer classes than processes -------------------------------------------------------------------------------------


def of_torch_with_an_empty_part(group: Any) -> Any:
    """Torch's loss and gradient of 3 classes. A process without classes leaves out a message that the others send."""
    from torch.distributed.tensor.parallel import loss_parallel

    z, target = spread(group, scores(2, 3), 1), torch.tensor([0, 2])
    with loss_parallel():
        loss = functional.cross_entropy(z, target)
        loss.backward()
    return float(loss.to_local()), z.grad.full_tensor()


def with_an_empty_part(group: Any) -> None:
    z, target = scores(2, 3).requires_grad_(), torch.tensor([0, 2])
    loss = functional.cross_entropy(z, target)
    (expected,) = torch.autograd.grad(loss, z)
    ours = spread(group, z.detach(), 1)
    found = softargmax.cross_entropy(ours, target)
    found.backward()
    assert close(found.full_tensor(), loss)
    assert close(ours.grad.full_tensor(), expected)


def test_fewer_classes_than_processes(workers: Workers) -> None:
    workers.run(4, with_an_empty_part)


@pytest.mark.slow
def test_torch_with_fewer_classes_than_processes() -> None:
    """SkyRL#1832: torch's own processes get wrong numbers or wait for each other, so they are a pool of their own."""
    loss = float(functional.cross_entropy(scores(2, 3), torch.tensor([0, 2])))
    pool = Workers(4, timeout=3.0)
    try:
        pool.start(4, of_torch_with_an_empty_part)
        with suppress(EOFError):  # gloo has ended a process: it got a message of another length
            found = pool.results(4)
            assert any(error is not None or abs(result[0] - loss) > 1e-6 for result, error in found), found
    finally:
        pool.close()
