"""Checks of arguments that several functions of this room take."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import INTEGERS, device_of, dtype_name, integer_dtype, like, namespace, row_dtype
from softargmax.structure.contraction import Semiring
from softargmax.structure.reference import zero_of


def integers_of(x: Any, z: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return integers of this shape as int64, or int32 in JAX without 64-bit mode."""
    found = like(x, z, name)
    if dtype_name(found.dtype) not in INTEGERS - {"bool"} or tuple(found.shape) != shape:
        raise ValueError(f"{name}: expected integers of shape {shape}, got {found.dtype} of {tuple(found.shape)}")
    return namespace(found).astype(found, integer_dtype(found))


def wrong_classes(y: Any, classes: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return where a class does not exist. If the classes can be read, raise IndexError for the first of them.

    `classes` is a number, or has one per entry of the last axis. `shape` is the shape in which the user passed y.
    """
    xp = namespace(y)
    wrong = (y < 0) | (y >= classes)
    if not check.inspectable(wrong) or not bool(xp.any(wrong)):
        return wrong
    row = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), xp.int8)))
    at = check.place(row, shape)
    most = classes if isinstance(classes, int) else int(classes[at[-1]])
    raise IndexError(f"{name}: expected 0 to {most - 1}, got {int(xp.reshape(y, (-1,))[row])} at {at}")


def operands_of(operands: tuple[Any, ...], name: str) -> list[Any]:
    """Check tables of scores, and convert them to one dtype."""
    if not operands:
        raise ValueError(f"{name}: expected at least one array, got none")
    first = check.scores(operands[0], f"{name}[0]")
    arrays = [first]
    for i, x in enumerate(operands[1:], 1):
        arrays.append(check.scores(like(x, first, f"{name}[{i}]"), f"{name}[{i}]"))
    dtype, xp = first.dtype, namespace(first)
    for x in arrays:
        dtype = check.wider(xp.zeros((), dtype=dtype), x)
    return [xp.astype(x, dtype, copy=False) for x in arrays]


def semiring_of(temperature: Any, base: float | None, z: Any) -> Semiring:
    """Check the temperature, one for all terms, and the base."""
    xp = namespace(z)
    beta = check.scale_of(temperature, base, xp.zeros((), dtype=z.dtype, device=device_of(z)), (), rows="all terms")
    return Semiring(temperature, base, zero_of(beta, row_dtype(z.dtype)))
