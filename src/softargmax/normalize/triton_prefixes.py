"""CUDA kernels of prefixes: the smooth maximum of every prefix of a row, its surprisals and derivatives, in Triton.

    w = p of a score in the softmax of its prefix        forwards u_i = (1 - w_i) u_(i-1) + w_i t_i
    backwards w_i c_i with c_i = g_i + (1 - w_(i+1)) c_(i+1)

States of prefixes, and the two recurrences, are scans in a fixed tree (triton_state.py). A program has some short rows,
or a piece of 1,024 scores of a long one. Of long rows, a first launch stores the state of each piece, and a second one
replaces it with that of all pieces before. Derivatives do the same once more, with the maps of their recurrence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.triton_launch import (
    RUNTIME,
    Block,
    beta_of,
    cdiv,
    define,
    launch,
    next_power_of_2,
    rows_of,
    served,
)
from softargmax.core.triton_math import INF, exp64, log1p64
from softargmax.core.triton_rows import load_beta, load_scores, offsets, store_block
from softargmax.core.triton_state import gaps_to, merge_two, prefixes, smooth_maximum, state_of_score
from softargmax.normalize import prefix_operations

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 1024
"""Scores per piece of a row. It depends on nothing else, because it fixes the order of sums."""
_SCORES_PER_THREAD = 4
SMOOTH_MAXIMUM, SURPRISAL, FORWARDS, BACKWARDS = (tl.constexpr(k) for k in range(4))
STATES, MAPS, RESULTS = (tl.constexpr(k) for k in range(3))
"""What a launch computes: the states of pieces, the maps of pieces, or results."""


@triton.jit
def load_piece(
    z, z_at, z_k, where, where_at, where_k, exists, at, scores, sign,
    BETA: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Load scores from number `at` on. Return also their states, their numbers, and which exist."""
    k = at + tl.arange(0, SCORES)[None, :]
    inside = exists[:, None] & (k < scores)
    k = k.to(tl.int64)
    w_at = where_at[:, None] + k * where_k
    x = load_scores(z, z_at[:, None] + k * z_k, where, w_at, inside, sign, BETA, MASKED, False)
    m, r = state_of_score(x)
    return x, m, r, k, inside


@triton.jit
def shares(gap, r):
    """w and 1 - w. Neither cancels: a score below the maximum of its prefix has at most half of the mass."""
    l = tl.where(r == -1.0, 1.0, 1.0 + r)
    w = tl.where(gap == INF, 0.0, exp64(-gap) / l)
    return w, tl.where(gap == 0.0, r / l, 1.0 - w)


