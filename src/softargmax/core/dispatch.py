"""The choice of an implementation for a kind of array (arrays.py).

An *implementation* is "native", the kernels of the compiled core, "triton", the kernels for CUDA, or "reference", the
definitions in array-API Python (operation.py). By default a call runs a kernel if one exists for the array's kind, and
the definition otherwise.
`using(name)` or the environment variable SOFTARGMAX_IMPLEMENTATION requests an implementation by name. A call with an
array that the requested implementation does not support raises an error.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import kind_of
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True if Triton interprets its kernels on the CPU. Then `using("triton")` runs them on tensors in CPU memory."""

SERVES = {
    "native": ("numpy", "torch", "jax"),
    "triton": ("torch", "torch-cuda") if INTERPRETED else ("torch-cuda",),
    "reference": ("numpy", "torch", "torch-cuda", "torch-device", "jax", "array-api"),
}
"""The kinds of arrays that each implementation supports."""

TRIED_ON_GPUS: frozenset[str] = frozenset()
"""The operations whose CUDA kernels have run on a GPU in their present form. No such kernel may spill registers there.

Kernels of other operations run only inside `using("triton")`.
"""

_requested: ContextVar[str | None] = ContextVar(
    "softargmax implementation", default=os.environ.get("SOFTARGMAX_IMPLEMENTATION") or None
)
requested = _requested.get
"""The implementation that an enclosing `using` block or the environment requests by name, or None."""


PROCESSES = "processes"
"""Requested inside a call whose rows are spread over processes (processes.py). `using` does not accept it."""


@contextmanager
def requesting(name: str | None) -> Iterator[None]:
    """Request an implementation, or the default, whatever is requested outside."""
    token = _requested.set(name)
    try:
        yield
    finally:
        _requested.reset(token)


@public
@contextmanager
def using(name: str) -> Iterator[None]:
    """Select an implementation by name inside a `with` block. A call that it does not support raises RuntimeError.

    Parameters
    ----------
    name : {"native", "triton", "reference"}
        "native" is the compiled core for arrays in CPU memory (of JAX: in programs for one CPU); "triton" are the
        kernels for CUDA tensors, also those that have never run on a GPU (calls that no kernel serves are computed by
        the definition); "reference" is the definition in array-API Python.

    Notes
    -----
    Blocks may be nested. A block affects only its own thread or asynchronous task. The environment variable
    SOFTARGMAX_IMPLEMENTATION selects an implementation for the whole process.

    Examples
    --------
    >>> import softargmax
    >>> with softargmax.using("reference"):
    ...     softargmax.softmax([1.0, 2.0, 8.0]).round(3)
    array([0.001, 0.002, 0.997])
    """
    with requesting(_known(name, "using(name)")):
        yield


def _known(name: str, source: str) -> str:
    if name not in SERVES:
        choices = ", ".join(repr(known) for known in SERVES)
        raise ValueError(f"{source}: expected one of {choices}, got {name!r}")
    return name


def check_serves(name: str, kind: str) -> None:
    """Raise RuntimeError if the implementation that was requested by name does not support a kind of array."""
    if kind not in SERVES[name]:
        alternatives = " or ".join(repr(known) for known, kinds in SERVES.items() if kind in kinds)
        message = f"implementation {name!r} was requested, but does not support {kind} arrays; use {alternatives}"
        raise RuntimeError(message)


def requested_name() -> str | None:
    """The checked name of the requested implementation, or None."""
    name = requested()
    return None if name in (None, PROCESSES) else _known(name, "SOFTARGMAX_IMPLEMENTATION")


def is_native(z: Any) -> bool:
    """True if calls with this array may run kernels of the compiled core, outside of a compiled program."""
    return kind_of(z) in ("numpy", "torch") and requested_name() != "reference"


def cuda_serves(operation: str) -> bool:
    """True if the CUDA kernel of an operation runs, now and here: it was tried on a GPU, or "triton" is requested."""
    return (operation in TRIED_ON_GPUS or requested() == "triton") and has_triton()


def is_for_cuda(z: Any, operation: str) -> bool:
    """True if the CUDA kernel of an operation serves an array of float32 or narrower, with results no wider."""
    kind = kind_of(z)
    return (kind == "torch-cuda" or (kind == "torch" and requested() == "triton")) and cuda_serves(operation)


@functools.cache
def has_triton() -> bool:
    """True if Triton is installed, and torch is not built for AMD. Otherwise definitions serve CUDA tensors."""
    torch = sys.modules.get("torch")
    for_amd = torch is not None and torch.version.hip is not None
    return find_spec("triton") is not None and not for_amd
