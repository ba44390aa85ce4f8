"""CUDA kernels of segments: softmax, log_softmax, logsumexp and gradients of rows of different lengths, in Triton.

A program has one segment of one column. It merges the states of pieces of 256 scores one by one, and
then writes results from the last piece to the first. A gradient adds up the sums of pieces in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from softargmax.core.scale import UNIT
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
from softargmax.core.triton_rows import fold_any, load_beta, load_block, load_scores, store_block
from softargmax.core.triton_state import log_of, lse_of, merge, ratio_of_any, row_sum, scale_of, smooth_maximum
from softargmax.normalize import segment_operations
from softargmax.normalize.triton_derivatives import LOG_SOFTMAX, LOGSUMEXP, SOFTMAX, gradient, slopes
from softargmax.normalize.triton_kernels import write_parts

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.core.scale import Scale

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


@triton.jit
def load_piece(y, y_at, y_o, g, g_at, g_o, at, n, of_lse, WHAT: tl.constexpr, KIND: tl.constexpr, SCORES: tl.constexpr):
    """Return the support, p, g and the terms of the sum for a piece of a segment, its numbers, and which exist."""
    k = at + tl.arange(0, SCORES).to(tl.int64)[None, :]
    inside = k < n
    nothing = -INF if WHAT == LOG_SOFTMAX else 0.0
    of_y = load_block(y, y_at[:, None] + k * y_o, inside, nothing, 1, False).to(tl.float32)
    of_g = load_block(g, g_at[:, None] + k * g_o, inside, 0.0, 1, False).to(tl.float32)
    support, p, of_g, summands = slopes(of_y, of_g, of_lse, WHAT, KIND)
    return support, p, of_g, summands, k, inside


@triton.jit(do_not_specialize=RUNTIME)
def segment_slopes(
    y, lse, g, bounds, valid, hi, lo, out,
    count, inner, scores, beta_hi, beta_lo, y_o, y_i, g_o, g_i, out_o, out_i,
    WHAT: tl.constexpr, BETA: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The gradient of one segment of one column. For logsumexp, y is p, and g has one number per segment."""
    segment = tl.program_id(0).to(tl.int64) // inner
    column = tl.program_id(0).to(tl.int64) % inner + tl.zeros([1], tl.int64)
    first, last = bounds_of(bounds, segment, tl.load(valid) != 0, count, scores)
    n, row = last - first, segment * inner + column
    sign, h, _l = load_beta(hi, lo, row, column >= 0, beta_hi, beta_lo, BETA)
    beta = sign * tl.where(h == INF, 0.0, h)
    y_at, out_at = first * y_o + column * y_i, first * out_o + column * out_i
    g_at = (segment if WHAT == LOGSUMEXP else first) * g_o + column * g_i
    step = 0 if WHAT == LOGSUMEXP else g_o
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    of_lse, total = h, tl.zeros([1], tl.float64)
    if WHAT != LOGSUMEXP:
        of_lse = tl.load(lse + row).to(tl.float32)
        for at in range(0, n, SCORES):
            _support, _p, _g, summands, _k, _inside = load_piece(
                y, y_at, y_o, g, g_at, step, at, n, of_lse, WHAT, KIND, SCORES
            )
            total += row_sum(summands, VECTOR, KIND).to(tl.float64)
    for at in range(0, n, SCORES):
        support, p, of_g, _summands, k, inside = load_piece(
            y, y_at, y_o, g, g_at, step, at, n, of_lse, WHAT, KIND, SCORES
        )
        found = gradient(support, p, of_g, total, beta[:, None], WHAT)
        store_block(out, out_at[:, None] + k * out_o, found, inside, False)


# --- the kernels of the operations ------------------------------------------------------------------------------------


def segment_softmax(i: Any, r: Any) -> None:
    """Compute p, and lse if there is memory for it."""
    _run(segment_operations.segment_softmax, SOFTMAX, i, r, *r)


