"""The true p of the sparse maps: in mpmath for a row, in longdouble for a matrix, in fractions for sparsemax.

This file does not use softargmax. Unlike the library, it solves for q, the largest of the K probabilities of a row.

    p_i = (q^a + a d_i)_+^(1/a)      d_i = z_i - max z      a = alpha - 1      p_i = q e^(d_i) where a = 0

The sum of p increases with q. `test_truth.py` compares the three solutions with each other and with closed forms.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tests.oracle.truth import LIFT, Truth

DIGITS = 60
Long = NDArray[np.longdouble]


class Exact(NamedTuple):
    """The solution of one row: p, v with p = v^(1/a), the sum of p / v (the slope of sum p), tau, the support size."""

    p: Truth
    v: NDArray[np.float64]
    slope: float
    tau: Any
    support: int
    all_p: list[Any]  # p as mpmath numbers


# --- one row, to any number of digits ---------------------------------------------------------------------------------


def _terms(q: Any, d: list[Any], a: Any) -> tuple[list[Any], list[Any]]:
    """Return the p above 0 and their v. d is sorted in descending order."""
    if a == 0:
        p = [q * mpmath.exp(x) for x in d]
        return p, [mpmath.mpf(1)] * len(p)
    base, powers, bases = q**a, [], []
    for x in d:
        v = base + a * x
        if v <= 0:
            break
        bases.append(v)
        powers.append(mpmath.exp(mpmath.log(v) / a))
    return powers, bases


def _root(d: list[Any], a: Any, start: float, digits: int) -> Any:
    """Return q by Newton's method between two bounds, and verify the root by the sums on both sides of it."""
    low, high = mpmath.mpf(1) / len(d), mpmath.mpf(1)
    q = min(max(mpmath.mpf(start), low), high)
    tight = mpmath.mpf(10) ** (8 - digits)
    for _ in range(40 * digits):
        p, v = _terms(q, d, a)
        rest = mpmath.fsum(p) - 1
        low, high = (low, q) if rest > 0 else (q, high)
        slope = mpmath.fsum(x / y for x, y in zip(p, v, strict=True)) * q ** (a - 1)
        following = q - rest / slope
        if abs(following - q) <= tight * q / 100:
            q = following
            break
        q = following if low < following < high else (low + high) / 2
    if len(d) > 1:
        assert mpmath.fsum(_terms(q * (1 - tight), d, a)[0]) < 1 < mpmath.fsum(_terms(q * (1 + tight), d, a)[0])
    return q


def exact(row: ArrayLike, alpha: float, digits: int = DIGITS) -> Exact:
    """Return the solution of one row. Scores are finite or -inf, and at least one is finite. Results are cached."""
    return _exact(tuple(np.asarray(row, np.float64).tolist()), alpha, digits)


@cache
def _exact(row: tuple[float, ...], alpha: float, digits: int) -> Exact:
    values = np.array(row)
    order = [int(i) for i in np.argsort(-values, kind="stable") if values[i] > -math.inf]
    start = float(np.max(wide(values[None], alpha)[0]))
    # The number of digits by which p = v^(1/a) is less accurate than v.
    lost = max(0, math.ceil(-math.log10(abs(alpha - 1)))) if alpha != 1 else 0
    with mpmath.workdps(digits + lost):
        m, a = mpmath.mpf(float(values[order[0]])), mpmath.mpf(alpha) - 1
        d = [mpmath.mpf(float(values[i])) - m for i in order]
        q = _root(d, a, start, digits)
        p, v = _terms(q, d, a)
        slope = mpmath.fsum(x / y for x, y in zip(p, v, strict=True))
        pairs = [[0.0, 0.0, 0.0] for _ in values]
        every = [mpmath.mpf(0)] * len(values)
        for i, x, y in zip(order, p, v, strict=False):
            lifted = x * mpmath.mpf(2) ** LIFT
            hi = float(lifted)
            pairs[i] = [hi, float(lifted - hi), float(y)]
            every[i] = x
        hi, lo, bases = np.array(pairs).T
        tau = a * m - (q**a if a else 1)
        return Exact(Truth(hi, lo, LIFT), bases, float(slope), tau, len(p), every)


