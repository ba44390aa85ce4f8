"""Seeds and streams of draws that take several steps."""

from __future__ import annotations

import math
import operator
from typing import Any

from softargmax.core import check
from softargmax.core.arrays import device_of, dtype_name, integer_dtype, jax_of, namespace
from softargmax.core.seeds import SEEDS, is_key, seed_of, stream_of


def count_of(count: Any, name: str) -> int:
    """Check the number of draws or paths of each item. None stands for one without an axis of its own."""
    found = 1 if count is None else check.integer(count, name)
    if found < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {found}")
    return found


def seed_number(z: Any, seed: Any, generator: Any) -> Any:
    """Check `seed` and return it as an int or a key, or draw a seed.

    In a graph of torch.compile, a drawn seed would be a tensor, which cannot become an int there. So calls need a seed.
    """
    checked = seed_of(z, seed, generator)
    if seed is None:
        return int(checked) % SEEDS
    return seed if is_key(seed) else operator.index(seed)


def seed_at(seed: Any, step: int) -> Any:
    """Return another seed for each step."""
    if is_key(seed):
        return jax_of(seed).random.fold_in(seed, step)
    return (seed + step * 0x9E3779B97F4A7C15) % SEEDS


def streams_of(z: Any, batch: tuple[int, ...], stream: Any, draws: int) -> Any:
    """Return one stream for each draw of each item of the batch, item by item."""
    xp, integer = namespace(z), integer_dtype(z)
    if stream is None:
        ids = xp.arange(math.prod(batch), dtype=integer, device=device_of(z))
    else:
        ids = stream_of(z, batch, stream)
    if draws == 1:
        return ids
    if dtype_name(integer) != "int64":
        raise ValueError(f"num_samples: expected 1 without 64-bit integers (jax_enable_x64), got {draws}")
    return xp.reshape(ids[:, None] + (xp.arange(draws, dtype=integer, device=device_of(z)) << 32), (-1,))
