"""Sources and targets of streams (files, arrays, lists of arrays), and the rows in them."""

from __future__ import annotations

import mmap
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from softargmax.stream.windows import Form, boxes_of, form_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from softargmax.stream.windows import Box

    Array = NDArray[Any]


class Store(Protocol):
    """The interface of arrays that streams read and write, in a file or in memory.

    `order` lists the dimensions of the array, slowest-varying first. `plain` is True if the stored elements can be
    viewed in another shape without a copy.
    """

    plain: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]

    def read(self, sizes: Sequence[int], box: Box) -> Array:
        """Return the elements in a box.

        The stored elements are viewed as an array of shape `sizes`. The box has one slice per dimension of this view.
        The result is valid until the next read.
        """

    def write(self, sizes: Sequence[int], box: Box, window: Array) -> None:
        """Write a window to the elements in a box, which is defined as in `read`."""

    def done(self) -> None:
        """Release the memory of the last window."""


class ArrayStore:
    """An array in memory, or an array mapped from a file. Mapped pages are released after each window."""

    def __init__(self, array: Array) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        self.order = tuple(range(array.ndim))[:: -1 if fortran else 1]
        self.stored = array.transpose(self.order)
        self.plain = bool(self.stored.flags.c_contiguous)
        self.mapping = _shared_mapping(array)

    def read(self, sizes: Sequence[int], box: Box) -> Array:
        """See `Store`."""
        return self.stored.reshape(sizes)[box]

    def write(self, sizes: Sequence[int], box: Box, window: Array) -> None:
        """See `Store`."""
        self.stored.reshape(sizes)[box] = window

    def done(self) -> None:
        """Release the mapped pages read so far. They stay in the system's cache, but not in this process's memory."""
        if self.mapping is not None:
            self.mapping.madvise(mmap.MADV_DONTNEED)


def _shared_mapping(array: Array) -> mmap.mmap | None:
    """Return the file mapping of an array, or None if it is not mapped or the mapping is copy-on-write."""
    shared = False
    base: Any = array
    while isinstance(base, np.ndarray):
        shared = shared or (isinstance(base, np.memmap) and base.mode != "c")
        base = base.base
    return base if shared and isinstance(base, mmap.mmap) else None


class ListStore:
    """A list of arrays, read as their concatenation along an axis."""

    plain = False

    def __init__(self, pieces: Sequence[Array], axis: int) -> None:
        first = pieces[0]
        self.pieces = pieces
        self.axis = axis
        self.starts = np.cumsum([0, *(piece.shape[axis] for piece in pieces)]).tolist()
        self.shape = (*first.shape[:axis], self.starts[-1], *first.shape[axis + 1 :])
        self.dtype = first.dtype
        self.order = tuple(range(first.ndim))

    def read(self, sizes: Sequence[int], box: Box) -> Array:  # noqa: ARG002  `sizes` is always self.shape
        """See `Store`."""
        wanted = box[self.axis]
        parts = []
        for piece, start in zip(self.pieces, self.starts, strict=False):
            low, high = max(wanted.start, start) - start, min(wanted.stop, start + piece.shape[self.axis]) - start
            if low < high:
                parts.append(piece[(*box[: self.axis], slice(low, high), *box[self.axis + 1 :])])
        return np.concatenate(parts, self.axis)

    def write(self, sizes: Sequence[int], box: Box, window: Array) -> None:
        """Raise NotImplementedError, because lists are only read."""
        raise NotImplementedError

    def done(self) -> None:
        """Release mapped pages."""
        for piece in self.pieces:
            mapping = _shared_mapping(piece)
            if mapping is not None:
                mapping.madvise(mmap.MADV_DONTNEED)


class Rows(Protocol):
    """The rows of a store, in windows of three dimensions (see `Form`). A row runs along the second dimension."""

    form: Form

    def read(self, box: Box) -> Array:
        """Read a window."""

    def write(self, box: Box, window: Array) -> None:
        """Write a window."""


