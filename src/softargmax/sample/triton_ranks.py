"""CUDA kernels of draws without replacement, in Triton: the columns with the largest beta (z - m) + g, in order.

Both terms, and their sum, have the bits of the CPU's kernel. A program ranks a part of a row: it takes the largest sum
of the part, and then the largest one that is left. Then a program ranks a row: it takes the largest of the first sums
of the parts that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.triton_launch import RUNTIME, Block, cdiv, launch, next_power_of_2
from softargmax.core.triton_math import INF
from softargmax.core.triton_philox import words_of_block
from softargmax.core.triton_rows import offsets
from softargmax.sample.triton_noise import gumbel64
from softargmax.sample.triton_scores import beta_per_row, distance64, load_part, store_draws

if TYPE_CHECKING:
    from torch import Tensor

PART = 1024
"""Scores that a program ranks."""
_SCORES_PER_THREAD = 4
_NONE = tl.constexpr(1 << 30)
_EMPTY = tl.constexpr(-1)


@triton.jit(do_not_specialize=RUNTIME)
def rank_parts(
    z, where, hi, lo, edge, tie, seed, stream, top, sums, columns,
    scores, parts, each, beta_hi, beta_lo, z_o, z_k, where_o, where_k, beta_o, seed_o,
    BETA: tl.constexpr, MASKED: tl.constexpr, STREAM: tl.constexpr, ALIGN: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The `each` largest sums of a part of a row, in order, and their columns. A sum of -inf is that of no column."""
    row = (tl.program_id(0) // parts).to(tl.int64) + tl.zeros([1], tl.int64)
    part = tl.program_id(0) % parts
    scores = scores // ALIGN * ALIGN
    z_at, where_at = offsets(row, 1, 0, z_o, True, ALIGN), offsets(row, 1, 0, where_o, True)
    beta, beta_rest = beta_per_row(hi, lo, row * beta_o, row >= 0, beta_hi, beta_lo, BETA)
    key = tl.load(seed + row * seed_o)[:, None]
    own = row
    if STREAM:
        own = tl.load(stream + row).to(tl.int64)
    x, k = load_part(
        z, where, tl.load(edge + row), tl.load(tie + row), beta == 0.0, z_at, where_at, row >= 0, part, scores,
        z_k, where_k, MASKED, True, SCORES,
    )  # fmt: skip
    m = tl.load(top + row)[:, None]
    x = tl.where(m == INF, tl.where(x == INF, 0.0, -INF), x)
    m = tl.where(m == INF, 0.0, m)
    none = tl.zeros([1, 1], tl.int64)
    w1 = words_of_block(part * SCORES, key, own[:, None], none, 0, SCORES)
    w2 = words_of_block(part * SCORES, key, own[:, None], none, 1, SCORES)
    distance = tl.where(beta[:, None] == INF, 0.0, distance64(x, m, beta[:, None], beta_rest[:, None]))
    left = tl.where(x > -INF, distance + gumbel64(w1, w2), -INF)
    at = (row * parts + part) * each
    for rank in range(each):
        best = tl.max(left, axis=1)
        column = tl.min(tl.where(left == best[:, None], k, _NONE), axis=1)
        tl.store(sums + at + rank, best)
        tl.store(columns + at + rank, column)
        left = tl.where(k == column[:, None], -INF, left)


@triton.jit(do_not_specialize=(*RUNTIME, "draws"))
def rank_rows(
    z, hi, lo, size, top, log_l, sums, columns, index, logprob,
    draws, parts, each, beta_hi, beta_lo, z_o, z_k, beta_o,
    BETA: tl.constexpr, LOGPROB: tl.constexpr, PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The columns of a row in order, from those of its parts. -1 for a row with fewer classes than draws."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    part = tl.arange(0, PARTS)[None, :]
    exists, enough = row >= 0, tl.load(size + row) >= draws
    beta, beta_rest = beta_per_row(hi, lo, row * beta_o, exists, beta_hi, beta_lo, BETA)
    at = (row[:, None] * parts + part) * each
    taken = tl.zeros([1, PARTS], tl.int32)
    for draw in range(draws):
        here = (part < parts) & (taken < each)
        first = tl.load(sums + at + taken, mask=here, other=-INF)
        column = tl.load(columns + at + taken, mask=here, other=_NONE)
        place = tl.min(tl.where(first == tl.max(first, axis=1)[:, None], column, _NONE), axis=1)
        taken += (part == place[:, None] // SCORES).to(tl.int32)
        place = tl.where(enough, place, _EMPTY)
        store_draws(
            z, top, log_l, index, logprob, row * draws + draw, row, place, row * z_o, exists, z_k, beta, beta_rest,
            LOGPROB,
        )  # fmt: skip


def run(named: dict[str, Any], logprob: Tensor | None) -> None:
    """Launch the draws, with the arguments that all kernels of draws share, and with the numbers of the filters."""
    z, draws = named["z"], named["draws"]
    rows, scores = z.shape
    part = min(max(next_power_of_2(scores), 4), PART)
    parts, each = cdiv(scores, part), min(draws, part)
    named |= {"parts": parts, "each": each, "SCORES": part, "PARTS": next_power_of_2(parts)}
    named["sums"] = z.new_empty(rows * parts * each, dtype=torch.float64)
    named["columns"] = z.new_empty(rows * parts * each, dtype=torch.int32)
    named |= {"logprob": z if logprob is None else logprob, "LOGPROB": logprob is not None}
    launch(rank_parts, Block((rows * parts,), max(1, part // (32 * _SCORES_PER_THREAD)), {}), **named)
    launch(rank_rows, Block((rows,), max(1, min(8, named["PARTS"] // 128)), {}), **named)
