"""The reference implementation has the promised accuracy for every library, spread, temperature and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import Family, family_truth, ulp_error

import softargmax as s

OPTIONS = ((1.0, None), (3.7, None), (-0.3, 2.0))


def errors(z: np.ndarray, convert: Any, temperature: float, base: float | None, tiny: float = 0.0) -> list[float]:
    """Return the largest errors of softmax, log_softmax and logsumexp in ulp, among results larger than `tiny`."""
    truth: Family = family_truth(z, temperature, base)
    array, options = convert(z), {"temperature": temperature, "base": base}
    with s.using("reference"):
        results = [np.asarray(f(array, **options)) for f in (s.softmax, s.log_softmax, s.logsumexp)]
    worst = []
    for result, true, at in zip(results, truth[:3], (None, None, truth.largest), strict=True):
        error = ulp_error(result, *true, at=at)
        size = np.abs(np.ldexp(true.hi, -np.asarray(true.lift)))
        worst.append(float(error[size > tiny].max(initial=0)))
    return worst


@pytest.mark.parametrize("spread", [1.0, 10.0, 40.0, 87.0, 1e4])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_accuracy(library: str, spread: float) -> None:
    convert = np.asarray if library == "numpy" else pytest.importorskip("torch").asarray
    rng = np.random.default_rng(int(spread))
    for dtype, bound in ((np.float32, 0.51), (np.float64, 4.0)):
        for shape in ((200, 7), (5, 1000), (1, 30_000)):
            z = (rng.standard_normal(shape) * spread).astype(dtype)
            for temperature, base in OPTIONS:
                found = errors(z, convert, temperature, base)
                assert max(found) <= bound, (dtype, shape, temperature, found)


def test_temperature_is_exact_where_scores_are_large() -> None:
    z = np.array([[-2000.0, -2010.0, -1999.7, -2003.3]])
    assert max(errors(z, np.asarray, 3.7, None)) <= 3.0
    assert max(errors(z, np.asarray, 0.1, None)) <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1.0, 10.0, 40.0, 1e4])
def test_accuracy_in_float32_alone(spread: float) -> None:
    """In these tests JAX has no float64, so the reference computes with pairs of float32 and with XLA's exp and log."""
    jnp = pytest.importorskip("jax.numpy")
    z = (np.random.default_rng(3).standard_normal((400, 9)) * spread).astype(np.float32)
    for temperature, base in OPTIONS:
        # XLA has no subnormal numbers, and its exp is off by hundreds of ulp just above them.
        found = errors(z, jnp.asarray, temperature, base, tiny=1e-30)
        assert max(found) <= 6.0, (temperature, found)
