"""A cluster of Dask, and small blocks of rows."""

from __future__ import annotations

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
    """A client of two workers of Dask, which are processes."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers, set_as_default=False) as client,
    ):
        yield client