def segment_log_softmax(i: Any, r: Any) -> None:
    """Compute log p, and lse if there is memory for it."""
    _run(segment_operations.segment_log_softmax, LOG_SOFTMAX, i, r, *r)


def segment_logsumexp(i: Any, r: Any) -> None:
    """Compute the smooth maximum of each segment."""
    _run(segment_operations.segment_logsumexp, LOGSUMEXP, i, r, *r)


def segment_softmax_vjp(i: Any, r: Any) -> None:
    """Compute beta p (g - <p, g>)."""
    _vjp(segment_operations.segment_softmax_vjp, SOFTMAX, i, r, i.lse, i.beta)


def segment_log_softmax_vjp(i: Any, r: Any) -> None:
    """Compute beta (g - p <1, g>)."""
    _vjp(segment_operations.segment_log_softmax_vjp, LOG_SOFTMAX, i, r, i.lse, i.beta)


def segment_logsumexp_vjp(i: Any, r: Any) -> None:
    """Compute p g."""
    _vjp(segment_operations.segment_logsumexp_vjp, LOGSUMEXP, i, r, None, UNIT)


def _served(z: Tensor, offsets: Tensor, out: Tensor, beta: Scale, *others: Tensor | None) -> bool:
    """True if the kernels serve a call whose results are as long as z. Results have two strides."""
    laid = out.ndim <= 2 or out.is_contiguous()
    return laid and len(offsets) > 1 and served(z, out, *others, beta=beta)


def _shared(z: Tensor, offsets: Tensor, beta: Scale, /, **columns: Tensor) -> dict[str, Any]:
    """The arguments that both kernels have: the bounds, beta, and the arrays `columns`, as matrices with strides."""
    offsets, scores, segments = offsets.contiguous(), len(z), len(offsets) - 1
    per_row, named = beta_of(beta)
    valid = (offsets[1:] >= offsets[:-1]).all() & (offsets[0] == 0) & (offsets[-1] == scores)
    named |= {"bounds": offsets, "valid": valid, "count": segments, "inner": z.numel() // scores, "scores": scores}
    for name, x in columns.items():
        memory = x.view(len(x), -1) if name == "out" else x.reshape(len(x), -1)
        named |= {name: memory, f"{name}_o": memory.stride(0), f"{name}_i": memory.stride(1)}
    named |= {name: x.expand(segments, *z.shape[1:]).reshape(-1) for name, x in per_row.items()}
    return {"hi": z, "lo": z, "FAST": z.dtype.itemsize == 2, "VECTOR": 16 // z.dtype.itemsize} | named


def _run(operation: Any, what: tl.constexpr, i: Any, r: Any, out: Tensor, lse: Tensor | None = None) -> None:
    z = i.z
    if not _served(z, i.offsets, out, i.beta, lse):
        define(operation, i, r)
        return
    named = _shared(z, i.offsets, i.beta, z=z, out=out) | {"lse": z if lse is None else lse, "LSE": lse is not None}
    named |= {"WHAT": what.value, "STAGES": STAGES, "FAST": z.dtype.itemsize == out.dtype.itemsize == 2}
    launch(segment_rows, Block((named["count"] * named["inner"],), 2, {"SCORES": PIECE}), **named)


def _vjp(operation: Any, what: tl.constexpr, i: Any, r: Any, lse: Tensor | None, beta: Scale) -> None:
    (out,) = r
    if not _served(i.y, i.offsets, out, beta, i.g, lse):
        define(operation, i, r)
        return
    named = _shared(i.y, i.offsets, beta, y=i.y, g=i.g, out=out) | {"WHAT": what.value}
    named |= {"lse": i.y if lse is None else lse.reshape(-1), "FAST": out.dtype.itemsize == 2}
    launch(segment_slopes, Block((named["count"] * named["inner"],), 2, {"SCORES": PIECE}), **named)
