"""CUDA kernels of sums under a softmax, and of their gradients: entropies, expectation and divergence, in Triton.

    mean <p, v>        entropy log l + <p, d>        divergence <p, delta>        d = |beta| (m - x)

with delta = log p - log q. Each block has a state, and the sum under its own softmax. If the parts of a row have the
probabilities P and the sums S, the sum of the row is <P, S + d> or <P, S>, and its divergence is <P, S> plus that of
the P. So a long row is read once. No term of an entropy or a divergence is negative. triton_formulas.py has the
formulas, and how Renyi entropies of parts are joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.triton_launch import (
    PART,
    RUNTIME,
    Block,
    beta_of,
    block,
    define,
    launch,
    parts_of,
    rows_of,
    served,
    wider,
)
from softargmax.core.triton_math import INF, REACH
from softargmax.core.triton_rows import (
    flat,
    is_last,
    load_beta,
    load_block,
    load_parts,
    load_scores,
    next_task,
    offsets,
    per_row,
    score_numbers,
    store_block,
    store_state,
)
from softargmax.core.triton_state import (
    frame,
    gaps,
    inverse_of,
    largest_of,
    lse_of,
    merge,
    ratio,
    row_sum,
    scale_of,
    shares,
    terms,
    top_of,
    without_limits,
)
from softargmax.normalize import entropy_operations, operations
from softargmax.normalize.triton_formulas import (
    DIVERGENCE,
    ENTROPY,
    MEAN,
    POSITION,
    RENYI,
    divergence,
    excess,
    finished,
    is_near,
    log_ratio,
    mean_of,
    renyi_of_block,
    renyi_of_parts,
    renyi_slope,
    times_order,
)

if TYPE_CHECKING:
    from torch import Tensor

_FAR = tl.constexpr(700.0)
HALF_PART = PART // 2
"""The longest row in registers, and the scores per part of a longer row. More would need too many registers."""


# --- blocks -----------------------------------------------------------------------------------------------------------


@triton.jit
def load_both(
    z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, exists, first, scores, sign,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr,
    PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Load a block of scores from number `first` on, and values in float64, or the scores of q."""
    number = score_numbers(SCORES, PIECES)
    inside = per_row(exists, PIECES) & (number < scores - first)
    k = first + number.to(tl.int64)
    w_at = per_row(where_at, PIECES) + k * where_k
    x = load_scores(z, per_row(z_at, PIECES) + k * z_k, where, w_at, inside, sign, BETA, MASKED, WHOLE, PIECES)
    v = x
    o_at = per_row(other_at, PIECES) + k * other_k
    if WHAT == DIVERGENCE:
        v = load_scores(other, o_at, where, w_at, inside, sign, BETA, MASKED, WHOLE, PIECES)
    elif WHAT == MEAN:
        v = load_block(other, o_at, inside, 0.0, PIECES, WHOLE).to(tl.float64)
    elif WHAT == POSITION:
        v = flat(k, PIECES).to(tl.float64)
    return x, v


@triton.jit
def measured(x, m, hi, lo, SCALED: tl.constexpr):
    """Return the terms of a block, 0 for those far below m, the gaps of its scores, and the largest term."""
    m_x, h_x, l_x = without_limits(m, hi, lo)
    shift, magic, low, t_m, power_m = frame(m_x, h_x, l_x, SCALED, False)
    gap = gaps(x, m, hi, lo, SCALED)
    y = terms(x, shift, magic, low, h_x, l_x, SCALED, False)
    y = tl.where(gap == 0.0, tl.fma(t_m, power_m, power_m)[:, None], y)  # also where m is infinite
    return tl.where(gap >= REACH, 0.0, y), gap, t_m, power_m


@triton.jit
def probabilities64(y, x, a, b):
    """p of a block in float64: the terms y times a + b. In rows with NaN, p is NaN in the support."""
    return tl.where(x == -INF, 0.0, y.to(tl.float64) * (a.to(tl.float64) + b.to(tl.float64))[:, None])


