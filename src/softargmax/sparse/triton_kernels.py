"""CUDA kernels of the sparse maps, of their thresholds, and of their derivatives, in Triton.

A row of at most 16,384 scores stays in registers. A longer row belongs to one program, which reads its parts of 8,192
scores again in each step of the search, mostly from the cache. Both numbers are 4,096 for options that need registers
(`is_heavy`). core/triton_maps.py contains the mathematics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from softargmax.core.scale import UNIT, rounded
from softargmax.core.triton_launch import (
    ELEMENTS,
    PART,
    REGISTERS,
    RUNTIME,
    Block,
    Rows,
    beta_of,
    block,
    cdiv,
    define,
    launch,
    rows_of,
    served,
    wider,
)
from softargmax.core.triton_maps import (
    GENERAL,
    LINEAR,
    PAIR,
    PLAIN,
    ROUNDED,
    SQUARED,
    base_of,
    corrected,
    distances,
    exact_sums,
    inverse64,
    is_positive,
    log_block,
    order_of,
    powers,
    ratios,
    rough_sums,
    slope_of,
    solved,
    step,
    tau_of,
)
from softargmax.core.triton_math import INF, f32, f64
from softargmax.core.triton_rows import load_beta, load_scores, offsets, store_block
from softargmax.core.triton_state import any_of, is_limit, marked, row_sum, strange_rows, top_of, without_limits
from softargmax.sparse import operations

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-6
"""The smallest alpha - 1 that the kernels serve."""


# --- p, tau and the size of the support -------------------------------------------------------------------------------


@triton.jit
def inverse_of_total(total):
    """1 / total in float32, and 0 for an empty support."""
    return tl.where(total == 0.0, 0.0, inverse64(tl.where(total == 0.0, 1.0, total))).to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def whole_rows(
    z, where, hi, lo, out, tau, support,
    count, inner, scores, beta_hi, beta_lo, a_hi, a_lo, inverse_a,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, out_o, out_i, out_k, tau_o, tau_i, support_o, support_i,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, P: tl.constexpr,
    TAU: tl.constexpr, SUPPORT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr,
    WHOLE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, SCORES).to(tl.int64)
    scores = scores // ALIGN * ALIGN
    exists = row < count
    inside = exists[:, None] & (k < scores)[None, :]
    a = order_of(a_hi, a_lo)
    sign, h, l = load_beta(hi, lo, offsets(row, inner, beta_o, beta_i, FLAT), exists, beta_hi, beta_lo, BETA)
    at = offsets(row, inner, z_o, z_i, FLAT, ALIGN)[:, None] + k[None, :] * z_k
    where_at = offsets(row, inner, where_o, where_i, FLAT)[:, None] + k[None, :] * where_k
    x = load_scores(z, at, where, where_at, inside, sign, BETA, MASKED, WHOLE)
    m = top_of(x)
    limit = is_limit(m, h)
    m_x, h_x, l_x = without_limits(m, h, l)
    h_x, l_x = slope_of(h_x, l_x, a, MAP)
    d = distances(marked(x, m, h), m_x, h_x, l_x, SCALED)
    t, low, total = solved(d, a, inverse_a, MAP, FAST, VECTOR)
    if P:
        result, _v = powers(d, t, low, inverse_of_total(total), inverse_a, MAP, FAST)
        if any_of(limit | (t != t)):
            x = marked(load_scores(z, at, where, where_at, inside, sign, BETA, MASKED, WHOLE), m, h)
            result = strange_rows(result, x, 0.0, limit, t != t)
        out_at = offsets(row, inner, out_o, out_i, FLAT, ALIGN)[:, None] + k[None, :] * out_k
        store_block(out, out_at, result, inside, WHOLE)
    if TAU:
        h_a, l_a = slope_of(h, l, a, MAP)
        found = tau_of(m, h, h_a, l_a, base_of(t, low, total, a, MAP))
        tl.store(tau + offsets(row, inner, tau_o, tau_i, FLAT), found.to(tl.float32), mask=exists)
    if SUPPORT:
        n = tl.sum(is_positive(d, t, low, total, a, MAP).to(tl.int32), axis=1)
        n = tl.where(t == t, n, -1)
        tl.store(support + offsets(row, inner, support_o, support_i, FLAT), n.to(tl.int64), mask=exists)


@triton.jit
def part_of(
    z, where, z_at, where_at, part, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x,
    SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The distances of a part of a row."""
    k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)[None, :]
    x = load_scores(
        z, z_at[:, None] + k * z_k, where, where_at[:, None] + k * where_k, k < scores, sign, BETA, MASKED, WHOLE
    )
    return distances(marked(x, m, h), m_x, h_x, l_x, SCALED)


