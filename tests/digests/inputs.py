"""Inputs of the cases. They are the same on every machine and with every version of NumPy and torch.

Each number is a hash of its position and a salt, computed by integer arithmetic and an exact division. The numbers
depend neither on random generators nor on libm.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BITS = 24  # bits of each number, so that a float32 represents it exactly


def _words(shape: tuple[int, ...], salt: str) -> NDArray[np.uint64]:
    """Return the splitmix64 hash of every position."""
    count = math.prod(shape)
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(zlib.crc32(salt.encode()) << 20)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).reshape(shape)


def uniform(*shape: int, salt: str = "") -> Floats:
    """Return numbers from 0 to below 1."""
    return (_words(shape, salt) >> np.uint64(64 - BITS)).astype(np.float64) / 2**BITS


def scores(*shape: int, salt: str = "", size: float = 6.0) -> Floats:
    """Return numbers from -size to size."""
    return (2.0 * uniform(*shape, salt=salt) - 1.0) * size


def below(limit: int, *shape: int, salt: str = "") -> NDArray[np.int64]:
    """Return integers from 0 to below the limit."""
    return ((_words(shape, salt) >> np.uint64(33)) % np.uint64(limit)).astype(np.int64)


def kept(*shape: int, salt: str = "kept") -> NDArray[np.bool_]:
    """Return a mask that is True for about three of four entries, and for the first entry of every row."""
    found = below(4, *shape, salt=salt) > 0
    found[..., 0] = True
    return found


def edges(columns: int = 19) -> Floats:
    """Return rows with infinities, NaN and ties, and one row of -inf only."""
    z = scores(10, columns, salt="edges")
    z[0, 3] = -np.inf
    z[1, 4] = np.inf
    z[2, 5] = np.nan
    z[3] = -np.inf
    z[4, 1] = z[4, 6] = np.inf
    z[5] = 1.5
    z[6, 2] = z[6, 9] = 30.0
    z[7] *= 1000.0
    z[8, 0] = z[8, -1] = -np.inf
    z[9] = np.round(z[9])
    return z


class World(NamedTuple):
    """The array library and floating dtype of a case."""

    library: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.library} {self.dtype}"

    @property
    def is_torch(self) -> bool:
        return self.library == "torch"

    @property
    def float(self) -> Any:
        """The library's dtype object."""
        if self.is_torch:
            import torch

            return getattr(torch, self.dtype)
        return getattr(np, self.dtype)

    def other(self, dtype: str) -> Any:
        """Return another dtype of the library."""
        return self._replace(dtype=dtype).float

    def plain(self, values: Any) -> Any:
        """Return values as an array of the library, with their own dtype."""
        if self.is_torch:
            import torch

            return torch.from_numpy(np.array(values))
        return np.asarray(values)

    def array(self, values: Any) -> Any:
        """Return values as an array of the library, rounded to the floating dtype."""
        values = np.asarray(values, dtype=np.float64)
        if self.is_torch:
            return self.plain(values).to(self.float)
        return values.astype(self.float)


NUMPY = World("numpy", "float32"), World("numpy", "float64"), World("numpy", "float16")
TORCH = World("torch", "float32"), World("torch", "float64"), World("torch", "bfloat16"), World("torch", "float16")
