"""Queries and keys with NaN, inf or an overflow, computed in float64 by the rules of the definition.

The other kernels flag the rows of results that are not finite. Each kernel here computes flagged rows once more, one
at a time. So a NaN, an inf or an overflow changes only the results that depend on it. If no row is flagged, the
kernels only read the flags.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.triton_exact import (
    exact_above,
    exact_powers,
    exact_scores,
    finite,
    root_of_row,
    scores_at,
    top_of_row,
)
from softargmax.attend.triton_tiles import (
    LN2,
    LOG2E,
    PER_QUERY,
    SOFTMAX,
    keep_factors,
    keys_of,
    load_count,
    load_keys,
    load_scale,
    load_seed,
    load_tile,
    long,
    powers_of,
    range_of_keys,
    range_of_queries,
    sees,
    tile_of,
)
from softargmax.core.triton_launch import RUNTIME
from softargmax.core.triton_math import INF, exp64, log1p64
from softargmax.core.triton_state import row_sum


@triton.jit
def mended_row(
    q, k, v, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k, slope,
    sink, seed, drop_below, gain, k_l, v_l, table, page, k_b, v_b, begin, end,
    SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, SINK: tl.constexpr, SLOPES: tl.constexpr,
    SEEDS: tl.constexpr, PAGED: tl.constexpr, MAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The output (1, PADV) and lse (1, 1) of one query, whose row of q has shape (1, PAD)."""
    n = tl.arange(0, B)
    m, ties, nan = top_of_row(
        q, k, begin, end, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l,
        bias_k, slope, sink, k_l, table, page, k_b,
        SOFTCAP, MASK, BIAS, SINK, SLOPES, PAGED, LEFT, RIGHT, D, PAD, B,
    )  # fmt: skip
    t = m
    if MAP != SOFTMAX:
        t = root_of_row(
            q, k, begin, end, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l,
            bias_k, slope, sink, k_l, table, page, k_b, m, ties, nan,
            SOFTCAP, MASK, BIAS, SINK, SLOPES, PAGED, LEFT, RIGHT, MAP, D, PAD, B,
        )  # fmt: skip
    l = tl.zeros([1], tl.float64)
    if SINK and MAP != SOFTMAX:
        l, _of_sink = powers_of(exact_above(sink.to(tl.float64), m, t, MAP), MAP)
    elif SINK:
        l = tl.where(sink == m, 1.0, tl.where(sink < m, exp64(tl.where(m < INF, sink.to(tl.float64) - m, -INF)), 0.0))
        l = tl.where(m == -INF, 0.0, l)
    o = tl.zeros([PADV, 1], tl.float64)
    high, low, odd = (tl.zeros([PADV, 1], tl.int32), tl.zeros([PADV, 1], tl.int32), tl.zeros([PADV, 1], tl.int32))
    for at in range(begin, end, B):
        j, inside = at + n[None, :], (at + n < count)[:, None]
        s, seen = scores_at(
            q, k, at, i, place, queries, count, scale, softcap, left, right, mask, mask_l, mask_k, bias, bias_l, bias_k,
            slope, k_l, table, page, k_b, SOFTCAP, MASK, BIAS, SLOPES, PAGED, LEFT, RIGHT, D, PAD, B,
        )  # fmt: skip
        s = tl.where(s == s, s, -INF)
        if MAP == SOFTMAX:
            p = tl.where(s == m[:, None], 1.0, tl.where(m[:, None] < INF, exp64(s - m[:, None]), 0.0))
            p = tl.where(s == -INF, 0.0, p)
        else:
            p, _slope = powers_of(exact_above(s, m[:, None], t[:, None], MAP), MAP)
        l += row_sum(p, 1, tl.float64)
        if SEEDS:
            p = p * keep_factors(i, j, seed, drop_below, gain)
        vt = load_keys(v, at, n, v_l, inside, table, page, v_b, PAGED, True, DV, PADV)
        vt = tl.trans(vt.to(tl.float64))  # (PADV, B)
        o += row_sum(tl.where(tl.abs(vt) < INF, vt, 0.0) * p, 1, tl.float64)[:, None]
        there = seen & (s > -INF)
        high = tl.maximum(high, tl.max((there & (vt == INF)).to(tl.int32), axis=1)[:, None])
        low = tl.maximum(low, tl.max((there & (vt == -INF)).to(tl.int32), axis=1)[:, None])
        odd = tl.maximum(odd, tl.max((there & (vt != vt)).to(tl.int32), axis=1)[:, None])
    of_l, of_nan = tl.max(l, axis=0), tl.max(nan, axis=0)  # numbers, so that o keeps its layout
    o = tl.where(of_nan > 0, float("nan"), tl.where(of_l > 0.0, o / of_l, 0.0))
    o = tl.where(high > 0, INF, tl.where(low > 0, -INF, o))
    o = tl.where((odd > 0) | ((high > 0) & (low > 0)), float("nan"), o)
    lse = tl.where(tl.abs(m) == INF, m, m + log1p64(l - 1.0))
    if MAP != SOFTMAX:
        lse = tl.full([1], float("nan"), tl.float64)
    return tl.trans(o), tl.where(nan > 0, float("nan"), lse)[:, None]


