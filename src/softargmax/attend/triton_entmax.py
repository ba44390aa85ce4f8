"""Attention with entmax of order 1.5 or 2 in place of softmax: the threshold of each query, and the output.

    p = v^(1/a)        v = (d + t)_+        d = a (S - max S)        a = alpha - 1        sum p = 1

A program visits its keys several times: once for the maximum, once for each step of Newton's method for t
(core/triton_maps.py), and once for the output. All visits compute the same scores. In the gradient

    dS = p^(2 - alpha) (g v^T - delta)        delta = <p^(2 - alpha), g v^T> / <p^(2 - alpha), 1>

`prepare_entmax` searches t again, and adds up delta. A query stops at its own last step, whatever the others need.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.triton_tiles import (
    LARGE,
    LN2,
    LOG2E,
    is_strange,
    kept,
    load_count,
    load_keys,
    load_scale,
    load_seed,
    load_tile,
    long,
    powers_of,
    range_of_keys,
    tile_of,
    visible_scores,
)
from softargmax.core.triton_launch import RUNTIME
from softargmax.core.triton_maps import LINEAR, step
from softargmax.core.triton_math import INF, f32
from softargmax.core.triton_state import add_product, product, tile_sum

HALF_LN2 = tl.constexpr(0.5 * LN2.value)


@triton.jit
def above(s, m, t, MAP: tl.constexpr):
    """v of scores s in base 2, whose maximum is m."""
    v = tl.fma(s - m, f32(LN2 if MAP == LINEAR else HALF_LN2), t)
    return tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def terms_of(s, m, t, MAP: tl.constexpr):
    """The terms of the two sums that a step needs."""
    if MAP == LINEAR:
        d = (s - m) * f32(LN2)
        outside = d <= -t  # False for NaN
        return tl.where(outside, 0.0, -d), tl.where(outside, 0.0, 1.0)
    v = above(s, m, t, MAP)
    return v * v, v


@triton.jit
def scores_at(
    q, k, at, i, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k, bias, bias_l, bias_k,
    k_l, table, page, k_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    SLOPES: tl.constexpr, PAGED: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The scores of a tile of keys in base 2, and -inf for keys that a query does not see."""
    n = tl.arange(0, N)
    kt = load_keys(k, at, n, k_l, (at + n < count)[:, None], table, page, k_b, PAGED, True, D, PAD)
    return visible_scores(
        product(q, tl.trans(kt)), i, at + n[None, :], place, queries, count, left, right, scale, softcap, slope,
        mask, mask_l, mask_k, bias, bias_l, bias_k, True, LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES,
    )  # fmt: skip


