"""The softmax state in Triton: exponentials, sums in a fixed order, and the state (m, r) of a block of scores.

    x = |beta| z        m = max z        l = sum exp(x - |beta| m)        r = l - 1

This file alone contains sums of floats. `row_sum` adds in one fixed tree, so that a sum does not depend on the layout
of a block, on the number of warps, or on Triton's version. Kernels are compiled without contraction
(`enable_fp_fusion=False`), and every fused step is written `tl.fma`.

Scores are blocks of shape (rows, scores). Numbers per row have shape (rows,). beta is a pair hi + lo of positive
float32 numbers per row; the sign of beta was multiplied into the scores.

Terms below e^-130 of the largest are as good as 0. So the common rows need no selection by score. Rows with NaN, and
rows in which only maxima count, are finished in branches that other rows do not take.
"""

from __future__ import annotations

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)

# --- exponentials: e^(s + q) = power (1 + t), as in math.hpp ----------------------------------------------------------

_LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_LN2_HI = tl.constexpr(float.fromhex("0x1.62e8p-1"))
_LN2_LO = tl.constexpr(float.fromhex("-0x1.e8082ep-16"))
_ROUND = tl.constexpr(float.fromhex("0x1.8p+23"))
_Q0 = tl.constexpr(float.fromhex("0x1.fffff8p-2"))
_Q1 = tl.constexpr(float.fromhex("0x1.55548ep-3"))
_Q2 = tl.constexpr(float.fromhex("0x1.555b96p-5"))
_Q3 = tl.constexpr(float.fromhex("0x1.123bd0p-7"))
_Q4 = tl.constexpr(float.fromhex("0x1.685352p-10"))
_LIFT = tl.constexpr(62)  # terms are multiplied by 2^62, so that none of them is subnormal
_FAST_LIFT = tl.constexpr(8)  # 2^-134 is below the smallest bfloat16; a larger sum would lose digits of the exponent
_REACH = tl.constexpr(130.0)
_NEAR = tl.constexpr(208.0)


@triton.jit
def f32(x: tl.constexpr):
    """A float32 constant."""
    return tl.full([], x, tl.float32)


@triton.jit
def f64(x: tl.constexpr):
    """A float64 constant."""
    return tl.full([], x, tl.float64)


@triton.jit
def exp_term(s, q, magic, PAIR: tl.constexpr):
    """Return t and power. q is read only if PAIR."""
    km = tl.fma(s, f32(_LOG2E), magic)
    k = km - magic
    r = tl.fma(k, f32(-_LN2_LO), tl.fma(k, f32(-_LN2_HI), s))
    if PAIR:
        r += q
    u = r * r
    a = tl.fma(tl.fma(f32(_Q4), u, f32(_Q2)), u, f32(_Q0))
    b = tl.fma(f32(_Q3), u, f32(_Q1))
    t = tl.fma(u, tl.fma(r, b, a), r)
    return t, (km.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)


_L2E64 = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
_LN2_HI64 = tl.constexpr(float.fromhex("0x1.62e42fefap-1"))
_LN2_LO64 = tl.constexpr(float.fromhex("0x1.cf79abc9e3b3ap-40"))
_ROUND64 = tl.constexpr(float.fromhex("0x1.8p+52"))
_E = tl.constexpr(
    tuple(
        float.fromhex(x)
        for x in (
            "0x1.0p-1", "0x1.555555555555cp-3", "0x1.5555555555541p-5", "0x1.111111110ea06p-7",
            "0x1.6c16c16c1fa9dp-10", "0x1.a01a01b43e0efp-13", "0x1.a01a0176e937cp-16", "0x1.71ddee867a44ep-19",
            "0x1.27e540c3e9a90p-22", "0x1.af6e5b2b81035p-26", "0x1.1ed986d1f5259p-29",
        )
    )
)  # fmt: skip
_W = tl.constexpr(
    tuple(
        float.fromhex(x)
        for x in (
            "0x1.5555555555555p-2", "0x1.9999999999d0dp-3", "0x1.2492492439dc7p-3", "0x1.c71c724b00b54p-4",
            "0x1.745ce1e46b4ebp-4", "0x1.3b202098f5061p-4", "0x1.0f678a3d1e989p-4", "0x1.0f0befb1d6faep-4",
        )
    )
)  # fmt: skip


