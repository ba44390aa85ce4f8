"""Loops over the scores of a row in Triton: states of its parts, and its gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, capped
from softargmax.core.triton_rows import CHUNK, load_scores, per_row, score_numbers, store_block, store_fold
from softargmax.core.triton_state import (
    any_of,
    frame,
    is_limit,
    marked,
    probabilities,
    probabilities_of,
    strange_rows,
    terms,
    top_of,
)
from softargmax.loss.triton_formulas import CLASS, finished, load_masses, mass_sums, slopes


@triton.jit
def is_strange(m, h, a, of_p):
    """True for rows whose gradient `write_any` writes."""
    return is_limit(m, h) | ~(tl.abs(of_p) < INF) | (a != a)


@triton.jit
def write_any(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, chosen, first, last,
    m, a, b, of_p, of_u, at_t, ignored, wrong, sign, h, l, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, SCORES: tl.constexpr, PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Write the gradient of scores `first` to `last` of the chosen rows, which may be of any kind, in chunks."""
    C: tl.constexpr = SCORES if SCORES <= 16 else SCORES // 4 if SCORES <= 4 * CHUNK else CHUNK
    N: tl.constexpr = PIECES * C // SCORES if PIECES * C > SCORES else 1
    for at in range(first, last, C):
        number = score_numbers(C, N)
        inside = per_row(chosen, N) & (number < last - at)
        k = at + number.to(tl.int64)
        z_block, where_block = per_row(z_at, N) + k * z_k, per_row(where_at, N) + k * where_k
        raw = load_scores(z, z_block, where, where_block, inside, sign, BETA, MASKED, False, N)
        x = marked(capped(raw, softcap, SOFTCAP), m, h)
        u = load_masses(weight, per_row(weight_at, N) + k * weight_k, inside, WEIGHTED, TARGET, N)
        p = probabilities_of(x, m, a, b, h, l, BETA > 0, FAST)
        g = slopes(p, x, raw, u, m, of_p, of_u, at_t, softcap, TARGET, SOFTCAP)
        g = strange_rows(g, x, 0.0, is_limit(m, h), a != a)
        g = finished(g, ignored[:, None], wrong[:, None])
        store_block(gradient, per_row(to, N) + k * gradient_k, g, inside, False, N)


@triton.jit
def fold_part(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row, count, part,
    scores, sign, h, l, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Compute the state of a part of a row, and its sums over masses."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    x = capped(load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE), softcap, SOFTCAP)
    if TARGET != CLASS:
        u = load_masses(weight, weight_at[:, None] + k * weight_k, inside, WEIGHTED, TARGET)
        n, mass, far, below = mass_sums(u, x, top_of(x), h, l, TARGET, VECTOR)
        at_part = row * PARTS + part + tl.zeros([1], tl.int64)
        tl.store(sums + at_part, n)
        tl.store(sums + count.to(tl.int64) * PARTS + at_part, mass)
        tl.store(sums + 2 * count.to(tl.int64) * PARTS + at_part, far)
        tl.store(sums + 3 * count.to(tl.int64) * PARTS + at_part, below)
    store_fold(
        x, z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, h, l,
        BETA, MASKED, FAST, VECTOR, PARTS, SCORES, softcap, SOFTCAP,
    )  # fmt: skip


@triton.jit
def write_part(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, part,
    scores, sign, m, a, b, of_p, of_u, at_t, h, l, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a part of a common row."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    u = load_masses(weight, weight_at[:, None] + k * weight_k, inside, WEIGHTED, TARGET)
    raw = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE)
    x = capped(raw, softcap, SOFTCAP)
    shift, magic, low, _t, _power = frame(m, h, l, BETA > 0, FAST)
    p = probabilities(terms(x, shift, magic, low, h, l, BETA > 0, FAST), a, b, FAST)
    g = slopes(p, x, raw, u, m, of_p, of_u, at_t, softcap, TARGET, SOFTCAP)
    store_block(gradient, to[:, None] + k * gradient_k, g, inside, WHOLE)


@triton.jit
def fold_parts(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row, count, first,
    full, last, scores, sign, h, l, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the states of parts `first` to `last` of a row. Those before `full` have all scores."""
    for part in tl.range(first, full, num_stages=STAGES):
        fold_part(
            z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row,
            count, part, scores, sign, h, l, softcap,
            BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, VECTOR, True, PARTS, SCORES,
        )  # fmt: skip
    if not WHOLE:
        if full < last:
            fold_part(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums,
                row, count, full, scores, sign, h, l, softcap,
                BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, VECTOR, False, PARTS, SCORES,
            )  # fmt: skip


@triton.jit
def write_parts(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, first, full, last,
    scores, sign, m, a, b, of_p, of_u, at_t, ignored, wrong, h, l, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of parts `first` to `last` of a row, from the last to the first."""
    if any_of(is_strange(m, h, a, of_p)):
        write_any(
            z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
            m == m, first * SCORES, tl.minimum(last * SCORES, scores),
            m, a, b, of_p, of_u, at_t, ignored, wrong, sign, h, l, softcap,
            BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, SCORES,
        )  # fmt: skip
    else:
        if not WHOLE:
            if full < last:
                write_part(
                    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to,
                    gradient_k, full, scores, sign, m, a, b, of_p, of_u, at_t, h, l, softcap,
                    BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, False, SCORES,
                )  # fmt: skip
        for part in tl.range(first, full, num_stages=STAGES):
            write_part(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                first + full - 1 - part, scores, sign, m, a, b, of_p, of_u, at_t, h, l, softcap,
                BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, True, SCORES,
            )  # fmt: skip
