"""Random words in Triton: Philox4x32-10, with the words of philox.hpp.

A column's words depend only on the seed, the stream, the draw and the column, as on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

LOWER = tl.constexpr(1 << 31)
"""The bit of the draw's word that selects the lower 32 bits of a random number."""


@triton.jit
def key_of(seed):
    """The two words of a seed."""
    return (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def four_words(first, seed, stream, draw, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """The words of each four neighbours among `COLUMNS` columns, as four blocks of `COLUMNS` / 4 columns.

    The arguments are those of `words_of_block`. One call of Philox has the words of four columns.
    """
    k0, k1 = key_of(seed)
    low, high = key_of(stream)
    four = (tl.arange(0, COLUMNS // 4) + first // 4).to(tl.uint32)[None, :]
    none = tl.zeros([low.shape[0], COLUMNS // 4], tl.uint32)
    of_draw = (draw.to(tl.uint32) | HALF * LOWER).to(tl.uint32)
    return philox_impl(four + none, of_draw + none, low + none, high + none, k0, k1)


@triton.jit
def in_order(a, b, c, d):
    """The block of all columns. It is joined in such a way that a thread has four neighbours, as after a load."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [a.shape[0], 4 * a.shape[1]])


@triton.jit
def words_of_block(first, seed, stream, draw, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """The upper (HALF = 0) or lower words of `COLUMNS` columns from `first` on, which is a multiple of 4.

    `seed`, `stream` and `draw` have one number per row, and shape (rows, 1).
    """
    a, b, c, d = four_words(first, seed, stream, draw, HALF, COLUMNS)
    return in_order(a, b, c, d)


@triton.jit
def word_of(column, seed, stream, draw, HALF: tl.constexpr):
    """One word for each of some columns. All arguments have the same shape."""
    k0, k1 = key_of(seed)
    low, high = key_of(stream)
    of_draw = (draw.to(tl.uint32) | HALF * LOWER).to(tl.uint32)
    a, b, c, d = philox_impl((column >> 2).to(tl.uint32), of_draw, low, high, k0, k1)
    place = column & 3
    return tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d))
