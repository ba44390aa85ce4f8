"""The checks of arguments. Each runs once, in the public function and before any work.

out_argument.py checks `out=`, targets.py checks classes, and offsets.py checks segments.

Errors name the argument, what was expected and what was passed. Values are checked only in CPU memory (`readable`).
Under tracing or on a device, an invalid value makes the result of its row NaN.
"""

from __future__ import annotations

import math
import operator
import threading
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core._native import plain_axes
from softargmax.core.arrays import (
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    array_of,
    axes_of,
    dense,
    device_of,
    dtype_name,
    integer_dtype,
    is_strict,
    is_torch,
    is_traced,
    jax_of,
    kept_shape,
    kind_of,
    like,
    namespace,
    readable,
    row_dtype,
    row_shape,
    shown,
    working_dtype,
)
from softargmax.core.scale import UNIT, Scale, scale_of_array, scale_of_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rows(NamedTuple):
    """The checked arguments of every operation along rows: the scores, the axes of a row, and beta."""

    z: Any
    axes: tuple[int, ...]
    beta: Scale


def rows(z: Any, axis: Any, temperature: Any = 1.0, base: Any = None) -> Rows:
    """Check the scores, the axis and the temperature."""
    if type(temperature) is float and temperature == 1.0 and base is None and (axes := plain_axes(z, axis)):
        return Rows(z, axes, UNIT)
    z = scores(z)
    z, axes = at_each(temperature, z, axes_of(axis, z.ndim))
    return Rows(z, axes, scale_of(temperature, base, z, axes))


