"""Python access to the compiled core: its instruction set, threads and memory, and its streaming kernels.

By default the core uses the best instruction set of the processor. The environment variable SOFTARGMAX_ISA selects
another one ("x86-64-v4", "x86-64-v3", "baseline", "neon"). All of them give the same bits.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import row_shape
from softargmax.core.signature import public

BLOCK: int = _native.BLOCK
"""The number of scores per block. Rows are cut only at multiples of it, for any number of threads and pieces."""

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3, "bool": 4, "int64": 5}
"""The type codes of `View`."""

View = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Memory owned by another library: address, type code, shape, strides in elements."""


@public
def set_num_threads(n: int) -> None:
    """Limit this process to n threads from now on.

    Parameters
    ----------
    n : int
        The largest number of threads, or 0 for the default. At most 4 times the number of processors, and at least 64
        are allowed.

    Notes
    -----
    The default is OMP_NUM_THREADS if it is set, and otherwise the number of processors that the process may run on. In
    a process that has imported torch, the default is `torch.get_num_threads()`, asked in the calling thread. If
    OMP_NUM_THREADS is not set, the CPU quota of a container, rounded up, limits the default. The quota is read once, at
    the first large call.

    Results do not depend on n. Small inputs use only the calling thread.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.set_num_threads(1)
    >>> softargmax.get_num_threads()
    1
    >>> softargmax.set_num_threads(0)
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"n: expected an integer, got {n!r}") from None
    most = _native.most_threads()
    if not 0 <= n <= most:
        raise ValueError(f"n: expected 1 to {most}, or 0 for the default, got {n}")
    _native.set_num_threads(n)


@public
def get_num_threads() -> int:
    """The number of threads used for large inputs.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.get_num_threads() >= 1
    True
    """
    return _native.get_num_threads()


def info() -> dict[str, Any]:
    """Facts about the compiled core: version, isa, isas ({name: True if this processor has it}), threads."""
    return {
        "version": _native.__version__,
        "isa": _native.isa(),
        "isas": dict(_native.isas()),
        "threads": _native.get_num_threads(),
    }


def widened(array: np.ndarray[Any, Any], kind: Any) -> np.ndarray[Any, Any]:
    """Convert an array to a contiguous one of a dtype.

    uint16 numbers are read as the bits of bfloat16, which are the upper half of a float32.
    """
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(array, kind)


def fresh(shape: tuple[int, ...], dtype: Any) -> Array:
    """Memory for a result. Large results come from the pool (allocator.hpp), which avoids their page faults."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not _native.POOLED <= size < 1 << 62:
        return np.empty(shape, dtype)
    result: Array = _native.memory(size).view(dtype).reshape(shape)
    return result


Array = np.ndarray[Any, Any]
State = tuple[Array, Array, Array]
"""(m, r, low): float64 arrays with one number per row. m is the row's maximum score, and r + low is l - 1, where
l = sum exp(beta (z_i - m)).
"""


def fold(z: Any, axes: tuple[int, ...], scale: Any, where: Any = None, state: State | None = None) -> State:
    """Fold a piece of each row into the rows' state, or into an empty state, and return the new state.

    If all pieces but the last have a multiple of `BLOCK` scores per row, the final state has the same bits as one fold
    of the whole rows.
    """
    rows = row_shape(z.shape, axes)
    m, r, low = (np.full(rows, -np.inf), np.full(rows, -1.0), np.zeros(rows)) if state is None else map(np.copy, state)
    _native.fold(z, where, scale, axes, m, r, low)
    return m, r, low


def apply(op: str, z: Any, axes: tuple[int, ...], scale: Any, where: Any, state: State, out: Any) -> Any:
    """Write the "softmax" or "log_softmax" of a piece of each row into `out`, from the state of the whole rows."""
    kernel = {"softmax": _native.apply_softmax, "log_softmax": _native.apply_log_softmax}[op]
    kernel(z, where, scale, axes, *state, out)
    return out


def finish(state: State, scale: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """The smooth maximum lse / beta of each row, from the state of the whole row."""
    out = np.empty(state[0].shape, dtype)
    _native.finish(*state, scale, out)
    return out