@triton.jit
def exp_term64(x):
    """e^x = power (1 + t) in float64, for x from -700 to 0. Return t and power."""
    k = tl.fma(x, f64(_L2E64), f64(_ROUND64)) - f64(_ROUND64)
    r = tl.fma(k, f64(-_LN2_LO64), tl.fma(k, f64(-_LN2_HI64), x))
    t = f64(_E[10])
    for j in tl.static_range(9, -1, -1):
        t = tl.fma(t, r, f64(_E[j]))
    return tl.fma(r * r, t, r), ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def exp64(x):
    """e^x for x <= 0, in float64. 0 below -700."""
    t, power = exp_term64(tl.where(x < -700.0, 0.0, x))
    return tl.where(x < -700.0, 0.0, tl.fma(t, power, power))


@triton.jit
def less_one64(x):
    """e^x - 1 for x <= 0, in float64, with a small relative error. -1 below -40."""
    t, power = exp_term64(tl.where(x < -40.0, 0.0, x))
    return tl.where(x < -40.0, -1.0, tl.fma(t, power, power - 1.0))


@triton.jit
def log1p64(r):
    """log(1 + r) for r >= -1, in float64."""
    u = 1.0 + r
    lost = r - (u - 1.0)
    bits = u.to(tl.int64, bitcast=True)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52  # u = 2^e f with sqrt(1/2) <= f < sqrt(2)
    f = (bits - (e << 52)).to(tl.float64, bitcast=True)
    d = f - 1.0
    s = d / (2.0 + d)
    w = s * s
    p = f64(_W[7])
    for j in tl.static_range(6, -1, -1):
        p = tl.fma(p, w, f64(_W[j]))
    half = 0.5 * d * d
    of_f = d - (half - s * (half + 2.0 * w * p))
    k = e.to(tl.float64)
    found = tl.fma(k, f64(_LN2_HI64), tl.fma(k, f64(_LN2_LO64), tl.where(e == 0, lost, 0.0)) + of_f)
    return tl.where(u == 0.0, -INF, tl.where(u < INF, found, u))


# --- sums in a fixed order --------------------------------------------------------------------------------------------


@triton.jit
def _from_top(x, LEFT: tl.constexpr):
    """Add the two halves of each row until LEFT numbers are left."""
    for _ in tl.static_range(20):
        if x.shape[1] > LEFT:
            x = tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), axis=1)
    return x


@triton.jit
def _from_bottom(x, LEFT: tl.constexpr):
    """Add neighbours until LEFT numbers of each row are left."""
    for _ in tl.static_range(20):
        if x.shape[1] > LEFT:
            x = tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]), axis=2)
    return x