def at_each(temperature: Any, z: Any, axes: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Broadcast the scores to the temperatures. Return the scores and the axes of a row.

    Several temperatures for a single row, or temperatures with more dimensions than z, add leading axes to the scores.
    In all other cases the scores and the axes are returned unchanged.
    """
    shape = shape_of(temperature)
    if shape is None:
        return z, axes  # `per_row` raises the error
    more = len(shape) - z.ndim
    if len(shape) == 1 and shape != (1,) and len(axes) == z.ndim:
        more = 1
    elif more <= 0 or not broadcasts(shape[more:], kept_shape(z.shape, axes)):
        return z, axes
    front = shape[:more]
    return namespace(z).broadcast_to(z, front + tuple(z.shape)), tuple(i + len(front) for i in axes)


def shape_of(temperature: Any) -> tuple[int, ...] | None:
    """The shape of a number, a list or an array of temperatures, or None if a list has no shape."""
    try:
        is_list = isinstance(temperature, (list, tuple))
        return tuple(np.shape(temperature) if is_list else getattr(temperature, "shape", ()))
    except (ValueError, TypeError, RuntimeError):
        return None


def optional_mask(where: Any, z: Any) -> Any:
    """Check `where` and return it. None is returned unchanged."""
    return None if where is None else mask(where, z)


def scores(z: Any, name: str = "z", *, complex_too: bool = False) -> Any:
    """The scores as an array of a floating dtype in native byte order. Complex dtypes need `complex_too`."""
    z = dense(array_of(z, name), name)
    dtype = dtype_name(z.dtype)
    if dtype in INTEGERS:
        xp = namespace(z)
        return xp.astype(z, xp.__array_namespace_info__().default_dtypes(device=device_of(z))["real floating"])
    if dtype not in FLOATS and not (complex_too and dtype in COMPLEX):
        also = ", complex64, complex128" if complex_too else ""
        allowed = f"float16, bfloat16, float32, float64{also}, an integer or bool"
        raise TypeError(f"{name}: expected dtype {allowed}, got {z.dtype}")
    return z if getattr(z.dtype, "isnative", True) else z.astype(z.dtype.newbyteorder("="))


def together(a: Any, b: Any, name: str) -> tuple[Any, Any]:
    """Broadcast two arrays of scores to one shape and dtype. In errors the second array is called `name`."""
    is_array = kind_of(a) == "numpy" or hasattr(b, "dtype")
    b, xp = scores(like(b, a, name), name), namespace(a)
    b = b if is_array else xp.astype(b, a.dtype, copy=False)
    try:
        shape = np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"{name}: expected a shape that broadcasts with {tuple(a.shape)}, got {tuple(b.shape)}"
        ) from None
    dtype = wider(a, b)
    a, b = (xp.broadcast_to(xp.astype(x, dtype, copy=False), shape) for x in (a, b))
    return a, b


def wider(a: Any, b: Any) -> Any:
    """The floating dtype to which both arrays are promoted.

    For float16 with bfloat16, which NumPy cannot promote, it is float32.
    """
    xp = namespace(a)
    mixed = {dtype_name(x.dtype) for x in (a, b)} == HALVES
    return xp.float32 if mixed else xp.result_type(a.dtype, b.dtype)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """True if an array of this shape can be broadcast to exactly the other shape."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def mask(where: Any, z: Any, shape: tuple[int, ...] | None = None, *, name: str = "where") -> Any:
    """A mask as a boolean array that broadcasts with the scores. Errors call it `name`.

    The scores are z, or an array of the given shape that is computed from z.
    """
    where = like(where, z, name)
    shape = tuple(z.shape) if shape is None else shape
    if dtype_name(where.dtype) != "bool":
        raise TypeError(f"{name}: expected dtype bool, got {where.dtype}")
    if not broadcasts(where.shape, shape):
        raise ValueError(f"{name}: expected a shape that broadcasts with scores of {shape}, got {tuple(where.shape)}")
    return where


def weights_of(weights: Any, z: Any, name: str = "weights", *, signed: bool = False) -> Any:
    """Check weights, and return floats that broadcast with z. Negative weights are allowed only if `signed`."""
    weights = scores(like(weights, z, name), name)
    if not broadcasts(weights.shape, z.shape):
        raise ValueError(
            f"{name}: expected a shape that broadcasts with scores of {tuple(z.shape)}, got {tuple(weights.shape)}"
        )
    if not signed and inspectable(weights) and bool(namespace(weights).any(weights < 0)):
        raise ValueError(f"{name}: expected 0 or positive numbers, got some negative; signed_logsumexp accepts them")
    return weights


def weighted(z: Any, weights: Any, *, signed: bool = False) -> tuple[Any, Any]:
    """Check weights. Return the scores and the weights.

    Weights of a wider floating dtype promote the scores. Lists and integers do not.
    """
    if weights is None:
        return z, None
    typed = dtype_name(getattr(weights, "dtype", None)) in FLOATS
    weights = weights_of(weights, z, signed=signed)
    return (namespace(z).astype(z, wider(z, weights), copy=False) if typed else z), weights


def values_of(values: Any, z: Any, length: int) -> Any:
    """Check the values of the K classes of a row: an array of shape (K,) or (K, D)."""
    values = like(values, z, "values")
    if dtype_name(values.dtype) in INTEGERS:
        values = namespace(z).astype(values, working_dtype(z, namespace(z)))
    values = scores(values, "values")
    if values.ndim not in (1, 2) or values.shape[0] != length:
        raise ValueError(f"values: expected shape ({length},) or ({length}, D), got {tuple(values.shape)}")
    return values


def float_dtype(dtype: Any, z: Any) -> Any:
    """The requested dtype of a result, as a dtype of z's library. In JAX without 64-bit mode, float64 means float32."""
    xp = namespace(z)
    try:
        if isinstance(z.dtype, np.dtype):  # NumPy, and libraries that use its dtypes
            requested = np.dtype(dtype)
            requested = requested if requested.isnative else requested.newbyteorder("=")
        else:
            requested = getattr(xp, dtype) if isinstance(dtype, str) else dtype
    except (TypeError, AttributeError):
        requested = None
    if not isinstance(requested, (np.dtype, type(z.dtype))) or dtype_name(requested) not in FLOATS:
        library = xp.__name__.removeprefix("array_api_compat.")
        expected = f"{library}'s float16, bfloat16, float32 or float64, or its name"
        raise TypeError(f"dtype: expected {expected}, got {shown(dtype)}")
    jax = jax_of(z)
    return requested if jax is None else jax.dtypes.canonicalize_dtype(requested)


def dtype_of_rows(dtype: Any, z: Any) -> Any:
    """The dtype of one number per row: `dtype`, or the default for z's dtype."""
    return row_dtype(z.dtype) if dtype is None else float_dtype(dtype, z)


def positive(value: Any, name: str, *, infinite: bool = False) -> float:
    """Check a number above 0 and return it as a float. `infinite` allows inf."""
    if not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number above 0, got {shown(value)}")
    found = number(value, name)
    if not found > 0.0 or (math.isinf(found) and not infinite):
        allowed = "a number above 0, or inf" if infinite else "a finite number above 0"
        raise ValueError(f"{name}: expected {allowed}, got {value}")
    return found


def number(value: Any, name: str) -> float:
    """Return a real number as a float. Raise ValueError if it is outside the range of float64."""
    try:
        return float(value)
    except OverflowError:  # the value is not shown: it may have thousands of digits
        raise ValueError(f"{name}: expected a number in the range of float64, got an integer outside it") from None


def between(value: Any, name: str, high: float, *, below: bool = False) -> float:
    """Check a finite number from 0 to `high` and return it as a float. `below` excludes `high` itself."""
    if high == math.inf:
        allowed = "a finite number of at least 0"
    else:
        allowed = f"a number of at least 0 and below {high:g}" if below else f"a number from 0 to {high:g}"
    if not isinstance(value, Real):
        raise TypeError(f"{name}: expected {allowed}, got {shown(value)}")
    found = number(value, name)
    if not 0.0 <= found <= high or math.isinf(found) or (below and found == high):
        raise ValueError(f"{name}: expected {allowed}, got {value}")
    return found


def is_integer(value: Any) -> bool:
    """True for an integer of any library, also a 0-d array or a tensor of one number. Not for bool and traced ones."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        return False
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return True
    if is_traced(value) or dtype_name(dtype) not in INTEGERS - {"bool"}:
        return False
    return value.ndim == 0 or (is_torch(value) and value.numel() == 1)


def integer(value: Any, name: str) -> int:
    """Check an integer of any library and return it as an int."""
    if not is_integer(value):
        raise TypeError(f"{name}: expected an integer, got {shown(value)}")
    found = operator.index(value)
    if not -(1 << 63) <= found < 1 << 63:
        raise ValueError(f"{name}: expected an integer of 64 bits, got a larger one")
    return found


def flag(value: Any, name: str) -> bool:
    """Check that a value is True or False, of Python or NumPy, and return it as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Check that a value is one of the strings in `choices`, and return it."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {shown(value)}")
    return str(value)


