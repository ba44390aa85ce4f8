"""CUDA kernels of prefixes: the smooth maximum of every prefix of a row, its surprisals and derivatives, in Triton.

    w = p of a score in the softmax of its prefix        forwards u_i = (1 - w_i) u_(i-1) + w_i t_i
    backwards w_i c_i with c_i = g_i + (1 - w_(i+1)) c_(i+1)

A program has some short rows, or one row, which it visits in pieces of 1,024 scores. States of prefixes, and the two
recurrences, are scans in a fixed tree (triton_state.py). The backwards recurrence needs the states of all prefixes. So
a first visit stores the state before each piece, and a second one visits the pieces from the last to the first.
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


@triton.jit
def load_slopes(g, at, inside, w):
    """Load incoming gradients or tangents, and 0 where w = 0."""
    return tl.where(w == 0.0, 0.0, tl.load(g + at, mask=inside, other=0.0).to(tl.float64))


@triton.jit(do_not_specialize=RUNTIME)
def prefix_rows(
    z, where, hi, lo, g, out, m_parts, r_parts,
    count, inner, scores, parts, beta_hi, beta_lo,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, g_o, g_i, g_k, out_o, out_i, out_k,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FLAT: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Numbers for every prefix of rows, or derivatives."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    scores = scores // ALIGN * ALIGN
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    h, l = h[:, None], l[:, None]
    z_at, where_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    g_at, out_at = offsets(row, inner, g_o, g_i, FLAT, ALIGN), offsets(row, inner, out_o, out_i, FLAT, ALIGN)
    m_0, r_0 = tl.full([ROWS, 1], -INF, tl.float32), tl.full([ROWS, 1], -1.0, tl.float64)
    one, u_0 = tl.full([ROWS, 1], 1.0, tl.float64), tl.zeros([ROWS, 1], tl.float64)
    state_at = row[:, None] * parts
    for part in range(parts - 1 if WHAT == BACKWARDS else parts):
        x, m, r, k, inside = load_piece(
            z, z_at, z_k, where, where_at, where_k, exists, part * SCORES, scores, sign, BETA, MASKED, SCORES
        )
        before_m, before_r, m_0, r_0 = prefixes(m, r, m_0, r_0, h, l, False, False, BETA > 0)
        if WHAT == BACKWARDS:
            tl.store(m_parts + state_at + part + 1, m_0, mask=exists[:, None])
            tl.store(r_parts + state_at + part + 1, r_0, mask=exists[:, None])
        else:
            m, r = merge_two(before_m, before_r, m, r, h, l, BETA > 0)
            gap = gaps_to(x, m, h, l, BETA > 0)
            if WHAT == SMOOTH_MAXIMUM:
                found = smooth_maximum(m, r, h, l, BETA > 0) * sign[:, None]
            elif WHAT == SURPRISAL:
                found = tl.where(gap == INF, INF, gap + log1p64(r))
            else:
                w, rest = shares(gap, r)
                wt = w * load_slopes(g, g_at[:, None] + k * g_k, inside, w)
                _one, u, _all, u_0 = prefixes(rest, wt, one, u_0, h, l, True, False, BETA > 0)
                found = tl.fma(rest, u, wt)
            store_block(out, out_at[:, None] + k * out_k, found.to(tl.float32), inside, False)
    if WHAT == BACKWARDS:
        tl.debug_barrier()  # other threads have stored states
        for back in range(parts):
            here = parts - 1 - back
            x, m, r, k, inside = load_piece(
                z, z_at, z_k, where, where_at, where_k, exists, here * SCORES, scores, sign, BETA, MASKED, SCORES
            )
            known = exists[:, None] & (here > 0)
            m_1 = tl.load(m_parts + state_at + here, mask=known, other=-INF)
            r_1 = tl.load(r_parts + state_at + here, mask=known, other=-1.0)
            before_m, before_r, _m, _r = prefixes(m, r, m_1, r_1, h, l, False, False, BETA > 0)
            m, r = merge_two(before_m, before_r, m, r, h, l, BETA > 0)
            w, rest = shares(gaps_to(x, m, h, l, BETA > 0), r)
            of_g = tl.load(g + g_at[:, None] + k * g_k, mask=inside, other=0.0).to(tl.float64)
            # With d_i = (1 - w_(i+1)) c_(i+1), the map of a score is d -> (1 - w) (g + d).
            _one, d, _all, u_0 = prefixes(rest, rest * of_g, one, u_0, h, l, True, True, BETA > 0)
            found = tl.where(w == 0.0, 0.0, w * (of_g + d))
            store_block(out, out_at[:, None] + k * out_k, found.to(tl.float32), inside, False)


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
    states = rows.total * parts if what == BACKWARDS else 1
    named["m_parts"] = of.z.new_empty(states, dtype=torch.float32)
    named["r_parts"] = of.z.new_empty(states, dtype=torch.float64)
    tile = {"ROWS": count, "SCORES": size, "parts": parts}
    warps = max(1, count * size // (32 * _SCORES_PER_THREAD))
    launch(prefix_rows, Block((cdiv(rows.total, count),), warps, tile), **named)
    rows.finish()
