"""CUDA kernels of the loss: cross-entropy with classes as targets, and its gradient.

    loss = w_t (1 - e) (-log p_t) + (e / n) sum_k w_k (-log p_k) + c lse^2

One kernel computes the state of a row, its loss, and, if it is wanted, its gradient, in one visit. A row of at most
2^13 scores stays in registers; a longer row is cut into parts (core/triton_rows.py). The definitions serve
probabilities as targets, soft-capped scores, temperatures per row, and float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.arrays import row_shape
from softargmax.core.triton_launch import (
    ELEMENTS,
    PART,
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
    load_number,
    load_scores,
    load_state,
    load_sum,
    load_target,
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
    marked,
    probabilities,
    probabilities_of,
    ratio,
    ratio_of_any,
    row_sum,
    scale_of,
    strange_rows,
    terms,
    top_of,
)
from softargmax.loss import operations, reference
from softargmax.loss.triton_formulas import (
    factors_of,
    finished,
    load_of_target,
    load_weights,
    loss_of,
    slopes,
    smoothing_sums,
)

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.loss.arguments import LossOptions


@triton.jit
def write_any(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, chosen, first, last,
    m, a, b, of_p, of_w, ignored, wrong, sign, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, FAST: tl.constexpr,
    SCORES: tl.constexpr,
    PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Write the gradient of scores `first` to `last` of the chosen rows, which may be of any kind, in chunks."""
    C: tl.constexpr = SCORES if SCORES <= 16 else SCORES // 4 if SCORES <= 4 * CHUNK else CHUNK
    N: tl.constexpr = PIECES * C // SCORES if PIECES * C > SCORES else 1
    for at in range(first, last, C):
        number = score_numbers(C, N)
        inside = per_row(chosen, N) & (number < last - at)
        k = at + number.to(tl.int64)
        z_block, where_block = per_row(z_at, N) + k * z_k, per_row(where_at, N) + k * where_k
        x = marked(load_scores(z, z_block, where, where_block, inside, sign, BETA, MASKED, False, N), m, h)
        w = load_weights(weight, per_row(weight_at, N) + k * weight_k, inside, WEIGHTED & SMOOTH, N)
        p = probabilities_of(x, m, a, b, h, l, BETA > 0, FAST)
        g = strange_rows(slopes(p, x, w, of_p, of_w, SMOOTH), x, 0.0, is_limit(m, h), a != a)
        g = finished(g, ignored[:, None], wrong[:, None])
        store_block(gradient, per_row(to, N) + k * gradient_k, g, inside, False, N)


