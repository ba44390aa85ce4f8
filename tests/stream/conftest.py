"""Fixtures: a source, and an existing target."""

import numpy as np
import pytest


@pytest.fixture
def old(tmp_path):
    """An existing target whose content must survive."""
    target = tmp_path / "p.npy"
    target.write_bytes(b"old")
    return target


@pytest.fixture
def source(tmp_path):
    """A file of more than one window with 1 MiB of memory."""
    np.save(tmp_path / "z.npy", np.random.default_rng(0).standard_normal((40, 9_000)))
    return tmp_path / "z.npy"
