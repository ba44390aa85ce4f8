"""p, tau and the support compared with truth.py: short rows of every spread, rows with scores near the threshold."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import LIFT, ulp_error
from tests.sparse.truth import Exact, allowance, exact, made_of, sparsemax_fractions

import softargmax as s

BELOW = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-6, 1 - 1e-12)
ALPHAS = (*BELOW, 1.0, 1 + 1e-12, 1 + 1e-6, 1 + 1e-4, 1.01, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0, 20.0)
SPREADS = (0.1, 1.0, 10.0, 100.0, 1e4)
TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}
each = pytest.mark.parametrize("alpha", ALPHAS)
both = pytest.mark.parametrize("dtype", ["float32", "float64"])


@pytest.fixture(params=["native", "reference"])
def served(request: pytest.FixtureRequest) -> Any:
    """Use each implementation, and return its name."""
    with s.using(request.param):
        yield request.param


def ordinary(alpha: float, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(int(alpha * 1000))
    rows = [(rng.standard_normal(k) * spread).astype(dtype) for k in (1, 2, 5, 33) for spread in SPREADS]
    rows += [np.round(row * 4).astype(dtype) / 4 for row in rows[-5:]]  # with ties
    return [*rows, np.full(7, 3.25, dtype), np.where(np.arange(33) % 3 == 0, -np.inf, rows[-1]).astype(dtype)]


def near_the_threshold(alpha: float, dtype: str) -> list[np.ndarray]:
    return [made_of(least, k, alpha, dtype) for least in (1e-3, 1e-6, 1e-12) for k in (2, 3, 20)]


def digits(row: np.ndarray, alpha: float) -> int:
    """Return a number of digits that resolves the smallest distance of a score from the threshold."""
    return 60 + int(15 * (alpha - 1))


def off_the_sum(row: Exact, implementation: str, dtype: str) -> float:
    """Return the allowed error of sum p in units of 2^-53.

    A p of the kernel has an error of at most 2 units. The reference computes p as e^y, with an error of at most 4
    units, and 2 |y| more because y is rounded.
    """
    p = np.ldexp(row.p.hi, -LIFT)
    y = np.abs(np.log(np.where(p > 0, p, 1)))
    return 2.0 if implementation == "native" else float((p * (4 + 2 * y)).sum())


def of_the_logarithm(row: Exact, alpha: float) -> np.ndarray | float:
    """Return the allowed error of y = log(v) / a in units of 2^-53.

    The error matters only below order 1, where |y| is large. With v = 2^k (1 + t), the terms of log(1 + t) after
    t - t^2 / 2 have one to three rounding errors (`log_pair` in math.hpp).
    """
    if alpha >= 1:
        return 0.0
    t = np.frexp(np.where(row.v > 0, row.v, 1))[0]
    t = np.where(t < math.sqrt(0.5), 2 * t, t) - 1
    return 3 * np.abs(np.log1p(t) - t + t * t / 2) / (1 - alpha)


def bound(row: Exact, alpha: float, implementation: str, dtype: str) -> np.ndarray:
    """Return the allowed error of p, from the error of the sum and the rounding of p. Subnormal p may be 0."""
    p = np.ldexp(row.p.hi, -LIFT)
    own = 0.51 * ROUNDING["float32"] * 2
    if dtype == "float64":
        y = np.abs(np.log(np.where(p > 0, p, 1)))
        own = (
            (1.1 + of_the_logarithm(row, alpha) if implementation == "native" else 2 + 2 * y) * ROUNDING["float64"] * 2
        )
    return (
        own * p
        + np.where(p < TINY[dtype], TINY[dtype], 0)
        + allowance(row, alpha, off_the_sum(row, implementation, dtype) * 2.0**-53)
    )


def check(row: np.ndarray, alpha: float, implementation: str, dtype: str) -> None:
    true = exact(row, alpha, digits(row, alpha))
    p = s.entmax(row, np.array([alpha]) if alpha == 1 else alpha)  # an array, because the number 1 calls softmax
    hi, lo = (np.ldexp(x, -LIFT) for x in (true.p.hi, true.p.lo))
    error = np.abs((p - hi) - lo)
    where = (row.tolist(), alpha, p.tolist(), hi.tolist())
    if alpha <= 2:
        assert (error <= bound(true, alpha, implementation, dtype)).all(), where
    else:
        assert (error <= 4 * np.spacing(np.max(hi).astype(dtype))).all(), where
    if dtype == "float32" and alpha <= 2 and implementation == "native":
        assert ulp_error(p, *true.p)[hi >= 1e-30].max() <= 4, where
    normal = hi >= TINY[dtype]
    sure = hi > allowance(true, alpha, off_the_sum(true, implementation, dtype) * 2.0**-53) if alpha > 2 else normal
    assert (p[normal & sure] > 0).all(), where
    assert (p[hi == 0] == 0).all(), where


@pytest.mark.no_sanitize  # other tests run the same code under the sanitizers
@each
@both
def test_ordinary_rows(alpha: float, dtype: str, served: str) -> None:
    for row in ordinary(alpha, dtype):
        check(row, alpha, served, dtype)


@pytest.mark.no_sanitize  # other tests run the same code under the sanitizers
@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.5, 1.75, 1.9, 2.0, 2.25, 3.0, 5.0])
@both
def test_rows_that_end_next_to_the_threshold(alpha: float, dtype: str, served: str) -> None:
    for row in near_the_threshold(alpha, dtype):
        check(row, alpha, served, dtype)


# --- rows that test one property each ---------------------------------------------------------------------------------


@both
def test_sparsemax_is_the_exact_fraction_rounded(dtype: str) -> None:
    """The kernel's threshold is a pair with an error of about 2^-100, so each p is the exact fraction, rounded once."""
    rows = ordinary(2.0, dtype)[:-1] + near_the_threshold(2.0, dtype)
    for row in rows:
        for found, true in zip(s.sparsemax(row), sparsemax_fractions(row), strict=True):
            off = float(abs(Fraction(float(found)) - true) / true) if true else float(found)
            assert off <= 1.001 * ROUNDING[dtype] + (2.0**-98 / float(true) if true else 0), (row, found, true)