def sparsemax_fractions(row: ArrayLike) -> list[Fraction]:
    """Return the exact sparsemax of one row of finite scores.

    z_i is in the support S, which has n scores, if n z_i > sum_S z - 1.
    """
    z = [Fraction(float(x)) for x in np.asarray(row, np.float64)]
    ordered = sorted(z, reverse=True)
    n, sum_of = 0, Fraction(0)
    for k, x in enumerate(ordered, 1):
        if k * x <= sum_of + x - 1:
            break
        n, sum_of = k, sum_of + x
    return [max(Fraction(0), (n * x - sum_of + 1) / n) for x in z]


# --- matrices, to 64 bits ---------------------------------------------------------------------------------------------


def _sums(y: Any, d: Any, a: Any) -> tuple[Any, Any]:
    """Return p for log q = y, and the derivative of sum p with respect to y."""
    there = d > -math.inf
    x = np.where(there, d, 0)
    if a == 0:
        p = np.where(there, np.exp(x + y), 0)
        return p, p.sum(-1, keepdims=True)
    if a <= 1:
        w = np.expm1(a * y) + a * x
        inside = there & (w > -1)
        log_v = np.log1p(np.where(inside, w, 0))
    else:
        v = np.exp(a * y) + a * x
        inside = there & (v > 0)
        log_v = np.log(np.where(inside, v, 1))
    p = np.where(inside, np.exp(log_v / a), 0)
    return p, (p * np.exp(np.where(inside, a * y - log_v, 0))).sum(-1, keepdims=True)


def _solve(d: Any, a: Any, y: Any, steps: int, tight: float) -> Any:
    low, high = np.full_like(y, -math.inf), np.zeros_like(y)
    low[...] = -np.log(np.maximum((d > -math.inf).sum(-1, keepdims=True), 1)) * (1 + 1e-15) - 1e-15
    for _ in range(steps):
        p, slope = _sums(y, d, a)
        rest = p.sum(-1, keepdims=True) - 1
        low, high = np.where(rest > 0, low, y), np.where(rest > 0, y, high)
        following = y - rest / np.maximum(slope, 1e-4000 if d.dtype == np.longdouble else 1e-300)
        small = np.abs(following - y) <= tight
        following = np.where(small | ((following > low) & (following < high)), following, (low + high) / 2)
        y = following
        if small.all():
            return y
    return y


@np.errstate(all="ignore")
def wide(z: ArrayLike, alpha: float) -> Long:
    """Return p in longdouble for rows of scores, finite or -inf, and alpha <= 3. Each row has a finite score."""
    scores = np.asarray(z).astype(np.longdouble)
    d, a = scores - scores.max(-1, keepdims=True), np.longdouble(alpha) - 1
    keep = (d > (-1 / a if a > 0 else -math.inf)).any(0)
    near = d[:, keep]
    y = _solve(near.astype(np.float64), np.float64(a), np.zeros((len(d), 1)), 400, 1e-14)
    y = _solve(near, a, y.astype(np.longdouble), 200, 1e-18)
    p = np.zeros_like(d)
    p[:, keep] = _sums(y, near, a)[0]
    return p


# --- rows with scores next to the threshold ---------------------------------------------------------------------------


def made_of(smallest: float, k: int, alpha: float, dtype: str, seed: int = 0) -> NDArray[np.float64]:
    """Return scores p^a / a, whose threshold is near 0. The smallest p is about `smallest`."""
    rng = np.random.default_rng([seed, k])
    p = np.exp(rng.uniform(math.log(smallest), 0, k))
    p[-1] = smallest
    p /= p.sum()
    a = alpha - 1
    return (p**a / a if a else np.log(p)).astype(dtype)


# --- bounds for the error of a result ---------------------------------------------------------------------------------


def allowance(row: Exact, alpha: float, sum_error: float) -> NDArray[np.float64]:
    """Return by how much each p is wrong if the sum of p is wrong by `sum_error`.

    The error `sum_error` of the sum moves every v by |a| sum_error / slope.
    """
    a, p = alpha - 1, np.ldexp(row.p.hi, -LIFT)
    if a == 0:
        return p * sum_error
    move = abs(a) * sum_error / row.slope
    there = row.v > 4 * move
    return np.where(
        there, 2 * sum_error / row.slope * p / np.where(there, row.v, 1), (row.v + move) ** (1 / a) if a > 0 else 0
    )
