"""Calls from compiled JAX programs.

The core (cpp/xla_call.cpp) receives a text and XLA's buffers. `_prepared` returns the function for the text. The core
calls it with NumPy arrays that view the buffers, or, if the kernel needs no more, with views (core/native.py).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import ml_dtypes
import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import dtype_name
from softargmax.core.extras import install
from softargmax.core.memory import NUMPY
from softargmax.core.native import TYPES, View
from softargmax.core.record import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

if jax.__version_info__ < (0, 4, 34):
    raise ImportError(f"jax: expected version 0.4.34 or later, got {jax.__version__}: {install('jax')}")
TARGET = "softargmax_call"
"""The name of the custom call (cpp/xla_call.cpp)."""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = [BFLOAT16 if name == "bfloat16" else np.dtype(name) for name in TYPES]
ffi = jax.ffi if hasattr(jax, "ffi") else importlib.import_module("jax.extend.ffi")


def text_of(of: Any, how: dict[str, Any]) -> str:
    """Return the text of a call. It means the same in every process, so that a program can be exported."""
    call = {"room": of.operation.room, "name": of.operation.name, "how": {k: _encoded(x) for k, x in how.items()}}
    return json.dumps(call)


def _encoded(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [*map(_encoded, x)]
    return {"array": True} if x is ... else {"dtype": dtype_name(x)} if isinstance(x, np.dtype) else x


def _decoded(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(map(_decoded, x))
    if isinstance(x, dict):
        return ... if "array" in x else BFLOAT16 if x["dtype"] == "bfloat16" else np.dtype(x["dtype"])
    return x


def _prepared(text: str) -> tuple[Callable[[Any, Any], None], bool]:
    """Return the function (arguments, results) of a text, and True if it takes views. The compiled core keeps it."""
    call = json.loads(text)
    if not call["room"].startswith("softargmax."):
        raise ValueError(f"call: expected an operation of softargmax, got one of {call['room']}")
    importlib.import_module(call["room"])
    of = next(x for x in OPERATIONS if x.name == call["name"])
    prepared: tuple[Any, bool] = of.jax.prepared(**{key: _decoded(x) for key, x in call["how"].items()})
    return prepared


def array_at(view: View) -> Any:
    """Return a view as an array."""
    address, code, shape, _ = view
    dtype: Any = _DTYPES[code]
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


# --- memory for results: XLA's buffers --------------------------------------------------------------------------------

_given: dict[int, tuple[Iterator[Any], list[tuple[Any, Any]]]] = {}
"""The results of the call that each thread runs, and the copies to make at its end. A `threading.local` would crash
CPython 3.11: XLA's threads have a Python state only during the call, and its end would free the local variables."""


@contextmanager
def given(results: Sequence[Any]) -> Iterator[None]:
    """Use the memory of a call's results for what `GIVEN` allocates in this thread."""
    copies: list[tuple[Any, Any]] = []
    _given[threading.get_ident()] = iter(results), copies
    try:
        yield
    finally:
        del _given[threading.get_ident()]
    for result, made in copies:
        result[...] = made


def _take(shape: Any, dtype: Any) -> Any:
    """Return the next result, or new memory if its dtype is another one, or if only the first result is wanted."""
    results, copies = _given[threading.get_ident()]
    result = next(results, None)
    if result is not None and result.shape == tuple(shape) and result.dtype == dtype:
        return result
    made = np.empty(shape, dtype)
    if result is not None:
        copies.append((result, made))
    return made


GIVEN = NUMPY._replace(like=lambda x, dtype: _take(x.shape, dtype), empty=lambda _, shape, dtype: _take(shape, dtype))
SHAPES = NUMPY._replace(
    like=lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype),
    empty=lambda _, shape, dtype: jax.ShapeDtypeStruct(tuple(shape), dtype),
)
"""In place of memory, the shapes and dtypes of results."""

_native.prepare_xla_calls(_prepared)
ffi.register_ffi_target(TARGET, ffi.pycapsule(_native.xla_call()), platform="cpu")
