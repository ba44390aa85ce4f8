"""Fixtures of every test: the backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.oracle.backends import BACKENDS, DIFFERENTIATING, Backend

settings.register_profile("house", deadline=None, derandomize=True)  # a red run is red again
settings.load_profile("house")


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend in turn, asked for by name."""
    request.param.array([0.0])  # skips where the library is not installed
    with request.param.using():
        yield request.param


@pytest.fixture(params=[backend for backend in BACKENDS if backend.library != "jax"], ids=str)
def quick(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend but JAX, which compiles every shape of every step anew."""
    request.param.array([0.0])
    with request.param.using():
        yield request.param


@pytest.fixture(params=DIFFERENTIATING, ids=str)
def differentiating(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend that differentiates by itself."""
    request.param.array([0.0])
    with request.param.using():
        yield request.param
