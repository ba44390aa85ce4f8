"""Public functions in the graphs of torch.compile: each becomes one node and is not traced.

Functions that make objects, such as `linear_chain`, and the methods of these objects are traced. A room lists in NODES
the private functions that they call and that become nodes, and in CONSTANTS those whose results are constants.

The compiler takes 2 s to import, and most processes compile nothing. So the functions are registered when other code
imports the compiler.
"""

from __future__ import annotations

import sys
import threading
import types
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from softargmax.core.arrays import NUMPY, is_torch, kind_of, kind_of_tensor, namespace
from softargmax.core.import_hook import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPILER = "torch._dynamo"
_done: set[str] = set()
_registering = threading.RLock()


def compile_whole(*rooms: str) -> None:
    """Register the public functions, NODES and CONSTANTS of rooms with Dynamo.

    The later stages of the compiler see the operators that the functions call. Nothing is lost: the checks of
    arguments, the choice of an implementation and the exact arithmetic for beta contain nothing to compile, and Dynamo
    could not trace them.
    """
    with _registering:
        for room in rooms:
            module = sys.modules.get(room)
            if room not in _done and hasattr(module, "__all__"):  # a room that is being imported has no `__all__` yet
                _done.add(room)
                _compile_room(module)


def _compile_room(module: Any) -> None:
    for name in module.__all__:
        function = getattr(module, name)
        if isinstance(function, types.FunctionType) and not _makes_object(module, function):
            compile_function(function)
    for function in getattr(module, "NODES", ()):
        compile_function(function)
    for function in getattr(module, "CONSTANTS", ()):
        compile_constant(function)


def _makes_object(module: types.ModuleType, function: Callable[..., Any]) -> bool:
    """True if a function returns an object of a class of its room, and no arrays. Such an object is no graph node."""
    made = getattr(module, str(function.__annotations__.get("return")), None)
    return isinstance(made, type) and not hasattr(made, "_fields")


def compile_constant(function: Callable[..., Any]) -> None:
    """Register a function, so that `torch.compile` calls it once, and stores its result in the graph."""
    when_imported(_COMPILER, partial(torch.compiler.assume_constant_result, function))


def _unchanged(options: dict[str, Any]) -> dict[str, Any]:
    return options


def compile_function(
    function: Callable[..., Any], change: Callable[[dict[str, Any]], dict[str, Any]] = _unchanged
) -> None:
    """Register a function, so that `torch.compile` puts it in its graph without tracing it.

    `change` changes the options to what a graph can store. It is traced.
    """

    def opaque(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    def traced(*args: Any, **options: Any) -> Any:
        return opaque(*args, **change(options))

    def register() -> None:
        # Two steps: `allow_in_graph` alone would not stop torch.compile(function) from tracing the function.
        torch.compiler.allow_in_graph(opaque)  # type: ignore[no-untyped-call]
        _trace_instead(function, traced)

    when_imported(_COMPILER, register)


def _trace_instead(function: Callable[..., Any], traced: Callable[..., Any]) -> None:
    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(traced)


# --- core/arrays.py in traced code: Dynamo cannot trace its tables of types -------------------------------------------


def _kind_of(z: Any) -> str:
    if is_torch(z):
        return kind_of_tensor(z)
    return "numpy" if isinstance(z, NUMPY) else "array-api"


def _namespace(_z: Any) -> Any:
    """The namespace of tensors. In a graph, every array is a tensor, or becomes one."""
    from array_api_compat import torch as xp

    return xp


def _trace_arrays() -> None:
    _trace_instead(kind_of, _kind_of)
    _trace_instead(namespace, _namespace)


when_imported(_COMPILER, _trace_arrays)
