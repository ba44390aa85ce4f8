"""Vector-Jacobian products of softmax, log_softmax and logsumexp in Triton: formulas for a block, loops over parts."""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, exp_block
from softargmax.core.triton_rows import store_block
from softargmax.core.triton_state import row_sum

SOFTMAX, LOG_SOFTMAX, LOGSUMEXP = (tl.constexpr(k) for k in range(3))


@triton.jit
def slopes(y, g, lse, WHAT: tl.constexpr, KIND: tl.constexpr):
    """Return the support, p, g, and the terms of the sum in each row's gradient. They are 0 outside the support."""
    if WHAT == LOG_SOFTMAX:
        inside = (y != -INF) & (lse != INF)[:, None]
        p = tl.where(inside, exp_block(tl.where(inside, y, 0.0)), 0.0)
    else:
        inside = y != 0.0
        if WHAT == SOFTMAX:
            inside = inside & (lse != INF)[:, None]
        p = tl.where(inside, y, 0.0)
    g = tl.where(inside, g, 0.0)
    summands = g.to(KIND)
    if WHAT == SOFTMAX:
        summands = p.to(KIND) * summands
    return inside, p, g, summands


@triton.jit
def gradient(inside, p, g, total, beta, WHAT: tl.constexpr):
    """beta p (g - <p, g>), or beta (g - p <1, g>), or p g. `total` is the sum of the row, in float64."""
    a = total.to(tl.float32)
    b = (total - a.to(tl.float64)).to(tl.float32)
    if WHAT == SOFTMAX:
        slope = p * ((g - a[:, None]) - b[:, None]) * beta
    elif WHAT == LOG_SOFTMAX:
        slope = tl.fma(-p, b[:, None], tl.fma(-p, a[:, None], g)) * beta
    else:
        slope = p * g
    return tl.where(inside, slope, 0.0)


@triton.jit
def part_vjp(
    y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, part, scores, of_lse, total, beta,
    WHAT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, WRITES: tl.constexpr, WHOLE: tl.constexpr,
    PARTS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Compute the sum of a part of a row, or write its gradient."""
    k = (part * tl.full([], SCORES, tl.int64) + tl.arange(0, SCORES).to(tl.int64))[None, :]
    inside = tl.arange(0, SCORES)[None, :] < scores - part * SCORES
    if WHOLE:
        of_y, of_g = tl.load(y + y_at[:, None] + k * y_k), tl.load(g + g_at[:, None] + k * g_k)
    else:
        nothing = -INF if WHAT == LOG_SOFTMAX else 0.0
        of_y = tl.load(y + y_at[:, None] + k * y_k, mask=inside, other=nothing)
        of_g = tl.load(g + g_at[:, None] + k * g_k, mask=inside, other=0.0)
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    support, p, of_g, summands = slopes(of_y.to(tl.float32), of_g.to(tl.float32), of_lse, WHAT, KIND)
    if WRITES:
        found = gradient(support, p, of_g, total, beta, WHAT)
        store_block(out, out_at[:, None] + k * out_k, found, inside, WHOLE)
    else:
        of_part = row_sum(summands, VECTOR, KIND).to(tl.float64)
        tl.store(r_parts + row * PARTS + part + tl.zeros([1], tl.int64), of_part)


@triton.jit
def parts_vjp(
    y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, first, full, last, scores, of_lse, total, beta,
    WHAT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, WRITES: tl.constexpr, WHOLE: tl.constexpr,
    PARTS: tl.constexpr, SCORES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the sums of parts `first` to `last`, or write their gradients from the last to the first."""
    if not WHOLE:
        if full < last:
            part_vjp(
                y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, full, scores, of_lse, total, beta,
                WHAT, FAST, VECTOR, WRITES, False, PARTS, SCORES,
            )  # fmt: skip
    for part in tl.range(first, full, num_stages=STAGES):
        here = first + full - 1 - part if WRITES else part
        part_vjp(
            y, y_at, y_k, g, g_at, g_k, out, out_at, out_k, r_parts, row, here, scores, of_lse, total, beta,
            WHAT, FAST, VECTOR, WRITES, True, PARTS, SCORES,
        )  # fmt: skip
