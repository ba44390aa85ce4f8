"""Numbers for the cases, the same on every machine and with every version of NumPy and torch.

A number is a hash of its place and of a salt: integer arithmetic, an exact division, no random generator, no libm.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BITS = 24  # a float32 holds them all


def _words(shape: tuple[int, ...], salt: str) -> NDArray[np.uint64]:
    """Splitmix64 of every place."""
    count = math.prod(shape)
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(zlib.crc32(salt.encode()) << 20)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).reshape(shape)


def uniform(*shape: int, salt: str = "") -> Floats:
    """From 0 to below 1."""
    return (_words(shape, salt) >> np.uint64(64 - BITS)).astype(np.float64) / 2**BITS


def scores(*shape: int, salt: str = "", size: float = 6.0) -> Floats:
    """Between -size and size."""
    return (2.0 * uniform(*shape, salt=salt) - 1.0) * size


def below(limit: int, *shape: int, salt: str = "") -> NDArray[np.int64]:
    """Integers from 0 to below the limit."""
    return ((_words(shape, salt) >> np.uint64(33)) % np.uint64(limit)).astype(np.int64)


def kept(*shape: int, salt: str = "kept") -> NDArray[np.bool_]:
    """True in three of four places, and all along the first."""
    found = below(4, *shape, salt=salt) > 0
    found[..., 0] = True
    return found


def edges(columns: int = 19) -> Floats:
    """Rows with infinities, NaN, ties and nothing at all."""
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
    """A library and a floating dtype: what arrays of the cases are made in."""

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
        """The dtype itself."""
        if self.is_torch:
            import torch

            return getattr(torch, self.dtype)
        return getattr(np, self.dtype)

    def other(self, dtype: str) -> Any:
        """Another dtype of the library."""
        return self._replace(dtype=dtype).float

    def plain(self, values: Any) -> Any:
        """Values as they are, in the library."""
        if self.is_torch:
            import torch

            return torch.from_numpy(np.array(values))
        return np.asarray(values)

    def array(self, values: Any) -> Any:
        """Floats, rounded to the dtype."""
        values = np.asarray(values, dtype=np.float64)
        if self.is_torch:
            return self.plain(values).to(self.float)
        return values.astype(self.float)


NUMPY = World("numpy", "float32"), World("numpy", "float64"), World("numpy", "float16")
TORCH = World("torch", "float32"), World("torch", "float64"), World("torch", "bfloat16"), World("torch", "float16")
