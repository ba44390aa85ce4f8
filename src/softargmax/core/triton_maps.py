"""The sparse maps in Triton: distances to the largest score, the search for the threshold, and probabilities.

    p = (t + d)_+^(1/a)    d = a |beta| (x - m)    m = max x    a = alpha - 1    sum p = 1

t is in (0, 1], and tau = a |beta| m - t. The search is Newton's method for S^a = 1, where S is the sum of p. S^a is a
convex function of t. So the steps descend from t = 1 to the root, and never pass it. Three maps differ in how they
compute powers: LINEAR (alpha = 2), SQUARED (alpha = 3/2), and GENERAL (1 < alpha < 2).

GENERAL computes r = (1 + d / t)^(1/a), and p = r / sum r. So p is accurate for any alpha, even if t has few digits.
A NaN in a row makes t NaN, and so p.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, LARGEST, exp64, exp_block, f32, f64, less_one64, log1p64
from softargmax.core.triton_state import distance, is_limit, row_sum

LINEAR, SQUARED, GENERAL = (tl.constexpr(k) for k in range(3))
PLAIN, ROUNDED, PAIR = (tl.constexpr(k) for k in range(3))
"""How d is scaled: a |beta| = 1, a float32 number, or a sum of two float32 numbers."""
_LOG2E = tl.constexpr(1.4426950408889634)
_LEAST = tl.constexpr(-708.396)  # a p with a smaller logarithm counts as 0
_TERMS = tl.constexpr(25)
_LN2_HI = tl.constexpr(float.fromhex("0x1.62e4p-1"))
_LN2_LO = tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
_L = tl.constexpr(
    (
        3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1, -1.2420140846e-1,
        1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2,
    )
)  # fmt: skip
"""The polynomial P of log(1 + d) = d - d^2 / 2 + d^3 P(d), as in Cephes."""


@triton.jit
def order_of(a_hi, a_lo):
    """a = a_hi + a_lo in float64."""
    return (a_hi + f32(0.0)).to(tl.float64) + (a_lo + f32(0.0)).to(tl.float64)


@triton.jit
def slope_of(hi, lo, a, MAP: tl.constexpr):
    """a |beta| as a pair, from |beta| = hi + lo."""
    if MAP == LINEAR:
        h, l = hi, lo
    elif MAP == SQUARED:
        h, l = hi * 0.5, lo * 0.5
    else:
        product = (hi.to(tl.float64) + lo.to(tl.float64)) * a
        h = product.to(tl.float32)
        l = tl.where(tl.abs(h) == INF, 0.0, product - h.to(tl.float64)).to(tl.float32)
    return h, l


@triton.jit
def distances(x, m, h, l, SCALED: tl.constexpr):
    """d of a block of scores. It is -inf outside the support."""
    m = tl.where(m == -INF, 0.0, m)[:, None]
    if SCALED == PLAIN:
        d = x - m
    elif SCALED == ROUNDED:
        d = (x - m) * h[:, None]
    else:
        s, q = distance(x, m, h[:, None], l[:, None], True)
        d = s + q
    return d


@triton.jit
def log_block(u):
    """log u of a block of normal numbers, rounded to float32, and -inf for 0."""
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23
    d = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    q = d * 0.0 + f32(_L[8])
    for j in tl.static_range(7, -1, -1):
        q = tl.fma(q, d, f32(_L[j]))
    k, square = e.to(tl.float32), d * d
    y = tl.fma(square * d, q, tl.fma(k, f32(_LN2_LO), -0.5 * square))
    return tl.where(u == 0.0, -INF, tl.fma(k, f32(_LN2_HI), d + y))


# --- the search -------------------------------------------------------------------------------------------------------


@triton.jit
def rough_sums(d, t, inverse_a, MAP: tl.constexpr, VECTOR: tl.constexpr):
    """The two sums of a block that a step needs."""
    if MAP == LINEAR:
        outside = d <= -t[:, None]  # False for NaN
        first = row_sum(tl.where(outside, 0.0, -d), VECTOR, tl.float32)
        second = row_sum(tl.where(outside, 0.0, 1.0), VECTOR, tl.float32)
    elif MAP == SQUARED:
        v = tl.maximum(d + t[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        first = row_sum(v * v, VECTOR, tl.float32)
        second = row_sum(v, VECTOR, tl.float32)
    else:
        y = log_block(1.0 + tl.maximum(d * (1.0 / t)[:, None], -1.0))  # -inf for NaN
        first = row_sum(tl.exp2(y * (_LOG2E * inverse_a)), VECTOR, tl.float32)
        second = row_sum(tl.exp2(y * (_LOG2E * (inverse_a - 1.0))), VECTOR, tl.float32)
    return first, second


@triton.jit
def step(t, first, second, a, MAP: tl.constexpr):
    """The next t of each row, and True where a further step is needed."""
    if MAP == LINEAR:  # the sum of the support's d, and its size: the same support gives the same t
        following = (1.0 + first) / tl.where(second == 0.0, 1.0, second)
        moves = following < t
    elif MAP == SQUARED:
        safe = tl.where(second == 0.0, 1.0, second)
        following = t - (first - tl.sqrt_rn(first)) / safe
        moves = following < t * f32(1.0 - 2.0**-16)
    else:
        safe = tl.where(second == 0.0, 1.0, second)
        power = tl.exp2(log_block(first) * (f64(_LOG2E) * (1.0 - a)).to(tl.float32))
        following = t * (1.0 - first / safe) + power / safe
        moves = following < t * f32(1.0 - 2.0**-20)
    return following, moves


@triton.jit
def exact_sums(d, t, inverse_a, MAP: tl.constexpr, VECTOR: tl.constexpr, KIND: tl.constexpr):
    """The sum of p, or of r if GENERAL, in the dtype KIND, and the sum to which its derivative is proportional."""
    if MAP == GENERAL:
        r, u = ratios(d, t, inverse_a, False)
        first = row_sum(r, VECTOR, KIND)
        second = row_sum(tl.where(u > 0.0, r / u, 0.0), VECTOR, tl.float32)
    else:
        v = tl.maximum(d + t[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        if MAP == LINEAR:
            first = row_sum(v, VECTOR, KIND)
            second = row_sum(tl.where(v > 0.0, 1.0, 0.0), VECTOR, tl.float32)
        else:
            first = row_sum(v * v, VECTOR, KIND)
            second = row_sum(v, VECTOR, tl.float32)
    return first.to(tl.float64), second.to(tl.float64)


@triton.jit
def inverse64(x):
    """1 / x in float64, for x from 1e-30 to 1e30. A division would call a function, for which registers are spilled."""
    y = (1.0 / x.to(tl.float32)).to(tl.float64)
    y = tl.fma(y, tl.fma(-x, y, f64(1.0)), y)
    return tl.fma(y, tl.fma(-x, y, f64(1.0)), y)


@triton.jit
def corrected(t, first, second, a, MAP: tl.constexpr):
    """t after a last step, in float64."""
    inverse = inverse64(tl.where(second == 0.0, 1.0, second))
    wide = t.to(tl.float64)
    if MAP == LINEAR:
        found = wide + tl.where(second == 0.0, 0.0, 1.0 - first) * inverse
    elif MAP == SQUARED:
        found = wide + tl.where(second == 0.0, 0.0, 1.0 - first) * (0.5 * inverse)
    else:
        power = exp64(-a * log1p64(tl.where(first >= 1.0, first - 1.0, 0.0)))
        found = tl.where(second == 0.0, wide, wide * (1.0 - first * inverse) + first * power * inverse)
    return found


@triton.jit
def ratios(d, t, inverse_a, FAST: tl.constexpr):
    """r = u^(1/a) of a block, and u = 1 + d / t."""
    w = tl.maximum(d * (1.0 / t)[:, None], -1.0, propagate_nan=tl.PropagateNan.ALL)
    u = 1.0 + w
    lost = tl.where(u == 0.0, 0.0, (w - (u - 1.0)) / u)
    y = (log_block(u) + lost) * inverse_a
    if FAST:
        r = tl.exp2(y * f32(_LOG2E))
    else:
        r = exp_block(y)
    return r, u


@triton.jit
def solved(d, a, inverse_a, MAP: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr):
    """The threshold of rows in registers: t as a pair, and the sum of r (1 if MAP is not GENERAL) in float64."""
    t = tl.full([d.shape[0]], 1.0, tl.float32)
    active = t > 0.0
    while tl.max(active.to(tl.int32), axis=0) > 0:
        first, second = rough_sums(d, t, inverse_a, MAP, VECTOR)
        following, moves = step(t, first, second, a, MAP)
        t = tl.where(active, following, t)
        active = active & moves
    low = tl.where(active, float("nan"), 0.0 * t)  # no row is active; Triton fails if `active` ends with the loop
    total = 1.0 + low.to(tl.float64)
    if not FAST:
        first, second = exact_sums(d, t, inverse_a, MAP, VECTOR, tl.float64)
        wide = corrected(t, first, second, a, MAP)
        t = wide.to(tl.float32)
        low = (wide - t.to(tl.float64)).to(tl.float32)
    if MAP == GENERAL:
        r, _u = ratios(d, t, inverse_a, FAST)
        total = row_sum(r, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64)
        t = tl.where(total == total, t, float("nan"))
    return t, low, total


# --- results ----------------------------------------------------------------------------------------------------------


@triton.jit
def powers(d, t, low, inverse, inverse_a, MAP: tl.constexpr, FAST: tl.constexpr):
    """p of a block, and v = p^a. `inverse` is 1 / sum r."""
    if MAP == GENERAL:
        r, u = ratios(d, t, inverse_a, FAST)
        p, v = r * inverse[:, None], u * t[:, None]
    else:
        s = d + t[:, None]
        if FAST:
            v = tl.maximum(s, 0.0)
            rest = 0.0
        else:
            rest = tl.where(s > 0.0, (d - (s - t[:, None])) + low[:, None], 0.0)
            v = tl.maximum(s + rest, 0.0)
        if MAP == LINEAR:
            p = v
        elif FAST:
            p = v * v
        else:
            s = tl.maximum(s, 0.0)
            p = tl.maximum(tl.fma(s, s, (s + s) * rest), 0.0)
    return p, v


@triton.jit
def is_positive(d, t, low, total, a, MAP: tl.constexpr):
    """True where p > 0."""
    if MAP == GENERAL:
        u = 1.0 + tl.maximum(d * (1.0 / t)[:, None], -1.0)
        least = a * (_LEAST + log1p64(tl.where(total >= 1.0, total - 1.0, 0.0)))
        found = u > exp64(least).to(tl.float32)[:, None]
    else:
        found = (d + t[:, None]) + low[:, None] > 0.0
    return found


@triton.jit
def base_of(t, low, total, a, MAP: tl.constexpr):
    """The p^a of the largest score, in float64. It is t, or (sum r)^-a, which has more digits if a is small."""
    if MAP == GENERAL:
        found = exp64(-a * log1p64(tl.where(total >= 1.0, total - 1.0, 0.0)))
        found = tl.where(total == total, found, total)
    else:
        found = t.to(tl.float64) + low.to(tl.float64)
    return found


@triton.jit
def tau_of(m, hi, h, l, base):
    """tau = a |beta| m - base, in float64. It is infinite if the scaled maximum is infinite, and NaN if base is."""
    y = tl.where(is_limit(m, hi) | (m == -INF), 0.0, m).to(tl.float64)
    slope = tl.where(hi == INF, 0.0, h.to(tl.float64) + l.to(tl.float64))
    tau = slope * y - base
    tau = tl.where(tau == tau, tl.minimum(tl.maximum(tau, -LARGEST), LARGEST), tau)
    jumps = (tl.abs(m) == INF) | ((hi == INF) & (m != 0.0))
    tau = tl.where(jumps, tl.where(m > 0.0, INF, -INF), tau)
    return tl.where(base == base, tau, base)


# --- losses -----------------------------------------------------------------------------------------------------------


@triton.jit
def loss_of_class(d_y, base, others, powered, total, a, MAP: tl.constexpr):
    """The loss of each row in float64.

    `others` is the sum of p, and `powered` that of p v, over all classes but y. loss = powered / alpha + psi, where psi
    is a function of p_y. reference_loss.py explains it.
    """
    v_y = base + d_y
    if MAP == LINEAR:
        loss = 0.5 * powered + tl.where(v_y > 0.0, 0.5 * others * others, 0.5 - v_y)
    elif MAP == SQUARED:
        e = others * inverse64(1.0 + tl.maximum(v_y, 0.0))  # 1 - v_y
        psi = tl.where(v_y > 0.0, 2.0 * e * e * (1.0 - e * (1.0 / 3.0)), 4.0 / 3.0 - 2.0 * v_y)
        loss = powered * (1.0 / 1.5) + psi
    else:
        e = tl.where(others < 0.25, others, 0.0)
        series = 0.0 * e
        for j in tl.static_range(_TERMS, -1, -1):
            series = 1.0 / (j + 2) + e * ((j + 1 - a) * (1.0 / (j + 1))) * series
        log = log1p64(tl.where(total >= 1.0, total - 1.0, 0.0))
        x_y = (d_y + less_one64(-a * log)) * inverse64(a)
        own = tl.where(v_y > 0.0, (1.0 - others) * v_y, 0.0)
        far = (own - 1.0) * inverse64(1.0 + a) - x_y
        loss = powered * inverse64(1.0 + a) + tl.where(others < 0.25, e * e * series, far)
    return tl.where((base == base) & (others == others), loss, base * float("nan"))
