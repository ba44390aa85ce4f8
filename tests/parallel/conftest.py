"""One pool of processes, and one cluster of Dask, for all tests of a test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.parallel.workers import WORLD, Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    pool = Workers()
    yield pool
    assert pool.close() == [0] * WORLD


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A client of two workers of Dask, which are processes."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers, set_as_default=False) as client,
    ):
        yield client
