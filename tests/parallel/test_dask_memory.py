"""The memory of a cluster's workers beyond their input: a few chunks, not rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from bench.peak import reset_peak, resident
from distributed import wait
from tests.parallel.dask_cases import two_workers

import softargmax

pytestmark = pytest.mark.slow
ROWS, COLUMNS, CHUNK = 1024, 65_536, (256, 16_384)  # 16 chunks of 16 MiB; a row has four of them
NAMES = (
    *("softmax", "log_softmax", "logsumexp", "entropy", "soft_argmax", "categorical"),
    *("cross_entropy", "cross_entropy_terms", "cross_entropy_and_gradient"),
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of workers that have done nothing else."""
    with two_workers(set_as_default=True) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_needs_at_most_four_chunks_beyond_its_input(name: str, client: Any) -> None:
    z = da.random.default_rng(0).standard_normal((ROWS, COLUMNS), chunks=CHUNK, dtype=np.float32).persist()
    wait(z)
    options: dict[str, Any] = {"seed": 1} if name == "categorical" else {}
    options |= {"target": np.arange(ROWS)} if name.startswith("cross") else {}

    def total() -> Any:
        found = getattr(softargmax, name)(z, **options)
        results = found if isinstance(found, tuple) else (found,)
        return sum(one.sum() for one in results).compute()  # so that no worker has the whole result

    total()  # imports, and memory that a worker then keeps
    time.sleep(1)  # until workers have released results
    before = client.run(reset_peak)
    total()
    after = client.run(resident, "VmHWM")
    growth = max(after[worker] - before[worker] for worker in before)
    assert growth < 4 * z.nbytes / z.npartitions, f"{growth >> 20} MiB"