@pytest.mark.no_sanitize  # other tests run the same code under the sanitizers
@pytest.mark.parametrize("alpha", [1.001, 1.01, 1.03, 1.05, 1.1, 1.2, 1.3])
def test_powers_over_the_range_of_v(alpha: float) -> None:
    """The p of the lower of two scores, v^(1 / (alpha - 1)), is accurate over a wide range of v up to 1."""
    for v in np.linspace(max(0.02, 1 - 60 * (alpha - 1)), 1, 97):
        row = np.array([0.0, (v - 1) / (alpha - 1)])
        check(row, alpha, "native", "float64")


@pytest.mark.no_sanitize  # other tests run the same code under the sanitizers
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 0.99, 0.999])
@both
def test_heavy_tails_keep_their_digits(alpha: float, dtype: str) -> None:
    """Below order 1, the p of the lower of two scores has an error of at most 4 ulp, for p from 1/2 to 1e-30."""
    for y in np.linspace(0, 69, 93):
        row = np.array([0.0, -math.expm1((1 - alpha) * y) / (1 - alpha)], dtype)
        found, true = s.entmax(row, alpha), exact(row, alpha)
        assert ulp_error(found, *true.p).max() <= 4, (row, found)


@pytest.mark.parametrize("k", [3, 5000])
@both
def test_below_order_1_every_p_is_positive(k: int, dtype: str, served: str) -> None:
    z = (1e4 * np.random.default_rng(k).standard_normal((2, k))).astype(dtype)
    z[:, 0] = -np.inf
    p = s.entmax(z, 0.5)
    assert (p[:, 0] == 0).all()
    assert (p[:, 1:] > 0).all()
    assert s.threshold(z, 0.5).support_size.tolist() == [k - 1] * 2
    largest = np.finfo(dtype).max
    assert s.entmax(np.array([largest, -largest, largest], dtype), 0.9).tolist() == [0.5, 0.0, 0.5]


@both
def test_order_1_is_approached_from_below(dtype: str, served: str) -> None:
    z = (3 * np.random.default_rng(8).standard_normal((5, 40))).astype(dtype)
    limit = s.softmax(z.astype(np.float64))
    y = np.log(limit)
    for h in (2.0**-40, math.ulp(0.5)):
        # The first derivative with respect to alpha at 1 is -p (y^2 - <p, y^2>) / 2. Terms of h^2 are negligible.
        line = limit + h * limit * (y * y - (limit * y * y).sum(-1, keepdims=True)) / 2
        off = np.abs(s.entmax(z, 1 - h) - line) / limit
        assert (off <= (4 + 2 * np.abs(y)) * 2 * ROUNDING[dtype]).all(), h


