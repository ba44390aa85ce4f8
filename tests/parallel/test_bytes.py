"""What the processes send is what docs/parallel.md says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.parallel.cases import cuts, scores
from tests.parallel.workers import Workers

import softargmax

HEADER = 25
CALLS = {"cross_entropy": 1, "selected_log_softmax": 1, "cross_entropy_terms": 3}
"""The functions that take classes, and how often they compare arguments."""
TARGET = torch.tensor([17, 4096, 8191, 0, 9000, -100])


def sent(group: Any, name: str, options: dict[str, Any], kind: str) -> tuple[int, int, int]:
    """Return the bytes of the forward and of the backward pass, and the largest number of blocks of a process."""
    from softargmax.core import torch_processes
    from softargmax.parallel import torch_agreement

    lengths: list[int] = []
    original = torch_processes.gathered

    def gathered(group: Any, mine: bytes, every: Any) -> list[bytes]:
        lengths.append(max(every))  # messages are padded to the longest
        return original(group, mine, every)

    bounds, rank = cuts(kind, group.size()), group.rank()
    z = scores()[:, bounds[rank] : bounds[rank + 1]].requires_grad_()
    torch_processes.gathered = torch_agreement.gathered = gathered
    try:
        target = [TARGET] if name in CALLS else []
        found = getattr(softargmax.parallel, name)(z, *target, group=group, **options)
        forward = sum(lengths)
        sum(x.sum() for x in (found if isinstance(found, tuple) else [found])).backward()
    finally:
        torch_processes.gathered = torch_agreement.gathered = original
    most = max(-(-(stop - start) // 4096) for start, stop in itertools.pairwise(bounds))
    return forward, sum(lengths) - forward, most


@pytest.mark.parametrize(
    ("name", "options", "forward", "backward"),
    [
        ("softmax", {}, 32, 8),
        ("log_softmax", {}, 32, 8),
        ("logsumexp", {}, 32, 32),  # the gradient computes a softmax
        ("entropy", {}, 64, 72),
        ("cross_entropy", {}, 40, 0),
        ("cross_entropy", {"label_smoothing": 0.1}, 128, 88),
        ("cross_entropy_terms", {}, 136, 104),
        ("selected_log_softmax", {}, 40, 0),
    ],
)
def test_bytes_per_row_and_block(
    workers: Workers, name: str, options: dict[str, Any], forward: int, backward: int
) -> None:
    for world in (2, 3):
        for first, second, blocks in workers.run(world, sent, name, options, "blocks"):
            assert first == HEADER * CALLS.get(name, 1) + 6 * blocks * forward
            assert second == 6 * blocks * backward


def test_one_process_sends_nothing_else(workers: Workers) -> None:
    ((forward, _, blocks),) = workers.run(1, sent, "softmax", {}, "even")
    assert (forward, blocks) == (HEADER + 6 * 3 * 32, 3)


def sent_for_draws(group: Any, columns: list[int], options: dict[str, Any]) -> int:
    """The bytes of all messages of a call with 6 rows and 7 draws. Each process has 3 high scores in every row."""
    import torch.distributed as dist

    lengths: list[int] = []
    gather, send = dist.all_gather, dist.isend

    def all_gather(parts: Any, x: torch.Tensor, **options: Any) -> Any:
        lengths.append(x.nbytes)
        return gather(parts, x, **options)

    def isend(x: torch.Tensor, **options: Any) -> Any:
        lengths.append(x.nbytes)
        return send(x, **options)

    z = torch.zeros(6, columns[group.rank()])
    z[:, :3] = 10.0
    dist.all_gather, dist.isend = all_gather, isend
    try:
        softargmax.parallel.categorical(z, seed=0, group=group, num_samples=7, **options)
    finally:
        dist.all_gather, dist.isend = gather, send
    return sum(lengths)


COLUMNS = [4096, 4000]


@pytest.mark.parametrize(
    ("options", "per_call", "per_row", "per_dealt_row"),
    [
        ({}, 0, 32 * 7, [0, 0]),
        ({"top_k": -1, "top_p": 1.0}, 0, 32 * 7, [0, 0]),
        ({"top_k": 10, "top_p": 0.9}, 8, 0, [10 * 16] * 2),
        ({"min_p": 0.5, "eta": 0.1}, 8, 4, [3 * 16] * 2),
        ({"top_k": 5000}, 8, 0, [4 * n for n in COLUMNS]),
        ({"top_k": 10, "top_p": 0.9, "order": "joint"}, 0, 0, [4 * n for n in COLUMNS]),
        ({"top_p": 0.9, "min_p": 0.5}, 0, 0, [4 * n for n in COLUMNS]),
        ({"replace": False}, 0, 0, [4 * n for n in COLUMNS]),
    ],
)
def test_bytes_of_draws(
    workers: Workers, options: dict[str, Any], per_call: int, per_row: int, per_dealt_row: list[int]
) -> None:
    found = workers.run(2, sent_for_draws, COLUMNS, options)
    results = 3 * (1 + 8 * 7) if any(per_dealt_row) else 0  # each process draws from 3 of the 6 rows
    assert found == [2 * HEADER + per_call + 6 * per_row + 3 * n + results for n in per_dealt_row]


def sent_for_split_keys(group: Any, slopes: bool) -> list[tuple[int, int]]:
    """Return the bytes of the forward and of the backward pass: those to one other process, and those to all."""
    import torch.distributed as dist

    passed = to_all = 0
    isend, all_gather = dist.isend, dist.all_gather

    def counted(x: torch.Tensor, **options: Any) -> Any:
        nonlocal passed
        passed += x.nbytes
        return isend(x, **options)

    def gathering(parts: Any, x: torch.Tensor, **options: Any) -> Any:
        nonlocal to_all
        to_all += x.nbytes
        return all_gather(parts, x, **options)

    q, k, v = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 1024, 8), torch.zeros(2, 2, 1024, 5)
    options = {"slopes": torch.ones(4, requires_grad=True)} if slopes else {}
    dist.isend, dist.all_gather = counted, gathering
    try:
        found = softargmax.parallel.attention_split_kv(q.requires_grad_(), k, v, group=group, **options)
        forward = passed, to_all
        found.sum().backward()
    finally:
        dist.isend, dist.all_gather = isend, all_gather
    return [forward, (passed - forward[0], to_all - forward[1])]


def test_bytes_of_split_keys(workers: Workers) -> None:
    """No byte depends on the number of keys. One process sends nothing but its arguments."""
    queries = 2 * 4 * 3
    for world in (1, 2, 3):
        for slopes in (False, True):
            for rank, (forward, backward) in enumerate(workers.run(world, sent_for_split_keys, slopes)):
                times = (rank > 0) + (rank + 1 < world)  # to the process before, and to the next one
                assert forward == (times * queries * (16 + 4 * 5), HEADER)
                assert backward == (times * queries * (4 * 8 + 8 * slopes), 1)
