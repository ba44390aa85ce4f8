"""CUDA kernels for the output of attention and lse: `forward` for many queries, `split` and `merge_splits` for few.

    m = max s, rounded to a whole number        l = sum 2^(s - m)        o = sum 2^(s - m) v / l

A program visits the tiles of keys in order. The factor 2^(m - m') that rescales l and o is a power of two, so it
rounds nothing. A row that meets NaN, inf or an overflow is computed once more, in float64, by the definition's rules.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.triton_entmax import attended
from softargmax.attend.triton_mend import mend_query
from softargmax.attend.triton_tiles import (
    FOLDED,
    LARGE,
    LN2,
    LOG2E,
    LOW,
    SOFTMAX,
    is_strange,
    kept,
    keys_of,
    load_count,
    load_keys,
    load_scale,
    load_seed,
    load_tile,
    long,
    range_of_keys,
    sees,
    tile_of,
    visible_scores,
)
from softargmax.core.triton_launch import RUNTIME
from softargmax.core.triton_math import INF, f32, log1p64
from softargmax.core.triton_state import add_product, product, tile_sum

_ROUND = tl.constexpr(1.5 * 2**23)


@triton.jit
def rounded(x, scale):
    """The whole number next to x times the scale."""
    return tl.fma(x, f32(1.0) * scale, f32(_ROUND)) - f32(_ROUND)


@triton.jit
def visit(
    q, k, v, at, m, l, o, i, place, queries, count, left, right, scale, softcap, slope, seed, drop_below,
    mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PAGED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the state (m, l, o). With ENDS, some queries may not see some keys of the tile."""
    n = tl.arange(0, N)
    j = at + n[None, :]
    inside = (at + n < count)[:, None]
    kt = load_keys(k, at, n, k_l, inside, table, page, k_b, PAGED, ENDS, D, PAD)
    raw = product(q, tl.trans(kt))
    if SCALE == FOLDED:
        if ENDS or MASK:
            seen = sees(i, j, place, queries, count, left, right, mask, mask_l, mask_k, ENDS, LEFT, RIGHT, MASK)
            raw = tl.where(seen, tl.maximum(raw, -LOW, propagate_nan=tl.PropagateNan.ALL), -INF)
        top = rounded(tl.max(raw, axis=1), scale)
    else:
        s = visible_scores(
            raw, i, j, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k,
            bias, bias_l, bias_k, ENDS, LEFT, RIGHT, SOFTCAP, MASK, BIAS, SLOPES,
        )  # fmt: skip
        top = rounded(tl.max(s, axis=1), 1.0)
    larger = tl.maximum(m, top)
    shift = larger
    if ENDS or MASK or BIAS:
        shift = tl.where(larger == -INF, 0.0, larger)
    if SCALE == FOLDED:
        p = tl.exp2(tl.fma(raw, scale, -shift[:, None]))
    else:
        p = tl.exp2(s - shift[:, None])
    f = tl.exp2(m - shift)
    vt = load_keys(v, at, n, v_l, inside, table, page, v_b, PAGED, ENDS, DV, PADV)
    l = tl.fma(l, f, tile_sum(p))
    if SEEDS:
        p = tl.where(kept(i, at, seed, drop_below, N), p, 0.0)
    o = add_product(o * f[:, None], p.to(vt.dtype), vt)
    return larger, l, o


