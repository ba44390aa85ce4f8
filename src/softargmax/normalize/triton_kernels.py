"""CUDA kernels of normalize: softmax, log_softmax, logsumexp and their vector-Jacobian products.

A row of at most 2^14 scores is held in registers, and read once. A longer row is cut into parts of 2^13 scores
(core/triton_rows.py). The definition computes the gradient of logsumexp, from a softmax that a kernel computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from softargmax.core.operation import slope
from softargmax.core.scale import UNIT
from softargmax.core.triton_launch import (
    REGISTERS,
    RUNTIME,
    Block,
    Rows,
    beta_of,
    block,
    define,
    launch_rows,
    parts_of,
    served,
    wider,
)
from softargmax.core.triton_math import INF
from softargmax.core.triton_rows import (
    CHUNK,
    exact_rest,
    is_last,
    load_beta,
    load_block,
    load_number,
    load_scores,
    load_state,
    load_sum,
    next_task,
    offsets,
    per_row,
    release,
    score_numbers,
    store_block,
    store_fold,
    store_number,
    wait_for,
)
from softargmax.core.triton_state import (
    any_of,
    frame,
    inverse_of,
    is_limit,
    is_rare,
    largest_of,
    log_of,
    log_probabilities,
    lse_of,
    marked,
    probabilities,
    probabilities_of,
    ratio,
    ratio_of_any,
    row_sum,
    scale_of,
    smooth_maximum,
    strange_rows,
    terms,
    top_of,
    without_limits,
)
from softargmax.normalize import operations, vjp_operations
from softargmax.normalize.triton_derivatives import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX, gradient, parts_vjp, slopes

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.core.scale import Scale

# --- softmax, log_softmax, logsumexp ----------------------------------------------------------------------------------


@triton.jit
def write_any(
    z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, chosen, first, last, m, a, b, log_l, sign, h, l,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, SCORES: tl.constexpr,
    PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Write the results of scores `first` to `last` of the chosen rows, which may be of any kind, in chunks."""
    C: tl.constexpr = SCORES if SCORES <= 16 else SCORES // 4 if SCORES <= 4 * CHUNK else CHUNK
    N: tl.constexpr = PIECES * C // SCORES if PIECES * C > SCORES else 1
    m_x, h_x, l_x = without_limits(m, h, l)
    nothing = 0.0 if WHAT == SOFTMAX else -INF
    for at in range(first, last, C):
        number = score_numbers(C, N)
        inside = per_row(chosen, N) & (number < last - at)
        k = at + number.to(tl.int64)
        z_block, where_block = per_row(z_at, N) + k * z_k, per_row(where_at, N) + k * where_k
        x = marked(load_scores(z, z_block, where, where_block, inside, sign, BETA, MASKED, False, N), m, h)
        if WHAT == SOFTMAX:
            result = probabilities_of(x, m, a, b, h, l, BETA > 0, FAST)
        else:
            result = log_probabilities(x, m_x, log_l, h_x, l_x, BETA > 0)
        result = strange_rows(result, x, nothing, is_limit(m, h), log_l != log_l)
        store_block(out, per_row(out_at, N) + k * out_k, result, inside, False, N)


