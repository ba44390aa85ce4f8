"""Reductions of a loss: the losses of all rows, their sum, or their weighted mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import error_free
from softargmax.core.arrays import as_number, device_of, integer_dtype, namespace, working_dtype
from softargmax.core.operation import first_place, row_sum
from softargmax.core.processes import SpreadAxes


def row_weights(target: Any, ignore_index: int, weight: Any = None, axes: tuple[int, ...] = (-1,)) -> Any:
    """The weight of each row in the mean loss: 1, or the weight w_y of its class y. An ignored row has weight 0.

    `weight` broadcasts with the scores, and its classes are along the one axis of `axes`. If they are spread over
    processes, one of these has the class of a row.
    """
    (axis,) = axes
    target = namespace(target).astype(target, integer_dtype(target), copy=False)
    if weight is None or not isinstance(axes, SpreadAxes):
        return _row_weights(target, ignore_index, weight, axis)
    xp, place, none = namespace(target), target - first_place(axes), -1
    here = (target != ignore_index) & (place >= 0) & (place < weight.shape[axis])
    found = _row_weights(xp.where(here, place, none), none, weight, axis)
    if not weight.shape[axis]:
        found = found + xp.sum(weight)  # so it has a derivative, as in the other processes
    return xp.squeeze(row_sum(xp.expand_dims(found, axis=axis), axes), axis=axis)


def _row_weights(target: Any, ignore_index: int, weight: Any, axis: int) -> Any:
    xp, weight_dtype = namespace(target), working_dtype(target, namespace(target))
    ignored = target == ignore_index
    if weight is None or not weight.shape[axis]:
        return xp.astype(~ignored, weight_dtype)
    classes = weight.shape[axis]
    index = xp.clip(xp.where(ignored, 0, target), 0, classes - 1)
    if math.prod(weight.shape) == classes:
        of_class = xp.take(xp.astype(xp.reshape(weight, (-1,)), weight_dtype), xp.reshape(index, (-1,)), axis=0)
        return xp.where(ignored, 0.0, xp.reshape(of_class, tuple(target.shape)))
    # Each row has its own class weights, for example under vmap.
    class_shape = tuple(classes if i == axis % weight.ndim else 1 for i in range(weight.ndim))
    class_ids = xp.reshape(xp.arange(classes, dtype=index.dtype, device=device_of(index)), class_shape)
    chosen = xp.where(class_ids == xp.expand_dims(index, axis=axis), xp.astype(weight, weight_dtype), 0.0)
    return xp.where(ignored, 0.0, xp.sum(chosen, axis=axis))


def equal_row_weights(rows: Any) -> Any:
    """A weight of 1 for every row."""
    return namespace(rows).ones(tuple(rows.shape), dtype=rows.dtype, device=device_of(rows))


def total_weight(count: Any, dtype: Any, kept: int = 0) -> Any:
    """The sum of the rows' weights. A sum of 0 becomes inf, so that the mean over no rows and its gradient are 0."""
    total = _sum(count, dtype, kept)
    return namespace(total).where(total == 0.0, math.inf, total)


def total_of_rows(losses: Any, target: Any, weight: Any, ignore_index: int, *, mean: bool) -> Any:
    """The sum or mean of all rows' losses, in their dtype, with the class weights. If the target is None, all rows
    count equally.
    """
    count = equal_row_weights(losses) if target is None else row_weights(target, ignore_index, weight)
    return reduced(losses, count, losses.dtype, kept=0, mean=mean)


@np.errstate(all="ignore")
def reduced(rows: Any, count: Any, dtype: Any, *, kept: int, mean: bool) -> Any:
    """The sum or mean of the rows' losses over all but the `kept` leading dimensions, rounded once."""
    found = _sum(rows, dtype, kept)
    found = found / total_weight(count, dtype, kept) if mean else found
    return as_number(namespace(found).astype(found, dtype))


def _sum(rows: Any, dtype: Any, kept: int) -> Any:
    """Sum the rows' numbers over all but the `kept` leading dimensions: a compensated sum if the result is float64.

    For a narrower result a plain sum suffices, because the numbers have more digits than the result.
    """
    xp, axes = namespace(rows), tuple(range(kept, rows.ndim))
    if not axes:
        return rows
    return error_free.row_sum(rows, axes) if dtype == xp.float64 else xp.sum(rows, axis=axes)
