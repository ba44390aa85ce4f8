"""CUDA kernels of the room `sample`, in Triton: draws.

    draw = arg max (beta z + g)

A draw is the column with the smallest waiting time -log(1 - V) e^(-beta z). Times are computed in float32. If the two
smallest times of a row are so close that rounding could have swapped them, a second kernel draws from this row. It
compares the candidates in float64, with the noise of the CPU's kernel. So draws equal those of the CPU. The second
kernel also draws from rows with +inf or NaN, and from rows with an empty support.

A program draws for some rows, or for one task of a row. A task has some neighbouring parts of a row. The last program
of a row compares the draws of its tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.triton_launch import RUNTIME, Block, cdiv, define, launch, next_power_of_2, served
from softargmax.core.triton_math import INF, f32
from softargmax.core.triton_philox import word_of, words_of_block
from softargmax.core.triton_rows import PER_ROW, is_last, offsets
from softargmax.core.triton_state import any_of
from softargmax.sample import operations, triton_filters, triton_ranks
from softargmax.sample.triton_noise import (
    noise_at,
    noise_rows,
    surely_first,
    waiting_times,
)
from softargmax.sample.triton_scores import beta_per_row, distance64, load_part, scores_of, store_draws

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1024
"""Scores of a block: 8 per thread."""
WARPS = 4
PAIRS = 64
"""Draws that a program of `draw_again` looks at."""
NOISE = 512
"""Columns of a block of noise: 4 per thread."""
PROGRAMS = 1056
"""Rows are cut into tasks until there are as many programs, eight for each multiprocessor of an H100."""
_LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_NONE = tl.constexpr(1 << 30)
_EMPTY, _UNSURE = tl.constexpr(-1), tl.constexpr(-2)


# --- draws with replacement -------------------------------------------------------------------------------------------


@triton.jit
def times_of(x, k, shift, factor, seed, stream, draw, part, SCORES: tl.constexpr):
    """Lower bounds of the waiting times of a block. `factor` is 2 beta log2(e)."""
    w1 = words_of_block(part * SCORES, seed[:, None], stream[:, None], draw[:, None], 0, SCORES)
    d = tl.fma(x, f32(0.5), (-0.5 * shift)[:, None])
    return waiting_times(w1) * tl.exp2(-(d * factor[:, None]))


@triton.jit
def factor_of(beta):
    """2 beta log2(e) in float32, and 0 for an infinite beta."""
    return 2.0 * tl.where(beta == INF, 0.0, tl.minimum(beta, 1e37)).to(tl.float32) * _LOG2E


@triton.jit(do_not_specialize=(*RUNTIME, "draws"))
def draw_rows(
    z, where, hi, lo, edge, tie, seed, stream, top, log_l, index, logprob, places, done,
    count, draws, scores, parts, each, tasks, beta_hi, beta_lo,
    z_o, z_k, where_o, where_k, beta_o, seed_o,
    BETA: tl.constexpr, MASKED: tl.constexpr, KEPT: tl.constexpr, STREAM: tl.constexpr, LOGPROB: tl.constexpr,
    ALIGN: tl.constexpr, ONE: tl.constexpr, TASKS: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Draws with replacement. There are `count` pairs of a row and a draw."""
    task = tl.program_id(0) % tasks
    pair = (tl.program_id(0) // tasks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = pair < count
    row, draw = pair // draws, pair % draws
    first, last = task * each, tl.minimum((task + 1) * each, parts)
    scores = scores // ALIGN * ALIGN
    z_at, where_at = offsets(row, 1, 0, z_o, True, ALIGN), offsets(row, 1, 0, where_o, True)
    beta, beta_rest = beta_per_row(hi, lo, row * beta_o, exists, beta_hi, beta_lo, BETA)
    frozen, flat = beta == INF, beta == 0.0
    any_frozen = any_of(frozen)
    key = tl.load(seed + row * seed_o, mask=exists, other=0)
    own = row
    if STREAM:
        own = tl.load(stream + row, mask=exists, other=0).to(tl.int64)
    bound, last_tie = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.int32)
    if KEPT:
        bound = tl.load(edge + row, mask=exists, other=0.0)
        last_tie = tl.load(tie + row, mask=exists, other=0)
    factor = factor_of(beta)

    x, k = load_part(
        z, where, bound, last_tie, flat, z_at, where_at, exists, first, scores, z_k, where_k,
        MASKED, KEPT, SCORES,
    )  # fmt: skip
    shift = tl.max(x, axis=1)
    shift = tl.where(tl.abs(shift) < INF, shift, 0.0)
    if ONE:
        best = times_of(x, k, shift, factor, key, own, draw, 0, SCORES)
        if any_frozen:
            best = tl.where(frozen[:, None], -x, best)
        second = tl.full([ROWS, 1], INF, tl.float32)
        at = k
    else:
        best = tl.full([ROWS, SCORES], INF, tl.float32)
        second = best
        at = tl.zeros([ROWS, SCORES], tl.int32)
        for part in range(first, last):
            x, k = load_part(
                z, where, bound, last_tie, flat, z_at, where_at, exists, part, scores, z_k, where_k,
                MASKED, KEPT, SCORES,
            )  # fmt: skip
            time = times_of(x, k, shift, factor, key, own, draw, part, SCORES)
            if any_frozen:
                time = tl.where(frozen[:, None], -x, time)
            second = tl.minimum(second, tl.maximum(best, time))
            at = tl.where(time < best, k, at)
            best = tl.minimum(best, time, propagate_nan=tl.PropagateNan.ALL)
    unordered = tl.max((best != best).to(tl.int32), axis=1) > 0
    least = tl.min(best, axis=1)
    place = tl.min(tl.where(best == least[:, None], at, _NONE), axis=1)
    other = tl.minimum(tl.min(second, axis=1), tl.min(tl.where(at == place[:, None], INF, best), axis=1))
    sure = surely_first(least, other, word_of(place, key, own, draw, 0)) | (frozen & (tl.abs(least) < INF))
    place = tl.where(sure & (beta >= 0.0) & ~unordered, place, tl.where((least == INF) & ~unordered, _EMPTY, _UNSURE))
    if TASKS == 1:
        place = tl.where(place == _EMPTY, _UNSURE, place)
        store_draws(z, top, log_l, index, logprob, pair, row, place, z_at, exists, z_k, beta, beta_rest, LOGPROB)
    else:
        one = (tl.program_id(0) // tasks).to(tl.int64)
        tl.store(places + one * TASKS + task + tl.zeros([ROWS], tl.int64), place)
        if is_last(done, one, tasks):
            t = tl.arange(0, TASKS)[None, :]
            of_task = tl.load(places + one * TASKS + t, mask=t < tasks, other=_EMPTY, cache_modifier=".cg")
            place = _best_of_tasks(z, of_task, z_at, z_k, beta, beta_rest, frozen, key, own, draw)
            store_draws(z, top, log_l, index, logprob, pair, row, place, z_at, exists, z_k, beta, beta_rest, LOGPROB)


@triton.jit(do_not_specialize=(*RUNTIME, "draws"))
def draw_again(
    z, where, hi, lo, edge, tie, seed, stream, top, log_l, index, logprob,
    count, draws, scores, parts, beta_hi, beta_lo,
    z_o, z_k, where_o, where_k, beta_o, seed_o,
    BETA: tl.constexpr, MASKED: tl.constexpr, KEPT: tl.constexpr, STREAM: tl.constexpr, LOGPROB: tl.constexpr,
    ALIGN: tl.constexpr, PAIRS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Draws that `draw_rows` has left open. A program looks at some pairs of a row and a draw."""
    pairs = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    unsure = tl.load(index + pairs, mask=pairs < count, other=0) == _UNSURE
    scores = scores // ALIGN * ALIGN
    pair = tl.min(tl.where(unsure, pairs, count), axis=0).to(tl.int64)
    while pair < count:
        one = pair + tl.zeros([1], tl.int64)
        row, draw = one // draws, one % draws
        z_at, where_at = offsets(row, 1, 0, z_o, True, ALIGN), offsets(row, 1, 0, where_o, True)
        beta, beta_rest = beta_per_row(hi, lo, row * beta_o, one >= 0, beta_hi, beta_lo, BETA)
        key = tl.load(seed + row * seed_o)
        own = row
        if STREAM:
            own = tl.load(stream + row).to(tl.int64)
        bound, last_tie = tl.zeros([1], tl.float32), tl.zeros([1], tl.int32)
        if KEPT:
            bound, last_tie = tl.load(edge + row), tl.load(tie + row)
        place = _in_float64(
            z, where, bound, last_tie, z_at, where_at, one >= 0, parts, scores, z_k, where_k,
            beta, beta_rest, key, own, draw, MASKED, KEPT, SCORES,
        )  # fmt: skip
        store_draws(z, top, log_l, index, logprob, one, row, place, z_at, one >= 0, z_k, beta, beta_rest, LOGPROB)
        pair = tl.min(tl.where(unsure & (pairs > pair), pairs, count), axis=0).to(tl.int64)


@triton.jit
def _in_float64(
    z, where, bound, last_tie, z_at, where_at, exists, parts, scores, z_k, where_k,
    beta, beta_rest, key, own, draw, MASKED: tl.constexpr, KEPT: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The draw of a row (1,). Only the scores whose float32 times are small enough are compared in float64."""
    frozen, flat, wrong = beta == INF, beta == 0.0, ~(beta >= 0.0)
    factor = factor_of(beta)
    m = tl.full([1], -INF, tl.float32)
    for part in range(parts):
        x, k = load_part(
            z, where, bound, last_tie, flat, z_at, where_at, exists, part, scores, z_k, where_k,
            MASKED, KEPT, SCORES,
        )  # fmt: skip
        m = tl.maximum(m, tl.max(x, axis=1))
        wrong = wrong | (tl.max((x != x).to(tl.int32), axis=1) > 0)
    infinite = m == INF
    m = tl.where(tl.abs(m) < INF, m, 0.0)
    place = tl.full([1], _EMPTY, tl.int32)
    most = tl.full([1], -INF, tl.float64)
    need = tl.full([1], INF, tl.float32)
    for part in range(parts):
        x, k = load_part(
            z, where, bound, last_tie, flat, z_at, where_at, exists & ~wrong, part, scores, z_k, where_k,
            MASKED, KEPT, SCORES,
        )  # fmt: skip
        x = tl.where(infinite[:, None], tl.where(x == INF, 0.0, -INF), x)
        time = tl.minimum(times_of(x, k, m, factor, key, own, draw, part, SCORES), 1e38)
        time = tl.where(frozen[:, None], tl.where(x == m[:, None], 1.0, INF), time)
        time = tl.where(x > -INF, time, INF)
        least = tl.min(time, axis=1)
        while any_of((least < need) & (least < INF)):
            column = tl.min(tl.where(time == least[:, None], k, _NONE), axis=1)
            here = k == column[:, None]
            score = tl.max(tl.where(here, x, -INF), axis=1)
            value = distance64(score, m, beta, beta_rest) + noise_at(column, key, own, draw)
            value = tl.where(frozen, 0.0, value)
            better = (value > most) | ((value == most) & (column < place))
            place, most = tl.where(better, column, place), tl.where(better, value, most)
            # Times are lower bounds, up to rounding errors of 2^-13.
            reach = tl.exp2((most * -1.4426950408889634).to(tl.float32)) * (1.4426950408889634 * (1.0 + 2.0**-12))
            need = tl.where(frozen, 0.0, tl.maximum(reach, 2.0**-100))
            time = tl.where(here, INF, time)
            least = tl.min(time, axis=1)
    return tl.where(wrong, _EMPTY, place)


@triton.jit
def _best_of_tasks(z, of_task, z_at, z_k, beta, beta_rest, frozen, key, own, draw):
    """The draw of a row from those of its tasks (1, tasks)."""
    real = of_task >= 0
    column = tl.where(real, of_task, 0)
    score = tl.load(z + z_at[:, None] + column.to(tl.int64) * z_k, mask=real, other=0.0).to(tl.float32)
    score = tl.where(real, score, -INF)
    m = tl.max(score, axis=1)
    m = tl.where(tl.abs(m) < INF, m, 0.0)
    none = tl.zeros_like(column).to(tl.int64)
    noise = noise_at(column, key[:, None] + none, own[:, None] + none, draw[:, None] + none)
    value = distance64(score, m[:, None], beta[:, None], beta_rest[:, None]) + noise
    value = tl.where(frozen[:, None], tl.where(score == m[:, None], 0.0, -INF).to(tl.float64), value)
    value = tl.where(real & (score > -INF), value, -INF)
    most = tl.max(value, axis=1)
    place = tl.min(tl.where((value == most[:, None]) & (value > -INF), column, _NONE), axis=1)
    unsure = (tl.min(of_task, axis=1) == _UNSURE) | (place == _NONE)
    return tl.where(unsure, _UNSURE, place)


# --- calls ------------------------------------------------------------------------------------------------------------


def tiles(z: Tensor, pairs: int) -> Block:
    """The blocks of `draw_rows`: some rows, or tasks of a row."""
    scores = z.shape[1]
    size = min(max(next_power_of_2(scores), 4), BLOCK)
    rows = min(BLOCK // size, next_power_of_2(pairs))
    parts = cdiv(scores, size)
    each = cdiv(parts, max(1, min(parts, PROGRAMS // pairs)))
    tasks = cdiv(parts, each)
    done = z.new_zeros(pairs if tasks > 1 else 1, dtype=torch.int32)
    places = z.new_empty(pairs * next_power_of_2(tasks) if tasks > 1 else 1, dtype=torch.int32)
    named = {
        "done": done, "places": places, "parts": parts, "each": each, "tasks": tasks,
        "ONE": parts == 1, "TASKS": next_power_of_2(tasks), "ROWS": rows, "SCORES": size,
    }  # fmt: skip
    return Block((cdiv(pairs, rows) * tasks,), max(1, min(WARPS, rows * size // 256)), named)


def categorical(i: Any, r: Any) -> None:
    """Draw. The definition serves locally typical sets, and float64."""
    if not covered(i):
        define(operations.categorical, i, r)
    elif i.replace or i.draws == 1:
        filtered = any(x is not None for x in i.distribution.filters)
        draw(i, *r, **(triton_filters.run(i) if filtered else {}))
    else:
        draw_different(i, r[0], None, i.z.new_empty((*i.z.shape[:-1], 1), dtype=torch.int64))


def categorical_with_logprob(i: Any, r: Any) -> None:
    """Draw, and compute log-probabilities and the number of classes that could be drawn."""
    index, logprob, size = r
    if not covered(i):
        define(operations.categorical_with_logprob, i, r)
    elif i.replace or i.draws == 1:
        draw(i, index, logprob, **triton_filters.run(i, size=size))
    else:
        draw_different(i, index, logprob, size)


def filter_mask(i: Any, r: Any) -> None:
    """Write the mask of the scores that the filters keep."""
    (kept,) = r
    if not covered(i):
        define(operations.filter_mask, i, r)
        return
    marks = kept if kept.is_contiguous() else torch.empty(kept.shape, dtype=kept.dtype, device=kept.device)
    triton_filters.run(i, marks=marks)
    if marks is not kept:
        kept.copy_(marks)


def gumbel(i: Any, r: Any) -> None:
    """Write the noise of rows along one axis. It has the bits of the CPU's noise."""
    (g,), (axis,) = r, i.axes
    if g.numel() == 0:
        return
    last = i.z.movedim(axis, -1)
    direct = g.is_contiguous() and axis == g.ndim - 1
    out = g if direct else torch.empty(last.shape, dtype=g.dtype, device=g.device)
    classes = last.shape[-1]
    rows = last.numel() // classes
    named = seeds_of(i, rows) | {"out": out, "classes": classes}
    size = min(max(next_power_of_2(classes), 16), NOISE)
    parts = cdiv(classes, size)
    launch(noise_rows, Block((rows * parts,), max(1, size // 128), {"parts": parts, "SCORES": size}), **named)
    if not direct:
        g.copy_(out.movedim(-1, axis))


def seeds_of(i: Any, rows: int) -> dict[str, Any]:
    """The seed and the streams of a call, as arguments of a kernel. Without streams, the seed stands for them."""
    seed = i.seed.reshape(-1)
    if seed.numel() > 1:  # vmap: one seed for each mapped call
        seed = seed[:, None].expand(seed.numel(), rows // seed.numel()).reshape(-1).contiguous()
    kept = [1 if d in i.axes else n for d, n in enumerate(i.z.shape)]
    stream = seed if i.stream is None else i.stream.expand(kept).reshape(-1).contiguous()
    return {"seed": seed, "seed_o": int(seed.numel() > 1), "stream": stream, "STREAM": i.stream is not None}


def covered(i: Any) -> bool:
    """True if kernels read these scores."""
    typical = i.distribution.filters.typical_p is not None
    return served(i.z, beta=i.distribution.beta, axes=(-1,)) and not typical


def draw(i: Any, index: Tensor, logprob: Tensor | None = None, **found: Tensor) -> None:
    """Launch the draws. `found` are the numbers per row that filters have stored."""
    if index.numel() == 0:
        return
    named = scores_of(i)
    z, pairs = named["z"], index.numel()
    named |= seeds_of(i, z.shape[0]) | {"index": index, "logprob": z if logprob is None else logprob}
    named |= {name: found.get(name, z) for name in ("edge", "tie", "top", "log_l")}
    named |= {"KEPT": "edge" in found, "LOGPROB": logprob is not None, "count": pairs, "draws": i.draws}
    launch(draw_rows, tiles(z, pairs), **named)
    again = {"PAIRS": PAIRS, "SCORES": BLOCK, "parts": cdiv(z.shape[1], BLOCK)}
    warps = WARPS if named["BETA"] == 0 else 4 * WARPS  # distances with beta need registers
    launch(draw_again, Block((cdiv(pairs, PAIRS),), warps, again), **named)


def draw_different(i: Any, index: Tensor, logprob: Tensor | None, size: Tensor) -> None:
    """Launch draws without replacement, after filters have counted the classes that can be drawn."""
    found = triton_filters.run(i, size=size)
    named = scores_of(i)
    if named["BETA"] != PER_ROW.value:  # a number would be float32 in a kernel, and round differently from the CPU's
        beta = (named["z"].new_full((1,), x, dtype=torch.float64) for x in i.distribution.beta)
        named |= dict(zip(("hi", "lo"), beta, strict=True)) | {"BETA": PER_ROW.value}
    named |= seeds_of(i, named["z"].shape[0]) | found | {"size": size, "index": index, "draws": i.draws}
    if index.numel():
        triton_ranks.run(named, logprob)
    size.masked_fill_(size < i.draws, 0)