@triton.jit(do_not_specialize=RUNTIME)
def whole_rows(
    z, where, hi, lo, out, lse,
    count, inner, scores, beta_hi, beta_lo,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, out_o, out_i, out_k, lse_o, lse_i,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, LSE: tl.constexpr, FAST: tl.constexpr,
    VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, SCORES: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = score_numbers(SCORES, PIECES)
    exists = row < count
    inside = per_row(exists, PIECES) & (k < scores // ALIGN * ALIGN)
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    z_at, where_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    k = k.to(tl.int64)
    at, w_at = per_row(z_at, PIECES) + k * z_k, per_row(where_at, PIECES) + k * where_k
    x = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE, PIECES)
    m = top_of(x)
    shift, magic, low, t_m, power_m = frame(m, h, l, BETA > 0, FAST)
    y = terms(x, shift, magic, low, h, l, BETA > 0, FAST)
    total = row_sum(y, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64)
    r = total
    if LSE or WHAT != SOFTMAX:
        rest = total - largest_of(t_m, power_m)
        r = ratio(rest, m, t_m, power_m)
        rare = is_rare(rest, power_m, FAST)
        if any_of(rare):
            rest = exact_rest(
                z, z_at, z_k, where, where_at, where_k, exists, 0, scores, m, sign, h, l,
                BETA, MASKED, FAST, VECTOR, SCORES, PIECES,
            )  # fmt: skip
            r = tl.where(rare, ratio_of_any(rest, m, h, l, BETA > 0, FAST), r)
    if WHAT == LOGSUMEXP:
        out_at = offsets(row, inner, out_o, out_i, FLAT)
        tl.store(out + out_at, (smooth_maximum(m, r, h, l, BETA > 0) * sign).to(out.dtype.element_ty), mask=exists)
    else:
        if WHAT == SOFTMAX:
            a, b = inverse_of(total, m)
            result = probabilities(y, a, b, FAST)
        else:
            result = log_probabilities(x, m, log_of(r), h, l, BETA > 0)
        strange = total != total
        out_at = offsets(row, inner, out_o, out_i, FLAT, ALIGN)
        block_at = per_row(out_at, PIECES) + k * out_k
        if any_of(strange):
            if WHAT == SOFTMAX and not LSE:
                rest = exact_rest(
                    z, z_at, z_k, where, where_at, where_k, exists, 0, scores, m, sign, h, l,
                    BETA, MASKED, FAST, VECTOR, SCORES, PIECES,
                )  # fmt: skip
                r = ratio_of_any(rest, m, h, l, BETA > 0, FAST)
            a, b = scale_of(m, r, h, l, BETA > 0, FAST)
            write_any(
                z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, strange & exists, 0, scores,
                m, a, b, log_of(r), sign, h, l, WHAT, BETA, MASKED, FAST, SCORES, PIECES,
            )  # fmt: skip
            store_block(out, block_at, result, inside & per_row(~strange, PIECES), False, PIECES)
        else:
            store_block(out, block_at, result, inside, WHOLE, PIECES)
    if LSE:
        at_lse = offsets(row, inner, lse_o, lse_i, FLAT)
        tl.store(lse + at_lse, lse_of(m, r, h, l, BETA > 0).to(lse.dtype.element_ty), mask=exists)


@triton.jit
def fold_part(
    z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
    PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Compute the state of a part of a row."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    x = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE)
    store_fold(
        x, z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, h, l,
        BETA, MASKED, FAST, VECTOR, PARTS, SCORES,
    )  # fmt: skip


@triton.jit
def write_part(
    z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, part, scores, sign, m, a, b, log_l, h, l,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, WHOLE: tl.constexpr,
    SCORES: tl.constexpr,
):  # fmt: skip
    """Write the results of a part of a common row."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    x = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE)
    if WHAT == SOFTMAX:
        shift, magic, low, _t, _power = frame(m, h, l, BETA > 0, FAST)
        result = probabilities(terms(x, shift, magic, low, h, l, BETA > 0, FAST), a, b, FAST)
    else:
        result = log_probabilities(x, m, log_l, h, l, BETA > 0)
    store_block(out, out_at[:, None] + k * out_k, result, inside, WHOLE)


@triton.jit
def fold_parts(
    z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, first, full, last, scores, sign, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
    PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the states of parts `first` to `last` of a row. Those before `full` have all scores."""
    for part in tl.range(first, full, num_stages=STAGES):
        fold_part(
            z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, h, l,
            BETA, MASKED, FAST, VECTOR, True, PARTS, SCORES,
        )  # fmt: skip
    if not WHOLE:
        if full < last:
            fold_part(
                z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, full, scores, sign, h, l,
                BETA, MASKED, FAST, VECTOR, False, PARTS, SCORES,
            )  # fmt: skip


@triton.jit
def write_parts(
    z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, first, full, last, scores, sign, m, a, b, log_l, h, l,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, WHOLE: tl.constexpr,
    SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the results of parts `first` to `last` of a row, from the last to the first."""
    if any_of(is_limit(m, h) | (log_l != log_l)):
        write_any(
            z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, m == m, first * SCORES,
            tl.minimum(last * SCORES, scores), m, a, b, log_l, sign, h, l, WHAT, BETA, MASKED, FAST, SCORES,
        )  # fmt: skip
    else:
        if not WHOLE:
            if full < last:
                write_part(
                    z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, full, scores, sign,
                    m, a, b, log_l, h, l, WHAT, BETA, MASKED, FAST, False, SCORES,
                )  # fmt: skip
        for part in tl.range(first, full, num_stages=STAGES):
            write_part(
                z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, first + full - 1 - part, scores,
                sign, m, a, b, log_l, h, l, WHAT, BETA, MASKED, FAST, True, SCORES,
            )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME)
def long_rows(
    z, where, hi, lo, out, lse, m_parts, r_parts, numbers, tickets, done,
    count, inner, scores, parts, each, tasks, ahead, beta_hi, beta_lo,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, out_o, out_i, out_k, lse_o, lse_i,
    WHAT: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, LSE: tl.constexpr, FAST: tl.constexpr,
    VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    TURNS: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows in parts."""
    row, first, last, reads, writes = next_task(tickets, tasks, ahead, parts, each, TURNS)
    if row < count:
        one = row + tl.zeros([1], tl.int64)
        scores = scores // ALIGN * ALIGN
        full = tl.minimum(last, scores // SCORES)  # the end of the parts that have all scores
        sign, h, l = load_beta(hi, lo, offsets(one, inner, beta_o, beta_i, FLAT), one >= 0, beta_hi, beta_lo, BETA)
        z_at, out_at = offsets(one, inner, z_o, z_i, FLAT, ALIGN), offsets(one, inner, out_o, out_i, FLAT, ALIGN)
        where_at = offsets(one, inner, where_o, where_i, FLAT)
        m, a, b, log_l = h, h, h, h
        if reads:
            fold_parts(
                z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, first, full, last, scores, sign, h, l,
                BETA, MASKED, FAST, VECTOR, WHOLE, PARTS, SCORES, STAGES,
            )  # fmt: skip
            if TURNS:
                merges = is_last(done, row, tasks)
            else:
                tl.debug_barrier()
                merges = True
            if merges:
                m, r = load_state(m_parts, r_parts, row, parts, h, l, BETA > 0, FAST, PARTS)
                if WHAT == LOGSUMEXP:
                    found = (smooth_maximum(m, r, h, l, BETA > 0) * sign).to(out.dtype.element_ty)
                    tl.store(out + offsets(one, inner, out_o, out_i, FLAT), found)
                else:
                    a, b = scale_of(m, r, h, l, BETA > 0, FAST)
                    log_l = log_of(r)
                    if TURNS:
                        store_number(numbers, row, 0, m)
                        store_number(numbers, row, 1, a)
                        store_number(numbers, row, 2, b)
                        store_number(numbers, row, 3, log_l)
                        release(done, row)
                    if LSE:
                        found = lse_of(m, r, h, l, BETA > 0).to(lse.dtype.element_ty)
                        tl.store(lse + offsets(one, inner, lse_o, lse_i, FLAT), found)
        if writes and WHAT != LOGSUMEXP:
            if TURNS:
                wait_for(done, row, tasks)
                m, log_l = load_number(numbers, row, 0), load_number(numbers, row, 3)
                a, b = load_number(numbers, row, 1), load_number(numbers, row, 2)
            write_parts(
                z, z_at, z_k, where, where_at, where_k, out, out_at, out_k, first, full, last, scores, sign,
                m, a, b, log_l, h, l, WHAT, BETA, MASKED, FAST, WHOLE, SCORES, STAGES,
            )  # fmt: skip


def softmax(i: Any, r: Any) -> None:
    """Compute p, and lse if there is memory for it."""
    _normalize(operations.softmax, SOFTMAX, i, r)


def log_softmax(i: Any, r: Any) -> None:
    """Compute log p, and lse if there is memory for it."""
    _normalize(operations.log_softmax, LOG_SOFTMAX, i, r)


def logsumexp(i: Any, r: Any) -> None:
    """Compute the smooth maximum of each row. The definition serves weights."""
    if i.weights is None:
        _normalize(operations.logsumexp, LOGSUMEXP, i, r)
    else:
        define(operations.logsumexp, i, r)


def _normalize(operation: Any, what: tl.constexpr, i: Any, r: Any) -> None:
    if not served(i.z, *r, beta=i.beta, axes=i.axes):
        define(operation, i, r)
        return
    out, lse = (*r, None)[:2]  # logsumexp has one result
    per_row, beta = beta_of(i.beta)
    launch_rows(
        _choose, i.axes, ("out", "lse"), {"z": i.z, "where": i.where, **per_row, "out": out, "lse": lse},
        {name: beta[name] for name in ("beta_hi", "beta_lo")}, what=what.value, beta=beta["BETA"],
        fast=i.z.dtype.itemsize == out.dtype.itemsize == 2,
    )  # fmt: skip


def _choose(rows: Rows, *, what: int, beta: int, fast: bool) -> tuple[Any, Block, dict[str, Any]]:
    """The kernel for some rows, its block and its arguments."""
    given, reduces = rows.tensors, what == LOGSUMEXP.value
    named = rows.named("where", "hi", "lo", "lse", aligned=("z",) if reduces else ("z", "out"))
    named |= {"beta_o": named["hi_o"], "beta_i": named["hi_i"], "WHAT": what, "BETA": beta, "FAST": fast}
    named |= {"MASKED": "where" in given, "LSE": "lse" in given, "VECTOR": 16 // given["z"].dtype.itemsize}
    if rows.scores <= REGISTERS:
        tile = block(rows)
        many = beta > 0 and tile.named["SCORES"] == REGISTERS  # 16 warps would have too few registers
        return whole_rows, tile._replace(warps=8) if many else tile, named
    return long_rows, wider(parts_of(rows, given["z"], writes=not reduces), 2 if beta else 1), named


# --- derivatives ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def whole_rows_vjp(
    y, lse, g, out, count, inner, scores, beta,
    y_o, y_i, y_k, lse_o, lse_i, g_o, g_i, g_k, out_o, out_i, out_k,
    WHAT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr, SCORES: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Gradients of rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = score_numbers(SCORES, PIECES)
    exists = row < count
    inside = per_row(exists, PIECES) & (k < scores // ALIGN * ALIGN)
    k = k.to(tl.int64)
    y_at = per_row(offsets(row, inner, y_o, y_i, FLAT, ALIGN), PIECES) + k * y_k
    g_at = per_row(offsets(row, inner, g_o, g_i, FLAT, 1 if WHAT == LOGSUMEXP else ALIGN), PIECES) + k * g_k
    of_y = load_block(y, y_at, inside, -INF if WHAT == LOG_SOFTMAX else 0.0, PIECES, WHOLE).to(tl.float32)
    of_g = load_block(g, g_at, inside, 0.0, PIECES, WHOLE).to(tl.float32)
    of_lse = tl.load(lse + offsets(row, inner, lse_o, lse_i, FLAT), mask=exists, other=0.0).to(tl.float32)
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    support, p, of_g, summands = slopes(of_y, of_g, of_lse, WHAT, KIND)
    total = tl.zeros([ROWS], tl.float64) if WHAT == LOGSUMEXP else row_sum(summands, VECTOR, KIND).to(tl.float64)
    found = gradient(support, p, of_g, total, beta, WHAT)
    out_at = per_row(offsets(row, inner, out_o, out_i, FLAT, ALIGN), PIECES) + k * out_k
    store_block(out, out_at, found, inside, WHOLE, PIECES)


@triton.jit(do_not_specialize=RUNTIME)
def long_rows_vjp(
    y, lse, g, out, r_parts, tickets, done, count, inner, scores, parts, each, tasks, ahead, beta,
    y_o, y_i, y_k, lse_o, lse_i, g_o, g_i, g_k, out_o, out_i, out_k,
    WHAT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr,
    TURNS: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of rows in parts."""
    row, first, last, reads, writes = next_task(tickets, tasks, ahead, parts, each, TURNS)
    if row < count:
        one = row + tl.zeros([1], tl.int64)
        scores = scores // ALIGN * ALIGN
        full = tl.minimum(last, scores // SCORES)
        y_at = offsets(one, inner, y_o, y_i, FLAT, ALIGN)
        g_at = offsets(one, inner, g_o, g_i, FLAT, 1 if WHAT == LOGSUMEXP else ALIGN)
        out_at = offsets(one, inner, out_o, out_i, FLAT, ALIGN)
        of_lse = tl.load(lse + offsets(one, inner, lse_o, lse_i, FLAT)).to(tl.float32)
        total = tl.zeros([1], tl.float64)
        if WHAT == LOGSUMEXP:
            reads = False
        if reads:
            parts_vjp(
                y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, first, full, last, scores, of_lse, total,
                beta, WHAT, FAST, VECTOR, False, WHOLE, PARTS, SCORES, STAGES,
            )  # fmt: skip
            if TURNS:
                if is_last(done, row, tasks):
                    of_row = load_sum(r_parts, row, parts, PARTS)
                    tl.debug_barrier()
                    tl.store(r_parts + row * PARTS + tl.zeros([1], tl.int64), of_row)
                    release(done, row)
            else:
                tl.debug_barrier()
                total = load_sum(r_parts, row, parts, PARTS)
        if writes:
            if TURNS:
                wait_for(done, row, tasks)
                total = tl.load(r_parts + row * PARTS + tl.zeros([1], tl.int64), cache_modifier=".cg")
            parts_vjp(
                y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, first, full, last, scores, of_lse, total,
                beta, WHAT, FAST, VECTOR, True, WHOLE, PARTS, SCORES, STAGES,
            )  # fmt: skip


def softmax_vjp(i: Any, r: Any) -> None:
    """Compute beta p (g - <p, g>). beta is a number."""
    _vjp(vjp_operations.softmax_vjp, SOFTMAX, i, i.p, r[0], i.lse, i.beta)


def log_softmax_vjp(i: Any, r: Any) -> None:
    """Compute beta (g - p <1, g>). beta is a number."""
    _vjp(vjp_operations.log_softmax_vjp, LOG_SOFTMAX, i, i.log_p, r[0], i.lse, i.beta)


def logsumexp_vjp(i: Any, r: Any) -> None:
    """Compute p g, where g has one number per row."""
    _vjp(vjp_operations.logsumexp_vjp, LOGSUMEXP, i, i.p, r[0], None, UNIT)


def _vjp(operation: Any, what: tl.constexpr, i: Any, y: Tensor, out: Tensor, lse: Tensor | None, beta: Scale) -> None:
    if not served(y, lse, i.g, out, axes=i.axes):
        define(operation, i, (out,))
        return
    launch_rows(
        _choose_vjp, i.axes, ("out",), {"y": y, "lse": lse, "g": i.g, "out": out}, {"beta": float(slope(beta))},
        what=what.value,
    )  # fmt: skip


def _choose_vjp(rows: Rows, *, what: int) -> tuple[Any, Block, dict[str, Any]]:
    """The kernel for the gradients of some rows, its block and its arguments."""
    y, out = rows.tensors["y"], rows.tensors["out"]
    sums = what != LOGSUMEXP.value
    named = rows.named("lse", aligned=("y", "g", "out") if sums else ("y", "out"))
    named |= {"WHAT": what, "FAST": out.dtype.itemsize == 2, "VECTOR": 16 // y.dtype.itemsize}
    if rows.scores <= REGISTERS:
        return whole_rows_vjp, block(rows), named
    return long_rows_vjp, parts_of(rows, y, writes=True, reads=sums), named