@triton.jit
def root_of(
    q, k, begin, end, i, place, queries, count, left, right, scale, softcap, slope, sink,
    mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, table, page, k_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    SINK: tl.constexpr, SLOPES: tl.constexpr, PAGED: tl.constexpr, MAP: tl.constexpr, D: tl.constexpr,
    PAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The maximum m in base 2 and t of each query of a tile, and which queries are strange. m is 0 without keys."""
    m = tl.full([M], -INF, tl.float32)
    for at in tl.range(begin, end, N, num_stages=STAGES):
        s = scores_at(
            q, k, at, i, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k,
            bias, bias_l, bias_k, k_l, table, page, k_b, LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES, PAGED, D, PAD, N,
        )  # fmt: skip
        m = tl.maximum(m, tl.max(s, axis=1))
    seen = m > -INF
    of_sink = sink * LOG2E + tl.zeros_like(m)
    if SINK:
        m = tl.maximum(m, of_sink)
    m = tl.where(m == -INF, 0.0, m)
    t = tl.full([M], 1.0, tl.float32)
    active = t > 0.0
    while tl.max(active.to(tl.int32), axis=0) > 0:
        first, second = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
        if SINK:
            first, second = terms_of(of_sink, m, t, MAP)
        for at in tl.range(begin, end, N, num_stages=STAGES):
            s = scores_at(
                q, k, at, i, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k,
                bias, bias_l, bias_k, k_l, table, page, k_b, LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES, PAGED, D, PAD, N,
            )  # fmt: skip
            of_first, of_second = terms_of(s, m[:, None], t[:, None], MAP)
            first, second = first + tile_sum(of_first), second + tile_sum(of_second)
        following, moves = step(t, first, second, 0.0, MAP)
        t = tl.where(active, following, t)
        active = active & moves
    t = tl.where(active, float("nan"), t)  # no query is active; Triton fails if `active` ends with the loop
    return m, t, ~(t < INF) | (seen & (tl.abs(m) > LARGE))


@triton.jit
def attended(
    q, k, v, begin, end, i, place, queries, count, left, right, scale, softcap, slope, sink, seed, drop_below, gain,
    mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    SINK: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PAGED: tl.constexpr, MAP: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The output of a tile of queries, and which queries are strange."""
    m, t, strange = root_of(
        q, k, begin, end, i, place, queries, count, left, right, scale, softcap, slope, sink,
        mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, table, page, k_b,
        LEFT, RIGHT, SOFTCAP, MASK, BIAS, SINK, SLOPES, PAGED, MAP, D, PAD, M, N, STAGES,
    )  # fmt: skip
    o = tl.zeros([M, PADV], tl.float32)
    for at in tl.range(begin, end, N, num_stages=STAGES):
        s = scores_at(
            q, k, at, i, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k,
            bias, bias_l, bias_k, k_l, table, page, k_b, LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES, PAGED, D, PAD, N,
        )  # fmt: skip
        p, _slope = powers_of(above(s, m[:, None], t[:, None], MAP), MAP)
        if SEEDS:
            p = tl.where(kept(i, at, seed, drop_below, N), p, 0.0)
        n = tl.arange(0, N)
        vt = load_keys(v, at, n, v_l, (at + n < count)[:, None], table, page, v_b, PAGED, True, DV, PADV)
        o = add_product(o, p.to(vt.dtype), vt)
    if SEEDS:
        o = o * gain
    return o, strange | is_strange(o)


@triton.jit(do_not_specialize=RUNTIME)
def prepare_entmax(
    q, k, v, g, lse, of_rows, scale, mask, bias, sink, lengths, slopes, seeds, cu_q, cu_k,
    heads, group, queries, keys, tiles, sequences, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SINK: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr,
    PACKED: tl.constexpr, MAP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store m in base 2, delta and t of each query, and m in float64 in place of lse.

    A strange row gets m = NaN, so it is mended.
    """
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = tiles - 1 - program % tiles
    entry, h = head // heads, head % heads
    rows = head * queries
    total = tl.num_programs(0).to(tl.int64) // tiles * queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_q, cu_q, cu_k, sequences, PACKED, M)
    rows += at_q
    if PACKED:
        keys = tl.where(first < queries, keys, 0)
    count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
    place = count - queries
    row = tl.arange(0, M)
    i = (first + row)[:, None]
    q += entry * q_b + h * q_h + long(at_q) * q_l
    g += entry * g_b + h * g_h + long(at_q) * g_l
    k += entry * k_b + h // group * k_h + long(at_k) * k_l
    v += entry * v_b + h // group * v_h + long(at_k) * v_l
    mask += entry * mask_b + h * mask_h
    bias += entry * bias_b + h * bias_h
    scale += entry * scale_b + h * scale_h + long(at_q) * scale_l
    e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
    qt = load_tile(q + long(first) * q_l, row[:, None], e, q_l, i < queries, True, D, PAD)
    gt = load_tile(g + long(first) * g_l, row[:, None], f, g_l, i < queries, True, DV, PADV)
    of_query = load_scale(scale, i.to(tl.int64) * scale_l, i < queries, number, softcap, SCALE, SOFTCAP)
    slope, of_sink, seed = 0.0, 0.0, 0
    if SLOPES:
        slope = tl.load(slopes + entry * slopes_b + h * slopes_h).to(tl.float32) * LOG2E
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + h * seeds_h, seeds_k)
    if SINK:
        of_sink = tl.load(sink + entry * sink_b + h * sink_h).to(tl.float32)
    last = tl.minimum(first + M, queries)
    begin, _a, _b, end = range_of_keys(first, last, place, count, left, right, LEFT, RIGHT, N)
    m, t, strange = root_of(
        qt, k, begin, end, i, place, queries, count, left, right, of_query, softcap, slope, of_sink,
        mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, k, 1, 0,  # no pages
        LEFT, RIGHT, SOFTCAP, MASK, BIAS, SINK, SLOPES, False, MAP, D, PAD, M, N, STAGES,
    )  # fmt: skip
    delta, mass = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if SINK:
        _of_p, mass = powers_of(above(of_sink * LOG2E + tl.zeros_like(m), m, t, MAP), MAP)
    for at in tl.range(begin, end, N, num_stages=STAGES):
        s = scores_at(
            qt, k, at, i, place, queries, count, left, right, of_query, softcap, slope, mask, mask_l, mask_k,
            bias, bias_l, bias_k, k_l, k, 1, 0,  # no pages
            LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES, False, D, PAD, N,
        )  # fmt: skip
        _p, steep = powers_of(above(s, m[:, None], t[:, None], MAP), MAP)
        n = tl.arange(0, N)
        vt = load_keys(v, at, n, v_l, (at + n < count)[:, None], k, 1, 0, False, True, DV, PADV)
        dp = product(gt, tl.trans(vt))
        if SEEDS:
            dp = dp * tl.where(kept(i, at, seed, drop_below, N), gain, 0.0)
        delta += tile_sum(steep * dp)
        mass += tile_sum(steep)
    delta = delta / tl.where(mass == 0.0, 1.0, mass)
    exists = first + row < queries
    tl.store(lse + rows + first + row, m.to(tl.float64) * LN2, mask=exists)
    to = of_rows + rows + first + row
    tl.store(to, tl.where(strange, float("nan"), m), mask=exists)
    tl.store(to + total, delta, mask=exists)
    tl.store(to + 2 * total, t, mask=exists)
