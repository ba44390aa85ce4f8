"""Formulas of sums under a softmax in Triton: means, entropies, Renyi entropies and divergences of blocks and parts.

    Renyi entropy H = log <1, p^a> / (1 - a)        <p, e^u - 1> = <1, p^a> - 1        u = (1 - a) (-log p)

If the parts of a row have the probabilities P and the Renyi entropies S, that of the row is the same with
u = (1 - a) (S - log P). The terms of the sum have one sign.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, exp64, f32, less_one64, log1p64
from softargmax.core.triton_state import gaps, log_of, merge_ratios, row_sum, shares, top_of

ENTROPY, MEAN, POSITION, DIVERGENCE, RENYI = (tl.constexpr(k) for k in range(5))
_SERIES = tl.constexpr(tuple(2.0 * (-1.0) ** j / math.factorial(j + 2) for j in range(14)))
_LOWEST = tl.constexpr(745.0)
"""e^-745 is the smallest float64. A score with p > 0 in float64 and q = 0 makes a divergence infinite."""
_INFINITE = tl.constexpr(1e18)
"""Orders above count as infinite."""


@triton.jit
def mean_of(p, v, VECTOR: tl.constexpr):
    """The sum of p v over each row. Where p = 0, v is ignored."""
    return row_sum(tl.where(p == 0.0, 0.0, p * v), VECTOR, tl.float64)


@triton.jit
def is_near(delta):
    """True where `excess` is accurate. Elsewhere q - p + p delta is accurate, because its terms hardly cancel."""
    return (delta > -2.0) & (delta < 1.0)


@triton.jit
def excess(delta):
    """delta - 1 + e^-delta where `is_near`, with the relative error of float32."""
    x = delta.to(tl.float32)
    series = f32(_SERIES[13])
    for j in tl.static_range(12, -1, -1):
        series = tl.fma(series, x, f32(_SERIES[j]))
    return 0.5 * delta * delta * series.to(tl.float64)


@triton.jit
def log_ratio(r_q, r):
    """log l_q - log l, in float64. The logarithm of an empty support counts as 0."""
    return log1p64(tl.where(r_q == -1.0, 0.0, r_q)) - log1p64(tl.where(r == -1.0, 0.0, r))


@triton.jit
def divergence(p, q, gap, gap_q, shift, VECTOR: tl.constexpr):
    """Return the divergence of each row, and the error of `shift`. delta is gap_q - gap + shift.

    The error e of `shift`, of some roundings of float32, is common to all delta. It is the sum of q - p, because the
    sum of p e^-delta is 1. It adds e^2 / 2 to the sum of p (delta - 1 + e^-delta).
    """
    delta = gap_q - gap + shift
    small = tl.where(is_near(delta), delta, 0.0)
    beyond = excess(small)
    far = (q - p) + tl.where(p == 0.0, 0.0, p * delta)
    far = tl.where((gap < _LOWEST) & (gap_q == INF), INF, far)
    error = row_sum(tl.where(is_near(delta), p * (beyond - small), q - p), VECTOR, tl.float64)
    found = row_sum(tl.where(is_near(delta), p * beyond, far), VECTOR, tl.float64) - 0.5 * error * error
    return tl.where(found < 0.0, 0.0, found), error


@triton.jit
def finished(found, r, WHAT: tl.constexpr):
    """The result of each row from its sum. It is 0 for an empty support."""
    if WHAT == ENTROPY:
        found = found + log_of(r).to(tl.float64)
    return found if WHAT == RENYI else tl.where(r == -1.0, 0.0, found)


# --- Renyi entropies, in float64 --------------------------------------------------------------------------------------


@triton.jit
def is_infinite(order):
    """True for the orders of min-entropies."""
    return order > _INFINITE


@triton.jit
def times_order(gap, order):
    """The gaps of p^a, without NaN for limits. p^inf has mass at the maxima only."""
    infinite = is_infinite(order)
    scaled = tl.where(gap == INF, INF, gap * tl.where(infinite | (order != order), 1.0, order)[:, None])
    return tl.where(infinite[:, None] & (gap > 0.0), INF, scaled)


@triton.jit
def renyi(s, y, p, r, r_q, order, VECTOR: tl.constexpr):
    """The Renyi entropy of each row, as in reference.py. s is -log p, y is s plus the entropy of each part.

    r and r_q are those of p and of p^a. The terms of <p, e^u - 1> do not cancel, but for a > 1 the sum may be near -1.
    Then, and if the logarithms of l_q and l^a are far apart, their difference is accurate.
    """
    order_of = tl.where(is_infinite(order) | (order != order), 2.0, order)
    one = order_of == 1.0
    outside = s == INF
    u = tl.where(outside, 0.0, (1.0 - order_of)[:, None] * y)
    low, high = tl.where(u < 0.0, u, 0.0), tl.where(u > 0.0, u, 0.0)
    rise = tl.where(u > 0.0, -exp64(tl.where(u > 0.0, u - s, 0.0)) * less_one64(-high), p * less_one64(low))
    rise = tl.where(one[:, None], p * tl.where(outside, 0.0, y), rise)
    total = row_sum(tl.where(outside, 0.0, rise), VECTOR, tl.float64)
    log_p, log_q = log1p64(r), log1p64(r_q)
    both = order_of * log_p
    far = (tl.minimum(both, log_q) <= 0.5 * tl.maximum(both, log_q)) | (total <= -0.9)
    less = tl.where(one, 1.0, 1.0 - order_of)
    found = tl.where(one, total, tl.where(far, (log_q - both) / less, log1p64(tl.where(far, 0.0, total)) / less))
    found = tl.where(is_infinite(order), log_p, found)
    found = tl.where((found == 0.0) | (r == -1.0), 0.0, found)  # for an empty support, s and the sum are NaN
    return tl.where(order == order, found, float("nan"))


@triton.jit
def ratio_of_gaps(gap, VECTOR: tl.constexpr):
    """r of each row, from the gaps of its scores, and their terms e^-gap. r = -1 for an empty support."""
    tied = gap == 0.0
    y = exp64(-gap)
    others = row_sum(tl.where(tied, 0.0, y), VECTOR, tl.float64)
    return (tl.sum(tied.to(tl.int32), axis=1) - 1).to(tl.float64) + others, y


@triton.jit
def renyi_slope(gap, r, r_q, entropy, order):
    """a (q - p) / (1 - a) of a block in float64, the derivative of the entropy with respect to |beta| z.

    With u = log q - log p, the difference q - p is p (e^u - 1), or q (1 - e^-u), and 0 outside the support.
    """
    order_of = tl.where(is_infinite(order), _INFINITE, order)
    log_p, log_q = log1p64(r), log1p64(r_q)
    excess, outside = order_of - 1.0, gap == INF
    s = tl.where(outside, 0.0, gap) + log_p[:, None]
    far = (log_p - log_q)[:, None] - tl.where(outside, 0.0, excess[:, None] * gap)
    u = tl.where((tl.abs(excess) >= 1.0)[:, None], far, excess[:, None] * (entropy[:, None] - s))
    p, q = exp64(-gap) / (1.0 + r)[:, None], exp64(-times_order(gap, order)) / (1.0 + r_q)[:, None]
    found = tl.where(u > 0.0, -q * less_one64(tl.where(u > 0.0, -u, 0.0)), p * less_one64(tl.where(u > 0.0, 0.0, u)))
    found = found * (order_of / tl.where(excess == 0.0, 1.0, -excess))[:, None]
    found = tl.where((excess == 0.0)[:, None], p * (s - entropy[:, None]), found)
    return tl.where(outside, 0.0, found)


@triton.jit
def renyi_of_block(x, hi, lo, order, SCALED: tl.constexpr, VECTOR: tl.constexpr):
    """Return the Renyi entropy of a block, and m, r, the r of p^a, and gaps."""
    m = top_of(x)
    gap = gaps(x, m, hi, lo, SCALED)
    r, y = ratio_of_gaps(gap, VECTOR)
    r_q, _y = ratio_of_gaps(times_order(gap, order), VECTOR)
    s = gap + log1p64(r)[:, None]
    p = y / tl.where(r == -1.0, 1.0, 1.0 + r)[:, None]
    return renyi(s, s, p, r, r_q, order, VECTOR), m, r, r_q, gap


@triton.jit
def renyi_of_parts(of_parts, m_of, r_of, r_q_of, m, r, hi, lo, order, SCALED: tl.constexpr):
    """Return the Renyi entropy of a row from those of its parts, and the r of p^a."""
    p, gap = shares(m_of, r_of, m, r, hi, lo, SCALED)
    r_q = merge_ratios(m_of == m[:, None], times_order(gap, order), r_q_of)
    s = gap + (log1p64(r)[:, None] - log1p64(r_of))
    return renyi(s, s + of_parts, p, r, r_q, order, 1), r_q
