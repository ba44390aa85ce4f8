"""How functions stand in the graphs of torch.compile: as they are.

The compiler takes 2 s to import, and most processes compile nothing. So it hears of our functions when somebody else
imports it.
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

    def traced(*args: Any, **options: Any) -> Any:
        return whole(*args, **options)

    def tell() -> None:
        # Two steps: torch.compile(function) itself would look inside a function that is merely allowed in graphs.
        torch.compiler.allow_in_graph(whole)  # type: ignore[no-untyped-call]
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(traced)

    _when_imported(tell)


def _when_imported(tell: Callable[[], None]) -> None:
    if _COMPILER in sys.modules:
        tell()
        return
    if not _waiting:
        sys.meta_path.insert(0, _Compiler())
    _waiting.append(tell)


class _Compiler(MetaPathFinder):
    """Sees the compiler being imported, and tells it what waits when it is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COMPILER:
            return None
        others = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._telling(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec

    def _telling(self, load: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
        def loaded(module: types.ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            for tell in _waiting:
                tell()
            _waiting.clear()

        return loaded
