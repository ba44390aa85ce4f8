"""One pool of processes for all tests of a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.parallel.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()
