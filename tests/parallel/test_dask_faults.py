"""Workers of a cluster that are killed while tasks run: their chunks are computed again, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from tests.parallel.dask_cases import kill_a_busy_worker, lose_a_worker, same, scores, slowly, two_workers

import softargmax

pytestmark = pytest.mark.slow
ROWS, COLUMNS = 60, 9001
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "softmax": ((), {}),
    "entropy": ((), {}),
    "cross_entropy": ((np.arange(ROWS),), {"label_smoothing": 0.1}),
    "cross_entropy_and_gradient": ((np.arange(ROWS),), {}),
    "categorical": ((), {"seed": 1}),
    "sparsemax": ((), {}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with two_workers() as found:
        yield found


@pytest.mark.parametrize("name", CALLS)
def test_a_worker_killed_while_tasks_run(name: str, client: Any) -> None:
    (more, options), function = CALLS[name], getattr(softargmax, name)
    z = np.random.default_rng(0).normal(0, 5, (ROWS, COLUMNS)).astype(np.float32)
    client.wait_for_workers(2)
    found = function(da.from_array(z, chunks=(3, 5000)).map_blocks(slowly), *more, **options)
    arrays = found if isinstance(found, tuple) else (found,)
    futures = client.compute(arrays)
    kill_a_busy_worker(client)
    assert not any(future.done() for future in futures)
    expected = function(z, *more, **options)
    results = client.gather(futures)
    for one, other in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        same(one, np.asarray(other))


def test_results_of_a_lost_worker_are_computed_again(client: Any) -> None:
    z = scores()
    client.wait_for_workers(2)
    with client.as_current():
        p = softargmax.softmax(da.from_array(z, chunks=(3, 5000))).persist()
        wait(p)
        lose_a_worker(client)
        same(p.compute(), softargmax.softmax(z))
