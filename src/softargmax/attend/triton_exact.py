"""Scores and probabilities of attention in float64, by the rules of the definition, for a few keys at a time."""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.triton_tiles import LN2, SOFTMAX, load_keys, powers_of, sees
from softargmax.core.triton_maps import LINEAR
from softargmax.core.triton_math import INF, exp64, less_one64
from softargmax.core.triton_state import row_sum


@triton.jit
def finite(x):
    """A tile in float64, with 0 for NaN and inf."""
    return tl.where(tl.abs(x) < INF, x, 0.0).to(tl.float64)


@triton.jit
def exact_scores(
    q, k, i, j, place, queries, count, scale, softcap, bias, bias_l, bias_k, slope, seen,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr,
):  # fmt: skip
    """Scores in base e, the products q k^T, the slope of the soft-cap and the visible keys, by the definition.

    q and k are tiles with as many rows as `seen` has entries, or one row.
    """
    raw = row_sum(q.to(tl.float64) * k.to(tl.float64), 1, tl.float64)
    raw = tl.reshape(raw, seen.shape)
    seen = seen & (raw != -INF)
    z = tl.where(seen, raw, 0.0) * (scale.to(tl.float64) * LN2)
    steep = tl.full(seen.shape, 1.0, tl.float64)
    if SOFTCAP:
        t = -less_one64(-2.0 * tl.abs(z))
        t = t / (2.0 - t)
        steep = 1.0 - t * t
        z = tl.where(z < 0.0, -t, t) * softcap
    if BIAS:
        at = bias + i.to(tl.int64) * bias_l + j.to(tl.int64) * bias_k
        added = tl.load(at, mask=(i < queries) & (j < count), other=0.0).to(tl.float64)
        seen = seen & (added != -INF)
        z = z + tl.where(added == -INF, 0.0, added)
    if SLOPES:
        z = z - slope.to(tl.float64) * LN2 * tl.abs(i + place - j).to(tl.float64)
    return tl.where(seen, z, -INF), raw, steep, seen


@triton.jit
def scores_at(
    q, k, at, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k, slope,
    k_l, table, page, k_b,
    SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, PAGED: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The scores of one query for the keys at..at + B - 1, and which of them it sees."""
    n = tl.arange(0, B)
    j = at + n[None, :]
    seen = sees(i, j, place, queries, count, left, right, mask, mask_l, mask_k, True, LEFT, RIGHT, MASK)
    kt = load_keys(k, at, n, k_l, (at + n < count)[:, None], table, page, k_b, PAGED, True, D, PAD)
    s, _, _, seen = exact_scores(
        q, kt, i, j, place, queries, count, scale, softcap, bias, bias_l, bias_k, slope, seen, SOFTCAP, BIAS, SLOPES
    )
    return s, seen


@triton.jit
def top_of_row(
    q, k, begin, end, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k,
    slope, sink, k_l, table, page, k_b,
    SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, SINK: tl.constexpr, SLOPES: tl.constexpr,
    PAGED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The largest score of one query without NaN, the number of infinite ones, and whether there is a NaN."""
    m, nan, ties = tl.full([1], -INF, tl.float64), tl.zeros([1], tl.int32), tl.zeros([1], tl.int32)
    if SINK:
        m = tl.maximum(m, tl.where(sink != sink, -INF, sink.to(tl.float64)))
        nan, ties = nan + (sink != sink).to(tl.int32), ties + (sink == INF).to(tl.int32)
    for at in range(begin, end, B):
        s, _seen = scores_at(
            q, k, at, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k,
            slope, k_l, table, page, k_b, SOFTCAP, MASK, BIAS, SLOPES, PAGED, LEFT, RIGHT, D, PAD, B,
        )  # fmt: skip
        nan = tl.maximum(nan, tl.max((s != s).to(tl.int32), axis=1))
        ties += tl.sum((s == INF).to(tl.int32), axis=1)
        m = tl.maximum(m, tl.max(tl.where(s == s, s, -INF), axis=1))
    return m, ties, nan


@triton.jit
def shares(s, lse, ties):
    """p of scores in float64. `ties` is the number of maxima of a row whose lse is inf."""
    limit = lse == INF
    p = tl.where(limit, tl.where(s == INF, 1.0 / ties, 0.0), exp64(s - tl.where(limit, 0.0, lse)))
    return tl.where(s == -INF, 0.0, tl.where((lse != lse) | (s != s), float("nan"), p))


# --- entmax: v = (d + t)_+ with d = a (s - m), as in core/triton_maps.py ----------------------------------------------


@triton.jit
def exact_above(s, m, t, MAP: tl.constexpr):
    """v of scores. If the largest score m is inf, t is the v of each infinite score."""
    v = tl.maximum((s - m) * (1.0 if MAP == LINEAR else 0.5) + t, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(s == -INF, 0.0, tl.where(m == INF, tl.where(s == INF, t, 0.0), v))


@triton.jit
def root_of_row(
    q, k, begin, end, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k,
    slope, sink, k_l, table, page, k_b, m, ties, nan,
    SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, SINK: tl.constexpr, SLOPES: tl.constexpr,
    PAGED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MAP: tl.constexpr, D: tl.constexpr,
    PAD: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """t of one query, from the results of `top_of_row`."""
    equal = 1.0 / tl.maximum(ties, 1).to(tl.float32)
    equal = (equal if MAP == LINEAR else tl.sqrt_rn(equal)).to(tl.float64)
    t = tl.full([1], 1.0, tl.float64)
    more = tl.max(((tl.abs(m) < INF) & (nan == 0)).to(tl.int32), axis=0)
    while more > 0:
        total, slopes = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64)
        if SINK:
            total, slopes = powers_of(exact_above(sink.to(tl.float64), m, t, MAP), MAP)
        for at in range(begin, end, B):
            s, _seen = scores_at(
                q, k, at, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l,
                bias_k, slope, k_l, table, page, k_b, SOFTCAP, MASK, BIAS, SLOPES, PAGED, LEFT, RIGHT, D, PAD, B,
            )  # fmt: skip
            p, steep = powers_of(exact_above(s, m[:, None], t[:, None], MAP), MAP)
            total += row_sum(p, 1, tl.float64)
            slopes += row_sum(steep, 1, tl.float64)
        following = t - (total - 1.0) / (slopes if MAP == LINEAR else 2.0 * slopes)
        more = tl.max((following < t * (1.0 - 2.0**-45)).to(tl.int32), axis=0)
        t = following
    return tl.where(m == INF, equal, t)


@triton.jit
def exact_powers(s, of_row, root, MAP: tl.constexpr):
    """p of scores, and its slope: p itself, or p^(2 - alpha).

    `of_row` and `root` are lse and the number of maxima, or m and t. m is NaN for a row with NaN.
    """
    if MAP == SOFTMAX:
        p = shares(s, of_row, root)
        return p, p
    return powers_of(exact_above(s, of_row, root, MAP), MAP)
