"""JAX as its users call it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tests.oracle.backends import Backend


def traced(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    """Under JAX compiled whole: one operation after the other, a hundred small programs would be compiled (15 s)."""
    return importlib.import_module("jax").jit(function) if backend.library == "jax" else function