def scale_of(
    temperature: Any, base: Any, z: Any, axes: tuple[int, ...], k: float = 1.0, *, rows: str = "the rows"
) -> Scale:
    """Check the arguments and return beta = ln(base) / (k temperature). Errors use `rows` as the name of the rows.

    ln(base) is 1 if `base` is None. k is Boltzmann's constant, or 1.
    """
    if base is not None:
        base = positive(base, "base")
    allowed = "any number except NaN"
    temperature = within(temperature, z, axes, "temperature", lambda t: abs(t) >= 0.0, allowed, rows)
    if isinstance(temperature, float):
        return scale_of_number(temperature, base, k)
    return scale_of_array(temperature, base, namespace(z), k)


def order(alpha: Any, z: Any, axes: tuple[int, ...], rows: str = "the rows") -> Any:
    """The order of a Tsallis entropy: a number, or an array with one per row."""
    allowed = "a finite number above 0"
    return within(alpha, z, axes, "alpha", lambda a: (a > 0.0) & (a < math.inf), allowed, rows)


def within(
    value: Any,
    z: Any,
    axes: tuple[int, ...],
    name: str,
    holds: Callable[[Any], Any],
    allowed: str,
    rows: str = "the rows",
    *,
    whole: bool = False,
) -> Any:
    """Check one number for all rows, or one number per row: `holds` must be true for each.

    A single number is returned as a float, and numbers per row as an array. With `whole`, integers in the array stay
    integers. Errors use two texts: `allowed` describes the allowed numbers, and `rows` is the name of the rows.

    Under tracing or on a device, an invalid value becomes NaN, so that its row's result becomes NaN. An invalid integer
    becomes -2, because -1 and 0 may be valid and mean "all".
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = float(scores(value, name))
    if isinstance(value, Real):
        found = number(value, name)
        if not holds(found):
            raise ValueError(f"{name}: expected {allowed}, got {value}")
        return found
    values = per_row(value, z, axes, name, rows, whole=whole)
    xp, good = namespace(values), holds(values)
    if not inspectable(values):
        return xp.where(good, values, -2 if dtype_name(values.dtype) in INTEGERS else math.nan)
    if not bool(xp.all(good)):
        row = int(xp.argmax(xp.astype(xp.reshape(~good, (-1,)), xp.int32)))
        at = place(row, row_shape(values.shape, axes))
        raise ValueError(f"{name}: expected {allowed}, got {float(xp.reshape(values, (-1,))[row]):g} in row {at}")
    return values


def place(row: int, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Convert the number of a row in row-major order to its index in each dimension."""
    return tuple(int(i) for i in np.unravel_index(row, rows)) if rows else ()


