"""The true values of softmax, log_softmax and logsumexp, and the distance of a result from the true value.

For scores of float32 and narrower, a true value is a float64. For float64 scores it is a pair hi + lo of float64
("double-double"). `test_truth.py` checks both against mpmath. This file uses neither softargmax nor its algorithms. It
subtracts the maximum without error, and takes exponentials from a table of 2^(j/4096). The term of the maximum is
exactly 1, and is never part of a rounded sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tests.oracle.pairs import DIGITS, F64, Pair, dd_add, dd_div, dd_exp, dd_log1p, dd_mul, dd_sum, two_sum

LIFT = 600  # scaling by 2^600 keeps pairs of tiny values out of the subnormal range
FORMATS = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float64": (53, -1022)}
LARGEST_EXPONENT = {"float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}


class Truth(NamedTuple):
    """True values: (hi + lo) * 2**-lift. Pass them as `ulp_error(actual, *truth)`."""

    hi: F64
    lo: F64 | None = None
    lift: int | NDArray[np.int64] = 0


Beta = tuple[F64, F64, NDArray[np.int64]]  # (hi, lo, k) for beta = (hi + lo) 2^k, with hi from 1/2 to 1 in magnitude


class Family(NamedTuple):
    """The true values of the three functions for the same rows."""

    softmax: Truth
    log_softmax: Truth
    logsumexp: Truth
    largest: F64  # |m|: the bound of logsumexp is relative to max(|m|, |lse|)


def ulp_error(
    actual: Any,
    truth_hi: ArrayLike,
    truth_lo: ArrayLike | None = None,
    lift: Any = 0,
    *,
    dtype: str | None = None,
    at: ArrayLike | None = None,
) -> F64:
    """Return |actual - truth| in ulp of the format of `actual`.

    One ulp is taken at the truth, or at the magnitude `at` if that is larger. Below the normal range, one ulp is the
    smallest subnormal. If an infinity or NaN differs from the truth, the error is inf. An infinity matches a truth
    beyond the largest finite number. `dtype` names the format if `actual` is stored in a wider one (bfloat16 numbers in
    a float32 array).
    """
    a = np.asarray(actual)
    precision, smallest = FORMATS[dtype or a.dtype.name]
    top = LARGEST_EXPONENT[dtype or a.dtype.name]
    hi = np.asarray(truth_hi, np.float64)
    lo = np.zeros_like(hi) if truth_lo is None else np.asarray(truth_lo, np.float64)
    with np.errstate(all="ignore"):
        a = a.astype(np.float64)
        exponent = np.frexp(hi)[1].astype(np.int64) - 1 - lift
        if at is not None:
            exponent = np.maximum(exponent, np.frexp(np.asarray(at, np.float64))[1].astype(np.int64) - 1)
        too_large = (exponent > top) & np.isfinite(hi) & (hi != 0)
        exponent = np.where(hi == 0, smallest, np.maximum(exponent, smallest)) if at is None else exponent
        unit = np.maximum(exponent, smallest) - (precision - 1)
        # If the truth is finite, an infinity counts as the first number beyond the range.
        beyond = np.isinf(a) & np.isfinite(hi)
        a = np.where(beyond, np.copysign(np.ldexp(1.0, min(top, 1022) + 1), a), a)
        error = np.abs(np.ldexp((np.ldexp(a, lift) - hi) - lo, -(unit + lift)))
        error = np.where(too_large, np.where(beyond & (np.sign(a) == np.sign(hi)), 0.0, np.inf), error)
        same = (a == hi) | (np.isnan(a) & np.isnan(hi))
        nonfinite = ~np.isfinite(hi) | np.isnan(a)
        return np.where(nonfinite, np.where(same, 0.0, np.inf), error)


# --- the family -------------------------------------------------------------------------------------------------------


@lru_cache(512)
def beta_pair(temperature: float = 1.0, base: float | None = None) -> tuple[float, float]:
    """Return ln(base) / temperature as the pair hi + lo."""
    with mpmath.workdps(DIGITS):
        beta = (mpmath.mpf(1) if base is None else mpmath.log(mpmath.mpf(base))) / mpmath.mpf(temperature)
        hi = float(beta)
        return hi, float(beta - hi)


def _betas(temperature: ArrayLike, base: float | None) -> tuple[F64, F64, NDArray[np.int64]]:
    """Return `Beta` for each row: arrays of shape (rows, 1), or (1, 1) if `temperature` is one number."""
    t = np.asarray(temperature, np.float64).reshape(-1, 1)
    pairs = np.array([beta_pair(float(x), base) for x in t.ravel()]).reshape(-1, 2)
    _, power = np.frexp(pairs[:, :1])
    return np.ldexp(pairs[:, :1], -power), np.ldexp(pairs[:, 1:], -power), power.astype(np.int64)


def family_truth(z: ArrayLike, temperature: ArrayLike = 1.0, base: float | None = None) -> Family:
    """Return the true values of the three functions for z of shape (rows, length).

    Scores are finite, or infinite and outside the support. beta is finite and not 0. `temperature` is a number or has
    one entry per row.
    """
    scores = np.atleast_2d(np.ascontiguousarray(z))
    wide = scores.dtype == np.float64
    scores = scores.astype(np.float64)
    beta, beta_lo, power = _betas(temperature, base)
    with np.errstate(all="ignore"):
        shrink = 60 if wide and np.nanmax(np.where(np.isinf(scores), 0, np.abs(scores)), initial=0) > 2.0**960 else 0
        scores, power = np.ldexp(scores, -shrink), power + shrink
        sign = np.sign(beta)
        at = np.argmax(sign * scores, axis=-1)[:, None]
        m = np.take_along_axis(scores, at, -1)
        empty = np.isinf(m)
        m = np.where(empty, 0.0, m)
        largest = np.abs(np.ldexp(m, shrink))
        exact = (scores - m, np.zeros_like(scores)) if not wide else two_sum(scores, np.broadcast_to(-m, scores.shape))
        compute = _wide if wide else _narrow
        p, log_p, log_l = compute(exact, (beta, beta_lo, power), at)
        lse = _natural(m, log_l, (beta, beta_lo, power), wide)
        lse = Truth(*(None if part is None else np.ldexp(part, shrink) for part in lse[:2]), lse.lift)
        lse = lse._replace(hi=np.where(empty, -sign * np.inf, lse.hi))
        return Family(p, log_p, Truth(*(x if x is None or np.ndim(x) == 0 else x[:, 0] for x in lse)), largest[:, 0])


def _natural(m: F64, log_l: Pair, beta: Beta, wide: bool) -> Truth:
    """Return lse / beta = m + log(l) / beta, the smooth maximum in the unit of the scores."""
    if not wide:
        return Truth(m + np.ldexp(log_l[0] / beta[0], -beta[2]))
    quotient = dd_div(log_l, (beta[0], beta[1]))
    above = np.ldexp(quotient[0], -beta[2]), np.ldexp(quotient[1], -beta[2])  # 2^LIFT times log(l) / beta
    added = np.ldexp(quotient[0], -beta[2] - LIFT), np.ldexp(quotient[1], -beta[2] - LIFT)
    tiny = (m == 0) & (np.abs(added[0]) < 2.0**-200)
    plain = dd_add((m, np.zeros_like(m)), added)
    return Truth(np.where(tiny, above[0], plain[0]), np.where(tiny, above[1], plain[1]), np.where(tiny, LIFT, 0))


def _narrow(d: Pair, beta: Beta, at: NDArray[np.int64]) -> tuple[Truth, Truth, Pair]:
    # d and the product with beta have relative errors of 2^-53. |x| <= 745 where e^x is not 0, so the relative error of
    # e^x is below 745 * 2^-52 = 2e-13, far less than an ulp of float32.
    x = np.ldexp(d[0] * beta[0], beta[2])
    e = np.exp(x)
    np.put_along_axis(e, at, 0.0, -1)
    rest = e.sum(axis=-1, keepdims=True)
    np.put_along_axis(e, at, np.where(np.isinf(np.take_along_axis(x, at, -1)), 0.0, 1.0), -1)
    log_l = np.log1p(rest)
    return Truth(e / (1.0 + rest)), Truth(x - log_l), (log_l, np.zeros_like(log_l))


def _wide(d: Pair, beta: Beta, at: NDArray[np.int64]) -> tuple[Truth, Truth, Pair]:
    d = d[0], np.where(np.isfinite(d[0]), d[1], 0.0)
    finite = np.isfinite(d[0])
    x = dd_mul((np.where(finite, d[0], 0.0), d[1]), (beta[0], beta[1]))
    x = np.where(finite, np.ldexp(x[0], beta[2]), -np.inf), np.where(finite, np.ldexp(x[1], beta[2]), 0.0)
    x = x[0], np.where(np.isfinite(x[0]), x[1], 0.0)
    e = dd_exp(x, LIFT)
    own = np.where(np.isinf(np.take_along_axis(x[0], at, -1)), 0.0, 2.0**LIFT)
    np.put_along_axis(e[0], at, 0.0, -1)
    np.put_along_axis(e[1], at, 0.0, -1)
    r_hi, r_lo = dd_sum(*e)
    rest = r_hi[:, None], r_lo[:, None]
    log_l = dd_log1p(rest, LIFT)
    l = dd_add((np.ones_like(rest[0]), np.zeros_like(rest[0])), (np.ldexp(rest[0], -LIFT), np.ldexp(rest[1], -LIFT)))
    np.put_along_axis(e[0], at, own, -1)
    p = dd_div(e, l)
    log_p = dd_add(x, (-np.ldexp(log_l[0], -LIFT), -np.ldexp(log_l[1], -LIFT)))
    # Only log p of the largest entry can be tiny. It is -log l, which is already lifted.
    lifted = (x[0] == 0) & (np.abs(log_p[0]) < 2.0**-200)
    hi = np.where(lifted, -log_l[0], np.where(np.isinf(x[0]), x[0], log_p[0]))
    lo = np.where(lifted, -log_l[1], np.where(np.isinf(x[0]), 0.0, log_p[1]))
    return Truth(*p, LIFT), Truth(hi, lo, np.where(lifted, LIFT, 0)), log_l


def softmax_truth(z: ArrayLike, temperature: ArrayLike = 1.0, base: float | None = None) -> Truth:
    return family_truth(z, temperature, base).softmax


def log_softmax_truth(z: ArrayLike, temperature: ArrayLike = 1.0, base: float | None = None) -> Truth:
    return family_truth(z, temperature, base).log_softmax


def logsumexp_truth(z: ArrayLike, temperature: ArrayLike = 1.0, base: float | None = None) -> Truth:
    return family_truth(z, temperature, base).logsumexp


# --- mpmath, for single rows ------------------------------------------------------------------------------------------


def _pair(values: list[Any]) -> Truth:
    lifted = [v * mpmath.mpf(2) ** LIFT for v in values]
    hi = [float(v) for v in lifted]
    return Truth(np.array(hi), np.array([float(v - h) for v, h in zip(lifted, hi, strict=True)]), LIFT)


def exact_family(row: ArrayLike, temperature: float = 1.0, base: float | None = None, weights: Any = None) -> Family:
    """Return mpmath's values for one row of finite scores below 1e100 in magnitude.

    beta must be finite and not 0, and `weights` must be above 0.
    """
    z = [mpmath.mpf(float(x)) for x in np.asarray(row).astype(np.float64)]
    w = [mpmath.mpf(1)] * len(z) if weights is None else [mpmath.mpf(float(x)) for x in weights]
    m = max(z) if beta_pair(temperature, base)[0] > 0 else min(z)
    with mpmath.workdps(DIGITS + 400):  # 400 more digits, because a confident row may sum to 1 + 1e-350
        beta = (mpmath.mpf(1) if base is None else mpmath.log(mpmath.mpf(base))) / mpmath.mpf(temperature)
        terms = [wi * mpmath.exp(beta * (x - m)) for x, wi in zip(z, w, strict=True)]
        total = mpmath.fsum(terms)
        log_total = mpmath.log(total)
        return Family(
            _pair([t / total for t in terms]),
            _pair([mpmath.log(t / total) for t in terms]),
            _pair([m + log_total / beta]),
            np.array([abs(float(m))]),
        )
