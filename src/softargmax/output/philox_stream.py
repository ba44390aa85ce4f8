"""Random numbers of the samplers, by Philox. The counter holds the position, the stream, and what the number is for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softargmax.core import _native, philox
from softargmax.core.dispatch import requested_name
from softargmax.core.seeds import SEEDS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The purpose is the second word of the counter. In the counters of `softargmax.sample`, this word is the number of the
# draw, from 0. The purposes count down from 2^31 - 1, so samplers and `softargmax.sample` have different random numbers
# for the same seed.
CANDIDATES = (1 << 31) - 1  # the draws of samplers
ARRIVALS = (1 << 31) - 2  # arrival times of the classes, for distinct draws
WINDOWS = (1 << 31) - 3  # windows and subsampling of `WordVectors`
BEGINNINGS = (1 << 31) - 4  # initial vectors of `WordVectors`

_CHUNK = 1 << 15  # positions per chunk: so few that the random words of a chunk stay in the cache


class Numbers(NamedTuple):
    """Two 64-bit random numbers per position, each split into its upper and lower 32 bits. The shapes are (count,)."""

    high: Ints
    low: Ints
    other_high: Ints
    other_low: Ints


def numbers(seed: int, stream: int, first: int, count: int, purpose: int = CANDIDATES) -> Numbers:
    """Return the random numbers of `count` positions (below 2^32) from `first` on, one Philox block per position."""
    words = np.empty((4, count), np.int64)
    if requested_name() != "reference":
        _native.random_blocks(words=words, seed=seed, stream=stream % SEEDS, purpose=purpose, first=first)
        return Numbers(*words)
    for at in range(0, count, _CHUNK):
        position = np.arange(first + at, first + min(at + _CHUNK, count), dtype=np.int64)
        counter = (position, philox.word(purpose, position), *philox.halves(stream, position))
        words[:, at : at + _CHUNK] = philox.block(counter, philox.halves(seed, position))
    return Numbers(*words)


def below(n: int, high: Ints, low: Ints) -> Ints:
    """Return floor(n V), an integer from 0 to n - 1, for n < 2^31. V is the 64-bit number (high, low) / 2^64."""
    return (high * n + (low * n >> 32)) >> 32


def unit(high: Ints, low: Ints) -> Floats:
    """Return uniform numbers in [0, 1) that are multiples of 2^-53."""
    whole = (high << 21 | low >> 11).astype(np.float64)
    return whole * 2.0**-53


def exponential(high: Ints, low: Ints) -> Floats:
    """Return -log(1 - V), accurate for V near 0 and near 1, where V = (the 64-bit number (high, low) + 1/2) / 2^64."""
    v = high * 2.0**-32 + (low + 0.5) * 2.0**-64
    rest = (high ^ philox.WORD) * 2.0**-32 + ((low ^ philox.WORD) + 0.5) * 2.0**-64
    logarithm: Floats = np.where(v < 0.5, np.log1p(-np.minimum(v, 0.5)), np.log(rest))
    return -logarithm