@triton.jit
def mend_query(
    q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, table, output, lse, i, entry, h,
    heads, group, queries, keys, page, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k, table_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SINK: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr,
    PAGED: tl.constexpr, MAP: tl.constexpr, LSE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute a query by the definition, and store its output and lse. i has shape (1, 1); lse begins with query 0."""
    count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
    place = count - queries
    slope, of_sink, seed = tl.zeros([1, 1], tl.float32), 0.0, 0
    if SLOPES:
        slope += tl.load(slopes + entry * slopes_b + h * slopes_h).to(tl.float32) * LOG2E
    if SINK:
        of_sink = tl.load(sink + entry * sink_b + h * sink_h).to(tl.float32)
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + h * seeds_h, seeds_k)
    e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
    q += entry * q_b + h * q_h
    scale += entry * scale_b + h * scale_h
    of_query = load_scale(
        scale, i.to(tl.int64) * scale_l, i >= 0, number + tl.zeros([1, 1], tl.float32), softcap, SCALE, SOFTCAP
    )
    first = tl.max(tl.reshape(i, [1]), axis=0)
    begin, _a, _b, end = range_of_keys(first, first + 1, place, count, left, right, LEFT, RIGHT, N)
    o, of_row = mended_row(
        load_tile(q, i.to(tl.int64), e, q_l, i >= 0, True, D, PAD),
        keys_of(k, entry, h // group, 0, k_b, k_h, k_l, PAGED), keys_of(v, entry, h // group, 0, v_b, v_h, v_l, PAGED),
        i, place, queries, count, of_query, softcap, left, right, mask + entry * mask_b + h * mask_h, mask_l, mask_k,
        bias + entry * bias_b + h * bias_h, bias_l, bias_k, slope, of_sink, seed, drop_below, gain, k_l, v_l,
        table + entry * table_b, page, k_b, v_b, begin, end,
        SOFTCAP, MASK, BIAS, SINK, SLOPES, SEEDS, PAGED, MAP, LEFT, RIGHT, D, DV, PAD, PADV, N,
    )  # fmt: skip
    to = output + entry * output_b + h * output_h + i.to(tl.int64) * output_l + f
    tl.store(to, o.to(output.dtype.element_ty), mask=f < DV)
    if LSE:
        tl.store(lse + i, of_row)


@triton.jit(do_not_specialize=RUNTIME)
def mend(
    q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, cu_q, cu_k, table, output, lse, flags,
    heads, group, queries, keys, tiles, sequences, page, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k, table_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SINK: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr,
    PACKED: tl.constexpr, PAGED: tl.constexpr, MAP: tl.constexpr, LSE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute the flagged queries of a tile once more, by the definition."""
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = program % tiles
    rows = head * queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_q, cu_q, cu_k, sequences, PACKED, M)
    rows += at_q
    q += long(at_q) * q_l
    k += long(at_k) * k_l
    v += long(at_k) * v_l
    scale += long(at_q) * scale_l
    output += long(at_q) * output_l
    row = tl.arange(0, M)
    strange = tl.load(flags + rows + first + row, mask=first + row < queries, other=0).to(tl.int32)
    if tl.max(strange, axis=0) > 0:
        entry, h = head // heads, head % heads
        for r in range(M):
            if tl.max(tl.where(row == r, strange, 0), axis=0) > 0:
                i = first + r + tl.zeros([1, 1], tl.int32)
                mend_query(
                    q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, table, output, lse + rows, i, entry, h,
                    heads, group, queries, keys, page, left, right, number, softcap, drop_below, gain,
                    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l,
                    scale_b, scale_h, scale_l, mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k,
                    sink_b, sink_h, lengths_b, slopes_b, slopes_h, seeds_b, seeds_h, seeds_k, table_b,
                    LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SINK, LENGTHS, SLOPES, SEEDS, PAGED, MAP, LSE,
                    D, DV, PAD, PADV, N,
                )  # fmt: skip