def rows_of(store: Store, axes: Sequence[int]) -> Rows:
    """Return the rows of a store along `axes`: PlainStoreRows if the layout allows it, otherwise ScatteredStoreRows."""
    form = form_of(store.shape, store.order, axes)
    return ScatteredStoreRows(store, axes) if form is None or not store.plain else PlainStoreRows(store, form)


def rows_like(rows: Rows, store: Store, axes: Sequence[int]) -> Rows:
    """Return the rows of `store`, in the same windows as `rows`. Both stores must have the same shape and order."""
    return ScatteredStoreRows(store, axes) if isinstance(rows, ScatteredStoreRows) else PlainStoreRows(store, rows.form)


class PlainStoreRows:
    """Rows of a store whose layout can be viewed as a `Form`."""

    def __init__(self, store: Store, form: Form) -> None:
        self.store = store
        self.form = form

    def read(self, box: Box) -> Array:
        """See `Rows`."""
        return self.store.read(self.form, box)

    def write(self, box: Box, window: Array) -> None:
        """See `Rows`."""
        self.store.write(self.form, box, window)


class ScatteredStoreRows:
    """Rows that cannot be viewed as a `Form`, for example along axes (0, 2). A window is gathered from several boxes.

    The innermost dimension of the store is also innermost in a window, so contiguous ranges stay contiguous.
    """

    def __init__(self, store: Store, axes: Sequence[int]) -> None:
        self.store = store
        place = {dim: index for index, dim in enumerate(store.order)}
        self.sizes = [store.shape[dim] for dim in store.order]
        self.kept = [place[dim] for dim in store.order if dim not in axes]
        self.reduced = [place[axis] for axis in axes]
        self.kept_sizes = [self.sizes[dim] for dim in self.kept]
        self.reduced_sizes = [self.sizes[dim] for dim in self.reduced]
        count, length = int(np.prod(self.kept_sizes, dtype=np.int64)), int(np.prod(self.reduced_sizes, dtype=np.int64))
        longest = [dim for dim, size in enumerate(self.sizes) if size > 1]
        self.side_by_side = bool(longest) and longest[-1] in self.kept
        self.form = Form(1, length, count) if self.side_by_side else Form(count, length, 1)

    def _flat(self, window: Array) -> Array:
        """Return a view of a window with shape (rows, elements)."""
        return window[0].T if self.side_by_side else window[:, :, 0]

    def _boxes(self, box: Box) -> list[tuple[tuple[slice, slice], list[int], Box]]:
        """Return the boxes of the store that together make up a window, each as (place, shape, stored).

        `place` is the position of a box in the flat view of the window (see `_flat`). `shape` is the shape of the box,
        with the kept dimensions first. `stored` is the box itself.
        """
        rows, elements = (box[2] if self.side_by_side else box[0]), box[1]
        boxes = []
        for (row, kept), (element, reduced) in product(
            boxes_of(self.kept_sizes, rows.start, rows.stop),
            boxes_of(self.reduced_sizes, elements.start, elements.stop),
        ):
            parts = dict(zip([*self.kept, *self.reduced], [*kept, *reduced], strict=True))
            shape = [part.stop - part.start for part in (*kept, *reduced)]
            split = len(kept)
            counts = [int(np.prod(some, dtype=np.int64)) for some in (shape[:split], shape[split:])]
            place = (slice(row, row + counts[0]), slice(element, element + counts[1]))
            boxes.append((place, shape, tuple(parts[dim] for dim in range(len(self.sizes)))))
        return boxes

    def read(self, box: Box) -> Array:
        """See `Rows`."""
        window = np.empty([part.stop - part.start for part in box], self.store.dtype)
        flat = self._flat(window)
        for place, _, stored in self._boxes(box):
            part = self.store.read(self.sizes, stored).transpose([*self.kept, *self.reduced])
            flat[place] = part.reshape(flat[place].shape)
        return window

    def write(self, box: Box, window: Array) -> None:
        """See `Rows`."""
        flat = self._flat(window)
        back = np.argsort([*self.kept, *self.reduced])
        for place, shape, stored in self._boxes(box):
            self.store.write(self.sizes, stored, flat[place].reshape(shape).transpose(back))
