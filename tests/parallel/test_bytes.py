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


def sent_for_draws(group: Any) -> int:
    from softargmax.core import torch_processes

    lengths: list[int] = []
    original = torch_processes.gathered
    torch_processes.gathered = lambda group, mine, every: lengths.append(max(every)) or original(group, mine, every)
    try:
        softargmax.parallel.categorical(torch.zeros(6, 5000), num_samples=7, seed=0, group=group)
    finally:
        torch_processes.gathered = original
    return sum(lengths)


def test_bytes_per_draw(workers: Workers) -> None:
    assert workers.run(2, sent_for_draws) == [6 * 7 * 32] * 2


def sent_for_split_keys(group: Any, slopes: bool) -> list[tuple[int, int]]:
    """Return the bytes of the forward and of the backward pass: those to the next process, or from the last one to all,
    and those of every process to all.
    """
    import torch.distributed as dist

    passed = to_all = 0
    isend, broadcast, all_gather = dist.isend, dist.broadcast, dist.all_gather

    def counted(send: Any, sends: bool) -> Any:
        def counting(x: torch.Tensor, *more: Any, **options: Any) -> Any:
            nonlocal passed
            passed += x.nbytes * sends
            return send(x, *more, **options)

        return counting

    def gathering(parts: Any, x: torch.Tensor, **options: Any) -> Any:
        nonlocal to_all
        to_all += x.nbytes
        return all_gather(parts, x, **options)

    q, k, v = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 1024, 8), torch.zeros(2, 2, 1024, 5)
    options = {"slopes": torch.ones(4, requires_grad=True)} if slopes else {}
    dist.isend, dist.broadcast = counted(isend, sends=True), counted(broadcast, group.rank() + 1 == group.size())
    dist.all_gather = gathering
    try:
        found = softargmax.parallel.attention_split_kv(q.requires_grad_(), k, v, group=group, **options)
        forward = passed, to_all
        found.sum().backward()
    finally:
        dist.isend, dist.broadcast, dist.all_gather = isend, broadcast, all_gather
    return [forward, (passed - forward[0], to_all - forward[1])]


def test_bytes_of_split_keys(workers: Workers) -> None:
    """No byte depends on the number of keys. One process sends nothing but its arguments."""
    queries = 2 * 4 * 3
    for world in (1, 2, 3):
        for slopes in (False, True):
            for forward, backward in workers.run(world, sent_for_split_keys, slopes):
                assert forward == (queries * (16 + 4 * 5) * (world > 1), HEADER)
                assert backward == (queries * (4 * 8 + 8 * slopes) * (world > 1), 1)
