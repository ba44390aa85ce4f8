"""softargmax: the softmax family for NumPy, PyTorch and every array-API library.

Every public name is an attribute of this module and is imported at its first use. The rooms are the subpackages of
softargmax. From them tools/stubs.py generates the list of names (`_names.py`) and their types (`__init__.pyi`).
"""

from __future__ import annotations

import importlib
import sys

from softargmax._names import HOME, MODULES

__version__ = "0.2.0"
__all__ = ["__version__", *HOME]  # noqa: PLE0604 the names are strings


def __getattr__(name: str) -> object:
    if name in MODULES:
        return importlib.import_module(f"softargmax.{name}")
    home = HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'softargmax' has no attribute {name!r}")
    room = importlib.import_module(home)
    if "torch" in sys.modules and hasattr(room, "__path__"):
        # Register the room's operators and functions with torch before torch can trace a call of this function.
        from softargmax.core.torch_operation import register

        register(home)
    value = globals()[name] = getattr(room, name)  # cached, so the next access does not call `__getattr__`
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME, *MODULES})
