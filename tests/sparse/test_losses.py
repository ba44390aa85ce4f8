"""The Fenchel-Young losses: compared with mpmath on every backend, for edge rows, and with every option."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

ORDERS = (0.1, 0.5, 0.9, 0.999, 1.0, 1.0 + 1e-6, 1.25, 1.5, 1.75, 2.0)
INF, NAN = math.inf, math.nan
# Bounds in ulp. A float64 loss is a sum of terms of one sign, with about a dozen rounding errors. The reference
# computes p less accurately.
ULPS = {"native": 6.0, "reference": 40.0}


def sensitivity(p: list[Any], y: int, alpha: float) -> float:
    """Return the factor by which an error of lambda changes the loss.

    lambda is the number for which the p_i = (1 + a (z_i - max z - lambda))^(1 / a) sum to 1, where a = alpha - 1. An
    error of lambda changes the p of the classes other than y, with d p / d lambda = -p^(2 - alpha).
    """
    others = [float(q) for i, q in enumerate(p) if i != y and q > 0]
    rest = sum(others)
    return rest + (1 - rest) ** (alpha - 2) * rest * sum(q ** (2 - alpha) for q in others) if rest < 1 else 1.0


def probabilities(z: list[Any], alpha: float) -> list[Any]:
    """Return p of a row by bisection in mpmath."""
    a, m = mpmath.mpf(alpha) - 1, max(z)
    low, high = mpmath.mpf(0), (mpmath.mpf(len(z)) ** -a - 1) / -a + 1 if a else mpmath.log(len(z)) + 1

    def p(shift: Any) -> list[Any]:
        x = [v - m - shift for v in z]
        return [mpmath.exp(v) if a == 0 else max(mpmath.mpf(0), 1 + a * v) ** (1 / a) for v in x]

    for _ in range(190):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(p(middle)) >= 1 else (low, middle)
    return p(low)


def entropy(p: list[Any], alpha: float) -> Any:
    """Return the Tsallis entropy H_alpha of p."""
    if alpha == 1:
        return -sum(q * mpmath.log(q) for q in p if q > 0)
    return (1 - sum(q ** mpmath.mpf(alpha) for q in p)) / (mpmath.mpf(alpha) * (mpmath.mpf(alpha) - 1))


def truth(z: np.ndarray, t: list[float], alpha: float) -> tuple[Any, list[Any]]:
    """Return the loss of a row by its definition, and p. The result is cached for all backends."""
    return _truth(tuple(z.tolist()), tuple(t), alpha)


@cache
def _truth(z: tuple[float, ...], t: tuple[float, ...], alpha: float) -> tuple[Any, list[Any]]:
    with mpmath.workdps(60):
        row = [mpmath.mpf(x) for x in z]
        p = probabilities(row, alpha)
        target = [mpmath.mpf(x) for x in t]
        product = sum((q - w) * x for q, w, x in zip(p, target, row, strict=True))
        return product + entropy(p, alpha) - entropy(target, alpha), p


def one_hot(y: int, k: int) -> list[float]:
    """Return the target probabilities of a class: 1 at y, else 0."""
    return [float(i == y) for i in range(k)]


@pytest.mark.no_sanitize  # other tests run the same code under the sanitizers
@pytest.mark.parametrize("alpha", [*ORDERS, 2.5, 4.0])
def test_loss_and_gradient_of_a_class(alpha: float, quick: Backend) -> None:
    rng = np.random.default_rng(int(alpha * 100))
    for trial in range(12):
        k = int(rng.integers(1, 9))
        z = rng.standard_normal(k) * 10 ** rng.uniform(-1, 0.7)
        y = int(rng.integers(k)) if trial % 2 else int(z.argmax())
        exact, p = truth(z, one_hot(y, k), alpha)
        found = float(quick.back(s.entmax_loss(quick.array(z), quick.array(y), alpha)))
        bound = 2.0**-52 * (ULPS[quick.implementation] * float(exact) + sensitivity(p, y, alpha))
        assert abs(found - float(exact)) <= bound + 1e-30, (z, y)
        if quick.library != "torch":
            continue
        gradient = quick.gradient(lambda x, y=y: s.entmax_loss(x, quick.array(y), alpha), quick.array(z), None)
        wanted = np.array([float(q) for q in p]) - one_hot(y, k)
        assert np.abs(gradient - wanted).max() <= 8 * 2.0**-52


@pytest.mark.parametrize("gap", [3.0, 12.0, 24.0])
def test_a_confident_row_keeps_its_small_loss_and_gradient(gap: float) -> None:
    z, alpha = np.array([gap, 0.0, -0.5]), 1.04  # 1 / (alpha - 1) = 25
    exact, p = truth(z, one_hot(0, 3), alpha)
    assert abs(float(s.entmax_loss(z, 0, alpha)) / float(exact) - 1) <= 6 * 2.0**-52
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(z, requires_grad=True)
    s.entmax_loss(tensor, torch.tensor(0), alpha).backward()
    others = float(p[1] + p[2])
    assert others < 0.3
    assert tensor.grad[0] == pytest.approx(-others, rel=1e-13)


def test_the_loss_is_zero_beyond_the_margin(quick: Backend) -> None:
    for alpha in (1.5, 2.0, 3.0):
        z = quick.array([0.0, 1.0 / (alpha - 1.0), -1.0])
        assert float(quick.back(s.entmax_loss(z, quick.array(1), alpha))) == 0.0
        assert float(quick.back(s.entmax_loss(z + quick.array([1e-3, 0.0, 0.0]), quick.array(1), alpha))) > 0.0


def test_high_orders_next_to_the_margin(quick: Backend) -> None:
    for alpha, gap in ((101.0, 6e-25), (201.0, 1e-50)):
        exact, _ = truth(np.array([0.0, -gap]), one_hot(0, 2), alpha)
        found = float(quick.back(s.entmax_loss(quick.array([0.0, -gap]), quick.array(0), alpha)))
        assert found == pytest.approx(1 / (alpha * (alpha - 1)), rel=1e-2)
        # `exact` is below 0 if the bisection in mpmath stops too early.
        assert found == pytest.approx(float(exact), rel=1e-6) or float(exact) < 0


EDGES = [
    ([-INF, -INF], 0, INF),
    ([1.0, -INF], 1, INF),
    ([1.0, -INF], 0, 0.0),
    ([INF, 1.0], 0, 0.0),
    ([INF, 1.0], 1, INF),
    ([1.0, NAN], 0, NAN),
    ([NAN, 1.0], -100, 0.0),
]


@pytest.mark.parametrize(("z", "y", "loss"), EDGES)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
def test_edge_rows(z: list[float], y: int, loss: float, alpha: float, quick: Backend) -> None:
    batch, target = quick.array([z, [0.0, 0.0]]), quick.array([y, 0])
    found = quick.back(s.entmax_loss(batch, target, alpha, reduction="none"))
    np.testing.assert_array_equal(found[0], loss)
    assert np.isfinite(found[1])
    if quick.library != "torch":
        return
    gradient = quick.gradient(
        lambda x: s.entmax_loss(x, target, alpha, reduction="none"), batch, quick.array([1.0, 1.0])
    )
    if math.isnan(loss):
        assert np.isnan(gradient[0]).all()
    elif y == 1 and z[0] == 1.0:
        np.testing.assert_array_equal(gradient[0], [1.0, 0.0])  # the gradient is p
    else:
        np.testing.assert_array_equal(gradient[0], 0.0)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
def test_infinities_share_the_row(alpha: float, quick: Backend) -> None:
    found = quick.back(s.entmax_loss(quick.array([INF, 0.0, INF, INF]), quick.array(2), alpha))
    assert float(found) == pytest.approx(float(entropy([mpmath.mpf(1) / 3] * 3, alpha)), rel=1e-15)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
def test_soft_targets_smoothing_and_weights(alpha: float, quick: Backend) -> None:
    rng = np.random.default_rng(3)
    z, y, weight = rng.standard_normal((3, 5)), np.array([0, 4, 2]), rng.random(5)
    smoothed = 0.8 * np.eye(5)[y] + 0.2 / 5
    exact = np.array([float(truth(row, list(t), alpha)[0]) for row, t in zip(z, smoothed, strict=True)])
    scores, target = quick.array(z), quick.array(y)
    found = s.entmax_loss(scores, target, alpha, label_smoothing=0.2, reduction="none")
    np.testing.assert_allclose(quick.back(found), exact, rtol=1e-13)
    soft = s.entmax_loss(scores, quick.array(smoothed), alpha, reduction="none")
    np.testing.assert_allclose(quick.back(soft), exact, rtol=1e-13)
    rows = quick.back(s.entmax_loss(scores, target, alpha, reduction="none"))
    mean = quick.back(s.entmax_loss(scores, target, alpha, weight=quick.array(weight)))
    np.testing.assert_allclose(mean, (rows * weight[y]).sum() / weight[y].sum(), rtol=1e-14)
    total = quick.back(s.entmax_loss(scores, target, alpha, reduction="sum"))
    np.testing.assert_allclose(total, rows.sum(), rtol=1e-14)


def test_entries_outside_where_are_ignored(quick: Backend) -> None:
    z, mask = np.array([1.0, NAN, 2.0, 0.5]), np.array([True, False, True, True])
    found = s.sparsemax_loss(quick.array(z), quick.array(2), where=quick.array(mask))
    alone = s.sparsemax_loss(quick.array(z[mask]), quick.array(1))
    np.testing.assert_array_equal(quick.back(found), quick.back(alone))
    smooth = s.sparsemax_loss(quick.array(z), quick.array(2), where=quick.array(mask), label_smoothing=0.3)
    alone = s.sparsemax_loss(quick.array(z[mask]), quick.array(1), label_smoothing=0.3)
    np.testing.assert_allclose(quick.back(smooth), quick.back(alone), rtol=1e-15)
    outside = s.sparsemax_loss(quick.array(z), quick.array(1), where=quick.array(mask))
    assert float(quick.back(outside)) == INF


def test_order_one_is_the_cross_entropy(quick: Backend) -> None:
    rng = np.random.default_rng(4)
    z, y = quick.array(rng.standard_normal((4, 9)) * 5), quick.array(rng.integers(0, 9, 4))
    np.testing.assert_allclose(
        quick.back(s.entmax_loss(z, y, 1.0)), quick.back(s.cross_entropy(z, y)), rtol=4 * 2.0**-52
    )


def test_axis_dtype_and_orders_per_row(quick: Backend) -> None:
    rng = np.random.default_rng(5)
    z, y = rng.standard_normal((3, 6, 2)), rng.integers(0, 6, (3, 2))
    orders = np.array([[1.0, 1.5], [2.0, 1.2], [1.7, 1.0]])
    found = s.entmax_loss(
        quick.array(z), quick.array(y), quick.array(orders), axis=1, reduction="none", dtype=quick.dtype("float32")
    )
    assert "float32" in str(found.dtype)
    one = [[float(s.entmax_loss(z[i, :, j], y[i, j], orders[i, j])) for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(quick.back(found), one, rtol=2.0**-23)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"alpha": -0.5}, ValueError, "alpha: expected a finite number above 0, got -0.5"),
        ({"alpha": NAN}, ValueError, "alpha: expected a finite number above 0, got nan"),
        ({"reduction": "median"}, ValueError, "reduction: expected one of 'none', 'mean', 'sum', got 'median'"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing: expected a number from 0 to 1, got 1.5"),
        ({"weight": [1.0]}, ValueError, r"weight: expected one number per class, shape \(3,\), got \(1,\)"),
        ({"ignore_index": 1.5}, TypeError, "ignore_index: expected an integer, got 1.5"),
        ({"axis": 3}, ValueError, "axis: expected from -2 to 1, got 3, which is out of range for 2 dimensions"),
        ({"where": [1.0, 0.0, 1.0]}, TypeError, "where: expected dtype bool, got float64"),
    ],
)
def test_errors_name_the_argument(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        s.entmax_loss([[1.0, 2.0, 3.0]], [0], **options)


def test_the_error_names_a_class_out_of_range_and_its_position() -> None:
    with pytest.raises(IndexError, match=r"target: expected 0 to 2, or -100 \(ignored\), got 3 at \(1,\)"):
        s.sparsemax_loss([[1.0, 2.0, 3.0]] * 2, [0, 3])
    with pytest.raises(ValueError, match="0-d"):
        s.sparsemax_loss(1.0, 0)
    with pytest.raises(
        ValueError, match=r"weight: expected None \(because the targets are probabilities\), got an array"
    ):
        s.sparsemax_loss([1.0, 2.0], [0.5, 0.5], weight=[1.0, 1.0])
