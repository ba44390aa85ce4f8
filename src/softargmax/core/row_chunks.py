"""Process large arrays in CPU memory a few rows at a time, so that temporaries stay small.

Tensors that record derivatives are processed whole: chunks would not save memory, because torch keeps the temporaries
for the backward pass. Tensors that are being traced are processed whole, too, and so are rows that are spread over
processes, which must all make the same number of exchanges.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import as_number, is_torch, kind_of, namespace
from softargmax.core.processes import SpreadAxes
from softargmax.core.scale import Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZE = 1 << 17
"""Scores per chunk, few enough for several temporaries to fit in the cache. A longer row is a chunk of its own."""


def by_rows(compute: Callable[..., Any], axes: tuple[int, ...], *arguments: Any) -> Any:
    """Return compute(*arguments), computed from slices along the first axis that is not reduced.

    Each argument is None, a scale, or an array that broadcasts with the first argument. The result is an array, or a
    named tuple of arrays. Each of these arrays has all axes, or all axes but the reduced ones.
    """
    z = arguments[0]
    rows = [i for i in range(z.ndim) if i not in axes and z.shape[i] > 1]
    size = math.prod(z.shape)
    if size <= 2 * SIZE or not rows or isinstance(axes, SpreadAxes) or not cut(arguments):
        return as_number(compute(*arguments))
    axis = rows[0]
    step = max(1, SIZE * z.shape[axis] // size)
    bounds = ((start, start + step) for start in range(0, z.shape[axis], step))
    parts = [compute(*(piece(x, axis - z.ndim, *bound) for x in arguments)) for bound in bounds]
    if not isinstance(parts[0], tuple):
        return _joined(parts, axis, axes, z.ndim)
    return type(parts[0])(*(_joined(part, axis, axes, z.ndim) for part in zip(*parts, strict=True)))


def _joined(parts: Sequence[Any], axis: int, axes: tuple[int, ...], ndim: int) -> Any:
    reduced = 0 if parts[0].ndim == ndim else sum(i < axis for i in axes)
    return namespace(parts[0]).concat(parts, axis=axis - reduced)


def cut(arguments: tuple[Any, ...], *, on_devices: bool = False) -> bool:
    """True if the arguments may be processed in chunks: NumPy arrays, and tensors that record no derivative.

    Tensors on a device are not cut by default: small chunks would take longer than their temporaries are worth.
    """
    kind = kind_of(arguments[0])
    if not kind.startswith("torch"):
        return kind == "numpy"
    from softargmax.core.torch_readable import direct, eager

    arrays = (x for one in arguments for x in (one if isinstance(one, Scale) else (one,)))
    return all((eager if on_devices else direct)(x) for x in arrays if is_torch(x))


def piece(argument: Any, axis: int, start: int, stop: int) -> Any:
    """Slice an argument along `axis`, a negative index.

    An argument that has no such axis, or has length 1 along it, is returned unchanged.
    """
    if argument is None or isinstance(argument, float):
        return argument
    if isinstance(argument, Scale):
        return Scale(*(piece(x, axis, start, stop) for x in argument))
    if argument.ndim < -axis or argument.shape[axis] == 1:
        return argument
    return argument[(..., slice(start, stop), *(slice(None),) * (-axis - 1))]
