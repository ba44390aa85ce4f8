"""Arithmetic, exp and log of pairs of float64 ("double-double"), which have about 104 bits, in NumPy arrays.

Only the oracle uses these functions. Exponentials come from a table of 2^(j/4096), logarithms from one Newton step.
"""

from __future__ import annotations

from functools import lru_cache

import mpmath
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Pair = tuple[F64, F64]

DIGITS = 60
CHUNK = 1 << 14  # elements per chunk, so that temporary arrays stay in the cache


def two_sum(a: F64, b: F64) -> Pair:
    """Return a + b and its rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _fast_two_sum(a: F64, b: F64) -> Pair:
    s = a + b
    return s, b - (s - a)


def two_prod(a: F64, b: F64) -> Pair:
    """Return a * b and its rounding error (Dekker; NumPy has no fused multiply-add)."""
    p = a * b
    t = a * 134217729.0
    ah = t - (t - a)
    al = a - ah
    t = b * 134217729.0
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def dd_add(a: Pair, b: Pair) -> Pair:
    s, e = two_sum(a[0], b[0])
    t, f = two_sum(a[1], b[1])
    s, e = _fast_two_sum(s, e + t)
    return _fast_two_sum(s, e + f)


def dd_mul(a: Pair, b: Pair) -> Pair:
    p, e = two_prod(a[0], b[0])
    return _fast_two_sum(p, e + (a[0] * b[1] + a[1] * b[0]))


def dd_div(a: Pair, b: Pair) -> Pair:
    q = a[0] / b[0]
    p = dd_mul((q, np.zeros_like(q)), b)
    rest = (a[0] - p[0]) - p[1] + a[1]
    return _fast_two_sum(q, rest / b[0])


def dd_sum(hi: F64, lo: F64) -> Pair:
    """Return the sums along the last axis. The two halves of the axis are added until one number is left."""
    while hi.shape[-1] > 1:
        half = hi.shape[-1] // 2
        s, t = dd_add((hi[..., :half], lo[..., :half]), (hi[..., half : 2 * half], lo[..., half : 2 * half]))
        hi, lo = (np.concatenate([x, y[..., 2 * half :]], axis=-1) for x, y in ((s, hi), (t, lo)))
    return hi[..., 0], lo[..., 0]


@lru_cache(1)
def _constants() -> tuple[F64, F64, tuple[float, float, float]]:
    """Return 2^(j/4096) as pairs, and ln 2 / 4096 as three numbers of 30, 30 and 53 bits."""
    with mpmath.workdps(DIGITS):
        table = [mpmath.mpf(2) ** (mpmath.mpf(j) / 4096) for j in range(4096)]
        hi = [float(t) for t in table]
        lo = [float(t - h) for t, h in zip(table, hi, strict=True)]
        step = mpmath.log(2) / 4096
        first = mpmath.floor(step * 2**42) / 2**42
        second = mpmath.floor((step - first) * 2**72) / 2**72
        return np.array(hi), np.array(lo), (float(first), float(second), float(step - first - second))


def _reduce(x: Pair) -> tuple[NDArray[np.int64], Pair, Pair]:
    """Return k, 2^(j/4096) and expm1(r) for x = (4096 k + j) ln 2 / 4096 + r, where |r| < 9e-5."""
    table_hi, table_lo, (first, second, third) = _constants()
    steps = np.rint(x[0] * (4096 / np.log(2.0)))
    r, e = two_sum(x[0] - steps * first, -steps * second)
    r, e = _fast_two_sum(r, e + (x[1] - steps * third))
    tail = e + r * e + r * r * (0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120))))
    whole = steps.astype(np.int64)
    j = whole & 4095
    return whole >> 12, (table_hi[j], table_lo[j]), _fast_two_sum(r, tail)


def dd_exp(x: Pair, lift: int = 0) -> Pair:
    """Return exp(x) 2**lift for x in [-760, 0], and 0 for smaller x."""
    out_hi, out_lo = np.zeros(x[0].shape), np.zeros(x[0].shape)  # C order: reshape(-1) below must be a view
    flat = [a.reshape(-1) for a in (np.ascontiguousarray(x[0]), np.ascontiguousarray(x[1]), out_hi, out_lo)]
    for start in range(0, flat[0].size, CHUNK):
        hi, lo, to_hi, to_lo = (a[start : start + CHUNK] for a in flat)
        inside = hi >= -760.0
        k, t, p = _reduce((np.where(inside, hi, 0.0), np.where(inside, lo, 0.0)))
        hi, lo = dd_add(t, dd_mul(t, p))
        k = np.where(inside, k + lift, -3000)
        to_hi[:], to_lo[:] = np.ldexp(hi, k), np.ldexp(lo, k)
    return out_hi, out_lo


def dd_expm1(x: Pair) -> Pair:
    """Return exp(x) - 1 to full relative precision, for |x| < 700."""
    k, t, p = _reduce(x)
    t = np.ldexp(t[0], k), np.ldexp(t[1], k)
    return dd_add(dd_add(t, (np.full_like(t[0], -1.0), np.zeros_like(t[0]))), dd_mul(t, p))


def dd_log1p(r: Pair, lift: int) -> Pair:
    """Return log(1 + x) * 2**lift for x >= 0, by one Newton step from float64's log1p.

    The argument `r` is x * 2**lift as a pair.
    """
    tiny = r[0] < 2.0 ** (lift - 120)  # log(1 + x) equals x to 36 digits, and x may be subnormal
    plain = np.where(tiny, 0.0, np.ldexp(r[0], -lift)), np.where(tiny, 0.0, np.ldexp(r[1], -lift))
    y = np.log1p(plain[0])
    e = dd_expm1((-y, np.zeros_like(y)))
    d = dd_add(dd_add(plain, e), dd_mul(plain, e))  # (1 + x) exp(-y) - 1
    y, f = dd_add((y, np.zeros_like(y)), (d[0], d[1] - 0.5 * d[0] * d[0]))
    return np.where(tiny, r[0], np.ldexp(y, lift)), np.where(tiny, r[1], np.ldexp(f, lift))
