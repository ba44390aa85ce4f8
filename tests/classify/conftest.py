"""A cluster of Dask, and small blocks of rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even small problems into many blocks."""
    for module in ("covariances", "objective", "rows"):
        monkeypatch.setattr(f"softargmax.classify.{module}.BLOCK", 700)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A client of two workers of Dask, which no test may kill."""
    from tests.parallel.dask_cases import two_workers

    with two_workers() as client:
        yield client


@pytest.fixture
def keys_with_one_meaning() -> Iterator[None]:
    """Fail if the scheduler of a cluster was sent two different tasks of one name."""
    seen: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("distributed.scheduler")
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    assert [message for message in seen if "run_spec" in message] == []
