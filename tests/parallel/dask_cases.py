"""Scores, chunks and options of the tests with Dask arrays, and the comparison with arrays in memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import dask
import dask.array as da
import numpy as np
from tests.parallel.loss_options import loss_options

import softargmax

COLUMNS = 9001  # two whole blocks of 4096, and a part
ROWS = 6
CHUNKS: dict[str, Any] = {
    "one": (ROWS, COLUMNS),
    "rows": (2, COLUMNS),
    "blocks": (ROWS, 4096),
    "thousands": (ROWS, 1000),
    "both": (3, 5000),
    "two blocks": (1, 8192),
    "first score": (4, (1, COLUMNS - 1)),
    "ragged": ((1, 5), (4096, 4090, 7, 808)),
    "empty": (ROWS, (0, 4100, 0, COLUMNS - 4100)),
    "thirds": (4, 3333),
}
RNG = np.random.default_rng(3)
MASK = RNG.random((ROWS, COLUMNS)) < 0.7
TEMPERATURES = np.array([1.0, 2.0, 0.5, -1.0, np.inf, 0.0])
TARGET = np.array([17, 4096, 8191, 0, COLUMNS - 1, -100])
PROBABILITIES = RNG.dirichlet(np.full(COLUMNS, 0.01), ROWS).astype(np.float32)
WEIGHT = RNG.random(COLUMNS).astype(np.float32)

LOSSES = loss_options(WEIGHT, MASK) | {"dtype": {"dtype": "float64"}}


def scores(dtype: Any = np.float32, spread: float = 10.0) -> Any:
    """Scores of several rows, of which some have NaN, infinities, or nothing in the support."""
    z = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * spread
    z[1, COLUMNS // 3] = np.nan
    z[2] = -np.inf
    z[3, [0, COLUMNS - 1]] = np.inf
    z[4, ::2] = -np.inf
    return z.astype(dtype)


def refuses(*_: Any, **__: Any) -> NoReturn:
    """A scheduler that computes nothing."""
    raise AssertionError("a Dask array was computed, which nobody asked for")


def lazily(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function while nothing may be computed."""
    with dask.config.set(scheduler=refuses):
        return function(*arguments, **options)


def compare(name: str, chunks: Any, *more: Any, z: Any = None, scheduler: Any = "threads", **options: Any) -> None:
    """Call a function with scores in memory and with a Dask array. Shapes, dtypes and bits must be equal."""
    z = scores() if z is None else z
    function = getattr(softargmax, name)
    expected = function(z, *more, **options)
    with np.errstate(all="ignore"):
        found = lazily(function, da.from_array(z, chunks=chunks), *more, **options)
        pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
        for one, other in pairs:
            assert isinstance(one, da.Array)
            assert (one.shape, one.dtype, one._meta.dtype) == (np.shape(other), other.dtype, other.dtype)
            same(one.compute(scheduler=scheduler), other)


def same(found: Any, expected: Any) -> None:
    """Assert that two arrays have the same bits. All NaN are the same."""
    assert (np.shape(found), found.dtype) == (np.shape(expected), expected.dtype)
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found) & ~np.isnan(found), np.signbit(expected) & ~np.isnan(expected))


@contextmanager
def two_workers(*, set_as_default: bool = False) -> Iterator[Any]:
    """Yield a client of a new cluster of two workers, which are processes."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers, set_as_default=set_as_default) as client,
    ):
        yield client


def lose_a_worker(client: Any) -> None:
    """Kill the worker that has the most results, which another process then replaces.

    The nanny of a worker waits for at most 9 seconds until the killed process has ended, whatever timeout is passed. On
    a busy machine, that is not always enough. With raise_for_error=False, the scheduler then only forgets the worker.
    """
    has = client.has_what()
    worker = max(has, key=lambda address: len(has[address]))
    assert has[worker]
    client.restart_workers([worker], timeout=20, raise_for_error=False)


def kill_a_busy_worker(client: Any) -> None:
    """Wait until a worker has results and runs tasks. Kill its process, and wait until the scheduler has noticed.

    Another process replaces it, some time later.
    """
    processes = client.run(os.getpid)

    def busy() -> list[str]:
        has, runs = client.has_what(), client.processing()
        return [worker for worker in processes if has.get(worker) and runs.get(worker)]

    worker = wait_until(busy, "a worker has results and runs tasks")[0]
    os.kill(processes[worker], signal.SIGKILL)
    wait_until(lambda: worker not in client.has_what(), "the scheduler has noticed that a worker is lost")


def wait_until(condition: Callable[[], Any], event: str, seconds: float = 60.0) -> Any:
    """Wait until a condition is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s until {event}, which did not happen"
        time.sleep(0.002)
    return found


def slowly(x: Any, until: Path | None = None) -> Any:
    """Return a chunk after a while, so that a worker can be killed before all chunks are computed.

    If a file `until` is given, chunks are returned at once as soon as it exists.
    """
    if until is None or not until.exists():
        time.sleep(0.02)
    return x


def graph_of(results: Any) -> dict[Any, Any]:
    """Return the tasks that a scheduler gets for an array, or for several ones."""
    arrays = [x for x in (results if isinstance(results, tuple) else (results,)) if x is not None]
    return {key: task for array in dask.optimize(*arrays) for key, task in dict(array.__dask_graph__()).items()}
