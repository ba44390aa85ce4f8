"""CUDA kernels of the entmax losses of classes, in Triton.

The kernel of the loss saves five numbers for each row. From them, the kernel of the gradient computes p without a
search, in one visit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from softargmax.core.triton_launch import PART, RUNTIME, Block, beta_of, launch, rows_of, served
from softargmax.core.triton_maps import (
    GENERAL,
    base_of,
    distances,
    loss_of_class,
    order_of,
    powers,
    slope_of,
    solved,
)
from softargmax.core.triton_math import INF
from softargmax.core.triton_rows import load_beta, load_scores, load_target, offsets, store_block
from softargmax.core.triton_state import any_of, is_limit, marked, row_sum, top_of, without_limits
from softargmax.sparse import loss_operations
from softargmax.sparse.triton_kernels import (
    inverse_of_total,
    kind_of,
    order,
    scaling,
    solved_parts,
    tile_of,
    top_of_parts,
)

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def distance_of_class(
    z, at, where, where_at, exists, ignored, sign, m, limit, m_x, h_x, l_x, MASKED: tl.constexpr
):  # fmt: skip
    """The d of each row's class in float64, and whether the class is outside the support."""
    x = tl.load(z + at, mask=exists, other=0.0).to(tl.float32) * sign
    x = tl.where(ignored, 0.0, x)
    if MASKED:
        x = tl.where(tl.load(where + where_at, mask=exists, other=0) != 0, x, -INF)
    outside = (x == -INF) | (limit & (x < m))
    x = tl.where(outside | limit, m_x, x)
    slope = h_x.to(tl.float64) + l_x.to(tl.float64)
    return tl.where(x == m_x, 0.0, slope * (x.to(tl.float64) - m_x.to(tl.float64))), outside


@triton.jit
def finished_loss(loss, t, m, outside, ignored, wrong):
    """The loss of each row: infinite if the class is outside the support, 0 for ignored rows, NaN for wrong classes."""
    loss = tl.where(outside | (m == -INF), INF, loss)
    loss = tl.where(t == t, loss, float("nan"))
    return tl.where(ignored, 0.0, tl.where(wrong, float("nan"), loss))


@triton.jit
def store_roots(roots, at, exists, m, t, low, inverse, others):
    """Save what the gradient needs: the maximum, t as a pair, 1 / sum r, and the sum of p over the other classes."""
    tl.store(roots + at, m.to(tl.float64), mask=exists)
    tl.store(roots + at + 1, t.to(tl.float64), mask=exists)
    tl.store(roots + at + 2, low.to(tl.float64), mask=exists)
    tl.store(roots + at + 3, inverse.to(tl.float64), mask=exists)
    tl.store(roots + at + 4, others, mask=exists)


