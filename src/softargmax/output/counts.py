"""Checks of classes and counts, and distributions proportional to a power of counts."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.arrays import device_of, is_torch, namespace
from softargmax.core.check import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softargmax.output.philox_stream import Floats, Ints

MOST = (1 << 31) - 1  # largest number of classes, and of draws


def at_least(value: Any, name: str, least: int) -> int:
    """Return an integer that is at least `least`, or raise."""
    found = integer(value, name)
    if found < least:
        raise ValueError(f"{name}: expected {least} or more, got {found}")
    return found


def number_of_classes(classes: Any) -> int:
    """Return the number of classes K, or raise if it is not an integer from 1 to 2^31 - 1."""
    number = integer(classes, "classes")
    if not 1 <= number <= MOST:
        raise ValueError(f"classes: expected an integer from 1 to 2^31 - 1, got {number}")
    return number


def on_host(values: Any, name: str) -> Any:
    """Return an array of any library as a NumPy array. bfloat16 becomes float32."""
    values = arrays.dense(arrays.array_of(values, name), name)
    if is_torch(values):
        values = values.detach().cpu()
        values = (values.float() if arrays.dtype_name(values.dtype) == "bfloat16" else values).numpy()
    return np.asarray(values)


def to_library_of(found: Floats | Ints, like: Any, name: str) -> Any:
    """Convert a NumPy result to the library and device of another array."""
    like = arrays.array_of(like, name)
    return found if isinstance(like, np.ndarray) else namespace(like).asarray(found, device=device_of(like))


def classes_of(index: Any, name: str, classes: int) -> Ints:
    """Return an array of classes as int64, or raise if one is outside 0 to K - 1."""
    found = on_host(index, name)
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"{name}: expected integers, got dtype {found.dtype}")
    wrong = (found < 0) | (found >= classes)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise IndexError(f"{name}: expected classes from 0 to {classes - 1}, got {found[place]} at {place}")
    integers: Ints = found.astype(np.int64, copy=False)
    return integers


def counts_of(counts: Any, name: str = "counts") -> NDArray[Any]:
    """Return the counts of the classes as an array, or raise if one is not finite or is negative."""
    found: NDArray[Any] = on_host(counts, name)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected integers or floats, got dtype {found.dtype}")
    if found.ndim != 1 or not 1 <= found.size <= MOST:
        raise ValueError(f"{name}: expected shape (K,), one per class, K from 1 to 2^31 - 1, got {found.shape}")
    wrong = ~((found >= 0) & (found < np.inf))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ValueError(f"{name}: expected a finite number, 0 or above, got {found[place]} for class {place}")
    return found


def powers(counts: Floats, power: float) -> Floats:
    """Return counts^power, divided by the sum over all classes. A count of 0 has probability 0 for any power."""
    counted = counts > 0.0
    reference = counts.max() if power >= 0.0 else counts.min(where=counted, initial=np.inf)
    with np.errstate(over="ignore"):
        weights: Floats = np.where(counted, (np.where(counted, counts, reference) / reference) ** power, 0.0)
        weights /= weights.sum()
    return weights


def finite(value: Any, name: str) -> float:
    """Return a finite number, or raise."""
    if not isinstance(value, Real):
        raise TypeError(f"{name}: expected a finite number, got {value!r}")
    number = check.number(value, name)
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return number
