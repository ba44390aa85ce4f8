"""Philox4x32-10 in array-API integers.

Words of 32 bits are multiplied in halves of 16 bits, so that no product exceeds 32 bits. JAX may have no wider
integers.

Salmon, Moraes, Dror & Shaw (2011), Parallel random numbers: as easy as 1, 2, 3. The counter's layout is described in
`philox.hpp`.
"""

from __future__ import annotations

import math
from typing import Any

from softargmax.core.arrays import device_of, dtype_name, namespace

WORD = 0xFFFFFFFF
_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def word_dtype(xp: Any, device: Any) -> Any:
    """An integer dtype for 32-bit words: int64, or uint32 if there is no int64."""
    known = xp.__array_namespace_info__().dtypes(device=device, kind="integral")
    return known.get("int64", known.get("uint32"))


def word(value: int, like: Any) -> Any:
    """A 32-bit constant as an array of like's dtype. JAX accepts Python numbers of at most 31 bits."""
    return namespace(like).full((), value, dtype=like.dtype, device=device_of(like))


def halves(x: Any, like: Any) -> tuple[Any, Any]:
    """The lower and upper 32 bits of an integer or array, in the dtype of `like`. 32-bit arrays are sign-extended."""
    if isinstance(x, int):
        return word(x & WORD, like), word(x >> 32 & WORD, like)
    xp, mask = namespace(x), word(WORD, like)
    upper = x >> 32 if str(x.dtype).endswith("64") else xp.where(x < 0, x * 0 - 1, x * 0)
    return xp.astype(x, like.dtype) & mask, xp.astype(upper, like.dtype) & mask


def seed_words(seed: Any, like: Any, rows: int) -> tuple[Any, ...]:
    """The two words of a seed, or of one seed per row, in the dtype of `like`. Rows are the first of three axes.

    A seed of type uint32 has its two words along the last axis. Under vmap there is one seed for each mapped call. The
    rows of a call are adjacent.
    """
    if dtype_name(getattr(seed, "dtype", None)) != "uint32":
        words = halves(seed, like)
    else:
        words = tuple(namespace(seed).astype(seed[..., k], like.dtype) for k in (0, 1))
    return tuple(_per_row(x, rows) for x in words)


def _per_row(x: Any, rows: int) -> Any:
    xp, count = namespace(x), math.prod(x.shape)
    if count < 2:
        return xp.reshape(x, (-1, 1, 1))
    return xp.reshape(xp.broadcast_to(xp.reshape(x, (-1, 1)), (count, rows // count)), (-1, 1, 1))


def block(counter: tuple[Any, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return four random words for a counter of four words. All words are arrays that broadcast with one another."""
    a, b, c, d = counter
    k0, k1 = key
    mask = word(WORD, a)
    weyl = tuple(word(w, a) for w in _WEYL)
    for _ in range(_ROUNDS):
        (p_high, p_low), (q_high, q_low) = _product(a, _FACTORS[0]), _product(c, _FACTORS[1])
        a, b, c, d = q_high ^ b ^ k0, q_low, p_high ^ d ^ k1, p_low
        k0, k1 = (k0 + weyl[0]) & mask, (k1 + weyl[1]) & mask
    return a, b, c, d


def _product(x: Any, f: int) -> tuple[Any, Any]:
    """The upper and lower words of x f."""
    x1, x0, f1, f0 = x >> 16, x & 0xFFFF, f >> 16, f & 0xFFFF
    low = x0 * f0
    left = x0 * f1 + (low >> 16)
    right = x1 * f0 + (left & 0xFFFF)
    return x1 * f1 + (left >> 16) + (right >> 16), (right & 0xFFFF) << 16 | low & 0xFFFF


def words(like: Any, seed: Any, stream: Any, draws: Any, columns: int) -> tuple[Any, Any]:
    """The upper and lower words of each column's random bits, of shape (rows, draws, columns), on `like`'s device.

    One call of `block` computes both, because XLA compiles one call in 1.9 s and two calls in a minute.
    """
    xp, device = namespace(like), device_of(like)
    blocks = xp.arange((columns + 3) // 4, dtype=word_dtype(xp, device), device=device)
    low, high = (xp.reshape(part, (-1, 1, 1)) for part in halves(stream, blocks))
    draw = xp.reshape(xp.astype(draws, blocks.dtype), (1, -1, 1))
    draw = xp.stack([draw, draw | word(1 << 31, draw)])
    shape = (2, low.shape[0], draw.shape[2], blocks.shape[0])
    key = seed_words(seed, blocks, shape[1])
    found = block(tuple(xp.broadcast_to(x, shape) for x in (blocks, draw, low, high)), key)
    both = xp.reshape(xp.stack(found, axis=-1), (*shape[:3], 4 * shape[3]))[..., :columns]
    return both[0, ...], both[1, ...]
