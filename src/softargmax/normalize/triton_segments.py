"""CUDA kernels of segments: softmax, log_softmax and logsumexp of rows of different lengths, in Triton.

A program has one segment of one column. It merges the states of pieces of 256 scores one by one, and
then writes results from the last piece to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from softargmax.core.triton_launch import (
    RUNTIME,
    STAGES,
    Block,
    beta_of,
    define,
    launch,
    served,
)
from softargmax.core.triton_math import INF
from softargmax.core.triton_rows import fold_any, load_beta, load_scores, store_block
from softargmax.core.triton_state import log_of, lse_of, merge, ratio_of_any, scale_of, smooth_maximum
from softargmax.normalize import segment_operations
from softargmax.normalize.triton_derivatives import LOG_SOFTMAX, SOFTMAX
from softargmax.normalize.triton_kernels import LOGSUMEXP, write_parts

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 256
"""Scores per piece of a segment. It depends on nothing else, because it fixes the order of sums."""


@triton.jit
def bounds_of(bounds, segment, good, count, scores):
    """Where a segment begins and ends. If the bounds are wrong, each segment has an equal share of the scores."""
    each = (scores + count - 1) // count
    first = tl.where(good, tl.load(bounds + segment), tl.minimum(segment * each, scores))
    return first, tl.where(good, tl.load(bounds + segment + 1), tl.minimum(segment * each + each, scores))


@triton.jit(do_not_specialize=RUNTIME)
def segment_rows(
    z, bounds, valid, hi, lo, out, lse,
    count, inner, scores, beta_hi, beta_lo, z_o, z_i, out_o, out_i,
    WHAT: tl.constexpr, BETA: tl.constexpr, LSE: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr,
    SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One segment of one column."""
    segment = tl.program_id(0).to(tl.int64) // inner
    column = tl.program_id(0).to(tl.int64) % inner + tl.zeros([1], tl.int64)
    good = tl.load(valid) != 0
    first, last = bounds_of(bounds, segment, good, count, scores)
    n, row = last - first, segment * inner + column
    sign, h, l = load_beta(hi, lo, row, column >= 0, beta_hi, beta_lo, BETA)
    z_at, out_at = first * z_o + column * z_i, first * out_o + column * out_i
    m, r = tl.full([1], -INF, tl.float32), tl.full([1], -1.0, tl.float64)
    for at in range(0, n, SCORES):
        k = at + tl.arange(0, SCORES).to(tl.int64)[None, :]
        x = load_scores(z, z_at[:, None] + k * z_o, z, k, k < n, sign, BETA, False, False)
        m_x, rest = fold_any(
            x, z, z_at, z_o, z, z_at, 0, column >= 0, at, n, sign, h, l, BETA, False, FAST, VECTOR, SCORES
        )
        r_x = ratio_of_any(rest, m_x, h, l, BETA > 0, FAST)
        m, r = merge(tl.join(m, m_x), tl.join(r, r_x), h, l, BETA > 0)
    r = tl.where(good, r, float("nan"))
    if WHAT == LOGSUMEXP:
        tl.store(out + row, (smooth_maximum(m, r, h, l, BETA > 0) * sign).to(out.dtype.element_ty))
    elif good:
        a, b = scale_of(m, r, h, l, BETA > 0, FAST)
        write_parts(
            z, z_at, z_o, z, z_at, 0, out, out_at, out_o, 0, n // SCORES, (n + SCORES - 1) // SCORES, n, sign,
            m, a, b, log_of(r), h, l, WHAT, BETA, False, FAST, False, SCORES, STAGES,
        )  # fmt: skip
    else:
        nothing = tl.full([1, SCORES], float("nan"), tl.float32)
        for at in range(0, n, SCORES):
            k = at + tl.arange(0, SCORES).to(tl.int64)[None, :]
            inside = k < n
            store_block(out, out_at[:, None] + k * out_o, nothing, inside, False)
    if LSE:
        tl.store(lse + row, lse_of(m, r, h, l, BETA > 0).to(lse.dtype.element_ty))


def segment_softmax(i: Any, r: Any) -> None:
    """Compute p, and lse if there is memory for it."""
    _run(segment_operations.segment_softmax, SOFTMAX, i, r, *r)


def segment_log_softmax(i: Any, r: Any) -> None:
    """Compute log p, and lse if there is memory for it."""
    _run(segment_operations.segment_log_softmax, LOG_SOFTMAX, i, r, *r)


def segment_logsumexp(i: Any, r: Any) -> None:
    """Compute the smooth maximum of each segment."""
    _run(segment_operations.segment_logsumexp, LOGSUMEXP, i, r, *r)


def _run(operation: Any, what: tl.constexpr, i: Any, r: Any, out: Tensor, lse: Tensor | None = None) -> None:
    z, offsets = i.z, i.offsets.contiguous()
    laid = all(x.ndim <= 2 or x.is_contiguous() for x in (z, out))
    if not (laid and len(offsets) > 1 and served(z, out, lse, beta=i.beta)):
        define(operation, i, r)
        return
    segments, scores = len(offsets) - 1, len(z)
    inner = z.numel() // scores
    flat, memory = z.reshape(scores, inner), out.view(-1, inner)
    per_row, beta = beta_of(i.beta)
    scales = {name: x.expand(segments, *z.shape[1:]).reshape(-1) for name, x in per_row.items()}
    valid = (offsets[1:] >= offsets[:-1]).all() & (offsets[0] == 0) & (offsets[-1] == scores)
    named: dict[str, Any] = {"hi": flat, "lo": flat, "lse": flat if lse is None else lse} | scales | beta
    named |= {"z": flat, "bounds": offsets, "valid": valid, "out": memory, "count": segments, "inner": inner}
    named |= {"scores": scores, "z_o": flat.stride(0), "z_i": flat.stride(1), "out_o": memory.stride(0)}
    named |= {"out_i": memory.stride(1), "WHAT": what.value, "LSE": lse is not None, "STAGES": STAGES}
    named |= {"FAST": z.dtype.itemsize == out.dtype.itemsize == 2, "VECTOR": 16 // z.dtype.itemsize}
    launch(segment_rows, Block((segments * inner,), 2, {"SCORES": PIECE}), **named)
