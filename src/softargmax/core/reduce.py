"""From rows' numbers to what was asked for: all of them, their sum, their mean."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from softargmax.core.dispatch import as_number, device_of, namespace
from softargmax.core.exact import row_sum, working_dtype


class Asked(Protocol):
    """What a loss was asked for, as far as reductions go; `wide` is the dtype of a row's number."""

    @property
    def reduction(self) -> str: ...

    @property
    def wide(self) -> Any: ...


class OfClasses(Asked, Protocol):
    """The same of a loss with targets along `axis`: `soft` ones are probabilities."""

    @property
    def axis(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def ignore_index(self) -> int: ...

    @property
    def soft(self) -> bool: ...


class Beside(Protocol):
    """The arrays beside scores that rows' weights are made of."""

    @property
    def target(self) -> Any: ...

    @property
    def weight(self) -> Any: ...


def counts(beside: Beside, options: OfClasses, *, weighted: bool = True) -> Any:
    """What each row counts in a mean: w_y, or 1 if it is not `weighted` or has probabilities; 0 if it is ignored."""
    target = beside.target
    xp = namespace(target)
    kind = working_dtype(target, xp)
    if options.soft:
        rows = tuple(n for i, n in enumerate(target.shape) if i != options.axis)
        return xp.ones(rows, dtype=kind, device=device_of(target))
    ignored = target == options.ignore_index
    if beside.weight is None or not weighted or not options.classes:
        return xp.astype(~ignored, kind)
    place = xp.reshape(xp.clip(xp.where(ignored, 0, target), 0, options.classes - 1), (-1,))
    weight = xp.astype(xp.reshape(beside.weight, (-1,)), kind)
    return xp.where(ignored, 0.0, xp.reshape(xp.take(weight, place, axis=0), tuple(target.shape)))


def factor(count: Any, options: OfClasses) -> Any:
    """What the sum of the rows is multiplied by, a 0-d array: 1, or for a mean 1 over what they count together.

    Where nothing counts it is 0, so that the mean is 0 and its gradient too.
    """
    xp = namespace(count)
    if options.reduction != "mean":
        return xp.ones((), dtype=count.dtype, device=device_of(count))
    return 1.0 / _together(count, options)


@np.errstate(all="ignore")
def reduced(rows: Any, count: Any, options: Asked) -> Any:
    """The rows' numbers as asked for, rounded once."""
    if options.reduction != "none":
        rows = _sum(rows, options)
    if options.reduction == "mean":
        rows = rows / _together(count, options)
    return as_number(namespace(rows).astype(rows, options.wide))


def _together(count: Any, options: Asked) -> Any:
    """What the rows count together, infinite in place of 0."""
    total = _sum(count, options)
    return namespace(total).where(total == 0.0, math.inf, total)


def _sum(rows: Any, options: Asked) -> Any:
    """The sum over all axes; a float64 result is summed in pairs, of any other the rows are wide enough."""
    xp = namespace(rows)
    return row_sum(rows, tuple(range(rows.ndim))) if options.wide == xp.float64 else xp.sum(rows)
