"""Dropout of attention: which p are kept is a function of (seed, the sequence's stream, head, query, key) alone.

Philox4x32-10 (core/philox.py) twice: (seed; head, stream) gives each head a seed of its own, and that one (key, query)
a word of 32 bits; p is dropped where it is below rate 2^32. So neither blocks nor batch mates nor threads count, and
the backward finds the same again.
"""

from __future__ import annotations

from typing import Any

from softargmax.core import philox
from softargmax.core.arrays import device_of, namespace


def kept(seeds: Any, start: int, queries: int, keys: slice, rate: float, dtype: Any) -> Any:
    """What p is multiplied by, (*batch, H, queries, keys): 0, or 1 / (1 - rate)."""
    xp, device = namespace(seeds), device_of(seeds)
    first = keys.start // 4
    blocks = xp.arange(first, (keys.stop + 3) // 4, dtype=seeds.dtype, device=device)
    query = xp.reshape(xp.arange(start, start + queries, dtype=seeds.dtype, device=device), (-1, 1))
    shape = (*seeds.shape[:-2], queries, blocks.shape[0])
    none = xp.zeros_like(query)
    counter = tuple(xp.broadcast_to(x, shape) for x in (blocks, none, query, none))
    words = xp.stack(philox.block(counter, (seeds[..., :1], seeds[..., 1:])), axis=-1)
    words = xp.reshape(words, (*shape[:-1], 4 * shape[-1]))[..., keys.start - 4 * first : keys.stop - 4 * first]
    low = philox.word(threshold(rate), seeds)
    return xp.astype(words >= low, dtype) * (1.0 / (1.0 - rate))


def threshold(rate: float) -> int:
    """Words below it are dropped."""
    return int(rate * 2.0**32)