@triton.jit
def visited(
    q, k, v, begin, a, b, end, i, place, queries, count, left, right, scale, softcap, slope, seed, drop_below,
    mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PAGED: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state (m, l, o) of the keys begin..end - 1, and which rows are strange. Rows see all keys from a to b."""
    m = tl.full([M], -INF, tl.float32)
    l = tl.zeros([M], tl.float32)
    o = tl.zeros([M, PADV], tl.float32)
    if LEFT:
        for at in tl.range(begin, a, N, num_stages=STAGES):
            m, l, o = visit(
                q, k, v, at, m, l, o, i, place, queries, count, left, right, scale, softcap, slope,
                seed, drop_below, mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
                True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, PAGED, D, DV, PAD, PADV, N,
            )  # fmt: skip
    for at in tl.range(a, b, N, num_stages=STAGES):
        m, l, o = visit(
            q, k, v, at, m, l, o, i, place, queries, count, left, right, scale, softcap, slope, seed, drop_below,
            mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
            False, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, PAGED, D, DV, PAD, PADV, N,
        )  # fmt: skip
    if not (MASK or BIAS):
        missed = (m == -INF) & (b > a)  # the row's scores overflowed
    else:
        missed = l != l
    for at in tl.range(b, end, N, num_stages=STAGES):
        m, l, o = visit(
            q, k, v, at, m, l, o, i, place, queries, count, left, right, scale, softcap, slope, seed, drop_below,
            mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
            True, LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, PAGED, D, DV, PAD, PADV, N,
        )  # fmt: skip
    strange = missed | ~(l < INF) | is_strange(o) | ((m > -INF) & (tl.abs(m) > LARGE))
    return m, l, o, strange


@triton.jit
def finished(m, l, o, sink, gain, SINK: tl.constexpr, SEEDS: tl.constexpr):
    """The output, lse, and which rows have an infinite or NaN sink."""
    strange = l != l
    if SINK:
        of_sink = sink * LOG2E + tl.zeros_like(m)
        larger = tl.maximum(m, rounded(of_sink, 1.0))
        shift = tl.where(larger == -INF, 0.0, larger)
        f = tl.exp2(m - shift)
        l = tl.fma(l, f, tl.exp2(of_sink - shift))
        o = o * f[:, None]
        m = larger
        strange = ~(l < INF)
    inverse = tl.where(l > 0.0, tl.div_rn(1.0 + 0.0 * l, l), 0.0)
    if SEEDS:
        inverse = inverse * gain
    lse = tl.where(l > 0.0, m.to(tl.float64) * LN2 + log1p64(l.to(tl.float64) - 1.0), -INF)
    return o * inverse[:, None], lse, strange


@triton.jit(do_not_specialize=RUNTIME)
def forward(
    q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, cu_q, cu_k, table, output, lse, flags,
    heads, group, queries, keys, tiles, sequences, page, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k, table_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SINK: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr,
    PACKED: tl.constexpr, PAGED: tl.constexpr, MAP: tl.constexpr, LSE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head. The last tile of a head, which may see the most keys, comes first."""
    program = tl.program_id(0)
    head = (program // tiles).to(tl.int64)
    tile = tiles - 1 - program % tiles
    entry, h = head // heads, head % heads
    rows = head * queries
    first, at_q, at_k, queries, keys = tile_of(tile, queries, keys, cu_q, cu_q, cu_k, sequences, PACKED, M)
    rows += at_q
    if PACKED:
        keys = tl.where(first < queries, keys, 0)
    count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
    place = count - queries
    row = tl.arange(0, M)
    i = (first + row)[:, None]
    q += entry * q_b + h * q_h + long(at_q) * q_l
    k = keys_of(k, entry, h // group, at_k, k_b, k_h, k_l, PAGED)
    v = keys_of(v, entry, h // group, at_k, v_b, v_h, v_l, PAGED)
    table += entry * table_b
    mask += entry * mask_b + h * mask_h
    bias += entry * bias_b + h * bias_h
    scale += entry * scale_b + h * scale_h + long(at_q) * scale_l
    e = tl.arange(0, PAD)[None, :]
    qt = load_tile(q + long(first) * q_l, row[:, None], e, q_l, i < queries, True, D, PAD)
    of_query = load_scale(scale, i.to(tl.int64) * scale_l, i < queries, number, softcap, SCALE, SOFTCAP)
    slope, of_sink, seed = 0.0, 0.0, 0
    if SLOPES:
        slope = tl.load(slopes + entry * slopes_b + h * slopes_h).to(tl.float32) * LOG2E
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + h * seeds_h, seeds_k)
    if SINK:
        of_sink = tl.load(sink + entry * sink_b + h * sink_h).to(tl.float32)
    last = tl.minimum(first + M, queries)
    begin, a, b, end = range_of_keys(first, last, place, count, left, right, LEFT, RIGHT, N)
    if MAP == SOFTMAX:
        m, l, o, strange = visited(
            qt, k, v, begin, a, b, end, i, place, queries, count, left, right, of_query, softcap, slope,
            seed, drop_below, mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
            LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, PAGED, D, DV, PAD, PADV, M, N, STAGES,
        )  # fmt: skip
        o, of_row, infinite = finished(m, l, o, of_sink, gain, SINK, SEEDS)
    else:
        o, strange = attended(
            qt, k, v, begin, end, i, place, queries, count, left, right, of_query, softcap, slope, of_sink, seed,
            drop_below, gain, mask, mask_l, mask_k, bias, bias_l, bias_k, k_l, v_l, table, page, k_b, v_b,
            LEFT, RIGHT, SOFTCAP, MASK, BIAS, SINK, SLOPES, SEEDS, PAGED, MAP, D, DV, PAD, PADV, M, N, STAGES,
        )  # fmt: skip
        of_row, infinite = tl.full([M], float("nan"), tl.float64), strange
    f = tl.arange(0, PADV)[None, :]
    output += entry * output_b + h * output_h + long(at_q) * output_l
    inside = (i < queries) & (f < DV)
    tl.store(output + i.to(tl.int64) * output_l + f, o.to(output.dtype.element_ty), mask=inside)
    if LSE:
        tl.store(lse + rows + first + row, of_row, mask=first + row < queries)
    tl.store(flags + rows + first + row, (strange | infinite).to(tl.int8), mask=first + row < queries)


# --- few queries: the keys are split between programs -----------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def split(
    q, k, v, scale, mask, bias, lengths, slopes, seeds, table, o_parts, m_parts, l_parts,
    heads, group, queries, keys, tiles, parts, page, left, right, number, softcap, drop_below,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k, table_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr, PAGED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """The state of LENGTH keys, for M of the queries of all heads that share them."""
    program = tl.program_id(0)
    part, tile, of_keys = program % parts, program // parts % tiles, (program // parts // tiles).to(tl.int64)
    groups = heads // group
    entry, h = of_keys // groups, of_keys % groups
    count = load_count(lengths + entry * lengths_b, keys, LENGTHS)
    place = count - queries
    row = tile * M + tl.arange(0, M)
    member = tl.minimum(row // queries, group - 1)[:, None].to(tl.int64)
    i = (row % queries)[:, None]
    exists = row < group * queries
    of_head = h * group + member
    qt = load_tile(
        q + entry * q_b + of_head * q_h, i.to(tl.int64), tl.arange(0, PAD)[None, :], q_l, exists[:, None], True, D, PAD
    )
    of_query = load_scale(
        scale + entry * scale_b + of_head * scale_h, i.to(tl.int64) * scale_l, exists[:, None], number, softcap, SCALE,
        SOFTCAP,
    )  # fmt: skip
    slope, seed = 0.0, 0
    if SLOPES:
        slope = tl.load(slopes + entry * slopes_b + of_head * slopes_h).to(tl.float32) * LOG2E
    if SEEDS:
        seed = load_seed(seeds + entry * seeds_b + of_head * seeds_h, seeds_k)
    begin, a, b, end = range_of_keys(0, queries, place, count, left, right, LEFT, RIGHT, N)
    first = part * LENGTH
    begin = tl.minimum(tl.maximum(begin, first), first + LENGTH)
    a = tl.minimum(tl.maximum(a, first), first + LENGTH)
    b = tl.minimum(tl.maximum(b, first), first + LENGTH)
    end = tl.minimum(tl.maximum(end, first), first + LENGTH)
    m, l, o, strange = visited(
        qt, keys_of(k, entry, h, 0, k_b, k_h, k_l, PAGED), keys_of(v, entry, h, 0, v_b, v_h, v_l, PAGED),
        begin, a, b, end, i, place, queries, count, left, right, of_query, softcap, slope, seed, drop_below,
        mask + entry * mask_b + of_head * mask_h, mask_l, mask_k,
        bias + entry * bias_b + of_head * bias_h, bias_l, bias_k, k_l, v_l, table + entry * table_b, page, k_b, v_b,
        LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SLOPES, SEEDS, PAGED, D, DV, PAD, PADV, M, N, STAGES,
    )  # fmt: skip
    at = ((entry * heads + h * group) * queries + row) * parts + part
    tl.store(m_parts + at, m, mask=exists)
    tl.store(l_parts + at, tl.where(strange, float("nan"), l), mask=exists)
    f = tl.arange(0, PADV)[None, :]
    tl.store(o_parts + at[:, None] * DV + f, o, mask=exists[:, None] & (f < DV))


@triton.jit(do_not_specialize=RUNTIME)
def merge_splits(
    q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, table, output, lse, o_parts, m_parts, l_parts,
    heads, group, queries, keys, parts, page, left, right, number, softcap, drop_below, gain,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l, scale_b, scale_h, scale_l,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b, slopes_b, slopes_h,
    seeds_b, seeds_h, seeds_k, table_b,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SINK: tl.constexpr, LENGTHS: tl.constexpr, SLOPES: tl.constexpr, SEEDS: tl.constexpr,
    PAGED: tl.constexpr, MAP: tl.constexpr, LSE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD: tl.constexpr, PADV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Merge the states of a query in the order of the keys."""
    query = tl.program_id(0).to(tl.int64)
    head = query // queries
    i = (query % queries).to(tl.int32) + tl.zeros([1, 1], tl.int32)
    entry, h = head // heads, head % heads
    m = tl.full([1], -INF, tl.float32)
    for first in range(0, parts, 32):
        part = first + tl.arange(0, 32)[None, :]
        m = tl.maximum(m, tl.max(tl.load(m_parts + query * parts + part, mask=part < parts, other=-INF), axis=1))
    shift = tl.where(m == -INF, 0.0, m)
    f = tl.arange(0, PADV)[None, :]
    l, o = tl.zeros([1], tl.float32), tl.zeros([1, PADV], tl.float32)
    for part in tl.range(0, parts, num_stages=4):
        at = query * parts + part + tl.zeros([1], tl.int64)
        weight = tl.exp2(tl.load(m_parts + at) - shift)
        l = tl.fma(tl.load(l_parts + at), weight, l)
        o = tl.fma(tl.load(o_parts + at[:, None] * DV + f, mask=f < DV, other=0.0), weight[:, None], o)
    of_sink = 0.0
    if SINK:
        of_sink = tl.load(sink + entry * sink_b + h * sink_h).to(tl.float32)
    o, of_row, infinite = finished(m, l, o, of_sink, gain, SINK, SEEDS)
    to = output + entry * output_b + h * output_h + i.to(tl.int64) * output_l + f
    if tl.max((~(l < INF) | infinite).to(tl.int32), axis=0) > 0:
        mend_query(
            q, k, v, scale, mask, bias, sink, lengths, slopes, seeds, table, output, lse + head * queries, i, entry, h,
            heads, group, queries, keys, page, left, right, number, softcap, drop_below, gain,
            q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, output_b, output_h, output_l, scale_b, scale_h, scale_l,
            mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, sink_b, sink_h, lengths_b,
            slopes_b, slopes_h, seeds_b, seeds_h, seeds_k, table_b,
            LEFT, RIGHT, SCALE, SOFTCAP, MASK, BIAS, SINK, LENGTHS, SLOPES, SEEDS, PAGED, MAP, LSE, D, DV, PAD, PADV, N,
        )  # fmt: skip
    else:
        tl.store(to, o.to(output.dtype.element_ty), mask=f < DV)
        if LSE:
            tl.store(lse + query + tl.zeros([1], tl.int64), of_row)