@triton.jit
def solved_parts(
    z, where, z_at, where_at, parts, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x, a, inverse_a,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr,
    VECTOR: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The threshold of a row in parts, as `solved` returns it. Sums of parts are added in the order of the parts."""
    t = 0.0 * h_x + 1.0
    more = 1
    while more > 0:
        first, second = 0.0 * t, 0.0 * t
        for part in range(parts):
            d = part_of(
                z, where, z_at, where_at, part, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x,
                SCALED, BETA, MASKED, WHOLE, SCORES,
            )  # fmt: skip
            of_first, of_second = rough_sums(d, t, inverse_a, MAP, VECTOR)
            first, second = first + of_first, second + of_second
        t, moves = step(t, first, second, a, MAP)
        more = tl.max(moves.to(tl.int32), axis=0)
    low = 0.0 * t
    total = 1.0 + low.to(tl.float64)
    if not FAST:
        sum_of_first, sum_of_second = 0.0 * total, 0.0 * total
        for part in range(parts):
            d = part_of(
                z, where, z_at, where_at, part, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x,
                SCALED, BETA, MASKED, WHOLE, SCORES,
            )  # fmt: skip
            one, other = exact_sums(d, t, inverse_a, MAP, VECTOR, tl.float64)
            sum_of_first, sum_of_second = sum_of_first + one, sum_of_second + other
        wide = corrected(t, sum_of_first, sum_of_second, a, MAP)
        t = wide.to(tl.float32)
        low = (wide - t.to(tl.float64)).to(tl.float32)
    if MAP == GENERAL:
        total = 0.0 * total
        for part in range(parts):
            d = part_of(
                z, where, z_at, where_at, part, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x,
                SCALED, BETA, MASKED, WHOLE, SCORES,
            )  # fmt: skip
            r, _u = ratios(d, t, inverse_a, FAST)
            total += row_sum(r, VECTOR, tl.float32 if FAST else tl.float64).to(tl.float64)
        t = tl.where(total == total, t, float("nan"))
    return t, low, total


@triton.jit
def top_of_parts(
    z, where, z_at, where_at, parts, scores, z_k, where_k, sign,
    BETA: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The maximum of a row in parts, without NaN."""
    m = 0.0 * sign - INF
    for part in range(parts):
        k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)[None, :]
        x = load_scores(
            z, z_at[:, None] + k * z_k, where, where_at[:, None] + k * where_k, k < scores, sign, BETA, MASKED, WHOLE
        )
        m = tl.maximum(m, tl.max(tl.where(x == x, x, -INF), axis=1))
    return m


