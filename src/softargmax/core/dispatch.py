"""What serves an array, by its kind (core/arrays.py).

An *implementation* is "native", the kernels of the compiled core, or "reference", the definitions. Without a name the
kernel serves where there is one. `using(name)` or the environment variable SOFTARGMAX_IMPLEMENTATION ask for one by
name, and then nothing else serves: if it cannot, that is an error.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import kind_of
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVES = {
    "native": ("numpy", "torch"),
    "reference": ("numpy", "torch", "torch-device", "array-api"),
}
"""The kinds of arrays that each implementation serves."""

_requested: ContextVar[str | None] = ContextVar("softargmax implementation", default=None)
requested = _requested.get
"""The name that a `using` block asks for, if any."""
_from_environment = os.environ.get("SOFTARGMAX_IMPLEMENTATION") or None


@public
@contextmanager
def using(name: str) -> Iterator[None]:
    """Ask for an implementation by name inside a `with` block; one that cannot serve raises.

    Parameters
    ----------
    name : {"native", "reference"}
        "native" is the compiled core for CPU memory, "reference" the definition in array-API Python.

    Notes
    -----
    Blocks nest, and each thread (or asynchronous task) has its own. The environment variable SOFTARGMAX_IMPLEMENTATION
    asks for the whole process.

    Examples
    --------
    >>> import softargmax
    >>> with softargmax.using("reference"):
    ...     softargmax.softmax([1.0, 2.0, 8.0]).round(3)
    array([0.001, 0.002, 0.997])
    """
    token = _requested.set(_known(name, "using(name)"))
    try:
        yield
    finally:
        _requested.reset(token)


def _known(name: str, source: str) -> str:
    if name not in SERVES:
        choices = ", ".join(repr(known) for known in SERVES)
        raise ValueError(f"{source}: expected one of {choices}, got {name!r}")
    return name


def check_serves(name: str, kind: str) -> None:
    """Check that an implementation that was asked for by name serves a kind of arrays."""
    if kind not in SERVES[name]:
        able = " or ".join(repr(known) for known, kinds in SERVES.items() if kind in kinds)
        raise RuntimeError(f"implementation {name!r} was asked for: it does not serve {kind} arrays, {able} does")


def requested_name() -> str | None:
    """The implementation that was asked for by name, if any."""
    name = _requested.get()
    if name is None and _from_environment is not None:
        name = _known(_from_environment, "SOFTARGMAX_IMPLEMENTATION")
    return name


def is_native(z: Any) -> bool:
    """Whether kernels of the compiled core serve an array."""
    return kind_of(z) in ("numpy", "torch") and requested_name() != "reference"
