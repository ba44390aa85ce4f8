"""Known identities and limits of the softmax family, on every backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.backends import Backend
from tests.oracle.truth import ulp_error

import softargmax
from softargmax import hardmax, log_softmax, logsumexp, softmax, softmax_with_lse, softmin

Z = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0]
RNG = np.random.default_rng(3)
MANY = RNG.standard_normal((50, 9)) * 5


def exact(backend: Backend, values: Any) -> Any:
    """Return the scores rounded to multiples of 1/64, to which a shift can be added without rounding."""
    return backend.array(np.round(np.asarray(values) * 64) / 64)


def assert_close(backend: Backend, a: Any, b: Any, ulp: float = 8.0) -> None:
    a, b = (np.asarray(backend.back(x) if not isinstance(x, (np.ndarray, float)) else x) for x in (a, b))
    assert ulp_error(a, b.astype(np.float64)).max() <= ulp


@pytest.mark.parametrize(
    ("z", "options", "p", "digits"),
    [
        (Z, {}, [0.02364054, 0.06426166, 0.1746813, 0.474833, 0.02364054, 0.06426166, 0.1746813], 7),
        (Z, {"temperature": 10.0}, [0.125, 0.138, 0.153, 0.169, 0.125, 0.138, 0.153], 3),
        ([1.0, 2.0, 8.0], {}, [0.001, 0.002, 0.997], 3),
        ([0.0, 10.0], {}, [0.00005, 0.99995], 5),
        ([0.0, 10.0], {"temperature": 100.0}, [0.475, 0.525], 3),
        ([1.0, 5.0, 5.0], {"temperature": 0.0}, [0.0, 0.5, 0.5], 16),
        ([2.0, 2.1], {}, [0.475, 0.525], 3),
        ([0.2, 2.1], {}, [0.130, 0.870], 3),
        ([2.11, 2.1], {}, [0.5025, 0.4975], 4),
    ],
)
def test_checked_values(
    backend: Backend, z: list[float], options: dict[str, float], p: list[float], digits: int
) -> None:
    assert backend.back(softmax(backend.array(z), **options)).astype(float) == pytest.approx(
        p, abs=0.51 * 10.0**-digits
    )


def test_shift_invariance(backend: Backend) -> None:
    z = exact(backend, MANY)
    for shift in (-64.0, 0.25, 100.0):
        assert_close(backend, softmax(z + shift), backend.back(softmax(z)))
        assert_close(backend, log_softmax(z + shift), backend.back(log_softmax(z)))


def test_no_scale_invariance(backend: Backend) -> None:
    z = backend.array([0.0, 1.0])
    assert backend.back(softmax(10 * z))[1] > backend.back(softmax(z))[1] + 0.2
    assert_close(backend, softmax(z, temperature=0.5), backend.back(softmax(2 * z)), ulp=1)


def test_p_is_from_0_to_1_and_sums_to_1(backend: Backend) -> None:
    for spread in (1.0, 10.0, 1e4):
        p = backend.back(softmax(backend.array(MANY * spread))).astype(np.float64)
        assert (p >= 0).all()
        assert (p <= 1).all()
        assert np.abs(p.sum(-1) - 1).max() < 9 * 2.0 ** (-24 if backend.library == "jax" else -53)


def test_zero_and_one_occur(backend: Backend) -> None:
    assert backend.back(softmax(backend.array([0.0, 1e4]))).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("k", [1, 2, 3, 10, 1000])
def test_equal_scores_are_uniform(backend: Backend, k: int) -> None:
    assert_close(backend, softmax(backend.array(np.full(k, 2.5))), np.full(k, 1 / k), ulp=1)


@pytest.mark.parametrize("x", [-30.0, -2.0, 0.0, 0.5, 3.0, 30.0])
def test_two_classes_are_the_logistic(backend: Backend, x: float) -> None:
    p = softmax(backend.array([x, 0.0]))
    assert_close(backend, p, np.array([1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))]), ulp=4)


def test_gradient_of_lse_is_softmax(differentiating: Backend) -> None:
    z = differentiating.array(MANY[0])
    for options in ({}, {"temperature": 3.7}, {"temperature": -2.0, "base": 3.0}):
        g = differentiating.array(1.0)
        found = differentiating.gradient(lambda x: logsumexp(x, **options), z, g)  # noqa: B023
        assert np.abs(found - differentiating.back(softmax(z, **options))).max() < 2.0 ** (
            -21 if found.dtype == np.float32 else -50
        )


def test_ratios_do_not_depend_on_the_other_scores(backend: Backend) -> None:
    p = backend.back(softmax(backend.array([1.0, 2.0, 3.0, 4.0]))).astype(float)
    q = backend.back(softmax(backend.array([1.0, 2.0, -7.0, 9.0]))).astype(float)
    assert p[1] / p[0] == pytest.approx(math.e, rel=1e-6 if backend.library == "jax" else 1e-15)
    assert q[1] / q[0] == pytest.approx(math.e, rel=1e-6 if backend.library == "jax" else 1e-15)


def test_convergence_to_arg_max_is_pointwise_and_not_uniform(backend: Backend) -> None:
    for t in (1.0, 1e-2, 1e-4):
        apart = backend.back(softmax(backend.array([0.0, 1.0]), temperature=t))[0]
        near = backend.back(softmax(backend.array([0.0, t * 0.125]), temperature=t))[0]
        assert apart <= 1.01 * math.exp(-1 / t)  # for fixed scores p converges to the arg max
        assert near > 0.46  # but at every temperature, some scores have a p far from the limit
    assert backend.back(softmax(backend.array([0.0, 1e-30]), temperature=0.0)).tolist() == [0.0, 1.0]


def test_limits_in_temperature(backend: Backend) -> None:
    z = backend.array([3.0, 1.0, 3.0, 2.0])
    assert backend.back(hardmax(z)).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert backend.back(softmax(z, temperature=1e-3)).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert_close(backend, softmax(z, temperature=1e9), np.full(4, 0.25), ulp=2**27 if backend.library != "jax" else 4)
    assert backend.back(softmin(z, temperature=0.0)).tolist() == [0.0, 1.0, 0.0, 0.0]


def test_softmin_is_softmax_of_the_negative(backend: Backend) -> None:
    z = backend.array(MANY)
    for t in (1.0, 3.7, -2.0):
        assert (backend.back(softmin(z, temperature=t)) == backend.back(softmax(-z, temperature=t))).all()


def test_a_base_is_a_temperature(backend: Backend) -> None:
    z = backend.array(MANY)
    assert_close(backend, softmax(z, base=2.0), backend.back(softmax(z, temperature=1 / math.log(2))), ulp=64)
    assert_close(backend, softmax(z, base=0.5), backend.back(softmin(z, base=2.0)), ulp=1)
    powers = 2.0 ** np.arange(5)
    assert_close(backend, softmax(backend.array(np.arange(5.0)), base=2.0), powers / powers.sum(), ulp=1)


def test_smooth_maximum_bounds(backend: Backend) -> None:
    z = backend.array(MANY)
    m = MANY.max(-1)
    for t in (0.1, 1.0, 5.0):
        lse = backend.back(logsumexp(z, temperature=t)).astype(float)
        assert (lse >= m - 1e-5).all()
        assert (lse <= m + t * math.log(9) + 1e-5).all()
    assert_close(backend, logsumexp(z, temperature=-1.0), -backend.back(logsumexp(-z)), ulp=1)


def test_lse_relates_softmax_log_softmax_and_logsumexp(backend: Backend) -> None:
    z = backend.array(MANY)
    p, lse = softmax_with_lse(z, temperature=2.0)
    assert (backend.back(p) == backend.back(softmax(z, temperature=2.0))).all()
    assert_close(backend, 0.5 * backend.back(logsumexp(z, temperature=2.0)), backend.back(lse), ulp=4)
    tolerance = 2.0 ** (-18 if backend.library == "jax" else -47)
    log_p = backend.back(log_softmax(z, temperature=2.0))
    assert np.abs(log_p - (backend.back(z) / 2 - backend.back(lse)[:, None])).max() < tolerance
    assert np.abs(np.exp(log_p) - backend.back(p)).max() < tolerance


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=20), st.sampled_from(["native", "reference"]))
def test_merging_is_the_softmax_of_the_whole(z: list[float], name: str) -> None:
    with softargmax.using(name):
        cut = len(z) // 2
        parts = np.array([logsumexp(z[:cut]), logsumexp(z[cut:])]) if cut else np.array([logsumexp(z)])
        assert logsumexp(parts) == pytest.approx(logsumexp(z), rel=1e-14, abs=1e-14)
        order = np.argsort(z, kind="stable")
        assert softmax(np.array(z)[order]) == pytest.approx(softmax(z)[order], rel=1e-13)
