"""What to type for packages that an extra brings."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra: from a clone, as no package index has this library.

    >>> install("torch")
    "pip install '.[torch]' in a clone of softargmax"
    """
    return f"pip install '.[{extra}]' in a clone of softargmax"
