"""Run functions once other code has imported a module, which may never happen."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(module: str, register: Callable[[], None]) -> None:
    """Call a function now if a module has been imported, and otherwise when it is."""
    if module in sys.modules:
        register()
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(module, []).append(register)


class _Finder(MetaPathFinder):
    """An import hook that runs the functions of a module when it has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        others = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._hooked(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec

    def _hooked(self, load: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
        def loaded(module: types.ModuleType) -> None:
            load(module)
            for register in _waiting.pop(module.__name__, ()):
                register()
            if not _waiting and self in sys.meta_path:
                sys.meta_path.remove(self)

        return loaded
