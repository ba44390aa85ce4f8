"""The loss and its gradient in Triton: targets and weights, and formulas for the numbers of a row and for a block."""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, less_one, log1p
from softargmax.core.triton_rows import load_block
from softargmax.core.triton_state import lse_of, row_sum


@triton.jit
def load_of_target(
    z, at, where, where_at, weight, weight_at, exists, ignored, sign, MASKED: tl.constexpr, WEIGHTED: tl.constexpr
):
    """The score and the weight of each row's class. The score is -inf outside the support."""
    x_t = tl.load(z + at, mask=exists, other=0.0).to(tl.float32) * sign
    x_t = tl.where(ignored, 0.0, x_t)
    if MASKED:
        x_t = tl.where(tl.load(where + where_at, mask=exists, other=0) != 0, x_t, -INF)
    w_t = tl.full(sign.shape, 1.0, tl.float32)
    if WEIGHTED:
        w_t = tl.load(weight + weight_at, mask=exists, other=0.0).to(tl.float32)
    return x_t, w_t


@triton.jit
def load_weights(weight, at, inside, WEIGHTED: tl.constexpr, PIECES: tl.constexpr = 1):
    """The weights of a block of scores, or 1."""
    if WEIGHTED:
        w = load_block(weight, at, inside, 0.0, PIECES, False).to(tl.float32)
    else:
        w = tl.full([1, 1], 1.0, tl.float32)
    return w


@triton.jit
def smoothing_sums(x, w, hi, lo, VECTOR: tl.constexpr):
    """Return the number of scores in the support, and the sums of w, of w x and of w over finite scores, in float64."""
    inside = (x > -INF) | (x != x)
    weight = tl.where(inside, w, 0.0).to(tl.float64)
    is_finite = tl.where(x < INF, 1.0, 0.0).to(tl.float64)
    of_x = tl.where(inside, x, 0.0).to(tl.float64) * (hi.to(tl.float64) + lo.to(tl.float64))[:, None]
    n = tl.sum(inside.to(tl.int32), axis=1).to(tl.float64)
    weighted = row_sum(weight * of_x, VECTOR, tl.float64)
    return n, row_sum(weight, VECTOR, tl.float64), weighted, row_sum(weight * is_finite, VECTOR, tl.float64)


@triton.jit
def loss_of(
    m, r, hi, lo, x_t, w_t, n, weights, weighted, finite, smoothing, z_loss, SMOOTH: tl.constexpr, SCALED: tl.constexpr
):
    """The loss of each row, and three factors of its gradient, in float64.

    The gradient is p_k `of_p` - w_k `of_w` for the classes k != t, and `at_t` for k = t.
    """
    lse, log_l = lse_of(m, r, hi, lo, SCALED), log1p(r).to(tl.float64)
    distance = tl.where(x_t == m, 0.0, x_t.to(tl.float64) - m.to(tl.float64))
    if SCALED:
        distance = distance * (hi.to(tl.float64) + lo.to(tl.float64))
    minus_log_p = tl.where(x_t == -INF, INF + 0.0 * r, log_l - distance)
    w = w_t.to(tl.float64) * (1.0 - smoothing)
    loss = tl.where(w == 0.0, 0.0 * r, w * minus_log_p)
    of_each = w * 0.0
    total = w
    if SMOOTH:
        of_each = smoothing / tl.where(n == 0.0, 1.0, n)
        total = w + of_each * weights
        smoothed = tl.where(m == INF, tl.where(finite > 0.0, INF, weights * log_l), weights * lse - weighted)
        loss += tl.where(weights == 0.0, 0.0 * r, of_each * smoothed)
    loss += tl.where(z_loss == 0.0, 0.0, z_loss * lse * lse)
    loss = tl.where((m == -INF) & (r == r), INF, loss)
    constant = tl.abs(lse) == INF
    of_z = tl.where(constant | (z_loss == 0.0), 0.0, 2.0 * z_loss * lse)
    less = less_one(-minus_log_p).to(tl.float64)  # p_t - 1
    m_t = w + of_each * w_t.to(tl.float64)
    at_t = (1.0 + less) * (total - m_t + of_z) + m_t * less
    keep = tl.where(constant, 0.0, 1.0)
    return loss, (total + of_z) * keep, of_each * keep, tl.where(constant | (x_t == -INF), 0.0, at_t)


@triton.jit
def slopes(p, x, w, of_p, of_w, SMOOTH: tl.constexpr):
    """The gradient of a block of scores but those of targets. It is 0 outside the support."""
    slope = p * of_p[:, None]
    if SMOOTH:
        slope = tl.where(x == -INF, 0.0, tl.fma(-w, of_w[:, None], slope))
    return slope


@triton.jit
def finished(results, ignored, wrong):
    """Set the results of ignored rows to 0, and those of rows whose class is out of range to NaN."""
    return tl.where(ignored, 0.0, tl.where(wrong, float("nan"), results))


@triton.jit
def factors_of(factor, of_p, of_w, at_t, x_t, ignored, wrong):
    """The factors of the gradient in float32, times the incoming gradient."""
    of_p = finished(of_p * factor, ignored, wrong).to(tl.float32)
    of_w = finished(of_w * factor, ignored, wrong).to(tl.float32)
    at_t = finished(tl.where(x_t == -INF, 0.0, at_t * factor), ignored, wrong).to(tl.float32)
    return of_p, of_w, at_t
