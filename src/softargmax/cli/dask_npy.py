"""What the workers of a cluster run to read `.npy` files. It needs neither typer nor rich."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax

if TYPE_CHECKING:
    from collections.abc import Sequence


class NpyFile:
    """The array in a `.npy` file. A task reads only the part that it needs. Python objects are never unpickled."""

    def __init__(self, path: Path) -> None:
        found = _mapped(path)
        self.path, self.shape, self.ndim = path, found.shape, found.ndim
        self.dtype = found.dtype.newbyteorder("=")

    def __getitem__(self, part: Any) -> np.ndarray[Any, Any]:
        # A copy, because pages of a mapped file would count as memory of the worker for as long as the part lives.
        return np.array(_mapped(self.path)[part], self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape} in {self.path.name}"


def _mapped(path: Path) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def report(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the version of softargmax on this machine, and the paths that do not exist there."""
    return softargmax.__version__, [path for path in paths if not Path(path).exists()]