@triton.jit(do_not_specialize=RUNTIME)
def long_rows(
    z, where, hi, lo, out, tau, support,
    count, inner, scores, parts, beta_hi, beta_lo, a_hi, a_lo, inverse_a,
    z_o, z_i, z_k, where_o, where_i, where_k, beta_o, beta_i, out_o, out_i, out_k, tau_o, tau_i, support_o, support_i,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, P: tl.constexpr,
    TAU: tl.constexpr, SUPPORT: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr,
    WHOLE: tl.constexpr, ALIGN: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Rows in parts, one program for each row."""
    one = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    scores = scores // ALIGN * ALIGN
    a = order_of(a_hi, a_lo)
    sign, h, l = load_beta(hi, lo, offsets(one, inner, beta_o, beta_i, FLAT), one < count, beta_hi, beta_lo, BETA)
    z_at, where_at = offsets(one, inner, z_o, z_i, FLAT, ALIGN), offsets(one, inner, where_o, where_i, FLAT)
    m = top_of_parts(z, where, z_at, where_at, parts, scores, z_k, where_k, sign, BETA, MASKED, WHOLE, SCORES)
    limit = is_limit(m, h)
    m_x, h_x, l_x = without_limits(m, h, l)
    h_x, l_x = slope_of(h_x, l_x, a, MAP)
    t, low, total = solved_parts(
        z, where, z_at, where_at, parts, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x, a, inverse_a,
        MAP, SCALED, BETA, MASKED, FAST, VECTOR, WHOLE, SCORES,
    )  # fmt: skip
    if TAU:
        h_a, l_a = slope_of(h, l, a, MAP)
        found = tau_of(m, h, h_a, l_a, base_of(t, low, total, a, MAP))
        tl.store(tau + offsets(one, inner, tau_o, tau_i, FLAT), found.to(tl.float32))
    n = tl.zeros([1], tl.int32)
    out_at = offsets(one, inner, out_o, out_i, FLAT, ALIGN)
    for part in range(parts):
        k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)[None, :]
        at, w_at = z_at[:, None] + k * z_k, where_at[:, None] + k * where_k
        x = load_scores(z, at, where, w_at, k < scores, sign, BETA, MASKED, WHOLE)
        d = distances(marked(x, m, h), m_x, h_x, l_x, SCALED)
        if P:
            result, _v = powers(d, t, low, inverse_of_total(total), inverse_a, MAP, FAST)
            if any_of(limit | (t != t)):
                x = marked(load_scores(z, at, where, w_at, k < scores, sign, BETA, MASKED, WHOLE), m, h)
                result = strange_rows(result, x, 0.0, limit, t != t)
            store_block(out, out_at[:, None] + k * out_k, result, k < scores, WHOLE)
        if SUPPORT:
            n += tl.sum(is_positive(d, t, low, total, a, MAP).to(tl.int32), axis=1)
    if SUPPORT:
        n = tl.where(t == t, n, -1)
        tl.store(support + offsets(one, inner, support_o, support_i, FLAT), n.to(tl.int64))


def entmax(i: Any, r: Any) -> None:
    """Compute p, and tau if there is memory for it."""
    out, tau = (*r, None)[:2]
    _solve(operations.entmax, i, (out, tau), out=out, tau=tau)


def threshold(i: Any, r: Any) -> None:
    """Compute tau and the size of the support."""
    tau, support = r
    _solve(operations.threshold, i, r, tau=tau, support=support)


def _solve(operation: Any, i: Any, r: Any, **results: Tensor | None) -> None:
    map_of = kind_of(i.alpha)
    if map_of is None or not served(i.z, *results.values(), beta=i.beta, axes=i.axes):
        define(operation, i, r)
        return
    per_row, beta = beta_of(i.beta)
    rows = rows_of(i.axes, tuple(results), z=i.z, where=i.where, **per_row, **results)
    p = results.get("out") is not None
    absent = ("where", "hi", "lo", "out", "tau", "support")
    named = rows.named(*absent, aligned=("z", "out") if p else ("z",)) | beta | order(i.alpha)
    named["beta_o"], named["beta_i"] = named["hi_o"], named["hi_i"]
    fast = p and i.z.dtype.itemsize == 2
    named |= {"MAP": map_of, "SCALED": scaling(i.beta, i.alpha, fast), "MASKED": i.where is not None, "P": p}
    named |= {"TAU": results.get("tau") is not None, "SUPPORT": results.get("support") is not None}
    named |= {"FAST": fast, "VECTOR": 16 // i.z.dtype.itemsize}
    tile = tile_of(rows, named)
    launch(long_rows if "parts" in tile.named else whole_rows, tile, **named)
    rows.finish()


def kind_of(alpha: Any) -> int | None:
    """The map of an order, or None if no kernel serves it."""
    if not isinstance(alpha, float):
        return None
    closed = {2.0: LINEAR.value, 1.5: SQUARED.value}
    return closed.get(alpha, GENERAL.value if 1.0 + LEAST <= alpha < 2.0 else None)


def order(alpha: float) -> dict[str, float]:
    """a = alpha - 1 as a sum of two float32 numbers, and 1 / a."""
    pair = rounded(UNIT._replace(hi=alpha - 1.0), 24)
    return {"a_hi": pair.hi, "a_lo": pair.lo, "inverse_a": 1.0 / (alpha - 1.0)}


def scaling(beta: Any, alpha: float, fast: bool) -> int:
    """How a |beta| is represented. A single float32 number is enough if it is exact, or if results are rounded more."""
    if not isinstance(beta.hi, float):
        return int(PAIR.value)
    closed, size = alpha in (1.5, 2.0), abs(beta.hi * (alpha - 1.0))
    if beta is UNIT and alpha == 2.0:
        return int(PLAIN.value)
    exact = closed and rounded(beta, 24).lo == 0.0
    return int(ROUNDED.value if (exact or fast) and 1e-6 <= size <= 1e30 else PAIR.value)


def is_heavy(named: dict[str, Any]) -> bool:
    """True for options that need many registers."""
    return named["MAP"] == GENERAL.value or named.get("MASKED", False) or named.get("SCALED") == PAIR.value


def tile_of(rows: Rows, named: dict[str, Any], most: int = REGISTERS) -> Block:
    """The block of a kernel, with `parts` if one program goes through all parts of a row.

    A thread has 32 scores, and a thread of a heavy kernel 16 or, for parts of float32 rows and other orders, 8. The
    numbers of warps are those with which nothing spills. `most` is the length of the longest row in registers.
    """
    heavy, general = is_heavy(named), named["MAP"] == GENERAL.value
    part = PART // 2 if heavy else PART
    if rows.scores <= min(most, part if heavy else REGISTERS):
        tile = block(rows)
        return wider(tile, 2) if heavy and not (general and tile.named["ROWS"] > 1) else tile
    numbers = {"parts": cdiv(rows.scores, part), "SCORES": part, "WHOLE": rows.scores % part == 0}
    warps = PART // ELEMENTS
    if general and named.get("SCALED") is not None:
        warps = warps // 2 if named["FAST"] else 2 * warps  # fewer have more registers, and more need fewer
    return Block((rows.total,), warps, numbers)


# --- derivatives ------------------------------------------------------------------------------------------------------


@triton.jit
def weights(p, tau, a, MAP: tl.constexpr):
    """s = p^(1 - a) in the support, and 0 outside."""
    inside = (p != 0.0) & (tau != INF)[:, None]
    if MAP == LINEAR:
        s = tl.where(inside, tl.where(p == p, 1.0, p), 0.0)
    elif MAP == SQUARED:
        s = tl.where(inside, tl.sqrt_rn(p), 0.0)
    else:
        subnormal = p < f32(2.0**-100)
        y = log_block(tl.where(inside, tl.where(subnormal, p * f32(2.0**64), p), 1.0))
        y -= tl.where(subnormal, f32(64 * 0.6931471805599453), 0.0)
        s = tl.where(
            inside, tl.where(p == p, 1.0, p) * tl.exp2(y * (f64(1.4426950408889634) * (1.0 - a)).to(tl.float32)), 0.0
        )
    return s, inside


@triton.jit
def mean_of(of_g, of_one):
    """<s, g> / <s, 1> as a pair."""
    mean = of_g / tl.where(of_one == 0.0, 1.0, of_one)
    hi = mean.to(tl.float32)
    return hi, (mean - hi.to(tl.float64)).to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def whole_rows_vjp(
    p, tau, g, out, count, inner, scores, a_hi, a_lo,
    p_o, p_i, p_k, tau_o, tau_i, g_o, g_i, g_k, out_o, out_i, out_k,
    MAP: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Gradients of rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, SCORES).to(tl.int64)
    scores = scores // ALIGN * ALIGN
    exists = row < count
    there = exists[:, None] & (k < scores)[None, :]
    a = order_of(a_hi, a_lo)
    p_at = offsets(row, inner, p_o, p_i, FLAT, ALIGN)[:, None] + k[None, :] * p_k
    g_at = offsets(row, inner, g_o, g_i, FLAT, ALIGN)[:, None] + k[None, :] * g_k
    of_p = tl.load(p + p_at, mask=there, other=0.0).to(tl.float32)
    of_g = tl.load(g + g_at, mask=there, other=0.0).to(tl.float32)
    of_tau = tl.load(tau + offsets(row, inner, tau_o, tau_i, FLAT), mask=exists, other=0.0).to(tl.float32)
    s, inside = weights(of_p, of_tau, a, MAP)
    of_g = tl.where(inside, of_g, 0.0)
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    first = row_sum(s.to(KIND) * of_g.to(KIND), VECTOR, KIND).to(tl.float64)
    second = row_sum(s, VECTOR, KIND).to(tl.float64)
    mean, rest = mean_of(first, second)
    found = tl.where(inside, s * ((of_g - mean[:, None]) - rest[:, None]), 0.0)
    store_block(out, offsets(row, inner, out_o, out_i, FLAT, ALIGN)[:, None] + k[None, :] * out_k, found, there, WHOLE)


@triton.jit(do_not_specialize=RUNTIME)
def long_rows_vjp(
    p, tau, g, out, count, inner, scores, parts, a_hi, a_lo,
    p_o, p_i, p_k, tau_o, tau_i, g_o, g_i, g_k, out_o, out_i, out_k,
    MAP: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    ALIGN: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Gradients of rows in parts, one program for each row."""
    one = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    scores = scores // ALIGN * ALIGN
    a = order_of(a_hi, a_lo)
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    p_at, g_at = offsets(one, inner, p_o, p_i, FLAT, ALIGN), offsets(one, inner, g_o, g_i, FLAT, ALIGN)
    out_at = offsets(one, inner, out_o, out_i, FLAT, ALIGN)
    of_tau = tl.load(tau + offsets(one, inner, tau_o, tau_i, FLAT)).to(tl.float32)
    first, second = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64)
    for part in range(parts):
        k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)[None, :]
        of_p = tl.load(p + p_at[:, None] + k * p_k, mask=k < scores, other=0.0).to(tl.float32)
        of_g = tl.load(g + g_at[:, None] + k * g_k, mask=k < scores, other=0.0).to(tl.float32)
        s, inside = weights(of_p, of_tau, a, MAP)
        of_g = tl.where(inside, of_g, 0.0)
        first += row_sum(s.to(KIND) * of_g.to(KIND), VECTOR, KIND).to(tl.float64)
        second += row_sum(s, VECTOR, KIND).to(tl.float64)
    mean, rest = mean_of(first, second)
    for part in range(parts):
        k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)[None, :]
        of_p = tl.load(p + p_at[:, None] + k * p_k, mask=k < scores, other=0.0).to(tl.float32)
        of_g = tl.load(g + g_at[:, None] + k * g_k, mask=k < scores, other=0.0).to(tl.float32)
        s, inside = weights(of_p, of_tau, a, MAP)
        found = tl.where(inside, s * ((of_g - mean[:, None]) - rest[:, None]), 0.0)
        store_block(out, out_at[:, None] + k * out_k, found, k < scores, WHOLE)


def entmax_vjp(i: Any, r: Any) -> None:
    """Compute s (g - <s, g> / <s, 1>)."""
    (out,) = r
    map_of = kind_of(i.alpha)
    if map_of is None or not served(i.p, i.tau, i.g, out, axes=i.axes):
        define(operations.entmax_vjp, i, r)
        return
    rows = rows_of(i.axes, ("out",), p=i.p, tau=i.tau, g=i.g, out=out)
    named = rows.named(aligned=("p", "g", "out")) | order(i.alpha)
    named |= {"MAP": map_of, "FAST": out.dtype.itemsize == 2, "VECTOR": 16 // i.p.dtype.itemsize}
    longest = REGISTERS if map_of == LINEAR.value or named["FAST"] else PART
    tile = tile_of(rows, named, longest)
    launch(long_rows_vjp if "parts" in tile.named else whole_rows_vjp, tile, **named)
    rows.finish()
