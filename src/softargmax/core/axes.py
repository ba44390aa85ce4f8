"""Which axes: checked, and as numbers from 0."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.exceptions import AxisError

from softargmax.core.dispatch import namespace


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes as a sorted tuple of numbers from 0; a 0-d array is one row of one score."""
    if axis is None:
        return tuple(range(ndim))
    try:
        given = [operator.index(one) for one in axis] if isinstance(axis, (tuple, list)) else [operator.index(axis)]
    except TypeError:
        raise TypeError(f"axis: {axis!r}; it may be an integer, a tuple of integers or None") from None
    limit = max(ndim, 1)
    for one in given:
        if not -limit <= one < limit:
            may = f"from {-limit} to {limit - 1}"
            raise AxisError(f"axis: {axis} is out of range for {ndim} dimensions; it may be {may}")
    axes = sorted(one % limit for one in given)
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis: {axis} names an axis twice; each may be named once")
    return tuple(axes) if ndim else ()


def one_axis(axis: Any, ndim: int) -> int:
    """One axis as a number from 0, where a tuple or None makes no sense."""
    if axis is None or isinstance(axis, (tuple, list)):
        raise TypeError(f"axis: {axis!r}; it may be one integer here")
    return (*axes_of(axis, ndim), 0)[0]


def squeezed(row: Any, axes: tuple[int, ...]) -> Any:
    """A number per row, of which the reduced axes were kept as 1, without them; of one row the number itself."""
    if type(row) is np.ndarray:
        return row.squeeze(axes)[()]
    return namespace(row).squeeze(row, axis=axes) if axes else row
