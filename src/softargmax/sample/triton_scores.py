"""The rows of a call in Triton, for draws and filters: scores and their order, beta, and distances in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from softargmax.core.scale import rounded
from softargmax.core.triton_launch import STRIDED
from softargmax.core.triton_math import INF
from softargmax.core.triton_rows import PER_ROW

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
