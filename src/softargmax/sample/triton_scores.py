"""The rows of a call in Triton, for draws and filters: scores, their order, beta, distances in float64, and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.scale import rounded
from softargmax.core.triton_launch import STRIDED
from softargmax.core.triton_math import INF
from softargmax.core.triton_rows import PER_ROW, load_scores

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = tl.constexpr(-(1 << 31))


@triton.jit
def place_of(x):
    """Whole numbers in the order of scores. -0 and 0 have the same number."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, _SMALLEST - bits, bits)


@triton.jit
def score_at(place):
    """The score with the number `place`."""
    return tl.where(place < 0, _SMALLEST - place, place).to(tl.float32, bitcast=True)


@triton.jit
def beta_per_row(hi_ptr, lo_ptr, at, exists, beta_hi, beta_lo, BETA: tl.constexpr):
    """beta = hi + lo of each row, in float64."""
    if BETA == PER_ROW:
        hi = tl.load(hi_ptr + at, mask=exists, other=1.0).to(tl.float64)
        lo = tl.load(lo_ptr + at, mask=exists, other=0.0).to(tl.float64)
    else:
        hi = beta_hi + tl.zeros_like(at).to(tl.float64)
        lo = beta_lo + tl.zeros_like(at).to(tl.float64)
    return hi, lo


@triton.jit
def distance64(z, m, hi, lo):
    """beta (z - m) in float64, as in kept_row.hpp. -inf for an infinite difference."""
    d = 0.5 * z.to(tl.float64) - 0.5 * m.to(tl.float64)
    x = d * hi
    found = 2.0 * (x + d * lo)
    found = tl.where(x < -1e300, -1e300, tl.where(x > 1e300, 1e300, found))
    return tl.where(d == -INF, -INF, found)


@triton.jit
def load_part(
    z, where, edge, tie, flat, z_at, where_at, exists, part, scores, z_k, where_k,
    MASKED: tl.constexpr, KEPT: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """A block of scores, with -inf for those that cannot be drawn, and their columns.

    Where beta is 0 (`flat`), filters see all finite scores as 0.
    """
    k = part * SCORES + tl.arange(0, SCORES)[None, :]
    inside = exists[:, None] & (k < scores)
    wide = k.to(tl.int64)
    at, w_at = z_at[:, None] + wide * z_k, where_at[:, None] + wide * where_k
    x = load_scores(z, at, where, w_at, inside, edge, 0, MASKED, False)
    if KEPT:
        x = tl.where(flat[:, None] & (tl.abs(x) < INF), 0.0, x)
        kept = (x > edge[:, None]) | ((x == edge[:, None]) & (k <= tie[:, None]))
        x = tl.where(kept, x, -INF)
    return x, k


@triton.jit
def store_draws(
    z, top, log_l, index, logprob, pair, row, place, z_at, exists, z_k, beta, beta_rest, LOGPROB: tl.constexpr
):
    """Store drawn columns, and their log-probabilities. -1 and NaN for rows that cannot be drawn from."""
    drawn = place >= 0
    tl.store(index + pair, place.to(tl.int64), mask=exists)
    if LOGPROB:
        m = tl.load(top + row, mask=exists, other=0.0)
        score = tl.load(z + z_at + place.to(tl.int64) * z_k, mask=exists & drawn, other=0.0).to(tl.float32)
        x = tl.where((m == INF) | (beta == INF), 0.0, distance64(score, m, beta, beta_rest))
        found = (x - tl.load(log_l + row, mask=exists, other=0.0)).to(tl.float32)
        tl.store(logprob + pair, tl.where(drawn, found, float("nan")), mask=exists)


def matrix(z: Tensor) -> Tensor:
    """The rows of scores in C order, as a matrix."""
    rows = z.reshape(-1, z.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] <= STRIDED else rows.contiguous()


def numbers_of_rows(x: Tensor, z: Tensor) -> Tensor:
    """One number per row, in C order."""
    return x.expand(*z.shape[:-1], 1).reshape(-1).contiguous()  # an expanded view has stride 0


def scores_of(i: Any) -> dict[str, Any]:
    """The arguments that all kernels of a call share: scores, support and beta."""
    z, given = matrix(i.z), i.distribution
    where = None if given.where is None else matrix(given.where.expand(i.z.shape))
    named: dict[str, Any] = {"z": z, "where": z if where is None else where, "MASKED": where is not None}
    named["z_o"], named["z_k"] = z.stride()
    named["where_o"], named["where_k"] = (0, 0) if where is None else where.stride()
    if isinstance(given.beta.hi, torch.Tensor):
        named |= {
            "hi": numbers_of_rows(given.beta.hi, i.z),
            "lo": numbers_of_rows(given.beta.lo, i.z),
            "beta_o": 1,
            "BETA": 2,
        }
        named |= {"beta_hi": 1.0, "beta_lo": 0.0}
    else:
        hi, lo = rounded(given.beta, 24)
        named |= {"hi": z, "lo": z, "beta_o": 0, "BETA": 1, "beta_hi": hi, "beta_lo": lo}
    aligned = 1
    for n in (2, 4, 8):
        fits = n <= 16 // z.element_size() and z.shape[1] % n == 0 and z.stride(0) % n == 0
        aligned = n if fits else aligned
    return named | {"scores": z.shape[1], "ALIGN": aligned}
