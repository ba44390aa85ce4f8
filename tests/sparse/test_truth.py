"""Tests of truth.py: fractions, mpmath, longdouble and closed forms agree, and small errors are detected."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from tests.oracle.truth import LIFT, exact_family, ulp_error
from tests.sparse.truth import allowance, exact, made_of, sparsemax_fractions, wide

RNG = np.random.default_rng(1)
ROWS = [RNG.standard_normal(k) * spread for k in (1, 2, 7, 40) for spread in (0.1, 3.0, 1e3)]


def test_sparsemax_in_fractions_equals_mpmath() -> None:
    for row in [*ROWS, made_of(1e-25, 9, 2.0, "float64")]:
        found = exact(row, 2.0)
        for ours, fraction in zip(found.all_p, sparsemax_fractions(row), strict=True):
            assert abs(ours - mpmath.mpf(fraction.numerator) / fraction.denominator) <= 1e-15 * ours
        assert found.support == sum(p > 0 for p in sparsemax_fractions(row))


def test_order_1_is_softmax() -> None:
    for row in ROWS:
        other = exact_family(row).softmax
        assert ulp_error(np.ldexp(exact(row, 1.0).p.hi, -LIFT), *other).max() <= 0.51
        assert exact(row, 1.0).tau == -1


def test_order_1_5_equals_its_closed_form() -> None:
    """tau = mean - sqrt((1 - n variance) / n).

    The mean and the variance are those of z / 2 over the n scores in the support. The source is Peters, Niculae &
    Martins (2019).
    """
    for row in ROWS:
        found = exact(row, 1.5)
        z = sorted((mpmath.mpf(float(x)) / 2 for x in row), reverse=True)[: found.support]
        with mpmath.workdps(60):
            n, mean = len(z), mpmath.fsum(z) / len(z)
            tau = mean - mpmath.sqrt((1 - mpmath.fsum((x - mean) ** 2 for x in z)) / n)
            assert abs(tau - found.tau) <= mpmath.mpf(10) ** -40 * max(1, abs(tau))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 0.999, 1.0, 1 + 1e-12, 1 + 1e-4, 1.25, 1.5, 2.0, 3.0])
def test_longdouble_agrees_with_mpmath(alpha: float) -> None:
    for row in ROWS:
        found, true = wide(row[None], alpha)[0], exact(row, alpha)
        lo, hi = (np.ldexp(x.astype(np.longdouble), -LIFT) for x in (true.p.lo, true.p.hi))
        # p is computed as e^y, and the relative error of e^y is the absolute error of y.
        digits = (2 + np.abs(np.log(np.where(hi > 0, hi, 1)))) * hi
        assert (np.abs((found - hi) - lo) <= 2.0**-61 * digits + allowance(true, alpha, 2.0**-60) + 1e-300).all()


def test_an_equal_row_is_uniform() -> None:
    for alpha in (0.1, 0.9, 1.0, 1.5, 2.0, 5.0, 20.0, 1001.0):
        assert exact(np.full(7, 3.0), alpha).p.hi == pytest.approx(np.full(7, math.ldexp(1 / 7, LIFT)), rel=1e-15)


def test_constructed_rows_have_p_next_to_the_threshold() -> None:
    for alpha in (1.25, 2.0, 3.0):
        p = np.ldexp(exact(made_of(1e-12, 9, alpha, "float64"), alpha, 120).p.hi, -LIFT)
        assert 0 < np.min(p[p > 0]) < 1e-8


def test_wrong_results_are_detected() -> None:
    """A relative error of 1e-12 in tau, or a score that is missing in the support, gives an error above 100 ulp."""
    row = ROWS[-2]
    p = np.ldexp(exact(row, 1.5).p.hi, -LIFT)
    tau = float(exact(row, 1.5).tau)
    off = np.maximum(row / 2 - tau * (1 + 1e-12), 0) ** 2
    assert ulp_error(off, p).max() > 100
    lacks = np.where(p == np.min(p[p > 0]), 0, p)
    assert ulp_error(lacks, p).max() > 100
