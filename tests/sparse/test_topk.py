"""topk_softmax: the softmax of the k largest scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan


def brute(row: np.ndarray, k: int) -> np.ndarray:
    """Return the softmax over the k largest scores. Among equal scores the first ones are kept."""
    kept = np.argsort(-row, kind="stable")[:k]
    mask = np.zeros(row.size, bool)
    mask[kept] = True
    return s.softmax(row, where=mask)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_a_sort(axis: int, quick: Backend) -> None:
    rng = np.random.default_rng(1)
    z = np.rint(rng.standard_normal((6, 5, 7)) * 2)  # with ties
    for k in (1, 3, z.shape[axis]):
        wanted = np.apply_along_axis(brute, axis, z, k)
        found = quick.back(s.topk_softmax(quick.array(z), k, axis=axis))
        np.testing.assert_allclose(found, wanted, rtol=4 * 2.0**-52)


def test_k_per_row_temperature_and_where(quick: Backend) -> None:
    z = np.array([[1.0, 4.0, 2.0, 3.0]] * 3)
    mask = np.array([True, False, True, True])
    found = quick.back(s.topk_softmax(quick.array(z), quick.array([1, 2, 4]), temperature=2.0))
    wanted = [s.softmax(z[0], temperature=2.0, where=z[0] >= least) for least in (4, 3, 1)]
    np.testing.assert_allclose(found, wanted, rtol=4 * 2.0**-52)
    found = quick.back(s.topk_softmax(quick.array(z[0]), 1, where=quick.array(mask)))
    np.testing.assert_array_equal(found, [0, 0, 0, 1])


def test_edge_rows(quick: Backend) -> None:
    z = [[-INF, -INF, -INF], [INF, INF, INF], [1.0, NAN, 0.0], [-INF, 2.0, -INF]]
    found = quick.back(s.topk_softmax(quick.array(z), 2))
    np.testing.assert_array_equal(found[[0, 1, 3]], [[0, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    assert np.isnan(found[2]).all()


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")  # from torch's forward mode
def test_derivatives() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([[0.1, 0.9, -0.4, 0.5], [1.0, 0.0, 0.3, 0.2]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: s.topk_softmax(z, 2), z, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda z: s.topk_softmax(z, 2), z)


@pytest.mark.parametrize("k", [0, -1, 1.5, "two", None, [None], [1.5]])
def test_errors_name_k(k: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^k: "):
        s.topk_softmax([1.0, 2.0, 3.0], k)


def test_k_above_the_number_of_scores_keeps_all() -> None:
    z = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])
    for k in (3, 4, 100, [4, 3]):
        assert (s.topk_softmax(z, k) == s.softmax(z)).all()


def test_no_classes(quick: Backend) -> None:
    """An empty row gives an empty result for every valid k."""
    for k in (1, 5):
        assert tuple(s.topk_softmax(quick.array(np.zeros((2, 0))), k).shape) == (2, 0)
        assert tuple(s.topk_softmax(quick.array(np.zeros((0, 2))), k, axis=0).shape) == (0, 2)
    with pytest.raises(ValueError, match=r"^k: expected an integer, 1 or above, got 0"):
        s.topk_softmax(quick.array(np.zeros((2, 0))), 0)


def test_scores_are_compared_exactly(quick: Backend) -> None:
    z = quick.array([20, 1.0000001, 1.0000002], "float32")
    assert (quick.back(s.topk_softmax(z, 2)) > 0).tolist() == [True, False, True]


def test_a_negative_temperature_raises() -> None:
    for temperature in (-1.0, np.array([1.0, -2.0])):
        with pytest.raises(ValueError, match=r"temperature: .* from 0 on"):
            s.topk_softmax(np.zeros((2, 3)), 2, temperature=temperature)


def test_a_negative_temperature_gives_nan_under_tracing() -> None:
    jax = pytest.importorskip("jax")
    found = jax.jit(lambda t: s.topk_softmax(jax.numpy.zeros((2, 3)), 2, temperature=t))(np.array([1.0, -2.0]))
    np.testing.assert_array_equal(found, [[0.5, 0.5, 0.0], [NAN, NAN, 0.0]])


def test_a_0_d_array_raises() -> None:
    with pytest.raises(ValueError, match="0-d"):
        s.topk_softmax(1.0, 1)
