"""Workers that are killed in mid-fit: every fit has the same coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import pytest
from tests.classify.dask_fits import arrays
from tests.classify.fits import ESTIMATORS, NAMES, WEIGHT, X, fitted, same
from tests.parallel.dask_cases import kill_a_busy_worker, lose_a_worker, slowly, two_workers

from softargmax.classify import dask_rows
from softargmax.classify.objective import Objective

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_blocks")]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster for each test, because they kill its workers, and on a busy machine not all of these come back."""
    with two_workers() as client:
        yield client


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_worker_killed_in_a_pass(name: str, cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is killed in the second pass, while tasks run and others have finished."""
    fold, passes, killed = dask_rows.DaskBlocks.fold, [0], list[Future[None]]()
    mark = tmp_path / "killed"

    def kill() -> None:
        kill_a_busy_worker(cluster)
        mark.touch()

    def fold_and_kill(self: Any, *arguments: Any, **options: Any) -> Any:
        passes[0] += 1
        if passes[0] == 2:
            killed.append(thread.submit(kill))
        return fold(self, *arguments, **options)

    expected = fitted(name, X, NAMES, WEIGHT)
    cluster.wait_for_workers(2)
    monkeypatch.setattr(dask_rows.DaskBlocks, "fold", fold_and_kill)
    with cluster.as_current(), ThreadPoolExecutor(1) as thread:
        x = da.from_array(X, chunks=(50, 7)).map_blocks(slowly, until=mark)  # read in every pass
        y, weight = (array.rechunk(50).map_blocks(slowly, until=mark) for array in arrays((50, 7))[1:])
        found = fitted(name, x, y, weight)
    killed[0].result()
    same(found, expected)


def test_persisted_rows_of_a_lost_worker_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, seen = Objective.value_and_gradient, []
    expected = fitted("regression", X, NAMES, WEIGHT)
    # A cluster of its own: on a busy machine, a worker may not come back after `lose_a_worker`.
    with two_workers(set_as_default=True) as client:

        def lose(self: Any, table: Any) -> Any:
            seen.append(1)
            if len(seen) == 4:
                lose_a_worker(client)
            return evaluate(self, table)

        monkeypatch.setattr(Objective, "value_and_gradient", lose)
        found = fitted("regression", *[array.persist() for array in arrays((90, 7))])
    assert len(seen) > 4
    same(found, expected)