@triton.jit
def state_of(x, hi, lo, SCALED: tl.constexpr, VECTOR: tl.constexpr):
    """Return the state of a block, p in float64, and the gaps of its scores.

    Maxima are counted, not added, so that a small r keeps its digits.
    """
    m = top_of(x)
    y, gap, t_m, power_m = measured(x, m, hi, lo, SCALED)
    others = row_sum(tl.where(gap == 0.0, 0.0, y), VECTOR, tl.float64)
    count = tl.sum((gap == 0.0).to(tl.int32), axis=1).to(tl.float64)
    largest = largest_of(t_m, power_m)
    r = ratio(tl.fma(count - 1.0, largest, others), m, t_m, power_m)
    a, b = inverse_of(tl.fma(count, largest, others), m)
    return m, r, probabilities64(y, x, a, b), gap


@triton.jit
def block_sum(
    z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, exists, first, scores, sign, hi, lo, order,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
    SCORES: tl.constexpr, PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Return the sum of a block, the states of p and q, log l_q - log l, and the p, q and v of the sum."""
    x, v = load_both(
        z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, exists, first, scores, sign,
        WHAT, BETA, MASKED, WHOLE, SCORES, PIECES,
    )  # fmt: skip
    if WHAT == RENYI:
        found, m, r, r_q, v = renyi_of_block(x, hi, lo, order, BETA > 0, VECTOR)
        m_q, shift, p, q = m, r, x, x
    else:
        m, r, p, gap = state_of(x, hi, lo, BETA > 0, VECTOR)
        m_q, r_q, shift, q = m, r, r, p
    if WHAT == DIVERGENCE:
        m_q, r_q, q, gap_q = state_of(v, hi, lo, BETA > 0, VECTOR)
        shift = log_ratio(r_q, r)
        found, error = divergence(p, q, gap, gap_q, shift[:, None], VECTOR)
        shift = shift + error
        v = gap_q - gap + shift[:, None]
    elif WHAT != RENYI:
        if WHAT == ENTROPY:
            v = gap
        found = mean_of(p, v, VECTOR)
    return found, m, r, m_q, r_q, shift, p, q, v


@triton.jit
def write_slopes(
    to_p, p_at, p_k, to_q, q_at, q_k, g, g_at, exists, first, scores, found, m, r, m_q, r_q, p, q, v, sign, hi, lo,
    order, WHAT: tl.constexpr, SCALED: tl.constexpr, TO_P: tl.constexpr, TO_Q: tl.constexpr, WHOLE: tl.constexpr,
    SCORES: tl.constexpr, PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Write g beta p (v - <p, v>), the gradient of a block, and g beta (q - p), that in the scores of q.

    For a Renyi entropy, v are gaps, and p are scores.
    Rows with an infinite lse or divergence are constant.
    """
    number = score_numbers(SCORES, PIECES)
    inside = per_row(exists, PIECES) & (number < scores - first)
    k = first + number.to(tl.int64)
    beta = sign.to(tl.float64) * tl.where(hi == INF, 0.0, hi.to(tl.float64) + lo.to(tl.float64))
    factor = (tl.load(g + g_at, mask=exists, other=0.0).to(tl.float64) * beta)[:, None]
    if TO_P:
        constant = lse_of(m, r, hi, lo, SCALED).to(tl.float32) == INF
        if WHAT == DIVERGENCE:
            constant = constant | (found == INF)
        if WHAT == RENYI:
            slope = tl.where(constant[:, None], 0.0, renyi_slope(v, r, r_q, found, order))
            strange = (r != r)[:, None] & (p != -INF)  # NaN in the support
            slope = tl.where(strange, float("nan"), slope)
            far = tl.minimum(v, times_order(v, order)) > _FAR  # p and q are 0
            nothing = ~strange & (constant[:, None] | far)
        else:
            slope = tl.where((p == 0.0) | constant[:, None], 0.0, p * (v - found[:, None]))
            nothing = (slope == 0.0) if WHAT == DIVERGENCE else (p == 0.0)
        slope = tl.where(nothing, 0.0, slope * factor).to(tl.float32)
        store_block(to_p, per_row(p_at, PIECES) + k * p_k, slope, inside, WHOLE, PIECES)
    if TO_Q:
        constant = (lse_of(m_q, r_q, hi, lo, SCALED).to(tl.float32) == INF) | (found == INF) | (r == -1.0)
        small = tl.where(is_near(v), v, 0.0)
        slope = tl.where(is_near(v), p * (excess(small) - small), q - p)
        slope = tl.where(constant[:, None], 0.0, slope)
        slope = tl.where(slope == 0.0, 0.0, slope * factor).to(tl.float32)
        store_block(to_q, per_row(q_at, PIECES) + k * q_k, slope, inside, WHOLE, PIECES)


# --- rows -------------------------------------------------------------------------------------------------------------


@triton.jit
def load_order(order, at, exists, hi, WHAT: tl.constexpr):
    """The order of each row in float64. Sums without orders get hi, and do not read it."""
    return tl.load(order + at, mask=exists, other=1.0).to(tl.float64) if WHAT == RENYI else hi


@triton.jit(do_not_specialize=RUNTIME)
def whole_sums(
    z, other, where, hi, lo, order, g, out, to_p, to_q,
    count, inner, scores, beta_hi, beta_lo,
    z_o, z_i, z_k, other_o, other_i, other_k, where_o, where_i, where_k, beta_o, beta_i, order_o, order_i,
    g_o, g_i, out_o, out_i, to_p_o, to_p_i, to_p_k, to_q_o, to_q_i, to_q_k,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, TO_P: tl.constexpr, TO_Q: tl.constexpr,
    VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, SCORES: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Sums or gradients of rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    scores = scores // ALIGN * ALIGN
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    of_row = load_order(order, offsets(row, inner, order_o, order_i, FLAT), exists, h, WHAT)
    found, m, r, m_q, r_q, _shift, p, q, v = block_sum(
        z, offsets(row, inner, z_o, z_i, FLAT, ALIGN), z_k, other, offsets(row, inner, other_o, other_i, FLAT, ALIGN),
        other_k, where, offsets(row, inner, where_o, where_i, FLAT), where_k, exists, 0, scores, sign, h, l,
        of_row, WHAT, BETA, MASKED, VECTOR, WHOLE, SCORES, PIECES,
    )  # fmt: skip
    if TO_P or TO_Q:
        write_slopes(
            to_p, offsets(row, inner, to_p_o, to_p_i, FLAT, ALIGN), to_p_k,
            to_q, offsets(row, inner, to_q_o, to_q_i, FLAT, ALIGN), to_q_k, g, offsets(row, inner, g_o, g_i, FLAT),
            exists, 0, scores, found, m, r, m_q, r_q, p, q, v, sign, h, l, of_row,
            WHAT, BETA > 0, TO_P, TO_Q, WHOLE, SCORES, PIECES,
        )  # fmt: skip
    else:
        found = finished(found, r, WHAT).to(out.dtype.element_ty)
        tl.store(out + offsets(row, inner, out_o, out_i, FLAT), found, mask=exists)


@triton.jit
def store_sum(
    z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, m_parts, r_parts, sums, size, row, part, scores,
    sign, hi, lo, order,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
    PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Compute and store the state and the sum of a part of a row."""
    found, m, r, m_q, r_q, shift, _p, _q, _v = block_sum(
        z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, z_at >= 0, part * SCORES, scores,
        sign, hi, lo, order, WHAT, BETA, MASKED, VECTOR, WHOLE, SCORES,
    )  # fmt: skip
    store_state(m_parts, r_parts, row, part, m, r, PARTS)
    at = row * PARTS + part + tl.zeros([1], tl.int64)
    tl.store(sums + at, found)
    if WHAT == RENYI:
        tl.store(sums + size + at, r_q)
    elif WHAT == DIVERGENCE:
        store_state(sums + size, sums + 2 * size, row, part, m_q.to(tl.float64), r_q, PARTS)
        tl.store(sums + 3 * size + at, shift)


@triton.jit
def merged_sum(
    m_parts, r_parts, sums, size, row, parts, hi, lo, order, WHAT: tl.constexpr, SCALED: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Return the sum of a row, the states of p and q, and log l_q - log l, from the parts of the row."""
    m_of, r_of = load_parts(m_parts, row, parts, -INF, PARTS), load_parts(r_parts, row, parts, -1.0, PARTS)
    of_parts = load_parts(sums, row, parts, 0.0, PARTS)
    m, r = merge(m_of, r_of, hi, lo, SCALED)
    if WHAT == RENYI:
        r_q_of = load_parts(sums + size, row, parts, -1.0, PARTS)
        found, r_q = renyi_of_parts(of_parts, m_of, r_of, r_q_of, m, r, hi, lo, order, SCALED)
    else:
        p, gap = shares(m_of, r_of, m, r, hi, lo, SCALED)
        found, r_q = mean_of(p, of_parts + gap if WHAT == ENTROPY else of_parts, 1), r
    m_q, shift = m, r
    if WHAT == DIVERGENCE:
        m_of = load_parts(sums + size, row, parts, -INF, PARTS).to(tl.float32)
        r_of = load_parts(sums + 2 * size, row, parts, -1.0, PARTS)
        m_q, r_q = merge(m_of, r_of, hi, lo, SCALED)
        q, gap_q = shares(m_of, r_of, m_q, r_q, hi, lo, SCALED)
        shift = log_ratio(r_q, r)
        shifts = load_parts(sums + 3 * size, row, parts, 0.0, PARTS)
        between, error = divergence(p, q, gap, gap_q, shift[:, None] - shifts, 1)
        found, shift = found + between, shift + error
    return found, m, r, m_q, r_q, shift


@triton.jit(do_not_specialize=RUNTIME)
def long_sums(
    z, other, where, hi, lo, order, out, m_parts, r_parts, sums, tickets, done,
    count, inner, scores, parts, each, tasks, ahead, beta_hi, beta_lo,
    z_o, z_i, z_k, other_o, other_i, other_k, where_o, where_i, where_k, beta_o, beta_i, order_o, order_i, out_o, out_i,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, TO_P: tl.constexpr, TO_Q: tl.constexpr,
    VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    TURNS: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of rows in parts. For a gradient, the numbers of a row are stored in place of those of its first part."""
    row, first, last, _reads, _writes = next_task(tickets, tasks, ahead, parts, each, TURNS)
    one = row + tl.zeros([1], tl.int64)
    scores = scores // ALIGN * ALIGN
    full = tl.minimum(last, scores // SCORES)  # the end of the parts that have all scores
    size = count.to(tl.int64) * PARTS
    sign, h, l = load_beta(hi, lo, offsets(one, inner, beta_o, beta_i, FLAT), one >= 0, beta_hi, beta_lo, BETA)
    z_at, other_at = offsets(one, inner, z_o, z_i, FLAT, ALIGN), offsets(one, inner, other_o, other_i, FLAT, ALIGN)
    where_at = offsets(one, inner, where_o, where_i, FLAT)
    of_row = load_order(order, offsets(one, inner, order_o, order_i, FLAT), one >= 0, h, WHAT)
    for part in tl.range(first, full, num_stages=STAGES):
        store_sum(
            z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, m_parts, r_parts, sums, size, row, part,
            scores, sign, h, l, of_row, WHAT, BETA, MASKED, VECTOR, True, PARTS, SCORES,
        )  # fmt: skip
    if not WHOLE:
        if full < last:
            store_sum(
                z, z_at, z_k, other, other_at, other_k, where, where_at, where_k, m_parts, r_parts, sums, size, row,
                full, scores, sign, h, l, of_row, WHAT, BETA, MASKED, VECTOR, False, PARTS, SCORES,
            )  # fmt: skip
    if TURNS:
        merges = is_last(done, row, tasks)
    else:
        tl.debug_barrier()
        merges = True
    if merges:
        found, m, r, m_q, r_q, shift = merged_sum(
            m_parts, r_parts, sums, size, row, parts, h, l, of_row, WHAT, BETA > 0, PARTS
        )
        if TO_P or TO_Q:
            tl.debug_barrier()  # all threads have loaded the numbers of the first part
            store_state(m_parts, r_parts, row, 0, m, r, PARTS)
            tl.store(sums + one * PARTS, found)
            if WHAT == RENYI:
                tl.store(sums + size + one * PARTS, r_q)
            elif WHAT == DIVERGENCE:
                store_state(sums + size, sums + 2 * size, row, 0, m_q.to(tl.float64), r_q, PARTS)
                tl.store(sums + 3 * size + one * PARTS, shift)
        else:
            found = finished(found, r, WHAT).to(out.dtype.element_ty)
            tl.store(out + offsets(one, inner, out_o, out_i, FLAT), found)


@triton.jit(do_not_specialize=RUNTIME)
def long_slopes(
    z, other, where, hi, lo, order, g, to_p, to_q, m_parts, r_parts, sums,
    count, inner, scores, parts, beta_hi, beta_lo,
    z_o, z_i, z_k, other_o, other_i, other_k, where_o, where_i, where_k, beta_o, beta_i, order_o, order_i, g_o, g_i,
    to_p_o, to_p_i, to_p_k, to_q_o, to_q_i, to_q_k,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, TO_P: tl.constexpr, TO_Q: tl.constexpr,
    FLAT: tl.constexpr, ALIGN: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The gradient of a part of a row, from the numbers that `long_sums` has stored."""
    row, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    one = row + tl.zeros([1], tl.int64)
    scores, first, exists = scores // ALIGN * ALIGN, part * SCORES, one >= 0
    sign, h, l = load_beta(hi, lo, offsets(one, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    x, v = load_both(
        z, offsets(one, inner, z_o, z_i, FLAT, ALIGN), z_k, other, offsets(one, inner, other_o, other_i, FLAT, ALIGN),
        other_k, where, offsets(one, inner, where_o, where_i, FLAT), where_k, exists, first, scores, sign,
        WHAT, BETA, MASKED, False, SCORES,
    )  # fmt: skip
    at, size = one * PARTS, count.to(tl.int64) * PARTS
    m, r, found = tl.load(m_parts + at), tl.load(r_parts + at), tl.load(sums + at)
    of_row = load_order(order, offsets(one, inner, order_o, order_i, FLAT), exists, h, WHAT)
    y, gap, _t, _power = measured(x, m, h, l, BETA > 0)
    a, b = scale_of(m, r, h, l, BETA > 0, False)
    p = probabilities64(y, x, a, b)
    m_q, r_q, q = m, r, p
    if WHAT == RENYI:
        r_q, v, p = tl.load(sums + size + at), gap, x
    elif WHAT == DIVERGENCE:
        m_q, r_q = tl.load(sums + size + at).to(tl.float32), tl.load(sums + 2 * size + at)
        y, gap_q, _t, _power = measured(v, m_q, h, l, BETA > 0)
        a, b = scale_of(m_q, r_q, h, l, BETA > 0, False)
        q = probabilities64(y, v, a, b)
        v = gap_q - gap + tl.load(sums + 3 * size + at)[:, None]
    elif WHAT == ENTROPY:
        v = gap
    write_slopes(
        to_p, offsets(one, inner, to_p_o, to_p_i, FLAT, ALIGN), to_p_k,
        to_q, offsets(one, inner, to_q_o, to_q_i, FLAT, ALIGN), to_q_k, g, offsets(one, inner, g_o, g_i, FLAT),
        exists, first, scores, found, m, r, m_q, r_q, p, q, v, sign, h, l, of_row,
        WHAT, BETA > 0, TO_P, TO_Q, False, SCORES,
    )  # fmt: skip


# --- the kernels of the operations ------------------------------------------------------------------------------------


def entropy(i: Any, r: Any) -> None:
    """Compute the entropy of each row."""
    _run(operations.entropy, ENTROPY, i, r, i, out=r[0])


def renyi_entropy(i: Any, r: Any) -> None:
    """Compute the Renyi entropy of each row."""
    _run(entropy_operations.renyi_entropy, RENYI, i, r, i, order=_orders(i), out=r[0])


def renyi_entropy_vjp(i: Any, r: Any) -> None:
    """Compute the gradient of a Renyi entropy in the scores."""
    _run(entropy_operations.renyi_entropy_vjp, RENYI, i, r, i.of, order=_orders(i.of), g=i.g, to_p=r[0])


def _orders(i: Any) -> Tensor:
    """The orders as a tensor, because numbers are float32 in a kernel."""
    order: Tensor | float = i.order
    return i.z.new_full((1,) * i.z.ndim, order, dtype=torch.float64) if isinstance(order, float) else order


def expectation(i: Any, r: Any) -> None:
    """Compute <p, v> for each row."""
    _run(operations.expectation, _mean(i), i, r, i, other=i.values, out=r[0])


def mean_vjp(i: Any, r: Any) -> None:
    """Compute the gradient of an entropy, or of an expectation, in the scores."""
    what = ENTROPY if i.of_entropy else _mean(i.of)
    _run(operations.mean_vjp, what, i, r, i.of, other=i.of.values, g=i.g, to_p=r[0])


def kl_divergence(i: Any, r: Any) -> None:
    """Compute the divergence of each row."""
    _run(entropy_operations.kl_divergence, DIVERGENCE, i, r, i, z=i.z_p, other=i.z_q, out=r[0])


def kl_divergence_vjp(i: Any, r: Any) -> None:
    """Compute the gradients of a divergence in the scores of p and of q, if they are wanted."""
    to_p, to_q = (x if wanted else None for x, wanted in zip(r, (i.to_p, i.to_q), strict=True))
    _run(
        entropy_operations.kl_divergence_vjp, DIVERGENCE, i, r, i.of, z=i.of.z_p, other=i.of.z_q, g=i.g, to_p=to_p,
        to_q=to_q,
    )  # fmt: skip


def _mean(i: Any) -> tl.constexpr:
    return POSITION if i.values is None else MEAN


def _run(
    operation: Any, what: tl.constexpr, i: Any, r: Any, of: Any, z: Tensor | None = None, **given: Tensor | None
) -> None:
    """Compute sums or gradients of rows. `of` has the fields where, beta and axes."""
    z = of.z if z is None else z
    written = {name: x for name, x in given.items() if name in ("out", "to_p", "to_q") and x is not None}
    if not served(z, *written.values(), beta=of.beta, axes=of.axes):
        define(operation, i, r)
        return
    per_row, beta = beta_of(of.beta)
    rows = rows_of(of.axes, tuple(written), z=z, where=of.where, **per_row, **given)
    absent = ("other", "where", "hi", "lo", "order", "g", "out", "to_p", "to_q")
    aligned = [name for name in ("z", "other", "to_p", "to_q") if name in rows.tensors]
    named = rows.named(*absent, aligned=aligned) | beta
    named |= {"beta_o": named["hi_o"], "beta_i": named["hi_i"], "WHAT": what.value, "MASKED": of.where is not None}
    named |= {"TO_P": "to_p" in written, "TO_Q": "to_q" in written, "VECTOR": 16 // z.dtype.itemsize}
    warps = 4 if what == RENYI else 2
    if rows.scores <= HALF_PART:
        launch(whole_sums, wider(block(rows), warps), **named)
    else:
        tile = wider(parts_of(rows, z, writes=False, part=HALF_PART), warps)
        states = tile.named["r_parts"]
        numbers = 4 if what == DIVERGENCE else 2 if what == RENYI else 1
        tile.named["sums"] = states.new_empty((numbers, *states.shape))
        launch(long_sums, tile, **named)
        if "out" not in written:
            launch(long_slopes, Block((rows.total * tile.named["parts"],), tile.warps, tile.named), **named)
    rows.finish()
