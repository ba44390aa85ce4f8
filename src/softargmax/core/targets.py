"""Checks of a loss's arguments other than the scores: targets, class weights, reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.arrays import integer_dtype, namespace, row_shape

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

REDUCTIONS = ("none", "mean", "sum")
IGNORE = -100


def kept_of(reduction: str, ndim: int) -> int:
    """The number of dimensions of the rows' losses that a reduction keeps: all for "none", and otherwise 0."""
    return ndim if reduction == "none" else 0


def class_weights(weight: Any, z: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The checked class weights: one per class, at least 0, along the classes' axis."""
    if weight is None:
        return None
    weight = check.scores(arrays.like(weight, z, "weight"), "weight")
    if tuple(weight.shape) != (shape[axis],):
        raise ValueError(f"weight: expected one number per class, shape ({shape[axis]},), got {tuple(weight.shape)}")
    xp = namespace(weight)
    if check.inspectable(weight) and bool(xp.any(weight < 0)):
        raise ValueError("weight: expected 0 or positive numbers, got some negative")
    return xp.reshape(weight, tuple(n if i == axis else 1 for i, n in enumerate(shape)))


def target_of(
    target: Any, z: Any, shape: tuple[int, ...], axis: int, ignore_index: int, name: str, *, look: bool = True
) -> tuple[Any, bool]:
    """Return (target, True) for probabilities in the scores' shape, (target, False) for classes in the rows' shape.

    The values of classes are checked here if they can be read. With `look=False` the kernel checks them.
    """
    target = arrays.like(target, z, name)
    rows = row_shape(shape, (axis,))
    found, dtype = tuple(target.shape), arrays.dtype_name(target.dtype)
    if dtype in arrays.FLOATS and found == shape and name == "target":
        if ignore_index != IGNORE:
            raise ValueError(f"ignore_index: expected {IGNORE}, as the targets are probabilities, got {ignore_index}")
        return check.scores(target, name), True
    if dtype not in arrays.INTEGERS - {"bool"}:
        also = f", or probabilities of the scores' shape {shape}" if name == "target" else ""
        raise TypeError(f"{name}: expected integers of shape {rows}{also}, got dtype {target.dtype}, shape {found}")
    if found != rows:
        raise ValueError(f"{name}: expected the rows' shape, {rows}, got {found}{_hint(found, shape, name)}")
    xp = namespace(target)
    target = xp.astype(target, integer_dtype(target), copy=False)
    if look and check.inspectable(target):
        in_range(target, shape, axis, ignore_index, name)
    return target, False


def _hint(found: tuple[int, ...], shape: tuple[int, ...], name: str) -> str:
    """A hint for two common mistakes: one-hot integer targets, and scores in torch's layout (N, K, d1, ..)."""
    if found == shape and name == "target":
        return "; pass one-hot targets and other probabilities as floats"
    if len(shape) > 2 and found == row_shape(shape, (1,)):
        return "; use axis=1 if the classes are along axis 1, as in torch"
    return ""


def in_range(target: Any, shape: tuple[int, ...], axis: int, ignore_index: int, name: str) -> None:
    """Check the values of classes, which must be readable."""
    xp = namespace(target)
    wrong = ((target < 0) | (target >= shape[axis])) & (target != ignore_index)
    if bool(xp.any(wrong)):
        row = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), target.dtype)))
        refuse_class(target, row, shape, (axis,), ignore_index, name)


def refuse_class(
    target: Any, row: int, shape: tuple[int, ...], axes: tuple[int, ...], ignore_index: int, name: str = "target"
) -> NoReturn:
    """Raise IndexError for the invalid class of a row. `row` is the row's index in row-major order."""
    value, rows = int(namespace(target).reshape(target, (-1,))[row]), row_shape(shape, axes)
    position = check.place(row, rows)
    classes = shape[axes[0]]
    ignored = f"{ignore_index} (ignored)"
    allowed = f"0 to {classes - 1}, or {ignored}" if classes else f"{ignored}, as there are no classes"
    raise IndexError(f"{name}: expected {allowed}, got {value} at {position}")


def with_right_classes(target: Any, classes: int, ignore_index: int, run: Callable[[Any], R]) -> tuple[R, Any] | None:
    """Return the results of `run` for right classes, and an array that is True where a class was out of range.

    There, `run` gets the nearest class, which has the weight that a wrong class has in the definitions
    (loss_reduction.py). All arrays are those of NumPy. Return None if there are no classes, or if the nearest class is
    ignored.
    """
    wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
    right = np.where(wrong, np.clip(target, 0, classes - 1), target)
    return None if classes == 0 or (right[wrong] == ignore_index).any() else (run(right), wrong)
