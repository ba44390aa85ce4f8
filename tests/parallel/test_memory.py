"""The memory of a step: the peak of a process beyond its inputs is what docs/parallel.md says.

Each step runs in processes of its own, so that none can use memory that another one has freed. A small step comes
first, because it reads code and opens connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from bench.peak import peak_of
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel
from softargmax.core import _native

MIB = 1 << 20
SLACK = 4 * MIB
"""Messages and other small arrays, the packed blocks of products, and whole pages."""
WIDTH = 64


def peak(world: int, step: Callable[..., int], *arguments: Any) -> int:
    """The peak of the process that needs most."""
    pool = Workers(world)
    try:
        return max(pool.run(world, step, *arguments))
    finally:
        pool.close()


def beyond(call: Callable[..., Any], small: tuple[torch.Tensor, ...], arrays: tuple[torch.Tensor, ...]) -> int:
    """The peak beyond inputs and gradients."""
    call(*small)
    before, most, gradients = peak_of(lambda: call(*arrays))
    return most - before - sum(x.nbytes for x in gradients)


def vectors(*shape: int) -> torch.Tensor:
    """Random vectors, equal in all processes."""
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


# --- attention --------------------------------------------------------------------------------------------------------

HEADS, GROUPS = 8, 4


def split_keys(group: Any, queries: int, keys: int) -> int:
    """Attention of the same queries to the keys of all processes."""

    @torch.no_grad()
    def call(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor]:
        return (parallel.attention_split_kv(q, k, k, causal=True, group=group),)

    small, arrays = ((vectors(1, HEADS, n), vectors(1, GROUPS, m)) for n, m in ((1, 512), (queries, keys)))
    return beyond(call, small, arrays)


@pytest.mark.parametrize("queries", [1, 500])
def test_split_keys(queries: int) -> None:
    """The states of all queries, at most 16 MiB of states of blocks, and with several queries the packed keys and
    values of a head. The keys and values of the other process would take more.
    """
    keys = 65_536
    states, of_head = queries * HEADS * (16 + 4 * WIDTH), keys * 2 * WIDTH * 4
    bound = states + SLACK + (16 * MIB + of_head if queries > 1 else 0)
    assert bound < GROUPS * of_head
    assert peak(2, split_keys, queries, keys) < bound


def sequences(group: Any, heads: int, groups: int, length: int, by: str | None) -> int:
    """Both passes of causal attention, or of one process that has whole sequences."""

    def call(*arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        over: Any = softargmax.attention if by is None else partial(parallel.attention, by=by, group=group)
        return torch.autograd.grad(over(*arrays, causal=True).sum(), arrays)

    small, arrays = (tuple(vectors(1, n, count) for n in (heads, groups, groups)) for count in (8, length))
    return beyond(call, small, arrays)


def test_sequences_by_heads() -> None:
    """A process needs as much as if it had its heads alone. Besides, it has q, k and v of these heads, and their
    gradients; its parts of the output and of its gradient; and the parts of one array that are sent and received.
    """
    length, world = 2048, 4
    alone = peak(1, sequences, HEADS // world, GROUPS // world, length * world, None)
    of_q, of_k = (heads * length * WIDTH * 4 for heads in (HEADS, GROUPS))
    bound = alone + 2 * (of_q + 2 * of_k) + 4 * of_q + SLACK
    assert bound < 2 * world * (of_q + 2 * of_k + of_q)  # q, k, v and the output of all heads, and gradients
    assert peak(world, sequences, HEADS, GROUPS, length, "heads") < bound


def test_sequences_by_keys_and_by_parts() -> None:
    """By keys, a process has q, the output and their gradients of all processes. By parts, it has its own."""
    length, world = 2048, 4
    peaks = {by: peak(world, sequences, HEADS, 1, length, by) for by in ("parts", "keys")}
    assert peaks["parts"] < 0.5 * peaks["keys"], peaks
    assert peaks["keys"] > 4 * world * HEADS * length * WIDTH * 4, peaks


# --- last layers ------------------------------------------------------------------------------------------------------


def layer(group: Any, by: str, rows: int, classes: int) -> int:
    """Both passes of a last layer. The arrays of this process have so many rows and classes."""

    def call(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        target = torch.arange(len(h)) % len(w)
        return torch.autograd.grad(parallel.linear_cross_entropy(h, w, target, by=by, group=group), (h, w))

    small, arrays = ((vectors(n), vectors(m)) for n, m in ((8, 8), (rows, classes)))
    return beyond(call, small, arrays)


def test_classes_of_a_last_layer() -> None:
    """At most an eighth of the scores of this process's classes."""
    rows, classes = 2048, 32_768
    assert peak(2, layer, "classes", rows, classes) < rows * classes * 4 / 8


def test_rows_of_a_last_layer() -> None:
    """The scores of one part: at most an eleventh of those of all rows. A cut between 512 rows moves nothing."""
    rows, classes, world = 2048, 32_768, 2
    part = _native.bounds_of_parts(world * rows, WIDTH, classes, _native.PARTS)[1]
    assert part <= -(-world * rows // 11)
    assert peak(world, layer, "rows", rows, classes) < part * classes * 4 + SLACK
