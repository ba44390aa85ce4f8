"""Composed functions on large NumPy arrays: the same bits in chunks, and little memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import softargmax as s


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None])
def test_many_rows_are_taken_in_chunks(axis: Any) -> None:
    """Above core.chunks.SIZE scores, NumPy's arrays are cut along their rows: the same bits."""
    z = np.random.default_rng(4).standard_normal((30, 90, 120))
    where = np.random.default_rng(5).random((90, 120)) < 0.8
    t = np.linspace(0.5, 2, 30 * 90 * 120).reshape(z.shape).mean(axis) if axis is not None else 1.5
    small = np.s_[3:5] if axis not in (0, None, (0, 2)) else np.s_[:]
    for function in (s.entropy, s.soft_argmax):
        whole = function(z, axis=axis, temperature=t, where=where)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("softargmax.core.chunks.SIZE", 1 << 30)
            assert np.array_equal(function(z, axis=axis, temperature=t, where=where), whole)
        part = function(z[small], axis=axis, temperature=t if axis is None else t[small], where=where)
        assert np.array_equal(part, whole[small] if axis is not None else whole)
    chunked = s.kl_divergence(z, z[::-1], axis=axis, where=where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softargmax.core.chunks.SIZE", 1 << 30)
        assert np.array_equal(s.kl_divergence(z, z[::-1], axis=axis, where=where), chunked)


def test_entropy_needs_no_temporary_of_the_scores_size() -> None:
    z = np.ones((1024, 4096), np.float32)
    for function in (s.entropy, s.soft_argmax, lambda x: s.kl_divergence(x, x)):
        function(z[:1])
        tracemalloc.start()
        function(z)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < z.nbytes / 2, function
