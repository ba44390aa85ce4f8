"""Read and write boxes (one slice per dimension) of the array in a ``.npy`` file, with plain read and write calls.

The file is not memory-mapped, for two reasons. The system may keep mapped pages in this process's memory indefinitely.
A disk error in a mapped page raises a signal, not an exception.

Python objects are never unpickled.
"""

from __future__ import annotations

import io
import math
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from softargmax.stream.atomic_file import whole_file
from softargmax.stream.dtypes import check_readable
from softargmax.stream.windows import spans_of, strides_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from softargmax.stream.windows import Box, Span


# Contiguous runs less than NEAR bytes apart are joined: one call reads them and the bytes between them, up to STRETCH
# bytes. NEAR is 8 KiB, because reading 8 KiB takes as long as the overhead of a call.
NEAR = 8 << 10
STRETCH = 1 << 19


class NpyFile:
    """An open ``.npy`` file: `shape` and `dtype` of its array, and `order`, its dimensions, slowest-varying first."""

    plain = True

    def __init__(self, file: BinaryIO, shape: Sequence[int], dtype: np.dtype[Any], *, fortran: bool) -> None:
        self.file = file
        self.shape = tuple(shape)
        self.dtype = dtype
        self.order = tuple(range(len(shape)))[:: -1 if fortran else 1]
        self.start = file.tell()
        self.buffer = np.empty(0, dtype)
        self.scratch = np.empty(0, dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def read(self, sizes: Sequence[int], box: Box) -> np.ndarray[Any, Any]:
        """See `Store`."""
        shape = [part.stop - part.start for part in box]
        count = math.prod(shape)
        if self.buffer.size < count:
            self.buffer = np.empty(count, self.dtype)
        window = self.buffer[:count].reshape(shape)
        for span, part in self._spans(sizes, box, window):
            if part.size == span.length:
                self._read(part, span.start)
            else:
                part[...] = self._stretch(span, part, sizes)
        return window

    def write(self, sizes: Sequence[int], box: Box, window: np.ndarray[Any, Any]) -> None:
        """See `Store`."""
        window = np.ascontiguousarray(window, self.dtype)
        for span, part in self._spans(sizes, box, window):
            if part.size == span.length:
                self._write(part, span.start)
            else:  # the bytes between the runs are read and written back unchanged
                self._stretch(span, part, sizes)[...] = part
                self._write(self.scratch[: span.length], span.start)

    def _spans(
        self, sizes: Sequence[int], box: Box, window: np.ndarray[Any, Any]
    ) -> Iterator[tuple[Span, np.ndarray[Any, Any]]]:
        """Cut a box into contiguous ranges of the file, and yield each with its part of the window."""
        itemsize = self.dtype.itemsize
        for span in spans_of(sizes, box, STRETCH // itemsize, NEAR // itemsize):
            part: Any = (*span.part, ...)  # the ellipsis makes even a single value a view
            yield span, window[part]

    def _stretch(self, span: Span, part: np.ndarray[Any, Any], sizes: Sequence[int]) -> np.ndarray[Any, Any]:
        """Read a range of the file that is only partly in the box. Return a view of the elements in the box."""
        if self.scratch.size < span.length:
            self.scratch = np.empty(span.length, self.dtype)
        stretch = self.scratch[: span.length]
        self._read(stretch, span.start)
        strides = [stride * self.dtype.itemsize for stride in strides_of(sizes)]
        return np.lib.stride_tricks.as_strided(stretch, part.shape, strides)

    def _read(self, part: np.ndarray[Any, Any], start: int) -> None:
        """Read elements of the file, from `start` on, into contiguous memory."""
        rest, place = part.reshape(-1).view(np.uint8).data, self.start + start * self.dtype.itemsize
        while rest:
            count = os.preadv(self.file.fileno(), [rest], place)
            if count == 0:
                raise ValueError(
                    f"{self.file.name} is truncated: its data ends at byte {place} of {self.start + self.bytes}"
                )
            rest, place = rest[count:], place + count

    def _write(self, part: np.ndarray[Any, Any], start: int) -> None:
        """Write contiguous elements to the file, from `start` on."""
        rest, place = part.reshape(-1).view(np.uint8).data, self.start + start * self.dtype.itemsize
        while rest:
            count = os.pwritev(self.file.fileno(), [rest], place)
            rest, place = rest[count:], place + count

    def done(self) -> None:
        """Do nothing, because no pages are mapped."""

    @property
    def bytes(self) -> int:
        """The number of bytes of the array's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_npy(path: str | os.PathLike[str]) -> NpyFile:
    """Open a ``.npy`` file for reading and check that its header is valid and its data complete."""
    with ExitStack() as stack:
        file = stack.enter_context(Path(path).open("rb", buffering=0))
        shape, fortran, dtype = read_header(file)
        npy = NpyFile(file, shape, dtype, fortran=fortran)
        size = os.fstat(file.fileno()).st_size - npy.start
        if size < npy.bytes:
            raise ValueError(
                f"{path} is truncated: its header promises {npy.bytes} bytes of data, but the file has {max(size, 0)}"
            )
        stack.pop_all()  # the caller closes the file
        return npy


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a ``.npy`` header. Return the shape, True for Fortran order, and the dtype. Reject invalid headers."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = readers[version](file)
    except KeyError:
        raise ValueError(f"{file.name} is not a valid .npy file: its format is not version 1.0 or 2.0") from None
    except (
        ValueError,
        OverflowError,
        UnicodeError,
        SyntaxError,
        TypeError,
        RecursionError,
        MemoryError,
        TokenError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{file.name} is not a valid .npy file: {reason}") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{file.name} is not a valid .npy file: its shape {shape} has a negative size")
    check_readable(dtype, str(file.name))
    return shape, fortran, dtype


@contextmanager
def new_npy(
    path: str | os.PathLike[str], shape: Sequence[int], dtype: np.dtype[Any], *, fortran: bool
) -> Iterator[NpyFile]:
    """Write a ``.npy`` file that appears when it is complete (see `whole_file`)."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": tuple(shape)}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    size = start.tell() + math.prod(shape) * dtype.itemsize
    with whole_file(path, size) as file:
        file.write(start.getvalue())
        file.flush()
        yield NpyFile(file, shape, dtype, fortran=fortran)
