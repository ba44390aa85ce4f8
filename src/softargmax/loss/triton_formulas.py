"""The loss and its gradient in Triton: targets and masses, and formulas for the numbers of a row and for a block.

The mass u_k of a class is its weight with label smoothing, and its probability with probabilities as targets.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, cap_slope, capped, less_one, log1p
from softargmax.core.triton_rows import load_block, load_state, load_sum, load_target
from softargmax.core.triton_state import is_limit, lse_of, row_sum, scale_of

CLASS, SMOOTH, SOFT = (tl.constexpr(k) for k in range(3))
"""Targets: a class of each row, a class with label smoothing, or probabilities."""
NONE, SAVE, LOAD = (tl.constexpr(k) for k in range(3))
"""What a kernel does with the states of rows: nothing, save them, or load them in place of computing them."""


@triton.jit
def load_class(target, at, exists, scores, ignore_index, TARGET: tl.constexpr):
    """The class of each row, 0 if there is none, and whether the row is ignored or its class is out of range."""
    if TARGET == SOFT:
        t = tl.zeros_like(at)
        ignored, wrong = t > 0, t > 0
    else:
        t, ignored, wrong = load_target(target, at, exists, scores, ignore_index)
    return tl.where(ignored | wrong, 0, t), ignored, wrong


@triton.jit
def load_of_class(
    z, at, where, where_at, weight, weight_at, exists, ignored, sign, softcap,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The score and the weight of each row's class, and the slope of its soft-cap.

    The score is -inf outside the support.
    """
    x_t = tl.load(z + at, mask=exists, other=0.0).to(tl.float32) * sign
    x_t = tl.where(ignored, 0.0, x_t)
    w_t = tl.full(sign.shape, 1.0, tl.float32)
    slope_t = tl.full(sign.shape, 1.0, tl.float32)
    if SOFTCAP:
        slope_t = cap_slope(x_t, softcap)
        x_t = capped(x_t, softcap, SOFTCAP)
    if MASKED:
        x_t = tl.where(tl.load(where + where_at, mask=exists, other=0) != 0, x_t, -INF)
    if WEIGHTED:
        w_t = tl.load(weight + weight_at, mask=exists, other=0.0).to(tl.float32)
    return x_t, w_t, slope_t


# --- sums over masses -------------------------------------------------------------------------------------------------


@triton.jit
def load_masses(weight, at, inside, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, PIECES: tl.constexpr = 1):
    """The masses of a block of scores. They are 1 without weights, and if a class is the only target."""
    if WEIGHTED and TARGET != CLASS:
        u = load_block(weight, at, inside, 0.0, PIECES, False).to(tl.float32)
    else:
        u = tl.full([1, 1], 1.0, tl.float32)
    return u


@triton.jit
def mass_sums(u, x, m, hi, lo, TARGET: tl.constexpr, VECTOR: tl.constexpr):
    """The sums of a block with maximum m, in float64: n, mass, far and below.

    n is the number of scores in the support; with probabilities, the mass outside it. `mass` is the mass in the
    support, `below` that of scores below m, and `far` the sum of u |beta| (m - x). All are 0 if a class is the only
    target.
    """
    n = tl.zeros(m.shape, tl.float64)
    mass, far, below = n, n, n
    if TARGET != CLASS:
        inside = (x > -INF) | (x != x)
        lower = (x > -INF) & (x < m[:, None])
        if TARGET == SOFT:
            n = row_sum(tl.where(inside, 0.0, u), VECTOR, tl.float64)
        else:
            n = tl.sum(inside.to(tl.int32), axis=1).to(tl.float64)
        mass = row_sum(tl.where(inside, u, 0.0), VECTOR, tl.float64)
        u = tl.where(lower, u, 0.0).to(tl.float64)
        distance = tl.where(lower, m.to(tl.float64)[:, None] - x.to(tl.float64), 0.0)
        far = row_sum(u * distance, VECTOR, tl.float64) * (hi.to(tl.float64) + lo.to(tl.float64))
        below = row_sum(u, VECTOR, tl.float64)
    return n, mass, far, below


