"""The temperature and the base of the sparse maps and their losses: accuracy, limits, rows, gradients."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from tests.oracle.backends import Backend
from tests.sparse.torch_cases import IGNORED

import softargmax as s

INF = math.inf
pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]
Z = np.random.default_rng(3).standard_normal((3, 5)) * 2
TEMPERATURES = [0.3, 1.7, -2.3]
CLASSES = np.array([1, 4, 0])


def true(row: np.ndarray, alpha: float, temperature: float, base: float | None = None) -> tuple[list[Any], Any]:
    """Return p and tau in mpmath, by bisection for the logarithm of the largest p."""
    with mpmath.workdps(50):
        beta = (mpmath.mpf(1) if base is None else mpmath.log(base)) / mpmath.mpf(temperature)
        x, a = [mpmath.mpf(float(z)) * beta for z in row], mpmath.mpf(alpha) - 1
        top = max(x)

        def p(log_q: Any) -> list[Any]:
            if a == 0:
                return [mpmath.exp(log_q + y - top) for y in x]
            v = [mpmath.exp(a * log_q) + a * (y - top) for y in x]
            return [y ** (1 / a) if y > 0 else mpmath.mpf(0) for y in v]

        low, high = -mpmath.log(len(x)) - mpmath.mpf(10) ** -30, mpmath.mpf(0)
        for _ in range(150):
            half = (low + high) / 2
            low, high = (low, half) if mpmath.fsum(p(half)) > 1 else (half, high)
        return p(high), a * top - mpmath.exp(a * high)


@pytest.mark.no_sanitize
@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [0.5, 1.25, 1.5, 2.0, 3.0])
def test_p_is_accurate_to_4_ulp(alpha: float, dtype: str, implementation: str) -> None:
    """p and tau are accurate with temperatures and bases.

    Some rows have a large constant added. Scaling these scores before subtracting the maximum would lose digits.
    """
    native, rng = implementation == "native", np.random.default_rng(3)
    in_pairs = native and alpha in (1.5, 2.0)  # the kernel computes the sum of p in pairs of float64
    for n, shift, temperature, base in [(3, 0, 0.7, None), (9, 2000, 3.7, None), (17, 0, -2.3, 3.0), (5, 0, 0.03, 0.5)]:
        row = (rng.standard_normal(n) * 3 + shift).astype(dtype)
        with s.using(implementation):
            found = s.entmax(row, alpha, temperature=temperature, base=base)
            tau = float(s.threshold(row, alpha, temperature=temperature, base=base).tau)
        p, true_tau = true(row, alpha, temperature, base)
        largest = max(p)
        for ours, exact in zip(found, p, strict=True):
            if exact > 1e-30:
                unit = float(np.spacing(np.array(float(exact), dtype)))
                # An error of the sum changes each p in proportion to the slope of that p. The reference computes p as
                # e^y with a rounded y, which adds |y| units.
                log = 0.0 if native else abs(float(mpmath.log(exact)))
                by = 4 * (1 + log) * 2.0**-53 * float((exact / largest) ** (2 - alpha)) if not in_pairs else 0.0
                off = abs(float(mpmath.mpf(float(ours)) - exact))
                assert off <= (4 + log) * unit + by, (n, temperature, float(exact))
            else:
                assert ours <= 1e-30
        assert tau == pytest.approx(float(true_tau), rel=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_rows_together_and_alone_have_the_same_bits(alpha: float, dtype: str) -> None:
    """A row has the same bits alone and in a batch of rows with other temperatures. p and tau are accurate.

    The test uses short rows, which the kernel solves together, and longer rows.
    """
    rng = np.random.default_rng(4)
    temperatures = np.array([1.0, -2.3, 3.0, 0.01, 1e-25, 1e25, 0.0, INF, 1.0, 1e-3, -0.0, 5.0, -1e-9, 40.0, 2.0**-64])
    for n in (1, 4, 64, 65, 600):
        z = (rng.standard_normal((len(temperatures), n)) * 4).astype(dtype)
        z[8], z[9, 0] = math.nan, -INF
        found, tau = s.entmax(z, alpha, temperature=temperatures), s.threshold(z, alpha, temperature=temperatures).tau
        assert found[0].tobytes() == s.entmax(z[0], alpha).tobytes()
        for row, temperature in enumerate(temperatures):
            alone = s.entmax(z[row], alpha, temperature=float(temperature))
            assert alone.tobytes() == found[row].tobytes(), (n, temperature)
            if row in (1, 2, 13) and n in (4, 65):
                p, true_tau = true(z[row], alpha, float(temperature))
                unit = np.spacing(np.array(p, dtype)).astype(float)
                assert (
                    np.abs(np.array([float(x - float(y)) for x, y in zip(p, alone, strict=True)])) <= 2 * unit
                ).all()
                assert tau[row] == pytest.approx(float(true_tau), rel=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3, 1.5, 2.0, 3.0])
def test_limits(quick: Backend, alpha: float) -> None:
    rows = quick.array(np.array([[1.0, 3.0, 3.0, -INF], [-5.0, -INF, -5.0, -7.0], [INF, 1.0, INF, 2.0], [-INF] * 4]))
    for temperature, expected in [
        (0.0, [[0, 0.5, 0.5, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0.5, 0], [0] * 4]),
        (INF, [[1 / 3, 1 / 3, 1 / 3, 0], [1 / 3, 0, 1 / 3, 1 / 3], [0.5, 0, 0.5, 0], [0] * 4]),
        (-0.0, [[0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 0], [0.25] * 4]),
    ]:
        found = quick.back(s.entmax(rows, alpha, temperature=temperature))
        assert found == pytest.approx(np.array(expected, np.float64), rel=1e-6), temperature
    nan = quick.back(s.entmax(quick.array(np.array([[math.nan, 1.0], [2.0, 1.0]])), alpha, temperature=0.5))
    assert np.isnan(nan[0]).all()
    assert not np.isnan(nan[1]).any()


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_the_threshold_at_the_limits(alpha: float) -> None:
    """As T goes to 0, tau of z / T is infinite unless the maximum of z is 0."""
    for implementation in ("native", "reference"):
        with s.using(implementation):
            found = s.threshold([[1.0, 3.0, 3.0], [-2.0, -2.0, -9.0], [0.0, 0.0, -1.0]], alpha, temperature=0.0)
            assert found.tau.tolist() == pytest.approx([INF, -INF, -(2 ** (1 - alpha))])
            assert found.support_size.tolist() == [2, 2, 2]
            assert s.threshold([1.0, 5.0], alpha, temperature=INF).tau == pytest.approx(-(2 ** (1 - alpha)))


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.4, 1.5, 2.0, 3.0])
def test_results_are_those_of_scaled_scores(quick: Backend, alpha: float) -> None:
    """Temperature T and a base give the results of the scores z ln(base) / T, for a number T and for one T per row."""
    mask = np.arange(15).reshape(3, 5) % 4 != 2
    z, m, t = quick.array(Z), quick.array(mask), quick.array(np.array(TEMPERATURES))
    by_row = Z / np.array(TEMPERATURES)[:, None]
    near = {"rel": 1e-5, "abs": 1e-7}
    pairs = [
        (s.entmax(z, alpha, temperature=t, where=m), s.entmax(by_row, alpha, where=mask)),
        (s.entmax(z, alpha, axis=0, temperature=2.0, base=3.0), s.entmax(Z * math.log(3) / 2, alpha, axis=0)),
        (s.threshold(z, alpha, temperature=t).tau, s.threshold(by_row, alpha).tau),
        (
            s.entmax_loss(z, quick.array(CLASSES), alpha, temperature=t, reduction="none"),
            s.entmax_loss(by_row, CLASSES, alpha, reduction="none"),
        ),
        (
            s.entmax_loss(z, quick.array(CLASSES), alpha, temperature=t, label_smoothing=0.1),
            s.entmax_loss(by_row, CLASSES, alpha, label_smoothing=0.1),
        ),
    ]
    for found, expected in pairs:
        assert quick.back(found) == pytest.approx(expected, **near)


def test_many_temperatures_of_one_row() -> None:
    found = s.entmax(Z[0], 1.5, temperature=[0.5, 1.0, 2.0])
    assert found.shape == (3, 5)
    assert (found[1] == s.entmax(Z[0], 1.5)).all()
    assert s.entmax(Z[0], 1.0, temperature=[0.5, 2.0]).shape == (2, 5)


def test_losses_at_the_limits() -> None:
    for implementation in ("native", "reference"):
        with s.using(implementation):
            at_0 = [s.entmax_loss([1.0, 3.0, 3.0], y, 2.0, temperature=0.0) for y in (0, 1)]
            assert at_0 == [INF, pytest.approx(0.25)]
            assert s.entmax_loss([3.0, 1.0], 1, 2.0, temperature=-0.0) == 0.0
            assert s.entmax_loss([3.0, 1.0], 1, 2.0, temperature=INF) == pytest.approx(0.25)


def test_temperatures_beyond_the_range_of_floats() -> None:
    for dtype in ("float32", "float64"):
        for temperature in (1e-300, 1e-45, 1e45, 1e300):
            for alpha in (0.5, 1.5, 2.0, 3.0):
                found = s.entmax(np.array([1.0, 2.0, 3.0], dtype), alpha, temperature=temperature)
                expected = [0.0, 0.0, 1.0] if temperature < 1 else [1 / 3] * 3
                assert found == pytest.approx(np.array(expected), rel=1e-6, abs=1e-20)


@pytest.mark.parametrize("alpha", [0.7, 1.25, 1.5, 2.0, 3.0])
def test_gradients(alpha: float) -> None:
    z = torch.tensor(Z, requires_grad=True)
    t = torch.tensor(TEMPERATURES, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(CLASSES)
    for f in (
        lambda z, t: s.entmax(z, alpha, temperature=t),
        lambda z, t: s.threshold(z, alpha, temperature=t).tau,
        lambda z, t: s.entmax_loss(z, y, alpha, temperature=t, reduction="none"),
        lambda z, t: s.entmax_loss(z, y, alpha, temperature=t, reduction="none", label_smoothing=0.2),
    ):
        assert torch.autograd.gradcheck(f, (z, t), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (z, t))


def test_gradients_of_a_number() -> None:
    z, y = torch.tensor(Z, requires_grad=True), torch.tensor(CLASSES)
    for f in (s.sparsemax, lambda z, **given: s.sparsemax_loss(z, y, reduction="none", **given)):
        assert torch.autograd.gradcheck(lambda z, f=f: f(z, temperature=-1.7), (z,), check_forward_ad=True)
        flat = torch.autograd.grad(f(z, temperature=0.0).sum(), z)[0]
        assert (flat == 0).all()


def test_modules() -> None:
    z, y = torch.tensor(Z), torch.tensor(CLASSES)
    t = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    for module in (s.nn.Entmax(1.5, temperature=t), s.nn.Sparsemax(temperature=2.0)):
        alpha = getattr(module, "alpha", 2.0)
        assert module(z).equal(s.entmax(z, alpha, temperature=2.0))
    for module in (s.nn.EntmaxLoss(temperature=t), s.nn.SparsemaxLoss(temperature=2.0)):
        assert module(z, y).isclose(s.entmax_loss(z, y, module.alpha, temperature=2.0))
    assert "temperature=2.0" in repr(s.nn.Sparsemax(temperature=2.0))
    assert "temp" not in repr(s.nn.Entmax())
    with pytest.raises(ValueError, match="temperature: expected any number except NaN, got nan"):
        s.nn.Entmax(temperature=math.nan)