# --- gradients --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def mend_queries(  # noqa: PLR0912 each option, and both kinds of maps
    q, k, v, g, lse, g_lse, of_rows, scale, mask, bias, sink, lengths, slopes, seeds, cu_q, cu_k,
    dq, per_query, bias_gradient, flags,
    heads, group, queries, keys, tiles, sequences, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, g_lse_b, g_lse_h, g_lse_l,
    dq_b, dq_h, dq_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PACKED: tl.constexpr,
    MAP: tl.constexpr, TO_BIAS: tl.constexpr, SINK: tl.constexpr, G_LSE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of flagged queries once more, and store their delta and the number of their maxima.

    With entmax, store t in place of the number, and m in place of lse.
    """
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = program % tiles
    rows = head * queries
    total = tl.num_programs(0).to(tl.int64) // tiles * queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_q, cu_q, cu_k, sequences, PACKED, M)
    rows += at_q
    q += long(at_q) * q_l
    k += long(at_k) * k_l
    v += long(at_k) * v_l
    g += long(at_q) * g_l
    g_lse += long(at_q) * g_lse_l
    scale += long(at_q) * scale_l
    dq += long(at_q) * dq_l
    row = tl.arange(0, M)
    strange = tl.load(flags + rows + first + row, mask=first + row < queries, other=0).to(tl.int32)
    if tl.max(strange, axis=0) > 0:
        entry, h = head // heads, head % heads
        count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
        place = count - queries
        slope, seed = tl.zeros([1, 1], tl.float32), 0
        if SLOPES:
            slope += tl.load(slopes + entry * slopes_b + h * slopes_h).to(tl.float32) * LOG2E
        if SEEDS:
            seed = load_seed(seeds + entry * seeds_b + h * seeds_h, seeds_k)
        e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
        k_at, v_at = k + entry * k_b + h // group * k_h, v + entry * v_b + h // group * v_h
        mask_at, bias_at = mask + entry * mask_b + h * mask_h, bias + entry * bias_b + h * bias_h
        for r in range(M):
            if tl.max(tl.where(row == r, strange, 0), axis=0) > 0:
                i = first + r + tl.zeros([1, 1], tl.int32)
                at = i.to(tl.int64)
                of_query = load_scale(
                    scale + entry * scale_b + h * scale_h, at * scale_l, i >= 0,
                    number + tl.zeros([1, 1], tl.float32), softcap, SCALE, SOFTCAP,
                )  # fmt: skip
                qt = load_tile(q + entry * q_b + h * q_h, at, e, q_l, i >= 0, True, D, PAD)
                gt = load_tile(g + entry * g_b + h * g_h, at, f, g_l, i >= 0, True, DV, PADV).to(tl.float64)
                begin, _a, _b, end = range_of_keys(first + r, first + r + 1, place, count, left, right, LEFT, RIGHT, N)
                ties, delta = tl.zeros([1, 1], tl.float64), tl.zeros([1, 1], tl.float64)
                mass, of_sink = tl.zeros([1, 1], tl.float64), 0.0
                if SINK:
                    of_sink = tl.load(sink + entry * sink_b + h * sink_h).to(tl.float32)
                    ties += (of_sink == INF).to(tl.float64)
                if MAP == SOFTMAX:
                    of_row = tl.load(lse + rows + at)
                    root = 1.0 + ties * 0.0
                else:
                    m, infinite, nan = top_of_row(
                        qt, k_at, begin, end, i, place, queries, count, of_query, softcap, left, right, mask_at, mask_l,
                        mask_k, bias_at, bias_l, bias_k, slope, of_sink, k_l, k_at, 1, 0,  # no pages
                        SOFTCAP, MASK, BIAS, SINK, SLOPES, False, LEFT, RIGHT, D, PAD, N,
                    )  # fmt: skip
                    t = root_of_row(
                        qt, k_at, begin, end, i, place, queries, count, of_query, softcap, left, right, mask_at, mask_l,
                        mask_k, bias_at, bias_l, bias_k, slope, of_sink, k_l, k_at, 1, 0,  # no pages
                        m, infinite, nan,
                        SOFTCAP, MASK, BIAS, SINK, SLOPES, False, LEFT, RIGHT, MAP, D, PAD, N,
                    )  # fmt: skip
                    of_row, root = tl.where(nan > 0, float("nan"), m)[:, None], t[:, None]
                for key in range(begin, end, N):
                    j = key + tl.arange(0, N)[None, :]
                    of_key = long(key) + tl.arange(0, N)[:, None]
                    seen = sees(
                        i, j, place, queries, count, left, right, mask_at, mask_l, mask_k, True, LEFT, RIGHT, MASK
                    )
                    kt = load_tile(k_at, of_key, e, k_l, of_key < count, True, D, PAD)
                    vt = load_tile(v_at, of_key, f, v_l, of_key < count, True, DV, PADV)
                    s, _raw, _slope, seen = exact_scores(
                        qt, kt, i, j, place, queries, count, of_query, softcap, bias_at, bias_l, bias_k, slope, seen,
                        SOFTCAP, BIAS, SLOPES,
                    )  # fmt: skip
                    p, steep = exact_powers(s, of_row, root, MAP)
                    dp = row_sum(gt * vt.to(tl.float64), 1, tl.float64)[None, :]
                    if SEEDS:
                        dp = dp * keep_factors(i, j, seed, drop_below, gain)
                    ties += tl.sum((s == INF).to(tl.int32), axis=1)[:, None].to(tl.float64)
                    delta += row_sum(tl.where(p != 0.0, steep * dp, 0.0), 1, tl.float64)[:, None]
                    mass += row_sum(steep, 1, tl.float64)[:, None]
                if MAP == SOFTMAX:
                    root = tl.where(of_row == INF, tl.maximum(ties, 1.0), 1.0)
                    delta = delta / root
                else:
                    if SINK:
                        score = tl.zeros([1, 1], tl.float64) + of_sink
                        _p, more = powers_of(exact_above(score, of_row, root, MAP), MAP)
                        mass += more
                    delta = delta / tl.where(mass == 0.0, 1.0, mass)
                if G_LSE:
                    at_lse = entry * g_lse_b + h * g_lse_h + at * g_lse_l
                    delta -= tl.load(g_lse + at_lse).to(tl.float64)
                of_q = tl.zeros([PAD, 1], tl.float64)
                of_scale, of_slope = tl.zeros([1, 1], tl.float64), tl.zeros([1, 1], tl.float64)
                for key in range(begin, end, N):
                    j = key + tl.arange(0, N)[None, :]
                    of_key = long(key) + tl.arange(0, N)[:, None]
                    seen = sees(
                        i, j, place, queries, count, left, right, mask_at, mask_l, mask_k, True, LEFT, RIGHT, MASK
                    )
                    kt = load_tile(k_at, of_key, e, k_l, of_key < count, True, D, PAD)
                    vt = load_tile(v_at, of_key, f, v_l, of_key < count, True, DV, PADV)
                    s, raw, of_cap, seen = exact_scores(
                        qt, kt, i, j, place, queries, count, of_query, softcap, bias_at, bias_l, bias_k, slope, seen,
                        SOFTCAP, BIAS, SLOPES,
                    )  # fmt: skip
                    p, steep = exact_powers(s, of_row, root, MAP)
                    dp = row_sum(gt * vt.to(tl.float64), 1, tl.float64)[None, :]
                    if SEEDS:
                        dp = dp * keep_factors(i, j, seed, drop_below, gain)
                    ds = tl.where(p != 0.0, steep * (dp - delta), 0.0)
                    dz = tl.where(p != 0.0, ds * of_cap, 0.0)
                    of_q += row_sum(tl.trans(finite(kt)) * dz, 1, tl.float64)[:, None]
                    of_scale += row_sum(tl.where(p != 0.0, dz * raw, 0.0), 1, tl.float64)[:, None]
                    of_slope -= row_sum(ds * tl.abs(i + place - j).to(tl.float64), 1, tl.float64)[:, None]
                    if TO_BIAS:
                        tl.store(bias_gradient + (rows + at) * keys + j, ds.to(tl.float32), mask=j < count)
                factor = of_query.to(tl.float64) * LN2
                if SOFTCAP:
                    factor = factor * softcap
                to = dq + entry * dq_b + h * dq_h + at * dq_l + e
                tl.store(to, (tl.trans(of_q) * factor).to(dq.dtype.element_ty), mask=e < D)
                to_row = rows + at
                if SCALE == PER_QUERY:
                    tl.store(per_query + to_row, of_scale.to(tl.float32))
                if SLOPES:
                    tl.store(per_query + total + to_row, of_slope.to(tl.float32))
                tl.store(of_rows + total + to_row, delta.to(tl.float32))
                tl.store(of_rows + 2 * total + to_row, root.to(tl.float32))
                if MAP != SOFTMAX:
                    tl.store(lse + to_row, of_row)


@triton.jit(do_not_specialize=RUNTIME)
def mend_keys(
    q, k, v, g, lse, of_rows, scale, mask, bias, lengths, slopes, seeds, cu_q, cu_k, dk, dv, flags,
    heads, group, queries, keys, tiles, sequences, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l,
    dk_b, dk_h, dk_l, dv_b, dv_h, dv_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PACKED: tl.constexpr,
    MAP: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of flagged keys and values once more."""
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = program % tiles
    key_rows, all_queries = head * keys, queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_k, cu_q, cu_k, sequences, PACKED, M)
    key_rows += at_k
    q += long(at_q) * q_l
    k += long(at_k) * k_l
    v += long(at_k) * v_l
    g += long(at_q) * g_l
    scale += long(at_q) * scale_l
    lse += at_q
    of_rows += at_q
    dk += long(at_k) * dk_l
    dv += long(at_k) * dv_l
    row = tl.arange(0, M)
    strange = tl.load(flags + key_rows + first + row, mask=first + row < keys, other=0).to(tl.int32)
    if tl.max(strange, axis=0) > 0:
        groups = heads // group
        entry, h = head // groups, head % groups
        count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
        place = count - queries
        e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
        total = tl.num_programs(0).to(tl.int64) // tiles * group * all_queries
        for r in range(M):
            if tl.max(tl.where(row == r, strange, 0), axis=0) > 0:
                j = first + r + tl.zeros([1, 1], tl.int32)
                at = j.to(tl.int64)
                kt = load_tile(k + entry * k_b + h * k_h, at, e, k_l, j >= 0, True, D, PAD)
                vt = load_tile(v + entry * v_b + h * v_h, at, f, v_l, j >= 0, True, DV, PADV).to(tl.float64)
                begin, _a, _b, end = range_of_queries(
                    first + r, first + r + 1, place, queries, left, right, LEFT, RIGHT, N
                )
                of_k, of_v = tl.zeros([PAD, 1], tl.float64), tl.zeros([PADV, 1], tl.float64)
                high, low, odd = (
                    tl.zeros([PADV, 1], tl.int32),
                    tl.zeros([PADV, 1], tl.int32),
                    tl.zeros([PADV, 1], tl.int32),
                )
                for member in range(group):
                    of_head = h * group + member
                    slope, seed = tl.zeros([1, 1], tl.float32), 0
                    if SLOPES:
                        slope += tl.load(slopes + entry * slopes_b + of_head * slopes_h).to(tl.float32) * LOG2E
                    if SEEDS:
                        seed = load_seed(seeds + entry * seeds_b + of_head * seeds_h, seeds_k)
                    for query in range(begin, end, N):
                        i = query + tl.arange(0, N)[None, :]
                        rows = long(query) + tl.arange(0, N)[:, None]
                        exists = i < queries
                        of_query = load_scale(
                            scale + entry * scale_b + of_head * scale_h, i.to(tl.int64) * scale_l, exists,
                            number + tl.zeros([1, N], tl.float32), softcap, SCALE, SOFTCAP,
                        )  # fmt: skip
                        mask_at = mask + entry * mask_b + of_head * mask_h
                        seen = exists & sees(
                            i, j, place, queries, count, left, right, mask_at, mask_l, mask_k, True, LEFT, RIGHT, MASK
                        )
                        qt = load_tile(q + entry * q_b + of_head * q_h, rows, e, q_l, rows < queries, True, D, PAD)
                        gt = load_tile(g + entry * g_b + of_head * g_h, rows, f, g_l, rows < queries, True, DV, PADV)
                        s, _raw, of_cap, seen = exact_scores(
                            qt, kt, i, j, place, queries, count, of_query, softcap,
                            bias + entry * bias_b + of_head * bias_h, bias_l, bias_k, slope, seen,
                            SOFTCAP, BIAS, SLOPES,
                        )  # fmt: skip
                        to_row = (entry * heads + of_head) * all_queries + i
                        of_row = tl.load(lse + to_row, mask=exists, other=0.0)
                        delta = tl.load(of_rows + total + to_row, mask=exists, other=0.0).to(tl.float64)
                        root = tl.load(of_rows + 2 * total + to_row, mask=exists, other=1.0).to(tl.float64)
                        p, steep = exact_powers(s, of_row, root, MAP)
                        dp, weight = row_sum(gt.to(tl.float64) * vt, 1, tl.float64)[None, :], p
                        if SEEDS:
                            keep = keep_factors(i, j, seed, drop_below, gain)
                            dp, weight = dp * keep, p * keep
                        factor = of_query.to(tl.float64) * LN2
                        if SOFTCAP:
                            factor = factor * softcap
                        dz = tl.where(p != 0.0, steep * (dp - delta) * of_cap, 0.0) * factor
                        of_k += row_sum(tl.trans(finite(qt)) * dz, 1, tl.float64)[:, None]
                        gt = tl.trans(gt.to(tl.float64))
                        of_v += row_sum(tl.where(tl.abs(gt) < INF, gt, 0.0) * weight, 1, tl.float64)[:, None]
                        there = p != 0.0
                        high = tl.maximum(high, tl.max((there & (gt == INF)).to(tl.int32), axis=1)[:, None])
                        low = tl.maximum(low, tl.max((there & (gt == -INF)).to(tl.int32), axis=1)[:, None])
                        odd = tl.maximum(odd, tl.max((there & (gt != gt)).to(tl.int32), axis=1)[:, None])
                of_v = tl.where(high > 0, INF, tl.where(low > 0, -INF, of_v))
                of_v = tl.where((odd > 0) | ((high > 0) & (low > 0)), float("nan"), of_v)
                tl.store(
                    dk + entry * dk_b + h * dk_h + at * dk_l + e, tl.trans(of_k).to(dk.dtype.element_ty), mask=e < D
                )
                tl.store(
                    dv + entry * dv_b + h * dv_h + at * dv_l + f, tl.trans(of_v).to(dv.dtype.element_ty), mask=f < DV
                )
