"""How public functions stand in the graphs of torch.compile: as they are."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_done: set[str] = set()


def compile_whole(room: str) -> None:
    """Have `torch.compile` take the public functions of a room into its graph as they are.

    Tracing starts at their operators then: the checks of arguments, the choice of an implementation and the exact
    temperature have nothing to compile in them, and are no Python that it could follow.
    """
    module = sys.modules.get(room)
    if room in _done or module is None:
        return
    _done.add(room)
    for name in getattr(module, "__all__", ()):
        if isinstance(function := getattr(module, name), types.FunctionType):
            compile_function(function)


def compile_function(function: Callable[..., Any]) -> None:
    """Have `torch.compile` take a function into its graph as it is."""

    def whole(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    # Two steps, since torch.compile(function) itself would look inside a function that is merely allowed in graphs.
    torch.compiler.allow_in_graph(whole)  # type: ignore[no-untyped-call]

    def traced(*args: Any, **options: Any) -> Any:
        return whole(*args, **options)

    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(traced)
