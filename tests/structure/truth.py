"""The true product in the log semiring, computed with mpmath, and the error of a result in ulp."""

from __future__ import annotations

import mpmath
import numpy as np
from numpy.typing import NDArray
from tests.oracle.truth import ulp_error

F64 = NDArray[np.float64]


def product(a: np.ndarray, b: np.ndarray, beta: float = 1.0) -> tuple[F64, F64, F64]:
    """Return c as a pair hi + lo, and the largest a_ik + b_kj (for beta < 0 the smallest). All numbers are finite."""
    c = np.zeros((3, a.shape[0], b.shape[1]))
    with mpmath.workdps(50):
        left, right = ([[mpmath.mpf(float(x)) for x in row] for row in m] for m in (a, b.T))
        for i, row in enumerate(left):
            for j, column in enumerate(right):
                z = [x + y for x, y in zip(row, column, strict=True)]
                top = max(z) if beta > 0 else min(z)
                found = top + mpmath.log(mpmath.fsum(mpmath.exp(beta * (x - top)) for x in z)) / beta
                hi = float(found)
                c[:, i, j] = hi, float(found - hi), float(top)
    return c[0], c[1], c[2]


def errors(c: np.ndarray, a: np.ndarray, b: np.ndarray, beta: float = 1.0) -> F64:
    """Return the error of each element in ulp of max(|largest term|, |result|)."""
    hi, lo, top = product(a, b, beta)
    return ulp_error(c, hi, lo, at=np.maximum(abs(hi), abs(top)))
