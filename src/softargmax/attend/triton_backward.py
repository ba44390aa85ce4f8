"""CUDA kernels for the gradients of attention. `to_queries` owns tiles of queries, `to_keys` tiles of keys.

    p = 2^(s - lse)        dS = p (g v^T - delta)        delta = <g, o> - g_lse        dz = dS (1 - tanh^2)

Both compute the scores again. So each gradient is the sum of one program, in a fixed order, and nothing is added by
atomics. `prepare` computes delta first. For entmax, p, dS and delta are those of triton_entmax.py, with the maximum of
a query's scores in place of its lse, and `root` is t.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.triton_entmax import above
from softargmax.attend.triton_tiles import (
    FOLDED,
    LARGE,
    LN2,
    LOG2E,
    PER_QUERY,
    SOFTMAX,
    is_strange,
    kept,
    load_count,
    load_scale,
    load_seed,
    load_tile,
    long,
    powers_of,
    range_of_keys,
    range_of_queries,
    scores_of,
    sees,
    tile_of,
)
from softargmax.core.triton_launch import RUNTIME
from softargmax.core.triton_math import INF
from softargmax.core.triton_state import add_product, product, row_sum, tile_sum


@triton.jit(do_not_specialize=RUNTIME)
def prepare(
    output, g, lse, g_lse, of_rows, heads, queries, tiles,
    output_b, output_h, output_l, g_b, g_h, g_l, g_lse_b, g_lse_h, g_lse_l,
    G_LSE: tl.constexpr, VECTOR: tl.constexpr, DV: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Store lse in base 2 and delta of each query.

    An empty row gets lse = inf, so that its p are 0. A row with an infinite or large lse gets NaN, so it is mended.
    """
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    i = program % tiles * M + tl.arange(0, M)
    f = tl.arange(0, PADV)[None, :]
    exists = i < queries
    entry, h = head // heads, head % heads
    at = i.to(tl.int64)[:, None]
    o = load_tile(output + entry * output_b + h * output_h, at, f, output_l, exists[:, None], True, DV, PADV)
    of_o = load_tile(g + entry * g_b + h * g_h, at, f, g_l, exists[:, None], True, DV, PADV)
    if VECTOR == 8:
        delta = row_sum(o.to(tl.float32) * of_o.to(tl.float32), VECTOR, tl.float32).to(tl.float64)
    else:
        delta = row_sum(o.to(tl.float64) * of_o.to(tl.float64), VECTOR, tl.float64)
    if G_LSE:
        delta -= tl.load(g_lse + entry * g_lse_b + h * g_lse_h + i.to(tl.int64) * g_lse_l, mask=exists, other=0.0).to(
            tl.float64
        )
    of_row = tl.load(lse + head * queries + i, mask=exists, other=-INF)
    two = of_row * (1.0 / LN2)
    of_row = tl.where(of_row == -INF, INF, tl.where(tl.abs(two) > LARGE, float("nan"), two))
    total = tl.num_programs(0).to(tl.int64) // tiles * queries
    tl.store(of_rows + head * queries + i, of_row.to(tl.float32), mask=exists)
    tl.store(of_rows + total + head * queries + i, delta.to(tl.float32), mask=exists)


@triton.jit
def slopes_of(
    raw, dp, i, j, place, queries, count, left, right, scale, softcap, slope, lse, delta, root,
    mask, mask_l, mask_k, bias, bias_l, bias_k,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, MAP: tl.constexpr, BOUNDS: tl.constexpr,
):  # fmt: skip
    """Return p, dS and dz of a tile, from the products q k^T and g v^T."""
    if ENDS or MASK:
        seen = sees(i, j, place, queries, count, left, right, mask, mask_l, mask_k, ENDS, LEFT, RIGHT, MASK, BOUNDS)
    if SCALE == FOLDED:
        p = tl.exp2(tl.fma(raw, scale, -lse))
        steep = p
    else:
        s, steep = scores_of(
            raw, i, j, place, queries, count, scale, softcap, bias, bias_l, bias_k, slope, SOFTCAP, BIAS, SLOPES
        )
        if MAP == SOFTMAX:
            p = tl.exp2(s - lse)
        else:
            p = above(s, lse, root, MAP)
    if ENDS or MASK:
        p = tl.where(seen, p, 0.0)
    if MAP == SOFTMAX:
        ds = p * (dp - delta)
    else:
        p, of_map = powers_of(p, MAP)
        ds = of_map * (dp - delta)
    dz = ds
    if SOFTCAP:
        dz = tl.where(p == 0.0, 0.0, ds * steep)
    return p, ds, dz


