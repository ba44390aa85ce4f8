"""Error messages for missing optional packages."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra. It needs a clone, because the library is on no package index.

    >>> install("torch")
    "pip install '.[torch]' in a clone of softargmax"
    """
    return f"pip install '.[{extra}]' in a clone of softargmax"
