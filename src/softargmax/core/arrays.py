"""Arguments as arrays: which dtypes there are, and what stands beside scores as an array of their kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Number
from typing import Any

from softargmax.core.dispatch import as_array, device_of, is_torch, kind_of, namespace, refuse_lazy
from softargmax.core.exact import working_dtype

HALVES = frozenset(("float16", "bfloat16"))
FLOATS = HALVES | {"float32", "float64"}
COMPLEX = frozenset(("complex64", "complex128"))
INTEGERS = frozenset(("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))))


def dtype_name(dtype: Any) -> str:
    """The name of a dtype in any library: "float32", "bfloat16", "int64", ..."""
    return str(getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1])


def array_of(values: Any, name: str) -> Any:
    """`as_array`, which torch lets down where a list holds tensors that NumPy may not read."""
    try:
        return as_array(values, name)
    except RuntimeError as error:
        if not isinstance(values, (list, tuple)):
            raise
        raise _unstacked(values, name) from error


def _unstacked(values: Any, name: str) -> TypeError:
    return TypeError(f"{name}: a {type(values).__name__} of tensors; it may be one tensor: stack them (torch.stack)")


def dense(z: Any, name: str) -> Any:
    """The array itself, unless it is a tensor of which not every element is in memory, or not one size to an axis."""
    if is_torch(z) and not strided(z):
        what = "a nested tensor" if z.is_nested else f"a tensor of layout {z.layout}"
        raise TypeError(f"{name}: {what}; it may be a dense one, of layout torch.strided")
    return z


def strided(tensor: Any) -> bool:
    """Whether every element of a tensor is in memory."""
    return tensor.layout is sys.modules["torch"].strided and not tensor.is_nested


def like(values: Any, z: Any, name: str) -> Any:
    """An argument beside z as an array of z's kind, on its device; only numbers and sequences are brought there."""
    if kind_of(z) == "numpy":
        values = array_of(values, name)
    elif not (is_torch(values) or hasattr(values, "__array_namespace__")):
        values = _brought(values, z, name)
    if namespace(values) is not namespace(z):
        raise TypeError(f"{name}: {type(values).__name__}; here it may be {type(z).__name__}, a number or a list")
    if is_torch(z) and values.device != z.device:
        if values.ndim or not values.is_cpu:
            raise ValueError(f"{name}: on {values.device}; here it may be on {z.device}")
        values = values.to(z.device)  # a number, as torch takes them too
    return dense(values, name)


def _brought(values: Any, z: Any, name: str) -> Any:
    """A number or a sequence as an array of z's library."""
    refuse_lazy(values, name)
    if _holds_tracked(values):
        raise _unstacked(values, name)  # torch would take them for numbers, without their gradients
    xp = namespace(z)
    try:
        found = xp.asarray(values, device=device_of(z))
        float_too = dtype_name(found.dtype) in FLOATS  # numbers are float64, whatever the library makes of them
        return xp.asarray(values, dtype=working_dtype(z, xp), device=device_of(z)) if float_too else found
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        wrong = isinstance(error, TypeError) or not isinstance(values, (Number, Sequence))
        kind = TypeError if wrong else ValueError
        raise kind(f"{name}: {type(values).__name__} that cannot be made an array: {error}") from None


def _holds_tracked(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return any(map(_holds_tracked, values))
    return is_torch(values) and values.requires_grad
