"""CUDA kernels of the room `sample`, in Triton: the filters top-k, top-p, min-p, epsilon and eta.

Each of these filters keeps all scores above an edge, and scores equal to the edge up to a column (`Kept` in
kept_row.hpp). A program finds the edge of one row. No row is sorted: a range of scores around the edge is divided into
four, again and again, by counting the scores above three thresholds, or by adding their masses. When few scores are
left in the range, they are copied to a list, and the program ends the search in the list.

Masses e^x are rounded to whole numbers, so that their sums do not depend on any order.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softargmax.core.triton_launch import RUNTIME, Block, cdiv, launch, next_power_of_2
from softargmax.core.triton_math import INF, LARGEST, exp_term, f32, log1p64, log64
from softargmax.core.triton_rows import load_scores, offsets
from softargmax.core.triton_state import row_sum
from softargmax.sample.triton_scores import beta_per_row, distance64, place_of, score_at, scores_of

LIST = 4096
"""Scores of a block, and the most scores of a list."""
NAMES = ("top_k", "top_p", "min_p", "epsilon", "eta")
_LARGEST = tl.constexpr((1 << 31) - 1)
_MAGIC = tl.constexpr(float.fromhex("0x1.8p+23") + 127.0 + 62.0)
_ALL = tl.constexpr((1 << 31) - 1)
_LINEAR = tl.constexpr(8)


# --- scores and their order -------------------------------------------------------------------------------------------


@triton.jit
def part_of(
    z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k,
    MASKED: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """A block of the scores that are kept so far, -inf for all others, and their columns.

    In a row with +inf, the infinities are 0 and all others -inf. If beta is 0, all finite scores are 0.
    """
    k = part * SCORES + tl.arange(0, SCORES)[None, :]
    wide = k.to(tl.int64)
    at, w_at = z_at[:, None] + wide * z_k, where_at[:, None] + wide * where_k
    x = load_scores(z, at, where, w_at, k < scores, edge, 0, MASKED, False)
    x = tl.where(flat[:, None] & (tl.abs(x) < INF), 0.0, x)
    x = tl.where(infinite[:, None], tl.where(x == INF, 0.0, -INF), x)
    kept = (x > edge[:, None]) | ((x == edge[:, None]) & (k <= tie[:, None]))
    return tl.where(kept, x, -INF), k


@triton.jit
def distance_pair(x, m, hi, lo):
    """beta (x - m) of a block as s + q, at least -130."""
    half, of_m = 0.5 * x, (0.5 * m)[:, None]
    d = half - of_m
    part = d - half
    error = (half - (d - part)) + (-of_m - part)
    twice = (2.0 * hi)[:, None]
    s = twice * d
    near = s > -130.0
    q = tl.fma(twice, d, -s) + tl.fma((2.0 * lo)[:, None], d, twice * error)
    return tl.where(near, s, -130.0), tl.where(near, q, 0.0)


@triton.jit
def term_of(x, m, hi, lo):
    """2^62 e^(beta (x - m)) of a block, and 0 outside the support."""
    s, q = distance_pair(tl.where(x > -INF, x, m[:, None]), m, hi, lo)
    t, power = exp_term(s, q, f32(_MAGIC), True)
    return tl.where((x > -INF) & (s > -130.0), tl.fma(t, power, power), 0.0), s + q


@triton.jit
def weight_of(x, m, hi, lo, unit, BY_MASS: tl.constexpr):
    """The weights of a block: 1 for each score, or its mass as a multiple of 1 / (2^62 unit)."""
    if BY_MASS:
        y, _x = term_of(x, m, hi, lo)
        return (y * unit + 0.5).to(tl.int64)
    return (x > -INF).to(tl.int64)


@triton.jit
def few(x, LANES: tl.constexpr):
    """Sums of neighbours, as many as a thread has."""
    return tl.sum(tl.reshape(x, [1, LANES, x.shape[1] // LANES]).to(tl.int64), axis=2)


# --- the edge of a set ------------------------------------------------------------------------------------------------


@triton.jit
def sums_from(
    z, where, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, hi, lo, unit,
    one, two, three,
    ALL: tl.constexpr, BY_MASS: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr, LANES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The weights of all scores and of those from each of three scores on, and the numbers of the latter."""
    a, b, c = score_at(one)[:, None], score_at(two)[:, None], score_at(three)[:, None]
    of_all, n_a = tl.zeros([1, LANES], tl.int64), tl.zeros([1, LANES], tl.int32)
    of_a, of_b, of_c, n_b, n_c = of_all, of_all, of_all, n_a, n_a
    for part in tl.range(0, parts, num_stages=STAGES):
        x, _k = part_of(z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES)
        if BY_MASS:
            w = weight_of(x, m, hi, lo, unit, True)
            of_a += few(tl.where(x >= a, w, 0), LANES)
            of_b += few(tl.where(x >= b, w, 0), LANES)
            of_c += few(tl.where(x >= c, w, 0), LANES)
            if ALL:
                of_all += few(w, LANES)
        n_a += tl.sum(tl.reshape(x >= a, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
        n_b += tl.sum(tl.reshape(x >= b, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
        n_c += tl.sum(tl.reshape(x >= c, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
    c_a, c_b = tl.sum(n_a.to(tl.int64), axis=1), tl.sum(n_b.to(tl.int64), axis=1)
    c_c = tl.sum(n_c.to(tl.int64), axis=1)
    w_a, w_b, w_c = c_a, c_b, c_c
    if BY_MASS:
        w_a, w_b = tl.sum(of_a.to(tl.int64), axis=1), tl.sum(of_b.to(tl.int64), axis=1)
        w_c = tl.sum(of_c.to(tl.int64), axis=1)
    return tl.sum(of_all.to(tl.int64), axis=1), w_a, w_b, w_c, c_a, c_b, c_c


@triton.jit
def part_with(a, b, c, of_a, of_b, of_c, goal, other_a, other_b):
    """`other_a` of the part in which the goal is reached: what belongs to its first number, and to its last."""
    return (
        tl.where(of_c >= goal, c, tl.where(of_b >= goal, b, tl.where(of_a >= goal, a, other_a))),
        tl.where(of_a < goal, a, tl.where(of_b < goal, b, tl.where(of_c < goal, c, other_b))),
    )


@triton.jit
def find_edge(
    z, where, list_at, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k,
    least, m, count, hi, lo, unit, goal, share,
    BY_MASS: tl.constexpr, ONE: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr, LANES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The edge and the last tie of the fewest scores whose weights reach a goal, or a share of the mass.

    `least` and m are the smallest and the largest of `count` scores.
    """
    if BY_MASS:
        far = m - 46.0 / hi  # farther scores have mass 0
        least = tl.where(far > least, far, least)
    # The weights of the scores from `low` on reach the goal. Those from `high` on do not, and sum to `above`.
    low, high = place_of(least).to(tl.int64), place_of(m).to(tl.int64) + 1
    above = tl.zeros([1], tl.int64)
    before = tl.zeros([1], tl.int64)  # the number of scores from `high` on, and `count` that of scores from `low` on
    if ONE:
        x, k = part_of(z, where, edge, tie, infinite, flat, z_at, where_at, 0, scores, z_k, where_k, MASKED, SCORES)
        w = weight_of(x, m, hi, lo, unit, BY_MASS)
        if BY_MASS:
            total = tl.sum(w.to(tl.int64), axis=1)
            goal = tl.minimum(tl.ceil(share * total.to(tl.float64)).to(tl.int64), total)
        goal = tl.maximum(goal, 1)
    else:
        one, two, three = thresholds(low, high, 0)
        total, w_a, w_b, w_c, c_a, c_b, c_c = sums_from(
            z, where, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, hi, lo, unit,
            one, two, three, True, BY_MASS, MASKED, SCORES, LANES, STAGES,
        )  # fmt: skip
        if BY_MASS:
            goal = tl.minimum(tl.ceil(share * total.to(tl.float64)).to(tl.int64), total)
        goal = tl.maximum(goal, 1)
        one, two, three = one.to(tl.int64), two.to(tl.int64), three.to(tl.int64)
        low, high = part_with(one, two, three, w_a, w_b, w_c, goal, low, high)
        count, before = part_with(c_a, c_b, c_c, w_a, w_b, w_c, goal, count, before)
        _from, above = part_with(w_a, w_b, w_c, w_a, w_b, w_c, goal, above, above)
        turn = 1
        while tl.max(((high - low > 1) & (count - before > SCORES)).to(tl.int32), axis=0) > 0:
            one, two, three = thresholds(low, high, turn)
            total, w_a, w_b, w_c, c_a, c_b, c_c = sums_from(
                z, where, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, hi, lo, unit,
                one, two, three, False, BY_MASS, MASKED, SCORES, LANES, STAGES,
            )  # fmt: skip
            one, two, three = one.to(tl.int64), two.to(tl.int64), three.to(tl.int64)
            low, high = part_with(one, two, three, w_a, w_b, w_c, goal, low, high)
            count, before = part_with(c_a, c_b, c_c, w_a, w_b, w_c, goal, count, before)
            _from, above = part_with(w_a, w_b, w_c, w_a, w_b, w_c, goal, above, above)
            turn += 1
        x = tl.full([1, SCORES], -INF, tl.float32)
        if tl.max((high - low > 1).to(tl.int32), axis=0) > 0:
            bottom, top = score_at(low.to(tl.int32))[:, None], score_at(high.to(tl.int32))[:, None]
            copied = 0
            for part in range(parts):
                y, k = part_of(
                    z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES
                )
                inside = (y >= bottom) & (y < top)
                number = tl.max(tl.sum(inside.to(tl.int32), axis=1), axis=0)
                if number > 0:
                    at = copied + tl.cumsum(inside.to(tl.int32), axis=1) - 1
                    tl.store(list_at + at, y, mask=inside)
                    copied += number
            tl.debug_barrier()
            j = tl.arange(0, SCORES)[None, :]
            x = tl.load(list_at + j, mask=j < copied, other=-INF, cache_modifier=".cg")
        w = weight_of(x, m, hi, lo, unit, BY_MASS)
    start = above
    few_ties = high - low > 1
    while tl.max((high - low > 1).to(tl.int32), axis=0) > 0:
        middle = low + (high - low) // 2
        found = start + tl.sum(tl.where(x >= score_at(middle.to(tl.int32))[:, None], w, 0).to(tl.int64), axis=1)
        enough = found >= goal
        low = tl.where(enough, middle, low)
        high, above = tl.where(enough, high, middle), tl.where(enough, above, found)
    score = score_at(low.to(tl.int32))
    of_one = tl.max(weight_of(score[:, None], m, hi, lo, unit, BY_MASS), axis=1)
    ties = (goal - above + of_one - 1) // of_one
    there = tl.where(few_ties | ONE, tl.sum((x == score[:, None]).to(tl.int32), axis=1).to(tl.int64), count - before)
    seen, last = tl.zeros([1], tl.int64), tl.full([1], -1, tl.int32)
    if tl.max((there > ties).to(tl.int32), axis=0) > 0:
        for part in range(parts):
            x, k = part_of(
                z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES
            )
            here = x == score[:, None]
            number = tl.sum(here.to(tl.int32), axis=1)
            if tl.max(((number > 0) & (seen < ties)).to(tl.int32), axis=0) > 0:
                rank = seen[:, None] + tl.cumsum(here.to(tl.int32), axis=1)
                last = tl.maximum(last, tl.max(tl.where(here & (rank <= ties[:, None]), k, -1), axis=1))
            seen += number.to(tl.int64)
    return score, tl.where(there > ties, last, _ALL)


@triton.jit
def thresholds(low, high, turn):
    """Three numbers of scores from `low` to `high`: evenly spaced scores at first, later evenly spaced numbers."""
    bottom, top = score_at(low.to(tl.int32)), score_at((high - 1).to(tl.int32))
    step = 0.25 * top - 0.25 * bottom
    linear, far = turn < _LINEAR, high - low
    one = tl.where(linear, place_of(bottom + step).to(tl.int64), low + (far + 3) // 4)
    two = tl.where(linear, place_of(bottom + 2.0 * step).to(tl.int64), low + (far + 1) // 2)
    three = tl.where(linear, place_of(bottom + 3.0 * step).to(tl.int64), low + far - far // 4)
    one = tl.minimum(tl.maximum(one, low), high)
    two = tl.minimum(tl.maximum(two, one), high)
    three = tl.minimum(tl.maximum(three, two), high)
    return one.to(tl.int32), two.to(tl.int32), three.to(tl.int32)


@triton.jit
def score_from(bound, m, beta, beta_rest):
    """The smallest score z with beta (z - m) >= bound, and the last column of ties."""
    low, high = place_of(tl.zeros([1], tl.float32) - LARGEST).to(tl.int64), place_of(m).to(tl.int64)
    all_near = distance64(score_at(low.to(tl.int32)), m, beta, beta_rest) >= bound
    for _ in range(33):
        middle = low + (high - low) // 2
        far = distance64(score_at(middle.to(tl.int32)), m, beta, beta_rest) < bound
        go_on = high - low > 1
        low, high = tl.where(go_on & far, middle, low), tl.where(go_on & ~far, middle, high)
    return tl.where(all_near, -INF, score_at(high.to(tl.int32)))


@triton.jit
def tighter(edge, tie, other_edge, other_tie, where):
    """The smaller of two sets, for rows in which `where` is true."""
    take = where & ((other_edge > edge) | ((other_edge == edge) & (other_tie < tie)))
    return tl.where(take, other_edge, edge), tl.where(take, other_tie, tie)


@triton.jit
def moments(
    z, where, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, hi, lo,
    MEAN: tl.constexpr, KIND: tl.constexpr, VECTOR: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """log l of the kept scores, the mean of beta (z - m), and the number of scores."""
    rest, first = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64)
    ties, count = tl.zeros([1], tl.int64), tl.zeros([1], tl.int64)
    for part in range(parts):
        x, _k = part_of(z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES)
        y, s = term_of(x, m, hi, lo)
        y = y * f32(2.0**-62)
        tied = s == 0.0
        rest += row_sum(tl.where(tied, 0.0, y), VECTOR, KIND).to(tl.float64)
        if MEAN:
            first += row_sum(y * s, VECTOR, KIND).to(tl.float64)
        inside = x > -INF
        ties += tl.sum((tied & inside).to(tl.int32), axis=1).to(tl.int64)
        count += tl.sum(inside.to(tl.int32), axis=1).to(tl.int64)
    r = (ties - 1).to(tl.float64) + rest
    return log1p64(r), first / (1.0 + r), count


# --- filters ----------------------------------------------------------------------------------------------------------


@triton.jit
def load_parameter(numbers, row, bits, PLACE: tl.constexpr, PER: tl.constexpr):
    """A parameter of a filter: one of the numbers of a row, or the float64 number with these bits."""
    if PER:
        return tl.load(numbers + row * 5 + PLACE)
    return (bits + tl.zeros([1], tl.int64)).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=(*RUNTIME, "b0", "b1", "b2", "b3", "b4"))
def filter_rows(  # noqa: PLR0912 the filters in their order
    z, where, hi, lo, numbers, lists, edges, ties, top, log_l, size, kept,
    parts, scores, b0, b1, b2, b3, b4, unit, beta_hi, beta_lo,
    z_o, z_k, where_o, where_k, beta_o,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, EPSILON: tl.constexpr, ETA: tl.constexpr,
    JOINT: tl.constexpr, PER: tl.constexpr, MOMENTS: tl.constexpr, MARKS: tl.constexpr,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, ALIGN: tl.constexpr,
    ONE: tl.constexpr, SCORES: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The edge and the last tie of a row after the filters, with the maximum, log l and the number of kept scores."""
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    length = scores
    scores = scores // ALIGN * ALIGN
    z_at, where_at = offsets(row, 1, 0, z_o, True, ALIGN), offsets(row, 1, 0, where_o, True)
    list_at = lists + row[:, None] * SCORES
    beta, beta_rest = beta_per_row(hi, lo, row * beta_o, row >= 0, beta_hi, beta_lo, BETA)
    frozen = beta == INF
    wide = tl.where(frozen | ~(beta >= 0.0), 1.0, tl.minimum(beta, 1e37))
    h = wide.to(tl.float32)
    l = (wide - h.to(tl.float64) + tl.where(frozen, 0.0, beta_rest)).to(tl.float32)
    flat = beta == 0.0

    edge, tie = tl.full([1], -INF, tl.float32), tl.full([1], -1, tl.int32)
    largest = tl.full([1, SCORES], -INF, tl.float32)
    smallest = tl.full([1, SCORES], INF, tl.float32)
    number = tl.zeros([1, LANES], tl.int32)
    strange = tl.zeros([1, LANES], tl.int32)
    infinities = tl.zeros([1, LANES], tl.int32)
    for part in range(parts):
        k = part * SCORES + tl.arange(0, SCORES)[None, :]
        at, w_at = z_at[:, None] + k.to(tl.int64) * z_k, where_at[:, None] + k.to(tl.int64) * where_k
        x = load_scores(z, at, where, w_at, k < scores, edge, 0, MASKED, False)
        largest = tl.maximum(largest, x)
        smallest = tl.minimum(smallest, tl.where(x > -INF, x, INF))
        strange += tl.sum(tl.reshape(x != x, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
        number += tl.sum(tl.reshape(x > -INF, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
        infinities += tl.sum(tl.reshape(x == INF, [1, LANES, SCORES // LANES]).to(tl.int32), axis=2)
    m, least = tl.max(largest, axis=1), tl.min(smallest, axis=1)
    infinite = m == INF
    fine = (tl.sum(strange.to(tl.int32), axis=1) == 0) & (m > -INF) & (beta >= 0.0)
    count = tl.where(infinite, tl.sum(infinities.to(tl.int64), axis=1), tl.sum(number.to(tl.int64), axis=1))
    whole = count
    m = tl.where(infinite | flat | ~fine, 0.0, m)
    least = tl.where(infinite | flat | ~fine, 0.0, least)
    base, base_tie = edge, tie
    if TOP_K:
        goal = load_parameter(numbers, row, b0, 0, PER)
        fine = fine & (goal >= 1.0) & (goal <= length)
        some = fine & ~frozen & (goal < whole.to(tl.float64))
        if tl.max(some.to(tl.int32), axis=0) > 0:
            e, t = find_edge(
                z, where, list_at, base, base_tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k,
                least, m, whole, h, l, unit, goal.to(tl.int64), goal, False, ONE, MASKED, SCORES, LANES, STAGES,
            )  # fmt: skip
            edge, tie = tighter(edge, tie, e, t, some)
            if not JOINT:
                base, base_tie = edge, tie
                least, whole = tl.where(some, e, least), tl.where(some, goal.to(tl.int64), whole)
    if TOP_P:
        share = load_parameter(numbers, row, b1, 1, PER)
        fine = fine & (share > 0.0) & (share <= 1.0)
        some = fine & ~frozen & (share < 1.0)
        if tl.max(some.to(tl.int32), axis=0) > 0:
            e, t = find_edge(
                z, where, list_at, base, base_tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k,
                least, m, whole, h, l, unit, whole, share, True, ONE, MASKED, SCORES, LANES, STAGES,
            )  # fmt: skip
            edge, tie = tighter(edge, tie, e, t, some)
            if not JOINT:
                base, base_tie = edge, tie
    if MIN_P:
        share = load_parameter(numbers, row, b2, 2, PER)
        fine = fine & (share >= 0.0) & (share <= 1.0)
        e = score_from(log64(share, 0.0), m, beta, beta_rest)
        edge, tie = tighter(edge, tie, e, tl.full([1], _ALL, tl.int32), fine & (share > 0.0))
        if not JOINT:
            base, base_tie = edge, tie
    if EPSILON:
        share = load_parameter(numbers, row, b3, 3, PER)
        fine = fine & (share >= 0.0) & (share <= 1.0)
        log_of, mean, _n = moments(
            z, where, base, base_tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, h, l,
            False, KIND, VECTOR, MASKED, SCORES,
        )  # fmt: skip
        e = score_from(tl.minimum(log64(share, 0.0) + log_of, 0.0), m, beta, beta_rest)
        edge, tie = tighter(edge, tie, e, tl.full([1], _ALL, tl.int32), fine & (share > 0.0))
        if not JOINT:
            base, base_tie = edge, tie
    if ETA:
        share = load_parameter(numbers, row, b4, 4, PER)
        fine = fine & (share >= 0.0) & (share <= 1.0)
        log_of, mean, _n = moments(
            z, where, base, base_tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, h, l,
            True, KIND, VECTOR, MASKED, SCORES,
        )  # fmt: skip
        log_eta = log64(share, 0.0)
        least_log = tl.minimum(log_eta, 0.5 * log_eta - (log_of - mean))
        e = score_from(tl.minimum(least_log + log_of, 0.0), m, beta, beta_rest)
        edge, tie = tighter(edge, tie, e, tl.full([1], _ALL, tl.int32), fine & (share > 0.0))
    if tl.max((frozen & fine).to(tl.int32), axis=0) > 0:
        first = tl.full([1], _ALL, tl.int32)
        for part in range(parts):
            x, k = part_of(
                z, where, tl.full([1], -INF, tl.float32), tl.full([1], -1, tl.int32), infinite, flat,
                z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES,
            )  # fmt: skip
            first = tl.minimum(first, tl.min(tl.where(x == m[:, None], k, _ALL), axis=1))
        edge, tie = tl.where(frozen, m, edge), tl.where(frozen, first, tie)
    if MOMENTS:
        log_of, mean, count = moments(
            z, where, edge, tie, infinite, flat, z_at, where_at, parts, scores, z_k, where_k, m, h, l,
            False, KIND, VECTOR, MASKED, SCORES,
        )  # fmt: skip
        tl.store(top + row, tl.where(infinite, INF, m))
        tl.store(log_l + row, tl.where(frozen, 0.0, log_of))
        tl.store(size + row, tl.where(fine, count, 0))
    if MARKS:
        for part in range(parts):
            k = part * SCORES + tl.arange(0, SCORES)[None, :]
            at, w_at = z_at[:, None] + k.to(tl.int64) * z_k, where_at[:, None] + k.to(tl.int64) * where_k
            x = load_scores(z, at, where, w_at, k < scores, m, 0, MASKED, False)
            y, k = part_of(
                z, where, edge, tie, infinite, flat, z_at, where_at, part, scores, z_k, where_k, MASKED, SCORES
            )
            mark = tl.where(fine[:, None], y > -INF, ~(x == -INF))
            tl.store(kept + row[:, None] * scores + k, mark, mask=k < scores)
    else:
        edge = tl.where(infinite & (edge == 0.0), INF, edge)
        tl.store(edges + row, tl.where(fine, edge, float("nan")))
        tl.store(ties + row, tie)


# --- calls ------------------------------------------------------------------------------------------------------------


def filters_of(i: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The filters of a call, as arguments of `filter_rows`."""
    z, given = named["z"], i.distribution.filters
    chosen = {name: getattr(given, name) for name in NAMES}
    bits = {f"b{k}": _bits(x) for k, x in enumerate(chosen.values())}
    found: dict[str, Any] = {name.upper(): x is not None for name, x in chosen.items()}
    per_row = [x for x in chosen.values() if isinstance(x, Tensor)]
    if per_row:
        columns = [
            x.double().expand(*i.z.shape[:-1], 1).reshape(-1) if isinstance(x, Tensor)
            else z.new_full((z.shape[0],), 1.0 if x is None else x, dtype=torch.float64)
            for x in chosen.values()
        ]  # fmt: skip
        found["numbers"] = torch.stack(columns, 1)
    return found | bits | {"numbers": found.get("numbers", z), "PER": bool(per_row), "JOINT": i.distribution.joint}


def _bits(x: Any) -> int:
    """The bits of a float64 number."""
    number: int = struct.unpack("q", struct.pack("d", x))[0] if isinstance(x, float) else 0
    return number


def run(i: Any, *, marks: Tensor | None = None, size: Tensor | None = None) -> dict[str, Tensor]:
    """Filter the rows, and return the numbers per row that draws need, or write the mask of the kept scores."""
    named = scores_of(i)
    z = named["z"]
    rows, scores = z.shape
    block = min(max(next_power_of_2(scores), 16), LIST)
    one = scores <= block
    edges, ties = z.new_empty(rows, dtype=torch.float32), z.new_empty(rows, dtype=torch.int32)
    found = {"edge": edges, "tie": ties}
    if size is not None:
        found |= {"top": z.new_empty(rows, dtype=torch.float32), "log_l": z.new_empty(rows, dtype=torch.float64)}
    lists = z.new_empty(1 if one else rows * block, dtype=torch.float32)
    vector = 16 // z.element_size()
    named |= filters_of(i, named) | {"lists": lists, "edges": edges, "ties": ties, "parts": cdiv(scores, block)}
    named |= {"top": found.get("top", edges), "log_l": found.get("log_l", edges)}
    named |= {"size": edges if size is None else size, "kept": edges if marks is None else marks}
    named |= {"MOMENTS": size is not None, "MARKS": marks is not None, "FAST": z.element_size() == 2}
    named |= {"VECTOR": vector, "ONE": one, "SCORES": block, "LANES": block // vector}
    named["STAGES"] = 2 if named["TOP_K"] and not (one or named["TOP_P"]) else 1  # 2 for masses would spill
    named["unit"] = 2.0 ** -scores.bit_length()
    two = named["TOP_K"] and named["TOP_P"]  # two searches need more registers: 8 warps, or 16 with other filters
    warps = block // (512 if two and block < LIST else 256)
    most = 8 if two and not named["PER"] else 16
    launch(filter_rows, Block((rows,), min(max(1, warps), most), {}), **named)
    return found
