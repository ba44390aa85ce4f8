"""A pool of processes in gloo groups, which run functions of the tests.

A function gets the group of its world size as its first argument. Its results come back in the order of the ranks. The
processes live as long as the pool, because each takes seconds to start.
"""

from __future__ import annotations

import datetime as dt
import functools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

WORLD = 4


class WorkerError(AssertionError):
    """An error in a process of the pool."""


class Workers:
    def __init__(self, world: int = WORLD, timeout: float = 20.0) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        ends = [context.Pipe() for _ in range(world)]
        self.pipes = [ours for ours, _ in ends]
        self.processes = [
            context.Process(target=serve, args=(theirs, rank, world, store, timeout), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for rank, process in enumerate(self.processes):
            # Each has its own order of a set of strings, as processes of torchrun do, and the same in every run.
            with mock.patch.dict(os.environ, PYTHONHASHSEED=str(rank)):
                process.start()

    def start(self, world: int, function: Callable[..., Any], *arguments: Any) -> None:
        for pipe in self.pipes[:world]:
            pipe.send((world, function, arguments))

    def results(self, world: int) -> list[tuple[Any, Any]]:
        """Return (result, None) or (None, (type of the error, its text, its traceback)) of every process."""
        return [pipe.recv() for pipe in self.pipes[:world]]

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        self.start(world, function, *arguments)
        found = self.results(world)
        wrong = [f"rank {rank}:\n{error[2]}" for rank, (_, error) in enumerate(found) if error is not None]
        if wrong:
            raise WorkerError("\n".join(wrong))
        return [result for result, _ in found]

    def errors(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, str]]:
        """Run a function that must fail in all processes. Return the types and texts of the errors."""
        self.start(world, function, *arguments)
        found = self.results(world)
        assert all(error is not None for _, error in found), found
        return [error[:2] for _, error in found]

    def close(self) -> list[int | None]:
        """End the processes, and return their exit codes: 0, or below 0 if a signal ended one."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                with suppress(BrokenPipeError):  # it has ended since
                    pipe.send(None)
        for process in self.processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()
        return [process.exitcode for process in self.processes]


def serve(pipe: Connection, rank: int, world: int, store: str, timeout: float) -> None:
    """Run the functions that arrive, until None arrives."""
    import torch
    import torch.distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    torch.set_num_threads(1)
    connecting, wait = dt.timedelta(seconds=120), dt.timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=connecting)
    groups = {n: dist.new_group(list(range(n)), timeout=connecting) for n in range(1, world + 1)}
    dist.barrier()
    for group in (dist.group.WORLD, *groups.values()):
        if isinstance(group, dist.ProcessGroup):  # a process outside of a group has a number in its place
            distributed_c10d._set_pg_timeout(wait, group)
    # A mesh has process groups of its own, and each of these a thread that polls until the process ends. So the tests
    # share the meshes of one shape.
    device_mesh.init_device_mesh = functools.cache(device_mesh.init_device_mesh)
    while (job := pipe.recv()) is not None:
        size, function, arguments = job
        try:
            pipe.send((function(groups[size], *arguments), None))
        except Exception as error:  # noqa: BLE001 the test looks at it
            pipe.send((None, (type(error).__name__, str(error), traceback.format_exc())))
    dist.destroy_process_group()
