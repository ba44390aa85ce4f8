"""What the workers of a cluster run to read and write `.npy` files. It needs neither typer nor rich."""

from __future__ import annotations

import os
import pickle
from bisect import bisect
from itertools import accumulate
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


class NpyStack:
    """A folder of `.npy` files, one below the other. A task writes its chunk into a file that exists.

    A file has the rows of one chunk. So if chunks cut rows, several tasks write parts of one file, and no task needs a
    whole row. `da.from_npy_stack` reads the folder.
    """

    def __init__(self, folder: Path, chunks: tuple[tuple[int, ...], ...], dtype: np.dtype[Any]) -> None:
        self._folder, self._dtype, self._ends = folder, dtype, list(accumulate(chunks[0]))
        self._row = tuple(map(sum, chunks[1:]))
        self._offsets = [
            np.lib.format.open_memmap(self._path(place), "w+", dtype, (rows, *self._row)).offset
            for place, rows in enumerate(chunks[0])
        ]
        info = {"chunks": (chunks[0], *((size,) for size in self._row)), "dtype": dtype, "axis": 0}
        (folder / "info").write_bytes(pickle.dumps(info))

    def _path(self, place: int) -> Path:
        return self._folder / f"{place}.npy"

    def __setitem__(self, part: tuple[slice, ...], values: np.ndarray[Any, Any]) -> None:
        place = bisect(self._ends, part[0].start)
        shape, starts = (len(values), *self._row), (0, *(along.start for along in part[1:]))
        # Axes at the end that are whole follow each other in the file.
        cut = max((k for k in range(1, len(shape)) if values.shape[k] < shape[k]), default=0)
        runs = np.ascontiguousarray(values, self._dtype).reshape(*values.shape[:cut], -1)
        # Only for writing: a client of a network file system that has read a page may write back the whole page, and
        # with it old bytes of a part that another machine has written.
        with os.fdopen(os.open(self._path(place), os.O_WRONLY), "wb") as target:
            for index in np.ndindex(runs.shape[:-1]):
                first = [start + k for start, k in zip(starts, (*index, *[0] * len(shape)), strict=False)]
                target.seek(self._offsets[place] + int(np.ravel_multi_index(first, shape)) * self._dtype.itemsize)
                target.write(runs[index].data)


def _mapped(path: Path) -> np.memmap[Any, Any]:
    found: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def report(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the version of softargmax on this machine, and the paths that do not exist there."""
    return softargmax.__version__, [path for path in paths if not Path(path).exists()]
