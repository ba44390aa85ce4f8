"""Gumbel noise in Triton, from random words: the noise of gumbel_max.hpp.

    w = w1 2^32 + w2        V = (w + 1/2) / 2^64        g = -log(-log(1 - V))

w1 and w2 are the upper and the lower word.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_launch import RUNTIME
from softargmax.core.triton_math import INF, f32, f64, log_pair64, two_sum64
from softargmax.core.triton_philox import word_of, words_of_block

_SQRT_HALF = tl.constexpr(0x3F3504F3)
_ROUND = tl.constexpr(float.fromhex("0x1.8p+23"))
_ROUND_BITS = tl.constexpr(0x4B400000)
# log2(1 + f) / f for sqrt(1/2) <= 1 + f <= sqrt(2), with a relative error of 2^-17 (minimax).
_L = tl.constexpr(
    tuple(
        float.fromhex(x)
        for x in (
            "0x1.7154e4p+0", "-0x1.7141f2p-1", "0x1.eb535ap-2",
            "-0x1.774a66p-2", "0x1.45dc94p-2", "-0x1.a6510cp-3",
        )
    )
)  # fmt: skip
_LEAST = tl.constexpr(2.0**-12)


@triton.jit
def gumbel64(w1, w2):
    """g in float64, with the bits of the CPU's noise."""
    upper = (w1 ^ 0xFFFFFFFF).to(tl.int64).to(tl.float64)
    lower = (w2 ^ 0xFFFFFFFF).to(tl.int64).to(tl.float64)
    hi, lo = two_sum64(upper * f64(2.0**-32), (lower + 0.5) * f64(2.0**-64))
    hi, lo = log_pair64(hi, lo)
    hi, lo = log_pair64(-hi, -lo)
    return -(hi + lo)


@triton.jit
def noise_at(column, seed, stream, draw):
    """g of some columns, in float64. All arguments have the same shape."""
    return gumbel64(word_of(column, seed, stream, draw, 0), word_of(column, seed, stream, draw, 1))


@triton.jit
def waiting_times(w1):
    """A lower bound of -log2(1 - V), from the upper words. It is at most 2^-15 + 2 / w1 above it, relatively.

    Where V > 1 - 2^-12, the bound is 12. A draw is the column with the smallest -log(1 - V) e^(-beta z).
    """
    v = w1.to(tl.float32) * f32(2.0**-32)
    u = tl.maximum(1.0 - v, _LEAST)
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - _SQRT_HALF) >> 23  # u = 2^e (1 + f)
    f = tl.where(e == 0, -v, (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0)
    p = f32(_L[5])
    for j in tl.static_range(4, -1, -1):
        p = tl.fma(p, f, f32(_L[j]))
    k = (e + _ROUND_BITS).to(tl.float32, bitcast=True) - f32(_ROUND)
    return -tl.fma(f, p, k)


@triton.jit
def surely_first(first, second, w1):
    """True if the time `first`, of a column with the upper word w1, is below `second` whatever the rounding errors."""
    w = w1.to(tl.float32)
    sure = (first > 2.0**-100) & (w < (1.0 - 2.0**-12) * 2.0**32)
    return sure & (first * (1.0 + 2.0**-12 + 2.0 / w) < second) & (first < INF)


@triton.jit(do_not_specialize=RUNTIME)
def noise_rows(seed, stream, out, parts, classes, seed_o, STREAM: tl.constexpr, SCORES: tl.constexpr):
    """The noise of the first draw of each row."""
    row = (tl.program_id(0) // parts).to(tl.int64) + tl.zeros([1], tl.int64)
    part = tl.program_id(0) % parts
    own = row
    if STREAM:
        own = tl.load(stream + row).to(tl.int64)
    key = tl.load(seed + row * seed_o)[:, None]
    draw = tl.zeros([1, 1], tl.int64)
    w1 = words_of_block(part * SCORES, key, own[:, None], draw, 0, SCORES)
    w2 = words_of_block(part * SCORES, key, own[:, None], draw, 1, SCORES)
    k = part * SCORES + tl.arange(0, SCORES)[None, :]
    tl.store(out + row[:, None] * classes + k, gumbel64(w1, w2).to(out.dtype.element_ty), mask=k < classes)
