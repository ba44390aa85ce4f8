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
    """Return a file that a stream with 1 MiB of memory reads in more than one window.

    A window is a part of an array that is read as one piece (stream/windows.py).
    """
    np.save(tmp_path / "z.npy", np.random.default_rng(0).standard_normal((40, 9_000)))
    return tmp_path / "z.npy"
