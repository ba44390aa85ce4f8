"""Backend fixtures for all tests, and the selection of tests for `--quick`."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from tests.oracle.backends import BACKENDS, DIFFERENTIATING, Backend

from softargmax.core import dispatch

if dispatch.INTERPRETED:
    from tests.triton import interpreter

    interpreter.apply()

settings.register_profile("house", deadline=None, derandomize=True)  # every run draws the same cases
settings.load_profile("house")

# The sanitizers run in an environment without frameworks. pytest does not collect a folder there if every test of the
# folder needs a framework.
NEEDS = {"classify": "sklearn", "cli": "typer", "parallel": "torch"}
collect_ignore_glob = [f"{folder}/*" for folder, framework in NEEDS.items() if not find_spec(framework)]
collect_ignore_glob += [] if find_spec("dask") else ["*/*dask*"]
collect_ignore_glob += ["types/*"]  # programs for type checkers, one with deliberate errors

SANITIZED = [Path(__file__).parent / room for room in ("core", "native", "normalize", "loss", "sparse", "structure")]


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield each backend in turn, inside `backend.using()`."""
    request.param.array([0.0])  # skips the test if the library is not installed
    with request.param.using():
        yield request.param


@pytest.fixture(params=[backend for backend in BACKENDS if backend.library != "jax"], ids=str)
def quick(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield each backend except JAX, because JAX would compile every operation for every shape."""
    request.param.array([0.0])
    with request.param.using():
        yield request.param


@pytest.fixture(params=DIFFERENTIATING, ids=str)
def differentiating(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield each backend whose library computes derivatives."""
    request.param.array([0.0])
    with request.param.using():
        yield request.param


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run one case in 25 of each test; skip slow tests")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of SANITIZED folders for the sanitizers, except tests of the reference, which is not native."""
    if item.path.parent in SANITIZED:
        item.add_marker("sanitize")
    if "reference" in item.nodeid:
        item.add_marker("no_sanitize")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of `--quick`: one in 25 cases of each test, at least one, and all of `test_architecture.py`.

    A hash of the test's name selects the first case. Therefore the selected cases cover all backends, and a new test
    does not change the cases of other tests. The JAX cases of a test are skipped if the test has other cases, because
    JAX takes seconds to compile a case.
    """
    if not config.getoption("--quick"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            test = item.nodeid if item.path.name == "test_architecture.py" else item.nodeid.split("[")[0]
            cases[test].append(item)
    cases = {test: [item for item in found if "jax" not in item.name] or found for test, found in cases.items()}
    kept = [
        item for test, found in cases.items() for item in found[zlib.crc32(test.encode()) % min(25, len(found)) :: 25]
    ]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