@pytest.mark.parametrize("alpha", [5.0, 20.0, 101.0, 1001.0, 1e300])
@both
def test_equal_scores_share_at_any_order(alpha: float, dtype: str, served: str) -> None:
    for k in (2, 17, 1000):
        row = np.full(k, 0.5, dtype)
        assert ulp_error(s.entmax(row, alpha), np.full(k, 1 / k)).max() <= 4, k
        found = s.threshold(row, alpha)
        assert found.support_size == k
        if alpha < 1e30:
            assert found.tau == pytest.approx(0.5 * (alpha - 1) - float(k) ** (1 - alpha), rel=1e-6), k


@pytest.mark.no_sanitize  # other tests run the same code on fewer rows under the sanitizers
@pytest.mark.parametrize("alpha", [1.25, 2.25, 2.5, 3.0, 5.0, 20.0])
@both
def test_many_rows_sum_to_one(alpha: float, dtype: str) -> None:
    """p sums to 1 in twenty thousand ordinary rows, some of which have scores next to the threshold."""
    rng = np.random.default_rng(5)
    for spread in (0.1, 1.0, 10.0):
        p = s.entmax((rng.standard_normal((20_000, 30)) * spread).astype(dtype), alpha).astype(np.float64)
        off = np.abs(p.sum(-1) - 1)
        assert off.max() <= 31 * ROUNDING[dtype], (spread, off.max(), (off > 31 * ROUNDING[dtype]).sum())


@both
def test_the_smallest_normal_number_is_in_the_support(dtype: str, served: str) -> None:
    for p in (1.001 * TINY[dtype], 1.2 * TINY[dtype], 1.45 * TINY[dtype], 2 * TINY[dtype]):
        row = np.array([0.0, math.log(p)], dtype)
        found = s.entmax(row, 1 + 1e-13)
        assert found[1] == pytest.approx(math.exp(float(row[1])), rel=1e-6), (p, found)
        assert s.threshold(row, 1 + 1e-13).support_size == 2


def test_both_implementations_count_the_same_support(served: str) -> None:
    """p = e^-95, e^-120 and e^-700 count as positive for float32 scores, because p is computed in float64.

    These p are below the normal range of float32.
    """
    for z in (-50.0, -95.0, -105.0, -120.0, -700.0):
        assert s.threshold(np.array([0.0, z], np.float32), 1.0).support_size == 2, z


def crowds() -> list[np.ndarray]:
    """Return rows with thousands of scores within 1e-11 of the threshold.

    Some of these scores enter the support only in the last steps of the search.
    """
    far = np.abs(np.random.default_rng(0).standard_cauchy(3000))
    rows = [np.append(1 - 1e-9, -np.arange(20_000) * 10.0**-15.5), np.append(1 - 1e-9, -far * 1e-12)]
    return [*rows, made_of(1e-13, 5000, 2.0, "float32", seed=18)]


@both
def test_a_crowd_at_the_threshold(dtype: str, served: str) -> None:
    for z in crowds():
        row = z.astype(dtype)
        wanted = sparsemax_fractions(row)
        found = s.sparsemax(row)
        assert s.threshold(row, 2.0).support_size == sum(x > 0 for x in wanted)
        p = np.array(list(map(float, wanted)))
        units = (
            0.0 if served == "native" else 4 - 2 * np.log(np.where(p > 0, p, 1))
        )  # the error of p, as explained in `off_the_sum`
        slack = (p * units + 2 * (p * units).sum() / np.count_nonzero(p)) * 2.0**-53
        error = np.array([float(abs(Fraction(float(x)) - y)) for x, y in zip(found, wanted, strict=True)])
        assert (error <= 1.02 * ROUNDING[dtype] * p + slack).all()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75])
def test_a_crowd_sums_to_1_at_other_orders(alpha: float, served: str) -> None:
    for row in crowds():
        assert abs(math.fsum(s.entmax(row.astype(float), alpha)) - 1) <= 2.0**-51


def test_scores_closer_than_the_accuracy_of_the_search() -> None:
    """p sums to 1 even if thousands of scores differ by less than 1e-30, the accuracy of the search above order 2."""
    rng = np.random.default_rng(0)
    for scale, dtype in ((1e-60, "float64"), (1e-35, "float32")):
        row = (rng.random(20_000) * scale).astype(dtype)
        assert abs(math.fsum(s.entmax(row, 20.0)) - 1) <= 4 * ROUNDING[dtype]
