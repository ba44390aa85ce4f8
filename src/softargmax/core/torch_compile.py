"""Public functions in the graphs of torch.compile: each becomes one node and is not traced.

The compiler takes 2 s to import, and most processes compile nothing. So the functions are registered when other code
imports the compiler.
"""

from __future__ import annotations

import sys
import types
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

_COMPILER = "torch._dynamo"
_done: set[str] = set()
_waiting: list[Callable[[], None]] = []


def compile_whole(room: str) -> None:
    """Register a room's public functions, so that Dynamo puts each call of them in its graph as one node.

    The later stages of the compiler see the operators that the functions call. Nothing is lost: the checks of
    arguments, the choice of an implementation and the exact arithmetic for beta contain nothing to compile, and Dynamo
    could not trace them.
    """
    module = sys.modules.get(room)
    if room in _done or module is None:
        return
    _done.add(room)
    for name in getattr(module, "__all__", ()):
        function = getattr(module, name)
        if isinstance(function, types.FunctionType) and not _makes_object(module, function):
            compile_function(function)


def _makes_object(module: types.ModuleType, function: Callable[..., Any]) -> bool:
    """True if a function returns an object of a class of its room, and no arrays. Such an object is no graph node."""
    made = getattr(module, str(function.__annotations__.get("return")), None)
    return isinstance(made, type) and not hasattr(made, "_fields")


def compile_function(function: Callable[..., Any]) -> None:
    """Register a function, so that `torch.compile` puts it in its graph without tracing it."""

    def opaque(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    def traced(*args: Any, **options: Any) -> Any:
        return opaque(*args, **options)

    def register() -> None:
        # Two steps: `allow_in_graph` alone would not stop torch.compile(function) from tracing the function.
        torch.compiler.allow_in_graph(opaque)  # type: ignore[no-untyped-call]
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(traced)

    _when_imported(register)


def _when_imported(register: Callable[[], None]) -> None:
    if _COMPILER in sys.modules:
        register()
        return
    if not _waiting:
        sys.meta_path.insert(0, _Compiler())
    _waiting.append(register)


class _Compiler(MetaPathFinder):
    """An import hook that runs the waiting registrations once the compiler has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COMPILER:
            return None
        others = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._hooked(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec

    def _hooked(self, load: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
        def loaded(module: types.ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            for register in _waiting:
                register()
            _waiting.clear()

        return loaded
