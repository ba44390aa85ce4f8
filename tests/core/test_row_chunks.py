"""Functions such as `boltzmann` process large arrays in chunks of rows. The chunks do not change the bits."""

from __future__ import annotations

import numpy as np
import pytest

import softargmax as s


def test_arrays_are_processed_in_chunks() -> None:
    rng = np.random.default_rng(7)
    energies, t = rng.standard_normal((900, 1000)), rng.uniform(0.5, 2, 900)
    options = {"weights": rng.integers(0, 4, 1000), "where": rng.random((900, 1)) < 0.9}
    for axis, temperature in ((1, t), (0, 1.5)):
        where = options["where"] if axis == 1 else None
        chunked = s.boltzmann(energies, temperature, axis=axis, weights=options["weights"], where=where)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("softargmax.core.row_chunks.SIZE", 1 << 30)
            whole = s.boltzmann(energies, temperature, axis=axis, weights=options["weights"], where=where)
        for name, a, b in zip(whole._fields, chunked, whole, strict=True):
            assert np.array_equal(a, b), name


def test_tensors_with_derivatives_are_processed_whole() -> None:
    torch = pytest.importorskip("torch")
    energies = torch.zeros(600, 1000, requires_grad=True)
    assert s.boltzmann(energies, 1.5).entropy.grad_fn.name() != "CatBackward0"