@triton.jit
def row_sum(x, VECTOR: tl.constexpr, KIND: tl.constexpr):
    """The sum of each row of a block (rows, n), in the dtype KIND. n is a power of two.

    The tree is fixed, and each of its sums has two terms. The order suits the layout that Triton chooses: first the
    VECTOR neighbours that a thread loads at once, then the other numbers of a thread, then lanes, then warps.
    """
    N: tl.constexpr = x.shape[1]
    x = _from_bottom(x.to(KIND), N // VECTOR if N > VECTOR else 1)
    x = _from_top(x, N // 32 if N > 1024 else 32)
    x = _from_bottom(x, x.shape[1] // 32 if x.shape[1] > 32 else 1)
    return tl.reshape(_from_bottom(x, 1), [x.shape[0]])


@triton.jit
def tile_sum(x):
    """The sum of each row of a tile of a matrix product, in the tile's dtype. The number of columns is a power of two.

    The tree is fixed. Its order suits the layout of products: a thread has pairs of neighbours, each of which is 8
    columns from the next, and 4 neighbouring threads share a row.
    """
    N: tl.constexpr = x.shape[1]
    x = _from_bottom(x, N // 2)
    x = _from_top(x, 4)
    return tl.reshape(_from_bottom(x, 1), [x.shape[0]])


@triton.jit
def product(a, b):
    """The matrix product a b in float32. The GPU's tensor cores fix the order of its sums."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_product(total, a, b):
    """The matrix total + a b in float32."""
    return tl.dot(a, b, total, input_precision="ieee")


# --- the terms of a block ---------------------------------------------------------------------------------------------


@triton.jit
def top_of(x):
    """The maximum m of each row, without NaN."""
    m = tl.max(x, axis=1)
    return tl.where(m == m, m, 0.0)


@triton.jit
def is_limit(m, hi):
    """True for rows in which only maxima have a probability: m = inf, or |beta| = inf and a support."""
    return (m == INF) | ((hi == INF) & (m > -INF))


@triton.jit
def any_of(rows):
    """True if any number of a vector of booleans is true."""
    return tl.max(rows.to(tl.int32), axis=0) > 0


@triton.jit
def without_limits(m, hi, lo):
    """m, and |beta| = hi + lo, of the rows that `marked` returns."""
    one = (m == INF) | (hi == INF)
    return tl.where(is_limit(m, hi), 0.0, m), tl.where(one, 1.0, hi), tl.where(one, 0.0, lo)


@triton.jit
def marked(x, m, hi):
    """Rows that are limits, with scores of 0 for the maxima and of -LARGEST for all other scores of the support.

    Other rows do not change.
    """
    limit = is_limit(m, hi)
    if any_of(limit):
        mark = tl.where(x == m[:, None], 0.0, tl.where((x > -INF) & (x < m[:, None]), -LARGEST, x))
        x = tl.where(limit[:, None], mark, x)
    return x


@triton.jit
def frame(m, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """Return the three numbers per row that `terms` needs, and the term of m as power (1 + t).

    Terms are 2^(62 - k) e^(|beta| x), where 2^k is near e^(|beta| m). Near 0 the scores are not shifted by m, because
    the difference would be rounded.
    """
    m = tl.where(m == -INF, 0.0, m)
    if FAST:
        return m, m, m, 0.0 * m, 0.0 * m + 2.0**8
    x = hi * m if SCALED else m
    near = tl.abs(x) < _NEAR
    s = tl.where(near, x, 0.0)
    k = tl.fma(s, f32(_LOG2E), f32(_ROUND)) - f32(_ROUND)
    magic = f32(_ROUND + 127.0 + _LIFT) - k
    y = tl.where(near, m, 0.0)
    t, power = exp_term(s, tl.fma(lo, y, tl.fma(hi, y, -s)), magic, SCALED)
    return tl.where(near, 0.0, m), magic, s - _REACH, t, power


@triton.jit
def distance(x, shift, hi, lo, SCALED: tl.constexpr):
    """Return |beta| (x - shift) as s + q."""
    if SCALED:
        part = tl.where(hi < 1.0, 0.25, 1.0)  # x - shift may overflow where |beta| (x - shift) does not
        d = tl.fma(x, part, -shift * part)
        s = tl.where(x == -INF, -INF, (hi / part) * d)
        q = tl.where(s < -LARGEST, 0.0, tl.fma(lo / part, d, tl.fma(hi / part, d, -s)))
    else:
        s = x - shift
        q = 0.0
    return s, q


@triton.jit
def terms(x, shift, magic, low, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """The terms of a block. `shift`, `magic` and `low` are those of `frame`.

    FAST takes 4 operations in place of 14, and is for half precision: the relative error is 2^-21, and 2^-24 for each
    unit of |beta| (m - x). Its terms are 2^8 e^(|beta| (x - m)).
    """
    s, q = distance(x, shift[:, None], hi[:, None], lo[:, None], SCALED)
    if FAST:
        y = tl.exp2(tl.fma(s, f32(_LOG2E), f32(_FAST_LIFT)))
    else:
        s = tl.maximum(s, low[:, None], propagate_nan=tl.PropagateNan.ALL)
        t, power = exp_term(s, q, magic[:, None], SCALED)
        y = tl.fma(t, power, power)
    return y


@triton.jit
def excess(y, m, t_m, power_m, VECTOR: tl.constexpr, KIND: tl.constexpr):
    """Return r of each row of a block, and l times the term of m, from its terms y and the term of m.

    The maxima are counted and left out of the sum, because a small r would lose its digits in l = 1 + r. A term that
    equals the term of m counts as a maximum, which changes r by less than a rounding of l.
    """
    largest = power_m.to(tl.float64) * (1.0 + t_m.to(tl.float64))
    tied = y == tl.fma(t_m, power_m, power_m)[:, None]
    rest = row_sum(tl.where(tied, 0.0, y), VECTOR, KIND).to(tl.float64)
    ties = tl.sum(tied.to(tl.int32), axis=1).to(tl.float64)
    r = tl.where((m == -INF) & (rest == rest), -1.0, (ties - 1.0) + rest / largest)
    return r, tl.fma(ties, largest, rest)


@triton.jit
def fold(x, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr):
    """The state (m, r) of each row of a block of scores."""
    m = top_of(x)
    m_x, h_x, l_x = without_limits(m, hi, lo)
    shift, magic, low, t_m, power_m = frame(m_x, h_x, l_x, SCALED, FAST)
    y = terms(marked(x, m, hi), shift, magic, low, h_x, l_x, SCALED, FAST)
    r, _total = excess(y, m, t_m, power_m, VECTOR, tl.float32 if FAST else tl.float64)
    return m, r


@triton.jit
def merge(m_parts, r_parts, hi, lo):
    """Merge states (rows, n) of the parts of each row into one state (m, r). n is a power of two."""
    m = top_of(m_parts)
    x = (hi.to(tl.float64) + lo.to(tl.float64))[:, None] * (m_parts.to(tl.float64) - m.to(tl.float64)[:, None])
    weight = tl.where((m_parts == -INF) | (m == INF)[:, None], 0.0, exp64(x))
    tied = m_parts == m[:, None]
    rest = row_sum(tl.where(tied, r_parts, (1.0 + r_parts) * weight), 1, tl.float64)
    return m, (tl.sum(tied.to(tl.int32), axis=1) - 1).to(tl.float64) + rest


# --- results of a state -----------------------------------------------------------------------------------------------


@triton.jit
def inverse_of(total, m):
    """1 / total as a + b, and 0 for rows with an empty support. Float32 arithmetic takes a third of the time."""
    t = total.to(tl.float32)
    a = tl.div_rn(1.0 + 0.0 * t, t)
    b = a * tl.fma(-a, (total - t.to(tl.float64)).to(tl.float32), tl.fma(-a, t, 1.0 + 0.0 * t))
    empty = (m == -INF) & (total == total)
    return tl.where(empty, 0.0, a), tl.where(empty, 0.0, b)


@triton.jit
def scale_of(m, r, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """The factor a + b of `probabilities`, from the state of a row."""
    m_x, h_x, l_x = without_limits(m, hi, lo)
    _shift, _magic, _low, t, power = frame(m_x, h_x, l_x, SCALED, FAST)
    return inverse_of(power.to(tl.float64) * (1.0 + t.to(tl.float64)) * (1.0 + r), m)


@triton.jit
def probabilities_of(x, m, a, b, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """p of a block of scores, which are those of `marked`, from the row's maximum and factor."""
    m_x, h_x, l_x = without_limits(m, hi, lo)
    shift, magic, low, _t, _power = frame(m_x, h_x, l_x, SCALED, FAST)
    return probabilities(terms(x, shift, magic, low, h_x, l_x, SCALED, FAST), a, b, FAST)


@triton.jit
def log_of(r):
    """log(1 + r), rounded to float32, and 0 for an empty support."""
    return tl.where(r == -1.0, 0.0, log1p64(r)).to(tl.float32)


@triton.jit
def probabilities(y, a, b, FAST: tl.constexpr):
    """The terms y of a block times a + b."""
    if FAST:
        return y * a[:, None]
    return tl.fma(y, a[:, None], y * b[:, None])


@triton.jit
def log_probabilities(x, m, log_l, hi, lo, SCALED: tl.constexpr):
    """log p = |beta| (x - m) - log_l of a block."""
    s, q = distance(x, tl.where(m == -INF, 0.0, m)[:, None], hi[:, None], lo[:, None], SCALED)
    return s + (q - log_l[:, None])


@triton.jit
def strange_rows(result, x, nothing, limit, is_nan):
    """The results of rows with NaN, and of limits, whose scores are those of `marked`."""
    result = tl.where(limit[:, None] & (x == -LARGEST), nothing, result)
    result = tl.where(is_nan[:, None], float("nan"), result)
    return tl.where(x == -INF, nothing, result)


@triton.jit
def lse_of(m, r, hi, lo):
    """|beta| m + log(1 + r), in float64. An infinite m stays infinite at beta = 0, and m = 0 stays 0 at beta = inf."""
    fixed = (tl.abs(m) == INF) | (m == 0.0)
    y = tl.where(fixed, 0.0, m).to(tl.float64)
    scaled = tl.where(fixed, m.to(tl.float64), tl.fma(hi.to(tl.float64), y, lo.to(tl.float64) * y))
    return scaled + log1p64(r)


@triton.jit
def smooth_maximum(m, r, hi, lo):
    """m + log(1 + r) / |beta|, in float64."""
    log_l = log1p64(r)
    beta = hi.to(tl.float64) + lo.to(tl.float64)
    limit = tl.where(beta == 0.0, tl.where(log_l > 0.0, INF, 0.0), 0.0) + 0.0 * r
    plain = (beta > 0.0) & (beta < INF)
    return m.to(tl.float64) + tl.where(plain, log_l / tl.where(plain, beta, 1.0), limit)


@triton.jit
def exp_block(y):
    """e^y of a block of numbers y <= 0, rounded to float32."""
    y = tl.maximum(y, -_REACH, propagate_nan=tl.PropagateNan.ALL)
    t, power = exp_term(y, 0.0, f32(_ROUND + 127.0 + _LIFT), False)
    return tl.fma(t, power, power) * f32(2.0**-62)