@triton.jit
def load_mass_sums(sums, m_parts, row, count, parts, m, hi, lo, TARGET: tl.constexpr, PARTS: tl.constexpr):
    """Merge the sums of the parts of a row, which are relative to the maximum of each part."""
    n = tl.zeros(m.shape, tl.float64)
    mass, far, below = n, n, n
    if TARGET != CLASS:
        part, step = tl.arange(0, PARTS), count.to(tl.int64) * PARTS
        at, exists = row * PARTS + part, part < parts
        m_part = tl.load(m_parts + at, mask=exists, other=-INF, cache_modifier=".cg")[None, :]
        masses = tl.load(sums + step + at, mask=exists, other=0.0, cache_modifier=".cg")[None, :]
        of_part = tl.load(sums + 3 * step + at, mask=exists, other=0.0, cache_modifier=".cg")[None, :]
        lower = (m_part > -INF) & (m_part < m[:, None])
        distance = tl.where(lower, m.to(tl.float64)[:, None] - m_part.to(tl.float64), 0.0)
        n, mass = load_sum(sums, row, parts, PARTS), load_sum(sums + step, row, parts, PARTS)
        far = row_sum(masses * distance, 1, tl.float64) * (hi.to(tl.float64) + lo.to(tl.float64))
        far += load_sum(sums + 2 * step, row, parts, PARTS)
        below = row_sum(tl.where(lower, masses, of_part), 1, tl.float64)
    return n, mass, far, below


# --- saved states -----------------------------------------------------------------------------------------------------


@triton.jit
def save_state(state_m, state_r, state_n, at, exists, m, r, n, mass, TARGET: tl.constexpr):
    """Save what the gradient needs: the state (m, r), and the number of scores in the support, or all mass."""
    tl.store(state_m + at, m.to(tl.float64), mask=exists)
    tl.store(state_r + at, r, mask=exists)
    tl.store(state_n + at, n + mass if TARGET == SOFT else n, mask=exists)


@triton.jit
def load_saved(state_m, state_r, state_n, at, exists, TARGET: tl.constexpr):
    """Return m, r, n and mass as the forward pass has saved them. The masses are those of classes without weights."""
    m = tl.load(state_m + at, mask=exists, other=0.0).to(tl.float32)
    r = tl.load(state_r + at, mask=exists, other=0.0)
    mass = tl.load(state_n + at, mask=exists, other=0.0)
    return m, r, tl.zeros_like(mass) if TARGET == SOFT else mass, mass


