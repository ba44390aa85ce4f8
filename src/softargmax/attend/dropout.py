"""Dropout of attention.

Whether an entry of p is dropped depends only on the seed, the stream, the head, the query and the key. It does not
depend on blocks, threads or the other sequences of the batch. The backward pass recomputes the same dropout.

The random numbers come from Philox4x32-10 (core/philox.py), a function of a seed and a counter. It is applied twice.
First, the given seed with the counter (head, stream) gives each head its own seed. Then the seed of the head with the
counter (key, query) gives each entry of p a random number of 32 bits. The entry is dropped if this number is below
rate 2^32.
"""

from __future__ import annotations

from typing import Any

from softargmax.core import philox
from softargmax.core.arrays import device_of, namespace


def keep_factors(seeds: Any, start: int, queries: int, keys: slice, rate: float, dtype: Any) -> Any:
    """Return the factor of each entry of p: 0 if it is dropped, else 1 / (1 - rate).

    The shape is (*batch, H, `queries`, number of `keys`). `start` is the index of the first query.
    """
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
    """Return the 32-bit number such that an entry is dropped if its random number is smaller."""
    return int(rate * 2.0**32)
