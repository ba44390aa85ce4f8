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
    """A client of two workers of Dask, which no test may kill."""
    from tests.parallel.dask_cases import two_workers

    with two_workers() as client:
        yield client