@triton.jit
def load_row(
    m_parts, r_parts, sums, state_m, state_r, state_n, state_at, row, count, parts, hi, lo,
    BETA: tl.constexpr, TARGET: tl.constexpr, STATES: tl.constexpr, FAST: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Return the saved state of a row, or merge those of its parts. Return m, r, n, mass, far and below."""
    exists = state_at >= 0
    if STATES == LOAD:
        m, r, n, mass = load_saved(state_m, state_r, state_n, state_at, exists, TARGET)
        far, below = r, r
    else:
        m, r = load_state(m_parts, r_parts, row, parts, hi, lo, BETA > 0, FAST, PARTS)
        n, mass, far, below = load_mass_sums(sums, m_parts, row, count, parts, m, hi, lo, TARGET, PARTS)
    if STATES == SAVE:
        save_state(state_m, state_r, state_n, state_at, exists, m, r, n, mass, TARGET)
    return m, r, n, mass, far, below


# --- the numbers of a row ---------------------------------------------------------------------------------------------


@triton.jit
def loss_of(m, r, hi, lo, x_t, w_t, n, mass, far, below, smoothing, z_loss, TARGET: tl.constexpr, SCALED: tl.constexpr):
    """The loss of each row, and three factors of its gradient, in float64.

    The gradient is p_k `of_p` - u_k `of_u` for the classes k != t, and `at_t` for k = t. With probabilities as targets,
    `at_t` is 1 - p of a maximum.
    """
    lse, log_l = lse_of(m, r, hi, lo, SCALED), log1p(r).to(tl.float64)
    limit = is_limit(m, hi)
    distance = tl.where(x_t == m, 0.0, x_t.to(tl.float64) - m.to(tl.float64))
    if SCALED:
        scaled = distance * (hi.to(tl.float64) + lo.to(tl.float64))
        distance = tl.where(limit, tl.where(x_t < m, -INF, distance), scaled)
    minus_log_p = tl.where(x_t == -INF, INF + 0.0 * r, log_l - distance)
    w = w_t.to(tl.float64) * (1.0 - smoothing)
    loss = tl.where(w == 0.0, 0.0 * r, w * minus_log_p)
    of_each = w * 0.0
    total = w
    if TARGET != CLASS:
        if TARGET == SOFT:
            of_each += 1.0
            total += n
            loss += tl.where(n > 0.0, INF, 0.0)
        else:
            of_each += smoothing / tl.where(n == 0.0, 1.0, n)
        total += of_each * mass
        of_masses = tl.where(limit, tl.where(below > 0.0, INF, mass * log_l), tl.fma(mass, log_l, far))
        loss += tl.where(mass == 0.0, 0.0 * r, of_each * of_masses)
    loss += tl.where(z_loss == 0.0, 0.0, z_loss * lse * lse)
    loss = tl.where((m == -INF) & (r == r), INF, loss)
    constant = tl.abs(lse) == INF
    of_z = tl.where(constant | (z_loss == 0.0), 0.0, 2.0 * z_loss * lse)
    if TARGET == SOFT:
        at_t = r / (1.0 + r)
    else:
        less = less_one(-minus_log_p).to(tl.float64)  # p_t - 1
        m_t = w + of_each * w_t.to(tl.float64)
        at_t = (1.0 + less) * (total - m_t + of_z) + m_t * less
    keep = tl.where(constant, 0.0, 1.0)
    return loss, (total + of_z) * keep, of_each * keep, tl.where(constant | (x_t == -INF), 0.0, at_t)


@triton.jit
def factors_of(factor, of_p, of_u, at_t, x_t, slope_t, ignored, wrong, TARGET: tl.constexpr):
    """The factors of the gradient in float32, times the incoming gradient.

    With probabilities as targets, `at_t` becomes what `slopes` adds for a maximum. There p of_p - u of_u is computed as
    of_p - u of_u - (1 - p) of_p, in which of_p has more digits than float32, because u may be near p.
    """
    to_u = of_u * factor
    if TARGET == SOFT:
        to_u = to_u.to(tl.float32).to(tl.float64)
        to_p = to_u * of_p
        rounded = to_p.to(tl.float32).to(tl.float64)
        to_t = tl.where(tl.abs(rounded) < INF, to_p - rounded, 0.0) - to_p * at_t
    else:
        to_p = of_p * factor
        to_t = tl.where(x_t == -INF, 0.0, at_t * factor * slope_t.to(tl.float64))
    to_p, to_u = finished(to_p, ignored, wrong).to(tl.float32), finished(to_u, ignored, wrong).to(tl.float32)
    return to_p, to_u, finished(to_t, ignored, wrong).to(tl.float32)


@triton.jit
def numbers_of(
    z, z_at, z_k, where, where_at, where_k, weight, weight_at, weight_k, seed, seed_at, t, exists, ignored, wrong, sign,
    m, r, h, l, n, mass, far, below, smoothing, z_loss, softcap,
    BETA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, TARGET: tl.constexpr, SOFTCAP: tl.constexpr,
    FAST: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Return the loss of each row, and the factors of its gradient: of_p, of_u, at_t, and those of `probabilities`."""
    x_t, w_t, slope_t = m, tl.zeros_like(m), tl.zeros_like(m)
    if TARGET != SOFT:
        x_t, w_t, slope_t = load_of_class(
            z, z_at + t * z_k, where, where_at + t * where_k, weight, weight_at + t * weight_k, exists, ignored, sign,
            softcap, MASKED, WEIGHTED, SOFTCAP,
        )  # fmt: skip
    loss, to_p, to_u, to_t = loss_of(m, r, h, l, x_t, w_t, n, mass, far, below, smoothing, z_loss, TARGET, BETA > 0)
    of_p, of_u, at_t, a, b = m, m, m, m, m
    if GRADIENT:
        beta = tl.where(h == INF, 0.0, sign.to(tl.float64) * (h.to(tl.float64) + l.to(tl.float64)))
        factor = tl.load(seed + seed_at, mask=exists, other=0.0) * beta
        of_p, of_u, at_t = factors_of(factor, to_p, to_u, to_t, x_t, slope_t, ignored, wrong, TARGET)
        a, b = scale_of(m, r, h, l, BETA > 0, FAST)
    return finished(loss, ignored, wrong), of_p, of_u, at_t, a, b


# --- the gradient of a block ------------------------------------------------------------------------------------------


@triton.jit
def slopes(p, x, raw, u, m, of_p, of_u, at_t, softcap, TARGET: tl.constexpr, SOFTCAP: tl.constexpr):
    """The gradient of a block of scores but those of the rows' classes. It is 0 outside the support.

    x are the scores, and `raw` those before the soft-cap.
    """
    slope = p * of_p[:, None]
    if TARGET == SOFT:
        top = x == m[:, None]
        slope = tl.fma(-u, of_u[:, None], tl.where(top, of_p[:, None], slope)) + tl.where(top, at_t[:, None], 0.0)
    elif TARGET == SMOOTH:
        slope = tl.fma(-u, of_u[:, None], slope)
    if SOFTCAP:
        slope = slope * cap_slope(raw, softcap)
    if TARGET != CLASS:
        slope = tl.where(x == -INF, 0.0, slope)
    return slope


@triton.jit
def finished(results, ignored, wrong):
    """Set the results of ignored rows to 0, and those of rows whose class is out of range to NaN."""
    return tl.where(ignored, 0.0, tl.where(wrong, float("nan"), results))
