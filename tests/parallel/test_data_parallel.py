"""Rows of DTensors, of which processes have parts. (Those of other tensors: test_rows_of_layers.py.)"""

from __future__ import annotations

from typing import Any

import torch
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax

ROWS, WIDTH, CLASSES = 2048, 16, 1000


def layer() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    h, w = (torch.randn(n, WIDTH, generator=generator) for n in (ROWS, CLASSES))
    return h, w, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def mean_of_rows(group: Any) -> None:
    """With DTensors, the loss has the bits of one process. Its gradients agree to rounding."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (group.size(),))
    h, w, target = layer()
    whole = [x.requires_grad_() for x in (h, w)]
    places = [Shard(0)], [Replicate()]
    spread = [distribute_tensor(x.detach(), mesh, of).requires_grad_() for x, of in zip(whole, places, strict=True)]
    loss = softargmax.linear_cross_entropy(*whole, target)
    found = softargmax.linear_cross_entropy(*spread, distribute_tensor(target, mesh, [Shard(0)]))
    same(found.full_tensor(), loss)
    loss.backward()
    found.backward()
    for one, other in zip(spread, whole, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-5, atol=1e-7)


def test_the_mean_of_all_rows(workers: Workers) -> None:
    workers.run(4, mean_of_rows)