@triton.jit(do_not_specialize=RUNTIME)
def loss_rows(
    z, where, weight, target, hi, lo, seed, loss, gradient,
    count, inner, scores, beta_hi, beta_lo, slope_of_beta, ignore_index, smoothing, z_loss,
    z_o, z_i, z_k, where_o, where_i, where_k, weight_o, weight_i, weight_k, target_o, target_i,
    seed_o, seed_i, loss_o, loss_i, gradient_o, gradient_i, gradient_k,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, LOSS: tl.constexpr,
    GRADIENT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = score_numbers(SCORES, PIECES)
    exists = row < count
    inside = per_row(exists, PIECES) & (k < scores // ALIGN * ALIGN)
    k = k.to(tl.int64)
    t, ignored, wrong = load_target(target, offsets(row, inner, target_o, target_i, FLAT), exists, scores, ignore_index)
    safe = tl.where(ignored | wrong, 0, t)
    sign, h, l = load_beta(hi, lo, row, exists, beta_hi, beta_lo, BETA)
    z_at, where_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    weight_at = offsets(row, inner, weight_o, weight_i, FLAT)
    block_at, w_at = per_row(z_at, PIECES) + k * z_k, per_row(where_at, PIECES) + k * where_k
    x = load_scores(z, block_at, where, w_at, inside, sign, BETA, MASKED, WHOLE, PIECES)
    x_t, w_t = load_of_target(
        z, z_at + safe * z_k, where, where_at + safe * where_k, weight, weight_at + safe * weight_k,
        exists, ignored, sign, MASKED, WEIGHTED,
    )  # fmt: skip
    w = load_weights(weight, per_row(weight_at, PIECES) + k * weight_k, inside, WEIGHTED & SMOOTH, PIECES)
    n, weights, weighted, finite = w_t, w_t, w_t, w_t
    if SMOOTH:
        n, weights, weighted, finite = smoothing_sums(x, w, h, l, VECTOR)
    m = top_of(x)
    shift, magic, low, t_m, power_m = frame(m, h, l, BETA > 0, FAST)
    y = terms(x, shift, magic, low, h, l, BETA > 0, FAST)
    total = row_sum(y, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64)
    rest = total - largest_of(t_m, power_m)
    r = ratio(rest, m, t_m, power_m)
    rare = is_rare(rest, power_m, FAST)
    if any_of(rare):
        rest = exact_rest(
            z, z_at, z_k, where, where_at, where_k, exists, 0, scores, m, sign, h, l,
            BETA, MASKED, FAST, VECTOR, SCORES, PIECES,
        )  # fmt: skip
        r = tl.where(rare, ratio_of_any(rest, m, h, l, BETA > 0, FAST), r)
    of_row, of_p, of_w, at_t = loss_of(
        m, r, h, l, x_t, w_t, n, weights, weighted, finite, smoothing, z_loss, SMOOTH, BETA > 0
    )
    if LOSS:
        tl.store(loss + offsets(row, inner, loss_o, loss_i, FLAT), finished(of_row, ignored, wrong), mask=exists)
    if GRADIENT:
        factor = tl.load(seed + offsets(row, inner, seed_o, seed_i, FLAT), mask=exists, other=0.0) * slope_of_beta
        of_p, of_w, at_t = factors_of(factor, of_p, of_w, at_t, x_t, ignored, wrong)
        a, b = inverse_of(total, m)
        g = slopes(probabilities(y, a, b, FAST), x, w, of_p, of_w, SMOOTH)
        strange = ~(tl.abs(of_p) < INF) | (total != total)
        to = offsets(row, inner, gradient_o, gradient_i, FLAT, ALIGN)
        block_to = per_row(to, PIECES) + k * gradient_k
        if any_of(strange):
            a, b = scale_of(m, r, h, l, BETA > 0, FAST)
            write_any(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                strange & exists, 0, scores, m, a, b, of_p, of_w, ignored, wrong, sign, h, l,
                BETA, MASKED, WEIGHTED, SMOOTH, FAST, SCORES, PIECES,
            )  # fmt: skip
            store_block(gradient, block_to, g, inside & per_row(~strange, PIECES), False, PIECES)
        else:
            store_block(gradient, block_to, g, inside, WHOLE, PIECES)
        tl.debug_barrier()  # other threads have stored numbers at the targets
        tl.store(gradient + to + safe * gradient_k, at_t.to(gradient.dtype.element_ty), mask=exists)


@triton.jit
def fold_part(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row, count, part,
    scores, sign, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, FAST: tl.constexpr,
    VECTOR: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Compute the state of a part of a row, and its sums for smoothing."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    x = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE)
    if SMOOTH:
        w = load_weights(weight, weight_at[:, None] + k * weight_k, inside, WEIGHTED)
        n, weights, weighted, finite = smoothing_sums(x, w, h, l, VECTOR)
        at_part = row * PARTS + part + tl.zeros([1], tl.int64)
        tl.store(sums + at_part, n)
        tl.store(sums + count.to(tl.int64) * PARTS + at_part, weights)
        tl.store(sums + 2 * count.to(tl.int64) * PARTS + at_part, weighted)
        tl.store(sums + 3 * count.to(tl.int64) * PARTS + at_part, finite)
    store_fold(
        x, z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, h, l,
        BETA, MASKED, FAST, VECTOR, PARTS, SCORES,
    )  # fmt: skip


@triton.jit
def write_part(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, part,
    scores, sign, m, a, b, of_p, of_w, ignored, wrong, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, FAST: tl.constexpr,
    WHOLE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a part of a common row."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
    w = load_weights(weight, weight_at[:, None] + k * weight_k, inside, WEIGHTED & SMOOTH)
    x = load_scores(z, at, where, w_at, inside, sign, BETA, MASKED, WHOLE)
    shift, magic, low, _t, _power = frame(m, h, l, BETA > 0, FAST)
    p = probabilities(terms(x, shift, magic, low, h, l, BETA > 0, FAST), a, b, FAST)
    g = slopes(p, x, w, of_p, of_w, SMOOTH)
    store_block(gradient, to[:, None] + k * gradient_k, g, inside, WHOLE)


@triton.jit
def fold_parts(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row, count, first,
    full, last, scores, sign, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, FAST: tl.constexpr,
    VECTOR: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the states of parts `first` to `last` of a row. Those before `full` have all scores."""
    for part in tl.range(first, full, num_stages=STAGES):
        fold_part(
            z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row,
            count, part, scores, sign, h, l,
            BETA, MASKED, WEIGHTED, SMOOTH, FAST, VECTOR, True, PARTS, SCORES,
        )  # fmt: skip
    if not WHOLE:
        if full < last:
            fold_part(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums,
                row, count, full, scores, sign, h, l,
                BETA, MASKED, WEIGHTED, SMOOTH, FAST, VECTOR, False, PARTS, SCORES,
            )  # fmt: skip


@triton.jit
def write_parts(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k, first, full, last,
    scores, sign, m, a, b, of_p, of_w, ignored, wrong, h, l,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, FAST: tl.constexpr,
    WHOLE: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of parts `first` to `last` of a row, from the last to the first."""
    if any_of(is_limit(m, h) | ~(tl.abs(of_p) < INF) | (a != a)):
        write_any(
            z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
            m == m, first * SCORES, tl.minimum(last * SCORES, scores),
            m, a, b, of_p, of_w, ignored, wrong, sign, h, l,
            BETA, MASKED, WEIGHTED, SMOOTH, FAST, SCORES,
        )  # fmt: skip
    else:
        if not WHOLE:
            if full < last:
                write_part(
                    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to,
                    gradient_k, full, scores, sign, m, a, b, of_p, of_w, ignored, wrong, h, l,
                    BETA, MASKED, WEIGHTED, SMOOTH, FAST, False, SCORES,
                )  # fmt: skip
        for part in tl.range(first, full, num_stages=STAGES):
            write_part(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                first + full - 1 - part, scores, sign, m, a, b, of_p, of_w, ignored, wrong, h, l,
                BETA, MASKED, WEIGHTED, SMOOTH, FAST, True, SCORES,
            )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME)
def loss_parts(
    z, where, weight, target, hi, lo, seed, loss, gradient, m_parts, r_parts, numbers, sums, tickets, done,
    count, inner, scores, parts, each, tasks, ahead, beta_hi, beta_lo, slope_of_beta, ignore_index, smoothing, z_loss,
    z_o, z_i, z_k, where_o, where_i, where_k, weight_o, weight_i, weight_k, target_o, target_i,
    seed_o, seed_i, loss_o, loss_i, gradient_o, gradient_i, gradient_k,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, LOSS: tl.constexpr,
    GRADIENT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr, TURNS: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows in parts. Without a gradient, nothing is written but losses."""
    if TURNS:
        row, task, writes = next_task(tickets, tasks, ahead)
        reads = ~writes
    else:
        row, task, writes, reads = tl.program_id(0).to(tl.int64), 0, True, True
    if row < count:
        one = row + tl.zeros([1], tl.int64)
        first, last = task * each, tl.minimum((task + 1) * each, parts)
        exists = one >= 0
        t, ignored, wrong = load_target(
            target, offsets(one, inner, target_o, target_i, FLAT), exists, scores, ignore_index
        )
        safe = tl.where(ignored | wrong, 0, t)
        sign, h, l = load_beta(hi, lo, one, exists, beta_hi, beta_lo, BETA)
        z_at, where_at = offsets(one, inner, z_o, z_i, FLAT, ALIGN), offsets(one, inner, where_o, where_i, FLAT)
        weight_at = offsets(one, inner, weight_o, weight_i, FLAT)
        scores = scores // ALIGN * ALIGN
        full = tl.minimum(last, scores // SCORES)  # the end of the parts that have all scores
        m, a, b, of_p, of_w, at_t = h, h, h, h, h, h
        if reads:
            fold_parts(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row,
                count, first, full, last, scores, sign, h, l,
                BETA, MASKED, WEIGHTED, SMOOTH, FAST, VECTOR, WHOLE, PARTS, SCORES, STAGES,
            )  # fmt: skip
            if TURNS:
                merges = is_last(done, row, tasks)
            else:
                tl.debug_barrier()
                merges = True
            if merges:
                m, r = load_state(m_parts, r_parts, row, parts, h, l, BETA > 0, FAST, PARTS)
                n, weights, weighted, finite = r, r, r, r
                if SMOOTH:
                    n = load_sum(sums, row, parts, PARTS)
                    weights = load_sum(sums + count.to(tl.int64) * PARTS, row, parts, PARTS)
                    weighted = load_sum(sums + 2 * count.to(tl.int64) * PARTS, row, parts, PARTS)
                    finite = load_sum(sums + 3 * count.to(tl.int64) * PARTS, row, parts, PARTS)
                x_t, w_t = load_of_target(
                    z, z_at + safe * z_k, where, where_at + safe * where_k, weight, weight_at + safe * weight_k,
                    exists, ignored, sign, MASKED, WEIGHTED,
                )  # fmt: skip
                if GRADIENT and not TURNS:
                    tl.debug_barrier()  # the gradient may have the memory of z
                of_row, of_p64, of_w64, at_t64 = loss_of(
                    m, r, h, l, x_t, w_t, n, weights, weighted, finite, smoothing, z_loss, SMOOTH, BETA > 0
                )
                if LOSS:
                    tl.store(loss + offsets(one, inner, loss_o, loss_i, FLAT), finished(of_row, ignored, wrong))
                if GRADIENT:
                    factor = tl.load(seed + offsets(one, inner, seed_o, seed_i, FLAT)) * slope_of_beta
                    of_p, of_w, at_t = factors_of(factor, of_p64, of_w64, at_t64, x_t, ignored, wrong)
                    a, b = scale_of(m, r, h, l, BETA > 0, FAST)
                    if TURNS:
                        store_number(numbers, row, 0, m)
                        store_number(numbers, row, 1, a)
                        store_number(numbers, row, 2, b)
                        store_number(numbers, row, 3, of_p)
                        store_number(numbers, row, 4, of_w)
                        store_number(numbers, row, 5, at_t)
                        release(done, row)
        if writes and GRADIENT:
            if TURNS:
                wait_for(done, row, tasks)
                m, a, b = load_number(numbers, row, 0), load_number(numbers, row, 1), load_number(numbers, row, 2)
                of_p, of_w = load_number(numbers, row, 3), load_number(numbers, row, 4)
                at_t = load_number(numbers, row, 5)
            to = offsets(one, inner, gradient_o, gradient_i, FLAT, ALIGN)
            write_parts(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                first, full, last, scores, sign, m, a, b, of_p, of_w, ignored, wrong, h, l,
                BETA, MASKED, WEIGHTED, SMOOTH, FAST, WHOLE, SCORES, STAGES,
            )  # fmt: skip
            here = (safe // SCORES >= first) & (safe // SCORES < last)
            tl.debug_barrier()  # other threads have stored numbers at the target
            tl.store(gradient + to + safe * gradient_k, at_t.to(gradient.dtype.element_ty), mask=here)


# --- the kernels of the operations ------------------------------------------------------------------------------------


def cross_entropy(i: Any, r: Any) -> None:
    """Compute the loss. The states of the rows are not used, because the gradient reads the scores anyway."""
    loss, states = r
    if states is not None:
        states.fill_(math.nan)
    if _served(i, loss):
        _reduce(i, run(i), _counted(i), loss)
    else:
        define(operations.cross_entropy, i, r)


def cross_entropy_vjp(i: Any, r: Any) -> None:
    """Compute g times the gradient, and the states of the rows once more."""
    (gradient,) = r
    if _served(i.of, gradient):
        run(i.of, _seed(i.of, i.g, _counted(i.of)), gradient, losses=False)
    else:
        define(operations.cross_entropy_vjp, i, r)


def cross_entropy_and_gradient(i: Any, r: Any) -> None:
    """Compute the loss and g times its gradient in one visit."""
    loss, gradient = r
    if _served(i.of, loss, gradient):
        g = loss.new_ones(loss.shape, dtype=torch.float64) if i.g is None else i.g
        count = _counted(i.of)
        _reduce(i.of, run(i.of, _seed(i.of, g, count), gradient), count, loss)
    else:
        define(operations.cross_entropy_and_gradient, i, r)


def _counted(i: Any) -> Tensor | int | None:
    """The divisor of the loss: the number of rows that are not ignored (1 if all are) for a mean, or 1 for a sum.

    None if the loss is not one number or has weights. Then the functions of the definitions reduce it.
    """
    if i.kept or i.options.weight is not None:
        return None
    if not i.mean:
        return 1
    return (i.options.target != i.options.ignore_index).sum().clamp_(min=1)


def _seed(i: Any, g: Tensor, count: Tensor | int | None) -> Tensor:
    """The factor of the gradient of each row. The class axis has size 1."""
    return reference.seed_of(i, g) if count is None else (g.double() / count).reshape((1,) * i.z.ndim)


def _reduce(i: Any, rows: Tensor, count: Tensor | int | None, loss: Tensor) -> None:
    """Write the sum or the mean of the rows' losses."""
    if count is None:
        loss.copy_(reference.reduced_losses(rows, i.options, i.axes, i.kept, i.mean, i.dtype))
    else:
        loss.copy_(rows.sum() / count)


def _served(i: Any, *results: Tensor) -> bool:
    return is_served(i.options, i.z, *results, axes=i.axes)


def is_served(options: LossOptions, first: Tensor, *others: Tensor | None, axes: tuple[int, ...] = ()) -> bool:
    """True if the kernels serve these options. The definition serves the others."""
    number = isinstance(options.beta.hi, float) and math.isfinite(options.beta.hi) and options.beta.hi != 0.0
    plain = number and options.target is not None and not options.softcap
    return plain and served(first, *others, options.weight, beta=options.beta, axes=axes)


def run(
    i: Any, seed: Tensor | None = None, gradient: Tensor | None = None, *, losses: bool = True, fast: bool | None = None
) -> Tensor:
    """Compute the losses of the rows, and the gradient if there is memory for it, which may be that of the scores.

    `fast` selects the exponential for half precision. By default the dtype of the scores does.
    """
    options, (axis,), z = i.options, i.axes, i.z
    of_row = z.new_empty(row_shape(z.shape, i.axes), dtype=torch.float64)
    tensors = {
        "z": z, "where": options.where, "weight": options.weight,
        "target": options.target.reshape(of_row.shape).unsqueeze(axis), "seed": seed, "loss": of_row.unsqueeze(axis),
        "gradient": gradient,
    }  # fmt: skip
    beta = beta_of(options.beta)[1]
    numbers = {"beta_hi": beta["beta_hi"], "beta_lo": beta["beta_lo"], "slope_of_beta": options.beta.hi}
    launch_rows(
        _choose, i.axes, ("loss", "gradient"), tensors,
        numbers | {"smoothing": options.label_smoothing, "z_loss": options.z_loss},
        ignore_index=options.ignore_index, beta=beta["BETA"], smooth=options.label_smoothing > 0.0, losses=losses,
        fast=z.dtype.itemsize == 2 if fast is None else fast,
    )  # fmt: skip
    return of_row


def _choose(
    rows: Rows, *, ignore_index: int, beta: int, smooth: bool, losses: bool, fast: bool
) -> tuple[Any, Block, dict[str, Any]]:
    """The kernel for some rows, its block and its arguments."""
    given = rows.tensors
    named = rows.named(
        "where", "weight", "seed", "gradient", "hi", "lo", aligned=[x for x in ("z", "gradient") if x in given]
    )
    named |= {"ignore_index": ignore_index, "BETA": beta, "SMOOTH": smooth, "LOSS": losses, "FAST": fast}
    named |= {"MASKED": "where" in given, "WEIGHTED": "weight" in given, "GRADIENT": "gradient" in given}
    named["VECTOR"] = 16 // given["z"].dtype.itemsize
    if rows.scores <= PART:
        tile = block(rows)
        tight = fast and "gradient" in given and tile.named["SCORES"] == ELEMENTS
        many = smooth and ("weight" not in given or "gradient" in given)
        return loss_rows, wider(tile, 2 if tight or many else 1), named
    tile = parts_of(rows, given["z"], writes="gradient" in given)
    states = tile.named["r_parts"]
    named["sums"] = states.new_empty((4, *states.shape)) if smooth else states
    if smooth and "weight" in given:  # more warps would have too few registers
        tile.named["STAGES"] = 1
        return loss_parts, tile, named
    return loss_parts, wider(tile, 2 if "where" in given or smooth or beta > 0 else 1), named
