"""Compile functions under JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tests.oracle.backends import Backend


def traced(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, compiled as one program if the library is JAX.

    Without jax.jit, JAX would compile a hundred small programs, which takes 15 s.
    """
    return importlib.import_module("jax").jit(function) if backend.library == "jax" else function
