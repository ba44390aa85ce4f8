"""Entropy, kl_divergence, boltzmann and others equal their definitions, and have documented values on edge rows."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan
RNG = np.random.default_rng(11)
Z = RNG.standard_normal((5, 7)).astype(np.float32).astype(np.float64) * 3


@pytest.fixture(autouse=True)
def digits() -> Any:
    with mpmath.workdps(50):
        yield


def exact(row: Any, beta: Any = 1) -> list[Any]:
    e = [mpmath.exp(beta * mpmath.mpf(float(x))) for x in row]
    return [x / mpmath.fsum(e) for x in e]


def near(quick: Backend, result: Any, expected: Any, rel: float = 2e-15, abs: float = 1e-300) -> None:  # noqa: A002
    assert quick.back(result) == pytest.approx(np.array(expected, np.float64), rel=rel, abs=abs, nan_ok=True)


def test_entropy(quick: Backend) -> None:
    for spread in (1e-3, 1.0, 30.0):
        z = Z * spread
        expected = [float(-mpmath.fsum(p * mpmath.log(p) for p in exact(row))) for row in z]
        near(quick, s.entropy(quick.array(z)), expected, rel=2e-14)
    near(quick, s.entropy(quick.array([40.0, 0.0])), 41 * math.exp(-40), rel=1e-15)


@pytest.mark.parametrize(
    ("z", "h"),
    [
        ([-INF, -INF], 0.0),
        ([1.0, -INF], 0.0),
        ([INF, 0.0, INF], math.log(2)),
        ([1.0, NAN], NAN),
        ([2.0] * 5, math.log(5)),
    ],
)
def test_entropy_at_the_edges(quick: Backend, z: list[float], h: float) -> None:
    near(quick, s.entropy(quick.array(z)), h)


def test_kl_divergence(quick: Backend) -> None:
    for spread in (1.0, 20.0):
        a, b = Z * spread, Z[::-1] * spread
        expected = [
            float(mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(exact(x), exact(y), strict=True)))
            for x, y in zip(a, b, strict=True)
        ]
        near(quick, s.kl_divergence(quick.array(a), quick.array(b)), expected, rel=1e-13)


def test_kl_divergence_of_neighbours_does_not_cancel(quick: Backend) -> None:
    delta = np.array([1.0, -2.0, 1.0, 0.0, 0.5, 0.25, -0.75])
    for size in (1e-3, 1e-6):
        z = np.round(Z * 2**20) / 2**20
        near_z = z + np.round(delta * size * 2**40) / 2**40
        expected = [
            float(mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(exact(x), exact(y), strict=True)))
            for x, y in zip(z, near_z, strict=True)
        ]
        near(quick, s.kl_divergence(quick.array(z), quick.array(near_z)), expected, rel=3e-15 / size)
        assert (quick.back(s.kl_divergence(quick.array(z), quick.array(near_z))) > 0).all()


@pytest.mark.parametrize(
    ("p", "q", "kl"),
    [
        ([0.0, 0.0], [0.0, -INF], INF),
        ([0.0, -INF], [0.0, 0.0], math.log(2)),
        ([-INF, -INF], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [-INF, -INF], INF),
        ([-INF, -INF], [-INF, -INF], 0.0),
        ([NAN, 0.0], [0.0, 0.0], NAN),
        ([0.0, 0.0], [NAN, 0.0], NAN),
        ([INF, 0.0], [INF, 0.0], 0.0),
        ([1e4, 0.0], [0.0, 1e4], 1e4),
    ],
)
def test_kl_divergence_at_the_edges(quick: Backend, p: list[float], q: list[float], kl: float) -> None:
    near(quick, s.kl_divergence(quick.array(p), quick.array(q)), kl, abs=1e-16)
    padded = s.kl_divergence(quick.array([*p, NAN]), quick.array([*q, 3.0]), where=quick.array([True, True, False]))
    near(quick, padded, kl, abs=1e-16)


@pytest.mark.parametrize("t", [1.0, -2.5, 0.3])
def test_jacobian(quick: Backend, t: float) -> None:
    for axis in (-1, 0):
        found = quick.back(s.softmax_jacobian(quick.array(Z), axis=axis, temperature=t))
        rows = Z if axis == -1 else Z.T
        for i, row in enumerate(rows):
            a = exact(row, 1 / mpmath.mpf(t))
            wanted = [
                [float((a[j] * ((j == k) - a[k])) / mpmath.mpf(t)) for k in range(len(row))] for j in range(len(row))
            ]
            assert (found[i] if axis == -1 else found[:, :, i]) == pytest.approx(np.array(wanted), rel=1e-13, abs=0)


def test_jacobian_at_the_edges(quick: Backend) -> None:
    confident = quick.back(s.softmax_jacobian(quick.array([40.0, 0.0])))
    assert confident == pytest.approx(math.exp(-40) * np.array([[1, -1], [-1, 1]]), rel=1e-15, abs=0)
    for z, options, wanted in (
        ([-INF, -INF], {}, 0.0),
        ([INF, 0.0], {}, 0.0),
        ([INF, INF], {}, 0.0),
        ([INF, 0.0, 0.0], {"temperature": -1.0}, None),
        ([1.0, 2.0], {"temperature": 0.0}, 0.0),
        ([1.0, 2.0], {"temperature": INF}, 0.0),
        ([NAN, INF], {}, NAN),
    ):
        found = quick.back(s.softmax_jacobian(quick.array(z), **options))
        if wanted is None:
            assert found == pytest.approx(-np.array([[0, 0, 0], [0, 0.25, -0.25], [0, -0.25, 0.25]]))
        else:
            assert np.array_equal(found, np.full(found.shape, wanted), equal_nan=True)
    t = quick.array(np.array([1.0, 2.0]))
    each = quick.back(s.softmax_jacobian(quick.array(Z[:2]), temperature=t))
    assert each[1] == pytest.approx(quick.back(s.softmax_jacobian(quick.array(Z[1]), temperature=2.0)), rel=1e-14)


def test_logsumexp_with_weights(quick: Backend) -> None:
    w = np.array([0.5, 0.0, 2.0, 1e-300, 1e300, 3.0, 1.0])
    z = Z.copy()
    z[:, 1] = NAN  # an entry of weight 0 is outside the support
    z[:, 4] = -700.0
    for t in (1.0, 2.0, -3.0):
        expected = []
        for row in z:
            with mpmath.workdps(50):
                terms = [
                    mpmath.mpf(float(g)) * mpmath.exp(mpmath.mpf(float(x)) / t)
                    for g, x in zip(w, row, strict=True)
                    if g
                ]
                expected.append(float(t * mpmath.log(mpmath.fsum(terms))))
        near(quick, s.logsumexp(quick.array(z), weights=quick.array(w), temperature=t), expected, rel=1e-14)
    near(quick, s.logsumexp(quick.array([1.0, 2.0]), weights=quick.array([0.0, 0.0])), -INF)
    near(quick, s.logsumexp(quick.array([INF, 2.0]), weights=quick.array([0.0, 1.0])), 2.0)
    near(quick, s.logsumexp(quick.array([INF, 2.0]), weights=quick.array([1e-300, 1.0])), INF)
    near(quick, s.logsumexp(quick.array([[1.0, NAN]]), weights=quick.array([1.0, 1.0])), [NAN])


def test_signed_logsumexp(quick: Backend) -> None:
    w = np.array([1.0, -2.0, 0.0, 3.0, -0.5, 1.5, -1.0])
    log_abs, sign = s.signed_logsumexp(quick.array(Z), quick.array(w))
    for i, row in enumerate(Z):
        total = mpmath.fsum(
            mpmath.mpf(float(g)) * mpmath.exp(mpmath.mpf(float(x))) for g, x in zip(w, row, strict=True)
        )
        assert quick.back(log_abs)[i] == pytest.approx(float(mpmath.log(abs(total))), rel=1e-12, abs=1e-13)
        assert quick.back(sign)[i] == float(mpmath.sign(total))


@pytest.mark.parametrize(
    ("z", "w", "log_abs", "sign"),
    [
        ([1.0, 1.0], [1.0, -1.0], -INF, 0.0),
        ([-INF, -INF], [1.0, -1.0], -INF, 0.0),
        ([INF, 1.0], [-1.0, 1.0], INF, -1.0),
        ([INF, INF], [-1.0, 1.0], NAN, NAN),
        ([NAN, 1.0], [-1.0, 1.0], NAN, NAN),
        ([NAN, 1.0], [0.0, 2.0], 1 + math.log(2), 1.0),
        ([0.0, -1e4], [-1.0, 1.0], 0.0, -1.0),
        ([], [], -INF, 0.0),
    ],
)
def test_signed_logsumexp_at_the_edges(quick: Backend, z: Any, w: Any, log_abs: float, sign: float) -> None:
    found = s.signed_logsumexp(quick.array(np.array(z, float)), quick.array(np.array(w, float)))
    near(quick, found.log_abs, log_abs)
    near(quick, found.sign, sign)


def test_logcumsumexp(quick: Backend) -> None:
    for axis in (0, 1):
        found = quick.back(s.logcumsumexp(quick.array(Z), axis=axis))
        for index in np.ndindex(Z.shape):
            part = Z[: index[0] + 1, index[1]] if axis == 0 else Z[index[0], : index[1] + 1]
            assert found[index] == pytest.approx(
                float(mpmath.log(mpmath.fsum(map(mpmath.exp, part)))), rel=1e-14, abs=1e-15
            )
    for z, expected in (
        ([-INF, -INF, 1.0, -INF], [-INF, -INF, 1.0, 1.0]),
        ([0.0, INF, 1.0, -INF], [0.0, INF, INF, INF]),
        ([0.0, NAN, INF, 1.0], [0.0, NAN, NAN, NAN]),
        ([0.0, -40.0], [0.0, math.exp(-40)]),
    ):
        near(quick, s.logcumsumexp(quick.array(z)), expected)


@pytest.mark.parametrize("temperature", [0.3, -1.7, 1e-3, 0.0, -0.0, INF, [2.0, 0.0, -0.4, INF, -0.0]])
def test_logcumsumexp_gives_the_logsumexp_of_each_prefix(quick: Backend, temperature: Any) -> None:
    z = Z.copy()
    z[1, 2], z[2, 4], z[3, 1], z[4, :3], z[0, 3] = INF, -INF, NAN, -INF, z[0, 1]
    where = RNG.random(Z.shape) < 0.7
    t = quick.array(np.array(temperature)) if isinstance(temperature, list) else temperature
    found = quick.back(s.logcumsumexp(quick.array(z), temperature=t, where=quick.array(where)))
    for n in range(1, z.shape[1] + 1):
        expected = s.logsumexp(z[:, :n], temperature=temperature, where=where[:, :n])
        assert found[:, n - 1] == pytest.approx(expected, rel=1e-14, nan_ok=True)


def test_boltzmann_agrees_with_its_formulas(quick: Backend) -> None:
    e, k = np.abs(Z), 0.7
    for t in (0.5, 2.0, -3.0):
        found = s.boltzmann(quick.array(e), t, k=k, weights=quick.array(g := np.arange(1.0, 8.0)))
        beta = 1 / (k * t)
        w = g * np.exp(-beta * e)
        p = w / w.sum(-1, keepdims=True)
        u = (p * e).sum(-1)
        near(quick, found.p, p, rel=1e-13)
        near(quick, found.log_partition, np.log(w.sum(-1)), rel=1e-13)
        near(quick, found.free_energy, -k * t * np.log(w.sum(-1)), rel=1e-13)
        near(quick, found.mean_energy, u, rel=1e-13)
        near(quick, found.entropy, (u + k * t * np.log(w.sum(-1))) / t, rel=1e-12)
        near(quick, found.heat_capacity, k * beta**2 * ((p * e**2).sum(-1) - u**2), rel=1e-11)


def test_boltzmann_at_the_edges(quick: Backend) -> None:
    ground = s.boltzmann(quick.array([1.0, 0.0, 0.0, INF]), 0.0)
    near(quick, ground.p, [0, 0.5, 0.5, 0])
    for value, expected in zip(ground[2:], (0.0, 0.0, math.log(2), 0.0), strict=True):
        near(quick, value, expected)
    hot = s.boltzmann(quick.array([1.0, 0.0, 0.0, INF]), INF, weights=quick.array([2.0, 1.0, 1.0, 5.0]))
    near(quick, hot.p, [0.5, 0.25, 0.25, 0])
    for value, expected in zip(hot[1:], (math.log(4), -INF, 0.5, math.log(4), 0.0), strict=True):
        near(quick, value, expected)
    nothing = s.boltzmann(quick.array([INF, INF]), 1.0)
    for value, expected in zip(nothing, ([0, 0], -INF, INF, 0.0, 0.0, 0.0), strict=True):
        near(quick, value, expected)
    per_row = s.boltzmann(quick.array(np.abs(Z)), quick.array(np.array([0.5, 1.0, 2.0, INF, 0.0])))
    for i, t in enumerate((0.5, 1.0, 2.0, INF, 0.0)):
        for one, alone in zip(per_row, s.boltzmann(quick.array(np.abs(Z[i])), t), strict=True):
            assert quick.back(one)[i] == pytest.approx(quick.back(alone), rel=1e-14)


def test_soft_argmax(quick: Backend) -> None:
    p = quick.back(s.softmax(quick.array(Z)))
    near(quick, s.soft_argmax(quick.array(Z)), p @ np.arange(7.0), rel=1e-14)
    points = RNG.standard_normal((7, 2))
    near(quick, s.soft_argmax(quick.array(Z), quick.array(points)), p @ points, rel=1e-13)
    both = quick.back(s.softmax(quick.array(Z), axis=None)).ravel()
    near(quick, s.soft_argmax(quick.array(Z), axis=(0, 1)), both @ np.arange(35.0), rel=1e-14)
    near(
        quick,
        s.soft_argmax(quick.array(Z), axis=0),
        quick.back(s.softmax(quick.array(Z), axis=0)).T @ np.arange(5.0),
        rel=1e-14,
    )
    silent = s.soft_argmax(
        quick.array([0.0, -INF, 0.0, 9.0]),
        quick.array([1.0, NAN, 3.0, INF]),
        where=quick.array([True, True, True, False]),
    )
    near(quick, silent, 2.0)
    near(quick, s.soft_argmax(quick.array([-INF, -INF])), 0.0)
    near(quick, s.soft_argmax(quick.array([1.0, 5.0, 5.0]), temperature=0.0), 1.5)


def test_a_row_does_not_depend_on_its_batch(quick: Backend) -> None:
    z = np.tile(Z, (40, 3))
    for function in (
        s.entropy,
        s.soft_argmax,
        lambda x: s.kl_divergence(x, -x),
        lambda x: s.boltzmann(x, 2.0).heat_capacity,
    ):
        whole = quick.back(function(quick.array(z)))
        for i in (0, 3, 199):
            assert whole[i] == quick.back(function(quick.array(z[i : i + 1])))[0]
