"""The true values that the oracle computes with NumPy agree with mpmath on 10^4 values."""

from __future__ import annotations

import numpy as np
import pytest
from tests.oracle.pairs import dd_exp, dd_log1p
from tests.oracle.truth import Truth, beta_pair, exact_family, family_truth, ulp_error

OPS = ("softmax", "log_softmax", "logsumexp")


def _rows(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(20)
    rows = [(rng.standard_normal(n) * s).astype(dtype) for s in (1, 10, 40, 87, 1e4) for n in (2, 7, 40)]
    rows += [(rng.standard_normal(30) * 5 + c).astype(dtype) for c in (1e3, -1e5, 1e7, -1e12)]
    deep = {"float32": 103.0, "float64": 744.0}[dtype]
    rows += [
        np.array([40, 0], dtype),
        np.array([0, -40], dtype),
        np.array([0, -deep, -deep + 1, -deep + 20.3], dtype),  # subnormal probabilities, subnormal loss
        np.array([-deep, 0, -deep], dtype),
        np.array([1, 1, 1, np.nextafter(np.array(1, dtype), np.array(2, dtype))], dtype),
        np.array([np.finfo(dtype).smallest_subnormal, 0, -0.0, np.finfo(dtype).tiny], dtype),
        np.array([-np.log(2), -np.log(2)], dtype),  # lse is near 0, but m is not
        (-0.5 * np.arange(200)).astype(dtype),
        (np.rint(rng.standard_normal(300) * 3)).astype(dtype),
        ((np.arange(-60, 1) + 0.5) * np.log(2)).astype(dtype),
    ]
    return rows


OPTIONS = [(1.0, None), (3.7, None), (0.1, None), (1.0, 2.0), (10.0, 10.0), (-1.3, None), (0.7, 0.3), (1e-3, None)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truth_agrees_with_mpmath(dtype: str) -> None:
    """True values for float32 are float64 numbers, within 1e-3 ulp. Those for float64 are pairs, within 1e-4 ulp."""
    allowed = {"float32": 1e-3, "float64": 1e-4}[dtype]
    checked = 0
    for row in _rows(dtype):
        for temperature, base in OPTIONS:
            found, exact = family_truth(row, temperature, base), exact_family(row, temperature, base)
            for op in OPS:
                f, e = getattr(found, op), getattr(exact, op)
                at = exact.largest if op == "logsumexp" else None
                error = _distance(f, e, dtype, at)
                assert error.max() <= allowed, (op, row[:5], temperature, base, error.max())
                checked += error.size
    assert checked >= 10_000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_order_does_not_change_the_truth(dtype: str) -> None:
    z = np.random.default_rng(3).standard_normal((5, 3)).astype(dtype)
    for view in (z.T, np.zeros((2, 2), dtype).T, z[::-2, ::2]):
        found, wanted = family_truth(view), family_truth(view.copy())
        for op in OPS:
            for a, b in zip(getattr(found, op), getattr(wanted, op), strict=True):
                assert np.array_equal(a, b) if a is not None else b is None, op
    assert (ulp_error(np.full((2, 2), 0.5), *family_truth(np.zeros((2, 2)).T).softmax) == 0).all()
    x = -np.arange(6.0).reshape(2, 3).T
    assert all(np.array_equal(*pair) for pair in zip(dd_exp((x, 0 * x)), dd_exp((x.copy(), 0 * x.copy())), strict=True))


def _distance(found: Truth, exact: Truth, dtype: str, at: np.ndarray | None) -> np.ndarray:
    """Return |found - exact| in ulp of dtype, after scaling both pairs to the same lift."""
    hi = np.ldexp(np.ravel(found.hi), exact.lift - np.ravel(found.lift))
    lo = 0.0 if found.lo is None else np.ldexp(np.ravel(found.lo), exact.lift - np.ravel(found.lift))
    error = np.abs((hi - exact.hi) + (lo - exact.lo))
    precision, smallest = {"float32": (24, -126), "float64": (53, -1022)}[dtype]
    exponent = np.frexp(exact.hi)[1] - 1 - exact.lift
    if at is not None:
        exponent = np.maximum(exponent, np.frexp(at)[1] - 1)
    return np.ldexp(error, -(np.maximum(exponent, smallest) - precision + 1) - exact.lift)


def test_per_row_temperature() -> None:
    z = np.random.default_rng(1).standard_normal((4, 9))
    t = [0.5, 1.0, 3.7, -2.0]
    whole = family_truth(z, t, 2.0)
    for i in range(4):
        one = family_truth(z[i], t[i], 2.0)
        for op in OPS:
            assert np.array_equal(np.ravel(getattr(whole, op).hi[i]), np.ravel(getattr(one, op).hi))


def test_out_of_support() -> None:
    for dtype in ("float32", "float64"):
        z = np.array([[0, -np.inf, -1], [-np.inf] * 3], dtype)
        p, log_p, lse, _ = family_truth(z)
        assert ulp_error(np.array([[0.7310585786300049, 0, 0.2689414213699951], [0, 0, 0]]), *p).max() <= 1
        assert np.array_equal(np.isneginf(log_p.hi), [[False, True, False], [True] * 3])
        assert lse.hi[1] == -np.inf


def test_beta_is_a_pair() -> None:
    hi, lo = beta_pair(3.7)
    assert hi == 1 / 3.7
    assert 0 < abs(lo) < 2.0**-55


def test_huge_scores_do_not_overflow() -> None:
    found = family_truth(np.array([1e308, -1e308, 1e308]), 1e307)
    exact = family_truth(np.array([10.0, -10.0, 10.0]), 1.0)
    assert np.allclose(found.softmax.hi, exact.softmax.hi, rtol=1e-14)
    assert np.allclose(found.logsumexp.hi, 1e308 + 1e307 * np.log(2 + np.exp(-20)), rtol=1e-15)


def test_pairs_at_the_ends() -> None:
    x = np.array([0.0, -1e-320, -745.0, -900.0])
    hi, _ = dd_exp((x, np.zeros(4)), 600)
    assert hi[0] == hi[1] == 2.0**600
    assert hi[3] == 0
    assert 0 < np.ldexp(hi[2], -600) < 1e-323
    small = np.ldexp([5e-324, 1e-300], 600)
    assert np.array_equal(dd_log1p((small, np.zeros(2)), 600)[0], small)


# --- ulp_error --------------------------------------------------------------------------------------------------------


def test_ulp_error_counts_last_places() -> None:
    x = np.float32(0.3)
    truth = np.float64(x)
    assert ulp_error(x, truth) == 0
    assert ulp_error(np.nextafter(x, np.float32(1)), truth) == 1
    assert ulp_error(np.float32(0), np.float64(2.0**-149)) == 1
    assert ulp_error(np.float32(2.0**-149), 0.0) == 1
    assert ulp_error(np.float64(0.3), 0.3, 2.0**-56) == 0.25
    assert ulp_error(np.float64(5e-324), *Truth(np.ldexp(1.5, 600 - 1074), None, 600)) == 0.5
    assert ulp_error(np.float32(1.0078125), 1.0, dtype="bfloat16") == 1
    assert ulp_error(np.float16(6e-8), 0.0) == 1
    assert ulp_error(np.float32(1e-9), 2e-9, at=1.0) < 0.01


def test_ulp_error_of_infinities_and_nan() -> None:
    inf, nan = np.inf, np.nan
    actual = np.array([inf, -inf, nan, 1, inf, nan, inf, 0], np.float32)
    truth = np.array([inf, -inf, nan, inf, -inf, 1, 1e39, nan])
    assert ulp_error(actual, truth).tolist() == [0, 0, 0, inf, inf, inf, 0, inf]
    assert ulp_error(np.float32(inf), 1.0) > 1e38 / 2**103
    assert ulp_error(np.float32(inf), float(np.finfo("f4").max)) == 1
    assert ulp_error(np.float32(1), 1e39) == inf