@triton.jit
def visit_keys(
    q, g, k, v, bias_gradient, at, dq, of_scale, of_slope, i, place, queries, keys, count, left, right, scale, softcap,
    slope, seed, drop_below, gain, lse, delta, root, mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, MAP: tl.constexpr,
    TO_BIAS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the gradients of queries."""
    n = tl.arange(0, N)
    j = at + n[None, :]
    inside = (at + n < count)[:, None]
    kt = load_tile(k + long(at) * k_l, n[:, None], tl.arange(0, PAD)[None, :], k_l, inside, ENDS, D, PAD)
    vt = load_tile(v + long(at) * v_l, n[:, None], tl.arange(0, PADV)[None, :], v_l, inside, ENDS, DV, PADV)
    raw = product(q, tl.trans(kt))
    dp = product(g, tl.trans(vt))
    if SEEDS:
        dp = dp * tl.where(kept(i, at, seed, drop_below, N), gain, 0.0)
    p, ds, dz = slopes_of(
        raw, dp, i, j, place, queries, count, left, right, scale, softcap, slope, lse, delta, root,
        mask, mask_l, mask_k, bias, bias_l, bias_k, ENDS, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, MAP, True,
    )  # fmt: skip
    if SCALE == PER_QUERY:
        of_scale += tile_sum(tl.where(p == 0.0, 0.0, dz * raw))
    if SLOPES:
        of_slope -= tile_sum(ds * tl.abs(i + place - j).to(tl.float32))
    if TO_BIAS:
        to = bias_gradient + i.to(tl.int64) * keys + j.to(tl.int64)
        tl.store(to, ds, mask=(i < queries) & (j < count))
    return add_product(dq, dz.to(kt.dtype), kt), of_scale, of_slope


@triton.jit(do_not_specialize=RUNTIME)
def to_queries(
    q, k, v, g, of_rows, scale, mask, bias, lengths, slopes, seeds, cu_q, cu_k, dq, per_query, bias_gradient, flags,
    heads, group, queries, keys, tiles, sequences, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, dq_b, dq_h, dq_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PACKED: tl.constexpr,
    MAP: tl.constexpr, TO_BIAS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of queries, and of the options that have one number per query."""
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
    bias_gradient += rows * keys
    e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
    qt = load_tile(q + long(first) * q_l, row[:, None], e, q_l, i < queries, True, D, PAD)
    gt = load_tile(g + long(first) * g_l, row[:, None], f, g_l, i < queries, True, DV, PADV)
    at_row = of_rows + rows + i
    lse = tl.load(at_row, mask=i < queries, other=INF)
    delta = tl.load(at_row + total, mask=i < queries, other=0.0)
    root = 0.0
    if MAP != SOFTMAX:
        root = tl.load(at_row + 2 * total, mask=i < queries, other=0.0)
    of_query = load_scale(scale, i.to(tl.int64) * scale_l, i < queries, number, softcap, SCALE, SOFTCAP)
    slope, seed = 0.0, 0
    if SLOPES:
        slope = tl.load(slopes + entry * slopes_b + h * slopes_h).to(tl.float32) * LOG2E
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + h * seeds_h, seeds_k)
    last = tl.minimum(first + M, queries)
    begin, a, b, end = range_of_keys(first, last, place, count, left, right, LEFT, RIGHT, N)
    of_q = tl.zeros([M, PAD], tl.float32)
    of_scale, of_slope = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if LEFT:
        for at in tl.range(begin, a, N, num_stages=STAGES):
            of_q, of_scale, of_slope = visit_keys(
                qt, gt, k, v, bias_gradient, at, of_q, of_scale, of_slope, i, place, queries, keys, count, left, right,
                of_query, softcap, slope, seed, drop_below, gain, lse, delta, root,
                mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l,
                True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, TO_BIAS, D, DV, PAD, PADV, N,
            )  # fmt: skip
    for at in tl.range(a, b, N, num_stages=STAGES):
        of_q, of_scale, of_slope = visit_keys(
            qt, gt, k, v, bias_gradient, at, of_q, of_scale, of_slope, i, place, queries, keys, count, left, right,
            of_query, softcap, slope, seed, drop_below, gain, lse, delta, root,
            mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l,
            False, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, TO_BIAS, D, DV, PAD, PADV, N,
        )  # fmt: skip
    for at in tl.range(b, end, N, num_stages=STAGES):
        of_q, of_scale, of_slope = visit_keys(
            qt, gt, k, v, bias_gradient, at, of_q, of_scale, of_slope, i, place, queries, keys, count, left, right,
            of_query, softcap, slope, seed, drop_below, gain, lse, delta, root,
            mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l,
            True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, TO_BIAS, D, DV, PAD, PADV, N,
        )  # fmt: skip
    factor = of_query * LN2
    if SOFTCAP:
        factor = factor * softcap
    dq += entry * dq_b + h * dq_h + long(at_q) * dq_l
    tl.store(dq + i.to(tl.int64) * dq_l + e, (of_q * factor).to(dq.dtype.element_ty), mask=(i < queries) & (e < D))
    strange = is_strange(of_q) | ~(tl.abs(of_scale) < INF) | ~(tl.abs(of_slope) < INF)
    tl.store(flags + rows + first + row, strange.to(tl.int8), mask=first + row < queries)
    to = per_query + rows + first + row
    if SCALE == PER_QUERY:
        tl.store(to, of_scale, mask=first + row < queries)
    if SLOPES:
        tl.store(to + total, of_slope, mask=first + row < queries)


