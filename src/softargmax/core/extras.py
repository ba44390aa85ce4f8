"""Error messages for missing optional packages."""

from __future__ import annotations

from importlib.util import find_spec


def install(extra: str) -> str:
    """The command that installs an extra from a clone, because the library is on no package index.

    >>> install("torch")
    "pip install '.[torch]' in a clone of softargmax"
    """
    return f"pip install '.[{extra}]' in a clone of softargmax"


def require(need: str, extra: str, **packages: str) -> None:
    """Raise ImportError if a module is not installed.

    `need` is the start of the message, such as "tables need". `extra` installs the packages. Each further keyword is
    the name of a module, and its value is the name of the package that contains the module.
    """
    for module, package in packages.items():
        if find_spec(module) is None:
            raise ImportError(f"{need} {package}, which is not installed: {install(extra)}")
