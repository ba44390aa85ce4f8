"""Train vectors of words on pairs of neighbours, in one process or in several that share the classes."""

from __future__ import annotations

import datetime as dt
import hashlib
import multiprocessing
import queue
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

import softargmax as sa
from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

    from torch.distributed import ProcessGroup

    from softargmax.cli.words.vocabulary import Ints

WIDTH, ROWS, RATE = 64, 512, 2.0
PATIENCE = 120  # seconds until a result of a process must be there


class Trained(NamedTuple):
    """The loss of each step in hexadecimal digits, a digest of each row of W, and the seconds of training."""

    losses: list[str]
    digests: list[str]
    seconds: float


def trained(text: Ints, classes: int, steps: int, group: ProcessGroup | None = None) -> Trained:
    """Predict each word from the one before it. A process of a group has its part of the rows of W."""
    torch.manual_seed(0)
    vectors, whole = torch.randn(classes, WIDTH).requires_grad_(), torch.randn(classes, WIDTH) / WIDTH**0.5
    rank, world = (0, 1) if group is None else (group.rank(), group.size())
    w = whole[classes * rank // world : classes * (rank + 1) // world].clone().requires_grad_()
    words, losses = torch.from_numpy(text).long(), []
    start = time.perf_counter()
    for step in range(steps):
        before, after = words[step * ROWS : (step + 1) * ROWS], words[step * ROWS + 1 : (step + 1) * ROWS + 1]
        h = torch.nn.functional.embedding(before, vectors)  # the backward of vectors[before] adds in any order
        if group is None:
            loss = sa.linear_cross_entropy(h, w, after)
        else:
            loss = sa.parallel.linear_cross_entropy(h, w, after, group=group)
        gradients = torch.autograd.grad(loss, (vectors, w))
        with torch.no_grad():
            for x, gradient in zip((vectors, w), gradients, strict=True):
                x.sub_(RATE * gradient)
        losses.append(loss.item().hex())
    seconds = time.perf_counter() - start
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in w.detach().numpy()]
    return Trained(losses, digests, seconds)


def _serve(rank: int, world: int, store: str, results: Any, arguments: tuple[Ints, int, int]) -> None:
    wait = dt.timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=wait)
    results.put((rank, trained(*arguments, group=dist.group.WORLD)))
    dist.destroy_process_group()


def _result(results: Any, processes: Sequence[BaseProcess]) -> tuple[int, Trained]:
    """The next result of any process. Raise FailedRunError if one has ended by an error."""
    for _ in range(PATIENCE):
        with suppress(queue.Empty):
            found: tuple[int, Trained] = results.get(timeout=1)
            return found
        for rank, process in enumerate(processes):
            if process.exitcode:
                ended = f"ended with exit code {process.exitcode}, before it was trained"
                raise FailedRunError(f"process {rank} of {len(processes)} {ended}; it has printed its error")
    raise FailedRunError(f"expected results of {len(processes)} processes, got none for {PATIENCE} s")


def trained_by(world: int, text: Ints, classes: int, steps: int) -> Trained:
    """Train in `world` new processes. The digests are those of all rows of W, in their order."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        each = (world, (Path(folder) / "store").as_uri(), results, (text, classes, steps))
        processes = [context.Process(target=_serve, args=(rank, *each), daemon=True) for rank in range(world)]
        for process in processes:
            process.start()
        found = [one for _, one in sorted(_result(results, processes) for _ in processes)]
        for process in processes:
            process.join()
    if any(one.losses != other.losses for one, other in pairwise(found)):
        raise AssertionError("the processes found different losses")
    return Trained(found[0].losses, [x for one in found for x in one.digests], max(one.seconds for one in found))
