"""One row at many temperatures: a list adds a leading axis, and each result is that of a separate call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

TEMPERATURES = np.array([0.0, 0.5, 1.0, 4.0, np.inf, -2.0])
ROW = np.array([0.3, -1.0, 2.5, 2.5, -np.inf])
FUNCTIONS = {
    "softmax": s.softmax,
    "log_softmax": s.log_softmax,
    "softmin": s.softmin,
    "logsumexp": s.logsumexp,
    "entropy": s.entropy,
    "soft_argmax": s.soft_argmax,
    "softmax_jacobian": s.softmax_jacobian,
    "boltzmann": lambda z, **options: s.boltzmann(z, **options).free_energy,
}


def one_by_one(function: Any, z: Any, temperatures: Any, **options: Any) -> Any:
    return np.stack([np.asarray(function(z, temperature=float(one), **options)) for one in temperatures])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_at_a_list_of_temperatures(name: str, backend: Backend) -> None:
    function, z = FUNCTIONS[name], backend.array(ROW, "float32")
    with backend.using():
        expected = np.stack([backend.back(function(z, temperature=[one])) for one in TEMPERATURES])
        for given in (list(TEMPERATURES), TEMPERATURES, TEMPERATURES[:, None]):
            found = backend.back(function(z, temperature=given))
            if backend.library == "jax":  # XLA adds in a different order for each shape
                np.testing.assert_allclose(found, expected, rtol=4 * np.finfo("f4").eps)
            else:
                np.testing.assert_array_equal(found, expected)


def test_arrays_of_temperatures_may_add_leading_axes() -> None:
    z = np.random.default_rng(0).standard_normal((3, 4, 5))
    of_rows = np.random.default_rng(1).uniform(0.5, 2.0, (2, 3, 1, 5))
    found = s.softmax(z, axis=1, temperature=of_rows)
    assert found.shape == (2, 3, 4, 5)
    for one, temperature in zip(found, of_rows, strict=True):
        np.testing.assert_array_equal(one, s.softmax(z, axis=1, temperature=temperature))
    whole = s.logsumexp(z, axis=None, temperature=[1.0, 2.0])
    np.testing.assert_array_equal(whole, one_by_one(lambda z, **o: s.logsumexp(z, axis=None, **o), z, [1.0, 2.0]))
    both = s.softmax(z, axis=(0, 2), temperature=np.full((6, 1, 4, 1), 3.0), where=z > 0, out=np.empty((6, 3, 4, 5)))
    np.testing.assert_array_equal(both[5], s.softmax(z, axis=(0, 2), temperature=3.0, where=z > 0))


def test_one_number_in_an_array_adds_no_axis() -> None:
    assert s.softmax(ROW, temperature=[2.0]).shape == (5,)
    assert s.softmax(ROW, temperature=np.array([[2.0]])).shape == (1, 5)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2), (2, 4, 1)])
def test_temperatures_that_fit_nothing_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^temperature: expected .* shape that broadcasts with the rows, \(3,\)"):
        s.softmax(np.zeros((3, 5)), temperature=np.ones(shape))


def test_gradients_sum_over_the_temperatures() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([0.3, -1.0, 2.5], dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, t: s.softmax(z, temperature=t), (z, temperature))
    assert torch.autograd.gradcheck(lambda z, t: s.boltzmann(z, t).mean_energy, (z, temperature))


@pytest.mark.parametrize("function", [s.logsumexp, lambda z, weights: s.signed_logsumexp(z, weights).log_abs])
def test_float64_weights_give_a_float64_result(function: Any, backend: Backend) -> None:
    if "float64" not in backend.dtypes:
        pytest.skip("no float64")
    z, weights = np.array([0.25, 1.5, -2.0]), np.array([0.1, 2.0, 0.3])
    narrow, wide = backend.array(z, "float32"), backend.array(weights, "float64")
    with backend.using():
        found = backend.back(function(narrow, weights=wide))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, backend.back(function(backend.array(z, "float64"), weights=wide)))
        for weak in (list(weights), [1, 2, 3], backend.array([1, 2, 3], "int32")):
            assert backend.back(function(narrow, weights=weak)).dtype == np.float32
        assert backend.back(s.boltzmann(narrow, 1.0, weights=wide).p).dtype == np.float64
