"""A process that ends in the middle of a call: the others raise an error soon, none is aborted, and they can go on."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.cases import COLUMNS, cuts, part, same, scores
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel

WORLD, ENDING, TIMEOUT = 3, 1, 5.0
"""The process that ends has one before it and one after it."""


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), requires_grad=True)


def attention(group: Any, **options: Any) -> torch.Tensor:
    """Each process has two blocks of keys, so nothing is moved before."""
    q, k, v = drawn(1, 3, 1024, 4), drawn(1, 3, 1024, 4), drawn(1, 3, 1024, 4)
    return parallel.attention(q, k, v, group=group, **options)


def mine(group: Any, kind: str) -> torch.Tensor:
    return part(group, scores().requires_grad_(), cuts(kind, group.size()))


def rows(group: Any, count: int, **options: Any) -> torch.Tensor:
    """A last layer, of which each process has so many rows. dW is passed on in nine parts."""
    h, w = drawn(count, 64), drawn(9000, 64)
    target = torch.zeros(count, dtype=torch.int64)
    return parallel.linear_cross_entropy(h, w, target, by="rows", group=group, **options)


STEPS: dict[str, Callable[[Any], torch.Tensor]] = {
    "parts": lambda group: attention(group, by="parts"),
    "zigzag": lambda group: attention(group, by="parts", zigzag=True),
    "heads": lambda group: attention(group, by="heads"),
    "keys": lambda group: attention(group, by="keys"),
    "split keys": lambda group: parallel.attention_split_kv(
        drawn(1, 2, 3, 4), drawn(1, 2, 512, 4), drawn(1, 2, 512, 4), group=group
    ),
    "draws": lambda group: parallel.categorical(
        part(group, drawn(6, COLUMNS), cuts("blocks", group.size())), top_p=0.9, seed=0, group=group
    ),
    "moved scores": lambda group: parallel.softmax(mine(group, "even"), group=group),
    "divergence": lambda group: parallel.kl_divergence(mine(group, "blocks"), mine(group, "blocks"), group=group),
    "rows": lambda group: rows(group, 512),
    "cut rows": lambda group: rows(group, 600),
    "rows in any order": lambda group: rows(group, 512, reproducible=False),
}


def step(group: Any, name: str, kind: str = "", number: int = 0) -> None:
    """Both passes of a function. A process ends instead of its call `number` of a function of torch.distributed."""
    if kind and group.rank() == ENDING:
        function, calls = getattr(dist, kind), iter(range(number))

        def ending(*arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options) if next(calls, None) is not None else os._exit(1)

        setattr(dist, kind, ending)
    found = STEPS[name](group)
    if found.requires_grad:
        found.sum().backward()


FAULTS = {
    "keys that visit": ("parts", "irecv", 2),
    "queries that visit": ("parts", "irecv", 10),
    "two chunks of keys that visit": ("zigzag", "irecv", 6),
    "heads that are exchanged": ("heads", "isend", 1),
    "their gradients": ("heads", "irecv", 9),
    "queries of all": ("keys", "all_gather", 2),
    "states that are passed on": ("split keys", "recv", 0),
    "sums that come back": ("split keys", "irecv", 1),
    "rows that are dealt out": ("draws", "irecv", 1),
    "results of draws": ("draws", "all_gather", 2),
    "blocks that a cut divides": ("moved scores", "isend", 0),
    "sums of the backward pass": ("divergence", "all_gather", 5),
    "weights of rows": ("rows", "all_gather", 1),
    "parts of dW that are passed on": ("rows", "isend", 4),
    "dW that comes back": ("rows", "isend", 9),
    "losses of rows": ("rows", "all_gather", 2),
    "rows that are moved": ("cut rows", "isend", 1),
    "gradients of rows that were moved": ("cut rows", "irecv", 20),
    "dW in any order": ("rows in any order", "all_reduce", 3),
}
QUICK = ("keys that visit", "rows that are dealt out", "parts of dW that are passed on")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_process_that_ends(name: str) -> None:
    pool = Workers(WORLD, timeout=TIMEOUT)
    try:
        pool.run(WORLD, step, FAULTS[name][0])
        pool.start(WORLD, step, *FAULTS[name])
        begin = time.monotonic()
        for rank in range(WORLD):
            if rank == ENDING:
                continue
            result, error = answer(pool, rank)
            assert result is None
            assert error is not None, f"process {rank} has seen no error"
            assert error[0] == "RuntimeError"
            assert error[1].startswith(f"process {rank} of 3: another process of the group did not answer"), error[2]
        assert time.monotonic() - begin < 4 * TIMEOUT
    finally:
        codes = pool.close()
    assert codes == [int(rank == ENDING) for rank in range(WORLD)]


def answer(pool: Workers, rank: int) -> Any:
    """The result of a process, or its error."""
    assert pool.pipes[rank].poll(4 * TIMEOUT), f"process {rank} hangs"
    return pool.pipes[rank].recv()


def in_a_new_group(group: Any, store: str) -> None:
    """The processes that are left make a group of their own, in which a function has the bits of one process."""
    rank = [left for left in range(WORLD) if left != ENDING].index(group.rank())
    dist.destroy_process_group()
    of_two = dist.FileStore(store, WORLD - 1)
    wait = dt.timedelta(seconds=4 * TIMEOUT)
    dist.init_process_group("gloo", store=of_two, rank=rank, world_size=WORLD - 1, timeout=wait)
    whole = softargmax.softmax(scores())
    same(STEPS["moved scores"](dist.group.WORLD), part(dist.group.WORLD, whole, cuts("even", WORLD - 1)))


def test_the_others_make_a_new_group(tmp_path: Path) -> None:
    pool = Workers(WORLD, timeout=TIMEOUT)
    left = [rank for rank in range(WORLD) if rank != ENDING]
    try:
        pool.run(WORLD, step, "moved scores")
        pool.start(WORLD, step, *FAULTS["blocks that a cut divides"])
        assert all(answer(pool, rank)[1][0] == "RuntimeError" for rank in left)
        for rank in left:
            pool.pipes[rank].send((WORLD, in_a_new_group, (str(tmp_path / "store"),)))
        for rank in left:
            result, error = answer(pool, rank)
            assert (result, error) == (None, None), error
    finally:
        codes = pool.close()
    assert codes == [int(rank == ENDING) for rank in range(WORLD)]