def per_row(
    values: Any, z: Any, axes: tuple[int, ...], name: str, rows_name: str = "the rows", *, whole: bool = False
) -> Any:
    """Return an array with one number per row, in working precision, with the reduced axes of z kept as 1.

    With `whole`, integers get the library's default integer dtype, and not the working precision.
    """
    if values is None or isinstance(values, (str, bytes)):
        raise TypeError(f"{name}: expected a number, or an array with one per row, got {values!r}")
    xp = namespace(z)
    values = like(values, z, name)
    values = values if dtype_name(values.dtype) in INTEGERS else scores(values, name)
    kept = kept_shape(z.shape, axes)
    rows = row_shape(z.shape, axes)
    shape = tuple(values.shape)
    if len(shape) == z.ndim and broadcasts(shape, kept):
        pass
    elif broadcasts(shape, rows):
        sizes = iter((1,) * (len(rows) - len(shape)) + shape)
        shape = tuple(1 if i in axes else next(sizes) for i in range(z.ndim))
    else:
        also = f" (axes kept: {kept})" if kept != rows else ""
        allowed = f"a number, or a shape that broadcasts with {rows_name}, {rows}{also}"
        raise ValueError(f"{name}: expected {allowed}, got shape {shape}")
    dtype = working_dtype(z, xp)
    if whole and dtype_name(values.dtype) in INTEGERS:
        dtype = integer_dtype(values)
    return xp.reshape(xp.astype(values, dtype), shape)


def counts(x: Any, most: int, name: str) -> None:
    """Check that the numbers of an array, if they may be read now, are from 0 to `most`."""
    if inspectable(x) and bool(namespace(x).any((x < 0) | (x > most))):
        raise ValueError(f"{name}: expected numbers from 0 to {most}, got a number out of range")


@contextmanager
def located(place: str) -> Iterator[None]:
    """Let errors of arguments begin with the place where they are, such as a chunk of a lazy array."""
    try:
        yield
    except (IndexError, TypeError, ValueError) as error:
        kind = next(kind for kind in (IndexError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"{place}: {error}") from error


def inspectable(array: Any) -> bool:
    """True if the values may be read now: the array is `readable`, or an array of array-api-strict."""
    return not (_unread and threading.get_ident() in _unread) and (is_strict(array) or readable(array))


_unread: set[int] = set()
"""The threads that run a definition on JAX's arrays in NumPy. There, wrong values give NaN or -1, and no error."""


@contextmanager
def values_unread() -> Iterator[None]:
    """Treat arrays as JAX does, which reads no values before a call, although their values are known now."""
    _unread.add(threading.get_ident())
    try:
        yield
    finally:
        _unread.discard(threading.get_ident())
