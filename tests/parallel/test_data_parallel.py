"""Rows of a last layer that are spread over processes: what has the bits of one process, and how dW can have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax
from softargmax.core import _native

ROWS, WIDTH, CLASSES = 2048, 16, 1000
CHAIN = 512
"""A product adds up sums over so many rows, in their order (core/cpp/matmul.hpp)."""


def layer(dtype: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    h, w = (torch.randn(n, WIDTH, dtype=getattr(torch, dtype), generator=generator) for n in (ROWS, CLASSES))
    return h, w, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def in_order_of_rows(group: Any, dtype: str) -> None:
    """Add up dW of 512 rows each, from process to process. One process adds in the same order if it computes all rows
    at once. The gradient of a process's own rows needs no others.
    """
    assert _native.bounds_of_parts(ROWS, WIDTH, CLASSES, _native.PARTS) == (0, ROWS)
    h, w, target = layer(dtype)
    whole = softargmax.linear_cross_entropy_and_gradient(h, w, target, reduction="sum")
    rank, world = group.rank(), group.size()
    dw = torch.zeros_like(w)
    if rank:
        dist.recv(dw, group=group, group_src=rank - 1)
    for start in range(ROWS * rank // world, ROWS * (rank + 1) // world, CHAIN):
        part = slice(start, start + CHAIN)
        found = softargmax.linear_cross_entropy_and_gradient(h[part], w, target[part], reduction="sum")
        same(found.dh, whole.dh[part])
        dw = dw + found.dw if start else found.dw
    if rank < world - 1:
        dist.send(dw, group=group, group_dst=rank + 1)
    dist.broadcast(dw, group=group, group_src=world - 1)
    same(dw, whole.dw)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_in_the_order_of_the_rows(workers: Workers, dtype: str) -> None:
    for world in (1, 2, 4):
        workers.run(world, in_order_of_rows, dtype)


def mean_of_rows(group: Any) -> None:
    """With DTensors, the loss has the bits of one process. Its gradients agree to rounding."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (group.size(),))
    h, w, target = layer("float32")
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