@triton.jit(do_not_specialize=RUNTIME)
def prefix_rows(
    z, where, hi, lo, g, out, m_parts, r_parts, a_parts, b_parts,
    count, inner, scores, parts, beta_hi, beta_lo,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, g_o, g_i, g_k, out_o, out_i, out_k,
    WHAT: tl.constexpr, STAGE: tl.constexpr, LONG: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr,
    FLAT: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Write numbers for every prefix of rows, or derivatives. Or store the state or the map of a piece."""
    part = tl.program_id(0) % parts
    row = (tl.program_id(0) // parts).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    scores = scores // ALIGN * ALIGN
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    h, l = h[:, None], l[:, None]
    z_at, where_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    x, m, r, k, inside = load_piece(
        z, z_at, z_k, where, where_at, where_k, exists, part * SCORES, scores, sign, BETA, MASKED, SCORES
    )
    at_part = row[:, None] * parts + part
    m_0, r_0 = tl.full([ROWS, 1], -INF, tl.float32), tl.full([ROWS, 1], -1.0, tl.float64)
    if LONG and STAGE != STATES:
        m_0, r_0 = tl.load(m_parts + at_part), tl.load(r_parts + at_part)
    before_m, before_r, all_m, all_r = prefixes(m, r, m_0, r_0, h, l, False, False, BETA > 0)
    if STAGE == STATES:
        tl.store(m_parts + at_part, all_m)
        tl.store(r_parts + at_part, all_r)
    else:
        m, r = merge_two(before_m, before_r, m, r, h, l, BETA > 0)
        gap = gaps_to(x, m, h, l, BETA > 0)
        found = gap
        if WHAT == SMOOTH_MAXIMUM:
            found = smooth_maximum(m, r, h, l, BETA > 0) * sign[:, None]
        elif WHAT == SURPRISAL:
            found = tl.where(gap == INF, INF, gap + log1p64(r))
        else:
            w, rest = shares(gap, r)
            of_g = tl.load(g + offsets(row, inner, g_o, g_i, FLAT, ALIGN)[:, None] + k * g_k, mask=inside, other=0.0)
            of_g = of_g.to(tl.float64)
            if WHAT == FORWARDS:
                b = tl.where(w == 0.0, 0.0, w * of_g)
            else:
                b = rest * of_g  # with d_i = (1 - w_(i+1)) c_(i+1), the map of a score is d -> (1 - w) (g + d)
            a_0, b_0 = tl.full([ROWS, 1], 1.0, tl.float64), tl.zeros([ROWS, 1], tl.float64)
            if LONG and STAGE == RESULTS:
                a_0, b_0 = tl.load(a_parts + at_part), tl.load(b_parts + at_part)
            _a, u, all_a, all_b = prefixes(rest, b, a_0, b_0, h, l, True, WHAT == BACKWARDS, BETA > 0)
            if STAGE == MAPS:
                tl.store(a_parts + at_part, all_a)
                tl.store(b_parts + at_part, all_b)
            elif WHAT == FORWARDS:
                found = tl.fma(rest, u, b)
            else:
                found = tl.where(w == 0.0, 0.0, w * (of_g + u))
        if STAGE == RESULTS:
            out_at = offsets(row, inner, out_o, out_i, FLAT, ALIGN)[:, None] + k * out_k
            store_block(out, out_at, found.to(tl.float32), inside, False)


@triton.jit(do_not_specialize=RUNTIME)
def before_parts(
    a_parts, b_parts, hi, lo, inner, parts, beta_hi, beta_lo, beta_o, beta_i,
    OF_MAPS: tl.constexpr, FROM_END: tl.constexpr, BETA: tl.constexpr, FLAT: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Replace the state, or the map, of each piece of a row with that of all pieces before it, or after it."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    _sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), row >= 0, beta_hi, beta_lo, BETA)
    nothing = 1.0 if OF_MAPS else -INF
    zero = 0.0 if OF_MAPS else -1.0
    a_0, b_0 = tl.full([1, 1], nothing, a_parts.dtype.element_ty), tl.full([1, 1], zero, tl.float64)
    steps = (parts + SCORES - 1) // SCORES
    for step in range(steps):
        k = (steps - 1 - step if FROM_END else step) * SCORES + tl.arange(0, SCORES)[None, :]
        at = row[:, None] * parts + k
        a = tl.load(a_parts + at, mask=k < parts, other=nothing)
        b = tl.load(b_parts + at, mask=k < parts, other=zero)
        before_a, before_b, a_0, b_0 = prefixes(a, b, a_0, b_0, h[:, None], l[:, None], OF_MAPS, FROM_END, BETA > 0)
        tl.debug_barrier()  # all threads have loaded the numbers
        tl.store(a_parts + at, before_a, mask=k < parts)
        tl.store(b_parts + at, before_b, mask=k < parts)


# --- the kernels of the operations ------------------------------------------------------------------------------------


def logcumsumexp(i: Any, r: Any) -> None:
    """Compute the smooth maximum of every prefix."""
    _run(prefix_operations.logcumsumexp, SMOOTH_MAXIMUM, i, r, i)


def prefix_surprisals(i: Any, r: Any) -> None:
    """Compute -log w for every score."""
    _run(prefix_operations.prefix_surprisals, SURPRISAL, i, r, i)


def prefix_slopes(i: Any, r: Any) -> None:
    """Compute one of the two recurrences."""
    _run(prefix_operations.prefix_slopes, BACKWARDS if i.backwards else FORWARDS, i, r, i.of, i.g)


def _run(operation: Any, what: tl.constexpr, i: Any, r: Any, of: Any, g: Tensor | None = None) -> None:
    (out,) = r
    if not served(of.z, out, g, beta=of.beta, axes=of.axes):
        define(operation, i, r)
        return
    per_row, beta = beta_of(of.beta)
    rows = rows_of(of.axes, ("out",), z=of.z, where=of.where, **per_row, g=g, out=out)
    aligned = [name for name in ("z", "g", "out") if name in rows.tensors]
    named = rows.named("where", "hi", "lo", "g", aligned=aligned) | beta
    named |= {"beta_o": named["hi_o"], "beta_i": named["hi_i"], "WHAT": what.value, "MASKED": of.where is not None}
    size = min(next_power_of_2(rows.scores), PIECE)
    count, parts = min(PIECE // size, next_power_of_2(rows.total)), cdiv(rows.scores, size)
    slopes, long = g is not None, parts > 1
    states = [of.z.new_empty(rows.total * parts if long else 1, dtype=x) for x in (torch.float32, torch.float64)]
    maps = [states[1].new_empty(rows.total * parts if long and slopes else 1) for _ in range(2)]
    named |= dict(zip(("m_parts", "r_parts", "a_parts", "b_parts"), (*states, *maps), strict=True))
    named |= {"parts": parts, "LONG": long}
    tile = Block((cdiv(rows.total, count) * parts,), _warps(count * size), {"ROWS": count, "SCORES": size})
    if long:
        launch(prefix_rows, tile, **(named | {"WHAT": SMOOTH_MAXIMUM.value}), STAGE=STATES.value)
        _scan(rows.total, states, named, what, of_maps=False)
    if long and slopes:
        launch(prefix_rows, tile, **named, STAGE=MAPS.value)
        _scan(rows.total, maps, named, what, of_maps=True)
    launch(prefix_rows, tile, **named, STAGE=RESULTS.value)
    rows.finish()


def _scan(rows: int, parts: list[Tensor], named: dict[str, Any], what: tl.constexpr, *, of_maps: bool) -> None:
    size = min(next_power_of_2(named["parts"]), PIECE)
    given = named | dict(zip(("a_parts", "b_parts"), parts, strict=True)) | {"OF_MAPS": of_maps}
    given["FROM_END"] = of_maps and what.value == BACKWARDS.value
    launch(before_parts, Block((rows,), _warps(size), {"SCORES": size}), **given)


def _warps(scores: int) -> int:
    return max(1, scores // (32 * _SCORES_PER_THREAD))
