"""Fixtures for the tests of streams: a source and an old target."""

import numpy as np
import pytest


@pytest.fixture
def old(tmp_path):
    """Return an existing target file. A failed stream must not change its content."""
    target = tmp_path / "p.npy"
    target.write_bytes(b"old")
    return target


@pytest.fixture
def source(tmp_path):
    """Return a file that is read in more than one window if a stream has 1 MiB of memory."""
    np.save(tmp_path / "z.npy", np.random.default_rng(0).standard_normal((40, 9_000)))
    return tmp_path / "z.npy"
