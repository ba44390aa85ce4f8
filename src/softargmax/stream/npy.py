"""A ``.npy`` file as an array that is read and written by boxes, in plain reads and writes.

The file is not mapped: a mapped page counts as this process's memory for as long as the kernel likes, and an error of
the disk under a mapping is a signal and not an exception. Nothing here can unpickle.
"""

from __future__ import annotations

import io
import math
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from softargmax.stream.boxes import runs_of
from softargmax.stream.dtypes import check_readable
from softargmax.stream.whole import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from softargmax.stream.boxes import Box


class NpyFile:
    """An open ``.npy`` file: `shape` and `dtype` of its array, `order` of its dimensions in the file, slowest first."""

    def __init__(self, file: BinaryIO, shape: Sequence[int], dtype: np.dtype[Any], *, fortran: bool) -> None:
        self.file = file
        self.shape = tuple(shape)
        self.dtype = dtype
        self.order = tuple(range(len(shape)))[:: -1 if fortran else 1]
        self.start = file.tell()
        self.buffer = np.empty(0, dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return str(self.file.name)

    def read(self, sizes: Sequence[int], box: Box) -> np.ndarray[Any, Any]:
        """Read a box of the array, which is seen as one of C-order shape `sizes`; valid until the next read."""
        shape = [part.stop - part.start for part in box]
        count = math.prod(shape)
        if self.buffer.size < count:
            self.buffer = np.empty(count, self.dtype)
        window = self.buffer[:count]
        bytes_ = window.view(np.uint8).data
        offsets, run = runs_of(sizes, box)
        size = run * self.dtype.itemsize
        for index, offset in enumerate(offsets):
            self._read_run(bytes_[index * size : (index + 1) * size], self.start + offset * self.dtype.itemsize)
        return window.reshape(shape)

    def _read_run(self, part: memoryview, place: int) -> None:
        while part:
            count = os.preadv(self.file.fileno(), [part], place)
            if count == 0:
                raise ValueError(
                    f"{self.name} is truncated: it ends at byte {place} and its header promises {self.bytes} of data"
                )
            part, place = part[count:], place + count

    def write(self, sizes: Sequence[int], box: Box, window: np.ndarray[Any, Any]) -> None:
        """Write a box of the array, which is seen as one of C-order shape `sizes`."""
        bytes_ = np.ascontiguousarray(window, self.dtype).reshape(-1).view(np.uint8).data
        offsets, run = runs_of(sizes, box)
        size = run * self.dtype.itemsize
        for index, offset in enumerate(offsets):
            part, place = bytes_[index * size : (index + 1) * size], self.start + offset * self.dtype.itemsize
            while part:
                count = os.pwritev(self.file.fileno(), [part], place)
                part, place = part[count:], place + count

    def done(self) -> None:
        """Nothing is held after a window: files are not mapped."""

    @property
    def bytes(self) -> int:
        """The bytes of the array's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_npy(path: str | os.PathLike[str]) -> NpyFile:
    """Open a ``.npy`` file for reading and check that its header is sound and its data whole."""
    with ExitStack() as stack:
        file = stack.enter_context(Path(path).open("rb", buffering=0))
        shape, fortran, dtype = read_header(file)
        opened = NpyFile(file, shape, dtype, fortran=fortran)
        held = os.fstat(file.fileno()).st_size - opened.start
        if held < opened.bytes:
            raise ValueError(
                f"{path} is truncated: its header promises {opened.bytes} bytes of data and it holds {max(held, 0)}"
            )
        stack.pop_all()  # the caller closes it
        return opened


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a ``.npy`` header: shape, whether in Fortran order, dtype; ValueError or TypeError where it is unfit."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = readers[version](file)
    except KeyError:
        raise ValueError(f"{file.name} is not a sound .npy file: its format is not version 1.0 or 2.0") from None
    except (ValueError, OverflowError, UnicodeError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{file.name} is not a sound .npy file: {reason}") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{file.name} is not a sound .npy file: its shape {shape} has a negative size")
    check_readable(dtype, str(file.name))
    return shape, fortran, dtype


@contextmanager
def new_npy(
    path: str | os.PathLike[str], shape: Sequence[int], dtype: np.dtype[Any], *, fortran: bool
) -> Iterator[NpyFile]:
    """Write a ``.npy`` file that appears when it is whole (see `whole_file`)."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": tuple(shape)}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    size = start.tell() + math.prod(shape) * dtype.itemsize
    with whole_file(path, size) as file:
        file.write(start.getvalue())
        file.flush()
        yield NpyFile(file, shape, dtype, fortran=fortran)