@triton.jit
def visit_queries(
    k, v, q, g, of_rows, total, tile, begin, each, dk, dv, first, j, entry, h, place, heads, group, all_queries,
    queries, count, left, right, number, scale, softcap, drop_below, gain, slopes, seeds, mask, bias,
    q_b, q_h, q_l, g_b, g_h, g_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, slopes_b, slopes_h, seeds_b, seeds_h, seeds_k,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, MAP: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Add a tile of queries to the gradients of keys and values. Its products have one row per key.

    `tile` counts the tiles of all heads that share the keys: `each` for each head, from query `begin` on.
    """
    of_head = h * group + tile // each
    at = begin + tile % each * M
    m = tl.arange(0, M)
    i = at + m[None, :]
    inside = (at + m < queries)[:, None]
    q_at = q + entry * q_b + of_head * q_h + long(at) * q_l
    g_at = g + entry * g_b + of_head * g_h + long(at) * g_l
    qt = load_tile(q_at, m[:, None], tl.arange(0, PAD)[None, :], q_l, inside, True, D, PAD)
    gt = load_tile(g_at, m[:, None], tl.arange(0, PADV)[None, :], g_l, inside, True, DV, PADV)
    at_row = of_rows + (entry * heads + of_head) * all_queries + i
    lse = tl.load(at_row, mask=i < queries, other=INF)
    delta = tl.load(at_row + total, mask=i < queries, other=0.0)
    root = 0.0
    if MAP != SOFTMAX:
        root = tl.load(at_row + 2 * total, mask=i < queries, other=0.0)
    at_scale = scale + entry * scale_b + of_head * scale_h + i.to(tl.int64) * scale_l
    of_query = load_scale(at_scale, 0, i < queries, number, softcap, SCALE, SOFTCAP)
    slope = 0.0
    if SLOPES:
        slope = tl.load(slopes + entry * slopes_b + of_head * slopes_h).to(tl.float32) * LOG2E
    raw = product(k, tl.trans(qt))
    dp = product(v, tl.trans(gt))
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + of_head * seeds_h, seeds_k)
        keep = tl.trans(kept((at + m)[:, None], first, seed, drop_below, j.shape[0]))
        dp = dp * tl.where(keep, gain, 0.0)
    p, _, dz = slopes_of(
        raw, dp, i, j, place, queries, count, left, right, of_query, softcap, slope, lse, delta, root,
        mask + entry * mask_b + of_head * mask_h, mask_l, mask_k, bias + entry * bias_b + of_head * bias_h, bias_l,
        bias_k, ENDS, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, MAP, False,
    )  # fmt: skip
    weight = p
    if SEEDS:
        weight = tl.where(keep, p, 0.0)
    dv = add_product(dv, weight.to(gt.dtype), gt)
    if SCALE == PER_QUERY:
        dz = tl.where(p == 0.0, 0.0, dz * of_query)
    return add_product(dk, dz.to(qt.dtype), qt), dv


@triton.jit(do_not_specialize=RUNTIME)
def to_keys(
    q, k, v, g, of_rows, scale, mask, bias, lengths, slopes, seeds, cu_q, cu_k, dk, dv, flags,
    heads, group, queries, keys, tiles, sequences, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, dk_b, dk_h, dk_l, dv_b, dv_h, dv_l,
    scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PACKED: tl.constexpr,
    MAP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values: the sum over the heads that share them, and over their queries."""
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = program % tiles
    groups = heads // group
    entry, h = head // groups, head % groups
    key_rows, all_queries = head * keys, queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_k, cu_q, cu_k, sequences, PACKED, N)
    key_rows += at_k
    of_rows += at_q
    q += long(at_q) * q_l
    g += long(at_q) * g_l
    k += entry * k_b + h * k_h + long(at_k) * k_l
    v += entry * v_b + h * v_h + long(at_k) * v_l
    scale += long(at_q) * scale_l
    count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
    place = count - queries
    row = tl.arange(0, N)
    j = (first + row)[:, None]
    e, f = tl.arange(0, PAD)[None, :], tl.arange(0, PADV)[None, :]
    kt = load_tile(k + long(first) * k_l, row[:, None], e, k_l, j < count, True, D, PAD)
    vt = load_tile(v + long(first) * v_l, row[:, None], f, v_l, j < count, True, DV, PADV)
    total = tl.num_programs(0).to(tl.int64) // tiles * group * all_queries
    of_k, of_v = tl.zeros([N, PAD], tl.float32), tl.zeros([N, PADV], tl.float32)
    last = tl.minimum(first + N, count)
    begin, a, b, end = range_of_queries(first, last, place, queries, left, right, LEFT, RIGHT, M)
    if first >= count:  # these keys do not exist
        begin, a, b, end = 0, 0, 0, 0
    if RIGHT:
        n = (a - begin) // M
        for tile in tl.range(0, group * n, num_stages=STAGES):
            of_k, of_v = visit_queries(
                kt, vt, q, g, of_rows, total, tile, begin, n, of_k, of_v, first, j, entry, h, place, heads, group,
                all_queries, queries, count, left, right, number, scale, softcap, drop_below, gain, slopes, seeds, mask,
                bias, q_b, q_h, q_l, g_b, g_h, g_l, scale_b, scale_h, scale_l, mask_b, mask_h, mask_l, mask_k,
                bias_b, bias_h, bias_l, bias_k, slopes_b, slopes_h, seeds_b, seeds_h, seeds_k,
                True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, D, DV, PAD, PADV, M,
            )  # fmt: skip
    n = (b - a) // M
    for tile in tl.range(0, group * n, num_stages=STAGES):
        of_k, of_v = visit_queries(
            kt, vt, q, g, of_rows, total, tile, a, n, of_k, of_v, first, j, entry, h, place, heads, group,
            all_queries, queries, count, left, right, number, scale, softcap, drop_below, gain, slopes, seeds, mask,
            bias, q_b, q_h, q_l, g_b, g_h, g_l, scale_b, scale_h, scale_l, mask_b, mask_h, mask_l, mask_k,
            bias_b, bias_h, bias_l, bias_k, slopes_b, slopes_h, seeds_b, seeds_h, seeds_k,
            False, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, D, DV, PAD, PADV, M,
        )  # fmt: skip
    if LEFT:
        n = (end - b) // M
        for tile in tl.range(0, group * n, num_stages=STAGES):
            of_k, of_v = visit_queries(
                kt, vt, q, g, of_rows, total, tile, b, n, of_k, of_v, first, j, entry, h, place, heads, group,
                all_queries, queries, count, left, right, number, scale, softcap, drop_below, gain, slopes, seeds, mask,
                bias, q_b, q_h, q_l, g_b, g_h, g_l, scale_b, scale_h, scale_l, mask_b, mask_h, mask_l, mask_k,
                bias_b, bias_h, bias_l, bias_k, slopes_b, slopes_h, seeds_b, seeds_h, seeds_k,
                True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, MAP, D, DV, PAD, PADV, M,
            )  # fmt: skip
    factor = LN2
    if SCALE != PER_QUERY:
        factor = factor * number
    if SOFTCAP:
        factor = factor * softcap
    dk += entry * dk_b + h * dk_h + long(at_k) * dk_l
    dv += entry * dv_b + h * dv_h + long(at_k) * dv_l
    at = j.to(tl.int64)
    if SEEDS:
        of_v = of_v * gain
    of_k, of_v = tl.where(j < count, of_k, 0.0), tl.where(j < count, of_v, 0.0)
    tl.store(dk + at * dk_l + e, (of_k * factor).to(dk.dtype.element_ty), mask=(j < keys) & (e < D))
    tl.store(dv + at * dv_l + f, of_v.to(dv.dtype.element_ty), mask=(j < keys) & (f < DV))
    strange = is_strange(of_k) | is_strange(of_v)
    tl.store(flags + key_rows + first + row, strange.to(tl.int8), mask=first + row < keys)
