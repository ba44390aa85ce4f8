"""CUDA kernels of the loss: cross-entropy and its gradient.

    loss = w_t (1 - e) (-log p_t) + (e / n) sum_k w_k (-log p_k) + c lse^2        targets are classes
    loss = sum_k t_k (-log p_k) + c lse^2                                         targets are probabilities

One kernel computes the state of a row, its loss, and, if it is wanted, its gradient, in one visit. A row of at most
2^13 scores stays in registers; a longer row is cut into parts (triton_parts.py). A backward pass reads the states that
the forward pass has saved, and so reads scores once. The definitions serve float64, and probabilities with class
weights or label smoothing.
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
from softargmax.core.triton_math import capped
from softargmax.core.triton_rows import (
    exact_rest,
    is_last,
    load_beta,
    load_number,
    load_scores,
    next_task,
    offsets,
    per_row,
    release,
    score_numbers,
    store_block,
    store_number,
    wait_for,
)
from softargmax.core.triton_state import (
    any_of,
    frame,
    is_rare,
    largest_of,
    probabilities,
    ratio,
    ratio_of_any,
    row_sum,
    terms,
    top_of,
)
from softargmax.loss import operations, reference
from softargmax.loss.triton_formulas import (
    CLASS,
    LOAD,
    NONE,
    SAVE,
    SMOOTH,
    SOFT,
    load_class,
    load_masses,
    load_row,
    load_saved,
    mass_sums,
    numbers_of,
    save_state,
    slopes,
)
from softargmax.loss.triton_parts import fold_parts, is_strange, write_any, write_parts

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.loss.arguments import LossOptions

_STATES = ("state_m", "state_r", "state_n")


@triton.jit(do_not_specialize=RUNTIME)
def loss_rows(
    z, where, weight, target, hi, lo, seed, loss, gradient, state_m, state_r, state_n,
    count, inner, scores, beta_hi, beta_lo, ignore_index, smoothing, z_loss, softcap,
    z_o, z_i, z_k, where_o, where_i, where_k, weight_o, weight_i, weight_k, target_o, target_i, beta_o, beta_i,
    seed_o, seed_i, loss_o, loss_i, gradient_o, gradient_i, gradient_k, state_o, state_i,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    STATES: tl.constexpr, LOSS: tl.constexpr, GRADIENT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr,
    FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = score_numbers(SCORES, PIECES)
    exists = row < count
    inside = per_row(exists, PIECES) & (k < scores // ALIGN * ALIGN)
    k = k.to(tl.int64)
    t_at, state_at = offsets(row, inner, target_o, target_i, FLAT), offsets(row, inner, state_o, state_i, FLAT)
    t, ignored, wrong = load_class(target, t_at, exists, scores, ignore_index, TARGET)
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    z_at, where_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    weight_at = offsets(row, inner, weight_o, weight_i, FLAT, ALIGN)
    block_at, w_at = per_row(z_at, PIECES) + k * z_k, per_row(where_at, PIECES) + k * where_k
    raw = load_scores(z, block_at, where, w_at, inside, sign, BETA, MASKED, WHOLE, PIECES)
    x = capped(raw, softcap, SOFTCAP)
    u = load_masses(weight, per_row(weight_at, PIECES) + k * weight_k, inside, WEIGHTED, TARGET, PIECES)
    if STATES == LOAD:
        m, r, n, mass = load_saved(state_m, state_r, state_n, state_at, exists, TARGET)
        far, below = r, r
    else:
        m = top_of(x)
        n, mass, far, below = mass_sums(u, x, m, h, l, TARGET, VECTOR)
    shift, magic, low, t_m, power_m = frame(m, h, l, BETA > 0, FAST)
    y = terms(x, shift, magic, low, h, l, BETA > 0, FAST)
    if STATES != LOAD:
        rest = row_sum(y, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64) - largest_of(t_m, power_m)
        r = ratio(rest, m, t_m, power_m)
        rare = is_rare(rest, power_m, FAST)
        if any_of(rare):
            rest = exact_rest(
                z, z_at, z_k, where, where_at, where_k, exists, 0, scores, m, sign, h, l,
                BETA, MASKED, FAST, VECTOR, SCORES, PIECES, softcap, SOFTCAP,
            )  # fmt: skip
            r = tl.where(rare, ratio_of_any(rest, m, h, l, BETA > 0, FAST), r)
    if STATES == SAVE:
        save_state(state_m, state_r, state_n, state_at, exists, m, r, n, mass, TARGET)
    of_row, of_p, of_u, at_t, a, b = numbers_of(
        z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k,
        seed, offsets(row, inner, seed_o, seed_i, FLAT), t, exists, ignored, wrong, sign, m, r, h, l,
        n, mass, far, below, smoothing, z_loss, softcap, BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, GRADIENT,
    )  # fmt: skip
    if LOSS:
        tl.store(loss + offsets(row, inner, loss_o, loss_i, FLAT), of_row, mask=exists)
    if GRADIENT:
        g = slopes(probabilities(y, a, b, FAST), x, raw, u, m, of_p, of_u, at_t, softcap, TARGET, SOFTCAP)
        strange = is_strange(m, h, a, of_p)
        to = offsets(row, inner, gradient_o, gradient_i, FLAT, ALIGN)
        block_to = per_row(to, PIECES) + k * gradient_k
        if any_of(strange):
            write_any(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                strange & exists, 0, scores, m, a, b, of_p, of_u, at_t, ignored, wrong, sign, h, l, softcap,
                BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, SCORES, PIECES,
            )  # fmt: skip
            store_block(gradient, block_to, g, inside & per_row(~strange, PIECES), False, PIECES)
        else:
            store_block(gradient, block_to, g, inside, WHOLE, PIECES)
        if TARGET != SOFT:
            tl.debug_barrier()  # other threads have stored numbers at the classes
            tl.store(gradient + to + t * gradient_k, at_t.to(gradient.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=RUNTIME)
def loss_parts(
    z, where, weight, target, hi, lo, seed, loss, gradient, state_m, state_r, state_n,
    m_parts, r_parts, numbers, sums, tickets, done,
    count, inner, scores, parts, each, tasks, ahead, beta_hi, beta_lo, ignore_index, smoothing, z_loss, softcap,
    z_o, z_i, z_k, where_o, where_i, where_k, weight_o, weight_i, weight_k, target_o, target_i, beta_o, beta_i,
    seed_o, seed_i, loss_o, loss_i, gradient_o, gradient_i, gradient_k, state_o, state_i,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    STATES: tl.constexpr, LOSS: tl.constexpr, GRADIENT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr,
    FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, TURNS: tl.constexpr, PARTS: tl.constexpr,
    SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows in parts. Without a gradient, nothing is written but losses. With saved states, all programs write."""
    row, first, last, merges, writes = next_task(tickets, tasks, ahead, parts, each, TURNS)
    if row < count:
        one = row + tl.zeros([1], tl.int64)
        exists = one >= 0
        t_at, state_at = offsets(one, inner, target_o, target_i, FLAT), offsets(one, inner, state_o, state_i, FLAT)
        t, ignored, wrong = load_class(target, t_at, exists, scores, ignore_index, TARGET)
        sign, h, l = load_beta(hi, lo, offsets(one, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
        z_at, where_at = offsets(one, inner, z_o, z_i, FLAT, ALIGN), offsets(one, inner, where_o, where_i, FLAT)
        weight_at = offsets(one, inner, weight_o, weight_i, FLAT, ALIGN)
        scores = scores // ALIGN * ALIGN
        full = tl.minimum(last, scores // SCORES)  # the end of the parts that have all scores
        m, a, b, of_p, of_u, at_t = h, h, h, h, h, h
        if STATES != LOAD:
            if merges:
                fold_parts(
                    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, m_parts, r_parts, sums, row,
                    count, first, full, last, scores, sign, h, l, softcap,
                    BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, VECTOR, WHOLE, PARTS, SCORES, STAGES,
                )  # fmt: skip
                if TURNS:
                    merges = is_last(done, row, tasks)
                else:
                    tl.debug_barrier()
        if merges:
            m, r, n, mass, far, below = load_row(
                m_parts, r_parts, sums, state_m, state_r, state_n, state_at, row, count, parts, h, l,
                BETA, TARGET, STATES, FAST, PARTS,
            )  # fmt: skip
            of_row, of_p, of_u, at_t, a, b = numbers_of(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k,
                seed, offsets(one, inner, seed_o, seed_i, FLAT), t, exists, ignored, wrong, sign, m, r, h, l,
                n, mass, far, below, smoothing, z_loss, softcap,
                BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, GRADIENT,
            )  # fmt: skip
            if LOSS:
                tl.store(loss + offsets(one, inner, loss_o, loss_i, FLAT), of_row)
            if GRADIENT and TURNS:
                store_number(numbers, row, 0, m)
                store_number(numbers, row, 1, a)
                store_number(numbers, row, 2, b)
                store_number(numbers, row, 3, of_p)
                store_number(numbers, row, 4, of_u)
                store_number(numbers, row, 5, at_t)
                release(done, row)
        if writes and GRADIENT:
            if TURNS:
                wait_for(done, row, tasks)
                m, a, b = load_number(numbers, row, 0), load_number(numbers, row, 1), load_number(numbers, row, 2)
                of_p, of_u = load_number(numbers, row, 3), load_number(numbers, row, 4)
                at_t = load_number(numbers, row, 5)
            else:
                tl.debug_barrier()  # all threads have read the score of the class, whose memory the gradient may have
            to = offsets(one, inner, gradient_o, gradient_i, FLAT, ALIGN)
            write_parts(
                z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, gradient, to, gradient_k,
                first, full, last, scores, sign, m, a, b, of_p, of_u, at_t, ignored, wrong, h, l, softcap,
                BETA, MASKED, WEIGHTED, TARGET, SOFTCAP, FAST, WHOLE, SCORES, STAGES,
            )  # fmt: skip
            if TARGET != SOFT:
                here = (t // SCORES >= first) & (t // SCORES < last)
                tl.debug_barrier()  # other threads have stored numbers at the class
                tl.store(gradient + to + t * gradient_k, at_t.to(gradient.dtype.element_ty), mask=here)


# --- the kernels of the operations ------------------------------------------------------------------------------------


def cross_entropy(i: Any, r: Any) -> None:
    """Compute the loss, and save states of the rows if there is memory for them."""
    loss, states = r
    if _served(i):
        _reduce(i, run(i, save=states), _counted(i), loss)
        return
    if states is not None:
        states.fill_(math.nan)
    define(operations.cross_entropy, i, r)


def cross_entropy_vjp(i: Any, r: Any) -> None:
    """Compute g times the gradient, from saved states of the rows if they have all that it needs."""
    (gradient,) = r
    if _served(i.of):
        saved = None if i.of.options.weight is not None and i.of.options.label_smoothing else i.states
        run(i.of, _seed(i.of, i.g, _counted(i.of)), gradient, losses=False, saved=saved)
    else:
        define(operations.cross_entropy_vjp, i, r)


def cross_entropy_and_gradient(i: Any, r: Any) -> None:
    """Compute the loss and g times its gradient in one visit."""
    loss, gradient = r
    if _served(i.of):
        g = loss.new_ones(loss.shape, dtype=torch.float64) if i.g is None else i.g
        count = _counted(i.of)
        _reduce(i.of, run(i.of, _seed(i.of, g, count), gradient), count, loss)
    else:
        define(operations.cross_entropy_and_gradient, i, r)


def _counted(i: Any) -> Tensor | int | None:
    """The divisor of the loss: the number of rows that are not ignored (1 if all are) for a mean, or 1 for a sum.

    None if the loss is not one number or has weights. Then the functions of the definitions reduce it.
    """
    options = i.options
    if i.kept or options.weight is not None:
        return None
    if not i.mean:
        return 1
    if options.target is None:
        return math.prod(row_shape(i.z.shape, i.axes))
    return (options.target != options.ignore_index).sum().clamp_(min=1)


def _seed(i: Any, g: Tensor, count: Tensor | int | None) -> Tensor:
    """The factor of the gradient of each row. The class axis has size 1."""
    return reference.seed_of(i, g) if count is None else (g.double() / count).reshape((1,) * i.z.ndim)


def _reduce(i: Any, rows: Tensor, count: Tensor | int | None, loss: Tensor) -> None:
    """Write the sum or the mean of the rows' losses."""
    if count is None:
        loss.copy_(reference.reduced_losses(rows, i.options, i.axes, i.kept, i.mean, i.dtype))
    else:
        loss.copy_(rows.sum() / count)


def _served(i: Any) -> bool:
    """True if the kernels serve a call. It has the same value in the forward and the backward pass."""
    return i.dtype is not torch.float64 and is_served(i.options, i.z, axes=i.axes)


def is_served(options: LossOptions, first: Tensor, *others: Tensor | None, axes: tuple[int, ...] = ()) -> bool:
    """True if the kernels serve these options. The definition serves the others."""
    plain = options.target is not None or (options.weight is None and not options.label_smoothing)
    plain = plain and (not options.softcap or 1e-6 < options.softcap < 1e6)
    return plain and served(first, *others, options.weight, options.probabilities, beta=options.beta, axes=axes)


def run(
    i: Any,
    seed: Tensor | None = None,
    gradient: Tensor | None = None,
    *,
    losses: bool = True,
    fast: bool | None = None,
    save: Tensor | None = None,
    saved: Tensor | None = None,
) -> Tensor:
    """Compute the losses of the rows, and the gradient if there is memory for it, which may be that of the scores.

    `fast` selects the exponential for half precision. By default the dtype of the scores does. States of the rows are
    written to `save`, or read from `saved`.
    """
    options, (axis,), z = i.options, i.axes, i.z
    of_row = z.new_empty(row_shape(z.shape, i.axes), dtype=torch.float64)
    per_row, beta = beta_of(options.beta)
    tensors: dict[str, Tensor | None] = {
        "z": z, "where": options.where, "weight": options.weight, "target": None, **per_row, "seed": seed,
        "loss": of_row.unsqueeze(axis), "gradient": gradient,
    }  # fmt: skip
    kind = SMOOTH if options.label_smoothing > 0.0 else CLASS
    if options.target is None:
        kind, tensors["weight"] = SOFT, options.probabilities
    else:
        tensors["target"] = options.target.reshape(of_row.shape).unsqueeze(axis)
    states = save if saved is None else saved
    if states is not None:
        columns = states.reshape(*of_row.shape, 3).unsqueeze(axis).unbind(-1)
        tensors |= dict(zip(_STATES, columns, strict=True))
    launch_rows(
        _choose, i.axes, ("loss", "gradient") if save is None else ("loss", "gradient", *_STATES), tensors,
        {name: beta[name] for name in ("beta_hi", "beta_lo")}
        | {"smoothing": options.label_smoothing, "z_loss": options.z_loss, "softcap": options.softcap},
        ignore_index=options.ignore_index, beta=beta["BETA"], target=kind.value, softcap=options.softcap > 0.0,
        states=(LOAD if saved is not None else NONE if save is None else SAVE).value, losses=losses,
        fast=z.dtype.itemsize == 2 if fast is None else fast,
    )  # fmt: skip
    return of_row


def _choose(
    rows: Rows, *, ignore_index: int, beta: int, target: int, softcap: bool, states: int, losses: bool, fast: bool
) -> tuple[Any, Block, dict[str, Any]]:
    """The kernel for some rows, its block and its arguments."""
    given, loads = rows.tensors, states == LOAD.value
    absent = ("where", "weight", "target", "seed", "gradient", "hi", "lo", *_STATES)
    named = rows.named(*absent, aligned=[x for x in ("z", "gradient", "weight") if x in given])
    for name, like in (("beta", "hi"), ("state", "state_m")):
        named |= {f"{name}_o": named[f"{like}_o"], f"{name}_i": named[f"{like}_i"]}
    named |= {"ignore_index": ignore_index, "BETA": beta, "TARGET": target, "SOFTCAP": softcap, "STATES": states}
    named |= {"LOSS": losses, "FAST": fast}
    named |= {"MASKED": "where" in given, "WEIGHTED": "weight" in given, "GRADIENT": "gradient" in given}
    named["VECTOR"] = 16 // given["z"].dtype.itemsize
    sums = target != CLASS.value
    if rows.scores <= PART:
        tile = block(rows)
        tight = fast and "gradient" in given and tile.named["SCORES"] == ELEMENTS
        many = softcap or (sums and ("weight" not in given or "gradient" in given))
        return loss_rows, wider(tile, 2 if tight or many else 1), named
    tile = parts_of(rows, given["z"], reads=not loads, writes="gradient" in given)
    memory = tile.named["r_parts"]
    named["sums"] = memory.new_empty((4, *memory.shape)) if sums else memory
    masses = sums and "weight" in given
    if masses or softcap:
        tile.named["STAGES"] = 1
    # With masses and no soft-cap, more warps would have too few registers.
    wide = softcap or (not masses and (sums or "where" in given or beta > 0))
    return loss_parts, wider(tile, 2 if wide else 1), named
