"""The softmax state in Triton: sums in a fixed order, and the state (m, r) of a block of scores.

    x = |beta| z        m = max z        l = sum exp(x - |beta| m)        r = l - 1

This file alone contains sums of floats. `row_sum` adds in one fixed tree, so that a sum does not depend on the layout
of a block, on the number of warps, or on Triton's version.

Scores are blocks of shape (rows, scores). Numbers per row have shape (rows,). beta is a pair hi + lo of positive
float32 numbers per row; the sign of beta was multiplied into the scores.

Terms below e^-130 of the largest are as good as 0. So the common rows need no selection by score. Rows with NaN, and
rows in which only maxima count, are finished in branches that other rows do not take.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, LARGEST, LIFT, LOG2E, REACH, ROUND, exp64, exp_term, f32, log1p

_FAST_LIFT = tl.constexpr(8)  # 2^-134 is below the smallest bfloat16; a larger sum would lose digits of the exponent
_NEAR = tl.constexpr(208.0)


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

    The tree is fixed, and each of its sums has two terms. The order suits the layouts of triton_launch.block: first the
    VECTOR neighbours that a thread loads at once, then the other numbers of a thread, then lanes, then warps.
    """
    N: tl.constexpr = x.shape[1]
    LEFT: tl.constexpr = N // 32 if N > 1024 else (32 if N == 1024 else 16 if N == 512 else 8 if N > 64 else N // 16)
    x = _from_bottom(x.to(KIND), N // VECTOR if N > VECTOR else 1)
    x = _from_top(x, LEFT if LEFT > 0 else 1)
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
    k = tl.fma(s, f32(LOG2E), f32(ROUND)) - f32(ROUND)
    magic = f32(ROUND + 127.0 + LIFT) - k
    y = tl.where(near, m, 0.0)
    t, power = exp_term(s, tl.fma(lo, y, tl.fma(hi, y, -s)), magic, SCALED)
    return tl.where(near, 0.0, m), magic, s - REACH, t, power


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
        y = tl.exp2(tl.fma(s, f32(LOG2E), f32(_FAST_LIFT)))
    else:
        if SCALED:
            q = tl.where(s < low[:, None], 0.0, q)  # of a huge distance, q is huge, too
        s = tl.maximum(s, low[:, None], propagate_nan=tl.PropagateNan.ALL)
        t, power = exp_term(s, q, magic[:, None], SCALED)
        y = tl.fma(t, power, power)
    return y


@triton.jit
def largest_of(t_m, power_m):
    """The largest term of each row, as `terms` rounds it, in float64."""
    return tl.fma(t_m, power_m, power_m).to(tl.float64)


@triton.jit
def is_rare(rest, power_m, FAST: tl.constexpr):
    """True for rows in which the sum of all terms but the largest lost digits, and for rows with NaN and limits.

    Few rows are rare. So a block adds up terms once, and `exact_rest` looks at rare rows again.
    """
    return ~(rest >= power_m.to(tl.float64) * (0.5 if FAST else 2.0**-20))


@triton.jit
def terms_of_any(x, m, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """The terms of rows of any kind, 0 for the maxima, and True for the maxima.

    A term that equals the term of m counts as a maximum, which changes the sum by less than a rounding of l.
    """
    m_x, h_x, l_x = without_limits(m, hi, lo)
    shift, magic, low, t_m, power_m = frame(m_x, h_x, l_x, SCALED, FAST)
    y = terms(marked(x, m, hi), shift, magic, low, h_x, l_x, SCALED, FAST)
    tied = y == tl.fma(t_m, power_m, power_m)[:, None]
    return tl.where(tied, 0.0, y), tied


@triton.jit
def rest_of_any(y, ties, m, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr):
    """The sum of all terms but one of the largest, from blocks of sums of `terms_of_any`."""
    m_x, h_x, l_x = without_limits(m, hi, lo)
    _shift, _magic, _low, t_m, power_m = frame(m_x, h_x, l_x, SCALED, FAST)
    others = (tl.sum(ties.to(tl.int32), axis=1) - 1).to(tl.float64)
    largest = power_m.to(tl.float64) * (1.0 + t_m.to(tl.float64))
    return tl.fma(others, largest, row_sum(y, VECTOR, y.dtype).to(tl.float64))


@triton.jit
def ratio(rest, m, t_m, power_m):
    """r = rest / largest term, and -1 for an empty support. It has more digits than float32, and takes no division."""
    u = 1.0 + t_m.to(tl.float64)
    v = (1.0 / u.to(tl.float32)).to(tl.float64)
    v = tl.fma(v, tl.fma(-u, v, 1.0), v)
    inverse = ((254 << 23) - power_m.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    return tl.where((m == -INF) & (rest == rest), -1.0, (rest * v) * inverse.to(tl.float64))


@triton.jit
def ratio_of_any(rest, m, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr):
    """r of rows of any kind."""
    m_x, h_x, l_x = without_limits(m, hi, lo)
    _shift, _magic, _low, t_m, power_m = frame(m_x, h_x, l_x, SCALED, FAST)
    return ratio(rest, m, t_m, power_m)


@triton.jit
def fold(x, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr):
    """Return the maximum of each row, the sum of all terms but one of the largest, and True for rare rows."""
    m = top_of(x)
    shift, magic, low, t_m, power_m = frame(m, hi, lo, SCALED, FAST)
    y = terms(x, shift, magic, low, hi, lo, SCALED, FAST)
    total = row_sum(y, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64)
    rest = total - largest_of(t_m, power_m)
    return m, rest, is_rare(rest, power_m, FAST)


@triton.jit
def gaps(x, m, hi, lo, SCALED: tl.constexpr):
    """|beta| (m - x) of a block, from the maximum of each row."""
    return gaps_to(x, m[:, None], hi[:, None], lo[:, None], SCALED)


@triton.jit
def gaps_to(x, m, hi, lo, SCALED: tl.constexpr):
    """|beta| (m - x) in float64: 0 for maxima, and infinite outside the support. m may differ from score to score."""
    gap = m.to(tl.float64) - x.to(tl.float64)
    if SCALED:
        beta = hi.to(tl.float64) + lo.to(tl.float64)
        gap = tl.where((gap == 0.0) | (gap == INF), gap, gap * beta)  # also at beta = inf and at beta = 0
    return tl.where(x == -INF, INF, tl.where(x == INF, 0.0, gap))


@triton.jit
def merge(m_parts, r_parts, hi, lo, SCALED: tl.constexpr):
    """Merge the states (rows, n) of the parts of each row into one state (m, r). n is a power of two."""
    m = top_of(m_parts)
    return m, merge_ratios(m_parts == m[:, None], gaps(m_parts, m, hi, lo, SCALED), r_parts)


@triton.jit
def merge_ratios(tied, gap, r_parts):
    """r of each row, from those of its parts (rows, n). `gap` is the gap of a part's maximum, and `tied` has no gap."""
    rest = row_sum(tl.where(tied, r_parts, (1.0 + r_parts) * exp64(-gap)), 1, tl.float64)
    return (tl.sum(tied.to(tl.int32), axis=1) - 1).to(tl.float64) + rest


@triton.jit
def shares(m_parts, r_parts, m, r, hi, lo, SCALED: tl.constexpr):
    """The probability of each part of a row, and the gap between its maximum and that of the row."""
    gap = gaps(m_parts, m, hi, lo, SCALED)
    return exp64(-gap) * (1.0 + r_parts) / tl.where(r == -1.0, 1.0, 1.0 + r)[:, None], gap


# --- prefixes of rows -------------------------------------------------------------------------------------------------


@triton.jit
def state_of_score(x):
    """The state (m, r) of each score alone. A NaN is in r only."""
    r = tl.where(x == x, tl.where(x == -INF, -1.0, 0.0), float("nan"))
    return tl.where(x == x, x, -INF), r.to(tl.float64)


@triton.jit
def merge_two(m_1, r_1, m_2, r_2, hi, lo, SCALED: tl.constexpr):
    """Merge states one by one: those of blocks (m_1, r_1) with those of blocks (m_2, r_2)."""
    m = tl.maximum(m_1, m_2)
    weight = exp64(-gaps_to(tl.minimum(m_1, m_2), m, hi, lo, SCALED))
    r_top, r_low = tl.where(m_1 == m, r_1, r_2), tl.where(m_1 == m, r_2, r_1)
    return m, tl.fma(1.0 + r_low, weight, r_top)


@triton.jit
def followed(a_1, b_1, a_2, b_2, hi, lo, MAPS: tl.constexpr, SCALED: tl.constexpr):
    """Join neighbours, which are states, or the maps u -> a u + b. The map a_1 u + b_1 comes first."""
    if MAPS:
        a, b = a_1 * a_2, tl.fma(a_2, b_1, b_2)
    else:
        a, b = merge_two(a_1, b_1, a_2, b_2, hi, lo, SCALED)
    return a, b


@triton.jit
def prefixes(a, b, a_0, b_0, hi, lo, MAPS: tl.constexpr, BACKWARDS: tl.constexpr, SCALED: tl.constexpr):
    """Return what `followed` makes of all numbers before each number of a row, beginning with (a_0, b_0), and of all.

    a and b are blocks (rows, n), and hi, lo, a_0 and b_0 are blocks (rows, 1).
    BACKWARDS runs from the end of the row to its beginning. The tree is fixed: neighbours are joined, then pairs, and
    so on. So what comes before a number does not depend on the numbers after it. n is a power of two.
    """
    if a.shape[1] == 1:
        before_a, before_b = a_0, b_0
        all_a, all_b = followed(a_0, b_0, a, b, hi, lo, MAPS, SCALED)
    else:
        a_1, a_2 = tl.split(tl.reshape(a, [a.shape[0], a.shape[1] // 2, 2]))
        b_1, b_2 = tl.split(tl.reshape(b, [b.shape[0], b.shape[1] // 2, 2]))
        if BACKWARDS:
            a_1, a_2, b_1, b_2 = a_2, a_1, b_2, b_1
        a_12, b_12 = followed(a_1, b_1, a_2, b_2, hi, lo, MAPS, SCALED)
        left_a, left_b, all_a, all_b = prefixes(a_12, b_12, a_0, b_0, hi, lo, MAPS, BACKWARDS, SCALED)
        right_a, right_b = followed(left_a, left_b, a_1, b_1, hi, lo, MAPS, SCALED)
        if BACKWARDS:
            left_a, right_a, left_b, right_b = right_a, left_a, right_b, left_b
        before_a = tl.reshape(tl.join(left_a, right_a), [a.shape[0], a.shape[1]])
        before_b = tl.reshape(tl.join(left_b, right_b), [b.shape[0], b.shape[1]])
    return before_a, before_b, all_a, all_b


# --- results of a state -----------------------------------------------------------------------------------------------


@triton.jit
def inverse_of(total, m):
    """1 / total as a + b, and 0 for rows with an empty support. Float32 arithmetic takes a third of the time."""
    t = total.to(tl.float32)
    a = 1.0 / t
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
    return tl.where(r == -1.0, 0.0, log1p(r))


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
def lse_of(m, r, hi, lo, SCALED: tl.constexpr):
    """|beta| m + log(1 + r), in float64. An infinite m stays infinite at beta = 0, and m = 0 stays 0 at beta = inf."""
    scaled = m.to(tl.float64)
    if SCALED:
        fixed = (tl.abs(m) == INF) | (m == 0.0)
        y = tl.where(fixed, 0.0, m).to(tl.float64)
        scaled = tl.where(fixed, scaled, tl.fma(hi.to(tl.float64), y, lo.to(tl.float64) * y))
    return scaled + log1p(r).to(tl.float64)


@triton.jit
def smooth_maximum(m, r, hi, lo, SCALED: tl.constexpr):
    """m + log(1 + r) / |beta|, in float64."""
    log_l = log1p(r).to(tl.float64)
    if SCALED:
        beta = hi.to(tl.float64) + lo.to(tl.float64)
        limit = tl.where(beta == 0.0, tl.where(log_l > 0.0, INF, 0.0), 0.0) + 0.0 * r
        plain = (beta > 0.0) & (beta < INF)
        log_l = tl.where(plain, log_l / tl.where(plain, beta, 1.0), limit)
    return m.to(tl.float64) + log_l