@triton.jit
def load_root(roots, at, exists, NUMBER: tl.constexpr):
    """One of the saved numbers of each row."""
    return tl.load(roots + at + NUMBER, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def sums_of_loss(d, t, low, inverse, k, y, inverse_a, MAP: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr):
    """The sums of p and of p v over the classes of a block other than y, in float64."""
    p, v = powers(d, t, low, inverse, inverse_a, MAP, FAST)
    p = tl.where(k[None, :] == y[:, None], 0.0, p)
    KIND: tl.constexpr = tl.float32 if FAST else tl.float64
    return row_sum(p, VECTOR, KIND).to(tl.float64), row_sum(p * v, VECTOR, KIND).to(tl.float64)


@triton.jit(do_not_specialize=RUNTIME)
def loss_rows(
    z, where, target, loss, roots,
    count, inner, scores, beta_hi, beta_lo, a_hi, a_lo, inverse_a, ignore_index,
    z_o, z_i, z_k, where_o, where_i, where_k, target_o, target_i, loss_o, loss_i, roots_o, roots_i,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, ROOTS: tl.constexpr,
    FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Rows that fit into registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, SCORES).to(tl.int64)
    scores = scores // ALIGN * ALIGN
    exists = row < count
    inside = exists[:, None] & (k < scores)[None, :]
    a = order_of(a_hi, a_lo)
    y, ignored, wrong = load_target(target, offsets(row, inner, target_o, target_i, FLAT), exists, scores, ignore_index)
    y = tl.where(ignored | wrong, 0, y)
    sign, h, l = load_beta(z, z, row, exists, beta_hi, beta_lo, BETA)
    z_at, w_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    x = load_scores(
        z, z_at[:, None] + k[None, :] * z_k, where, w_at[:, None] + k[None, :] * where_k, inside, sign,
        BETA, MASKED, WHOLE,
    )  # fmt: skip
    m = top_of(x)
    limit = is_limit(m, h)
    m_x, h_x, l_x = without_limits(m, h, l)
    m_x = tl.where(m_x == -INF, 0.0, m_x)
    h_x, l_x = slope_of(h_x, l_x, a, MAP)
    d = distances(marked(x, m, h), m_x, h_x, l_x, SCALED)
    t, low, total = solved(d, a, inverse_a, MAP, FAST, VECTOR)
    inverse = inverse_of_total(total)
    others, powered = sums_of_loss(d, t, low, inverse, k, y, inverse_a, MAP, FAST, VECTOR)
    d_y, outside = distance_of_class(
        z, z_at + y * z_k, where, w_at + y * where_k, exists, ignored, sign, m, limit, m_x, h_x, l_x, MASKED
    )
    found = loss_of_class(d_y, base_of(t, low, total, a, MAP), others, powered, total, a, MAP)
    found = finished_loss(found, t, m, outside, ignored, wrong)
    tl.store(loss + offsets(row, inner, loss_o, loss_i, FLAT), found, mask=exists)
    if ROOTS:
        store_roots(roots, offsets(row, inner, roots_o, roots_i, FLAT), exists, m, t, low, inverse, others)


@triton.jit(do_not_specialize=RUNTIME)
def loss_parts(
    z, where, target, loss, roots,
    count, inner, scores, parts, beta_hi, beta_lo, a_hi, a_lo, inverse_a, ignore_index,
    z_o, z_i, z_k, where_o, where_i, where_k, target_o, target_i, loss_o, loss_i, roots_o, roots_i,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, ROOTS: tl.constexpr,
    FAST: tl.constexpr, VECTOR: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr,
    SCORES: tl.constexpr,
):  # fmt: skip
    """Rows in parts, one program for each row."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    scores = scores // ALIGN * ALIGN
    exists = row < count
    a = order_of(a_hi, a_lo)
    y, ignored, wrong = load_target(target, offsets(row, inner, target_o, target_i, FLAT), exists, scores, ignore_index)
    y = tl.where(ignored | wrong, 0, y)
    sign, h, l = load_beta(z, z, row, exists, beta_hi, beta_lo, BETA)
    z_at, w_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    m = top_of_parts(z, where, z_at, w_at, parts, scores, z_k, where_k, sign, BETA, MASKED, WHOLE, SCORES)
    limit = is_limit(m, h)
    m_x, h_x, l_x = without_limits(m, h, l)
    m_x = tl.where(m_x == -INF, 0.0, m_x)
    h_x, l_x = slope_of(h_x, l_x, a, MAP)
    t, low, total = solved_parts(
        z, where, z_at, w_at, parts, scores, z_k, where_k, sign, m, h, m_x, h_x, l_x, a, inverse_a,
        MAP, SCALED, BETA, MASKED, FAST, VECTOR, WHOLE, SCORES,
    )  # fmt: skip
    inverse = inverse_of_total(total)
    others, powered = 0.0 * total, 0.0 * total
    for part in range(parts):
        k = (part * SCORES + tl.arange(0, SCORES)).to(tl.int64)
        x = load_scores(
            z, z_at[:, None] + k[None, :] * z_k, where, w_at[:, None] + k[None, :] * where_k, (k < scores)[None, :],
            sign, BETA, MASKED, WHOLE,
        )  # fmt: skip
        d = distances(marked(x, m, h), m_x, h_x, l_x, SCALED)
        one, other = sums_of_loss(d, t, low, inverse, k, y, inverse_a, MAP, FAST, VECTOR)
        others, powered = others + one, powered + other
    d_y, outside = distance_of_class(
        z, z_at + y * z_k, where, w_at + y * where_k, exists, ignored, sign, m, limit, m_x, h_x, l_x, MASKED
    )
    found = loss_of_class(d_y, base_of(t, low, total, a, MAP), others, powered, total, a, MAP)
    found = finished_loss(found, t, m, outside, ignored, wrong)
    tl.store(loss + offsets(row, inner, loss_o, loss_i, FLAT), found)
    if ROOTS:
        store_roots(roots, offsets(row, inner, roots_o, roots_i, FLAT), exists, m, t, low, inverse, others)


@triton.jit(do_not_specialize=RUNTIME)
def loss_vjp(
    z, where, target, g, roots, out,
    count, inner, scores, parts, beta_hi, beta_lo, a_hi, a_lo, inverse_a, ignore_index,
    z_o, z_i, z_k, where_o, where_i, where_k, target_o, target_i, g_o, g_i,
    roots_o, roots_i, out_o, out_i, out_k,
    MAP: tl.constexpr, SCALED: tl.constexpr, BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr,
    FLAT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """g (p - t) of a part of some rows."""
    task = tl.program_id(0)
    row = (task // parts).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = ((task % parts) * SCORES + tl.arange(0, SCORES)).to(tl.int64)
    scores = scores // ALIGN * ALIGN
    exists = row < count
    inside = exists[:, None] & (k < scores)[None, :]
    a = order_of(a_hi, a_lo)
    y, ignored, wrong = load_target(target, offsets(row, inner, target_o, target_i, FLAT), exists, scores, ignore_index)
    sign, h, l = load_beta(z, z, row, exists, beta_hi, beta_lo, BETA)
    z_at, w_at = offsets(row, inner, z_o, z_i, FLAT, ALIGN), offsets(row, inner, where_o, where_i, FLAT)
    x = load_scores(
        z, z_at[:, None] + k[None, :] * z_k, where, w_at[:, None] + k[None, :] * where_k, inside, sign,
        BETA, MASKED, WHOLE,
    )  # fmt: skip
    root_at = offsets(row, inner, roots_o, roots_i, FLAT)
    m, t = load_root(roots, root_at, exists, 0), load_root(roots, root_at, exists, 1)
    low, inverse = load_root(roots, root_at, exists, 2), load_root(roots, root_at, exists, 3)
    others = load_root(roots, root_at, exists, 4)
    m_x, h_x, l_x = without_limits(m, h, l)
    h_x, l_x = slope_of(h_x, l_x, a, MAP)
    p, _v = powers(distances(x, m_x, h_x, l_x, SCALED), t, low, inverse, inverse_a, MAP, FAST)
    p = tl.where((k[None, :] == y[:, None]) & (x != -INF), -others[:, None], p)
    factor = tl.load(g + offsets(row, inner, g_o, g_i, FLAT), mask=exists, other=0.0).to(tl.float32)
    result = tl.where(p == 0.0, 0.0, p * factor[:, None])
    constant = ignored | (m == INF)
    if any_of(constant | wrong | (t != t)):
        is_nan = (t != t) | wrong
        result = tl.where(is_nan[:, None], tl.where(x == -INF, 0.0, float("nan")), result)
        result = tl.where((ignored | ((m == INF) & ~is_nan))[:, None], 0.0, result)
    out_at = offsets(row, inner, out_o, out_i, FLAT, ALIGN)[:, None] + k[None, :] * out_k
    store_block(out, out_at, result, inside, WHOLE)


def entmax_loss(i: Any, r: Any) -> None:
    """Compute the loss of each row, and save its root if there is memory for it."""
    loss, roots = (*r, None)[:2]
    if not _served(i):
        found, _none = loss_operations.entmax_loss.define(i)
        loss.copy_(found)
        if roots is not None:
            roots.fill_(math.nan)
        return
    rows = _rows_of(i, ("loss",), roots, loss=loss)
    named = rows.named("where", aligned=("z",)) | _options(i) | _saved(i, rows, roots)
    named |= {"ROOTS": roots is not None, "VECTOR": 16 // i.z.dtype.itemsize}
    most = PART // 4 if named["MAP"] == GENERAL.value else PART
    tile = tile_of(rows, named, most)
    launch(loss_parts if "parts" in tile.named else loss_rows, tile, **named)
    rows.finish()


def entmax_loss_vjp(i: Any, r: Any) -> None:
    """Compute g (p - t) from the saved roots."""
    (out,) = r
    if i.roots is None or not _served(i.of):
        out.copy_(loss_operations.entmax_loss_vjp.define(i))
        return
    rows = _rows_of(i.of, ("out",), i.roots, g=i.g, out=out)
    named = rows.named("where", aligned=("z", "out")) | _options(i.of) | _saved(i.of, rows, i.roots)
    tile = tile_of(rows, named, PART)
    parts = tile.named.get("parts", 1)
    tile = Block((tile.grid[0] * parts,), tile.warps, {"ROWS": 1} | tile.named | {"parts": parts})
    launch(loss_vjp, tile, **named)
    rows.finish()


def _rows_of(i: Any, results: tuple[str, ...], roots: Tensor | None, **more: Tensor) -> Any:
    own = None if roots is None else roots[..., 0]
    return rows_of(i.axes, results, z=i.z, where=i.where, target=i.target, **more, roots=own)


def _saved(i: Any, rows: Any, roots: Tensor | None) -> dict[str, Any]:
    """The saved numbers and their strides. They are in the order of the rows of z, whatever the strides of z are."""
    if roots is None:
        return {"roots": rows.tensors["z"], "roots_o": 0, "roots_i": 0}
    if rows.tensors["z"] is not i.z:  # the rows were copied, in the order of the rows of z
        return {"roots": roots, "roots_o": 5 * rows.inner, "roots_i": 5}
    outer, inner, _ = rows.strides["roots"]
    return {"roots": roots, "roots_o": outer, "roots_i": inner}


def _options(i: Any) -> dict[str, Any]:
    fast = i.z.dtype.itemsize == 2
    named = {"MAP": kind_of(i.alpha), "SCALED": scaling(i.beta, i.alpha, fast), "FAST": fast}
    return named | {"MASKED": i.where is not None, "ignore_index": i.ignore_index} | order(i.alpha) | beta_of(i.beta)[1]


def _served(i: Any) -> bool:
    finite = isinstance(i.beta.hi, float) and math.isfinite(i.beta.hi) and i.beta.hi != 0.0
    return finite and kind_of(i.alpha) is not None and served(i.z, i.target, beta=i.beta, axes=i.axes)
