"""Where the chunks of Dask arrays are: the chunks of the scores, and other arrays that are cut to fit them."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.layers import ArrayBlockwiseDep

from softargmax.core.arrays import is_dask
from softargmax.parallel.layout import whole_blocks
from softargmax.sample.operations import FILTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWWISE = ("temperature", "order", "alpha", "k", *FILTERS)
"""Options with one number per row. Their shape may lack the axes of a row."""
OF_ROWS = ("target", "index", "stream")
"""Integers with the shape of the rows."""
OF_CLASSES = ("weight", "values", "w", "bias")
"""Arrays whose first axis is that of the classes."""

Labels = tuple[int, ...]
"""A label for each axis of an array. Axes with the same label are cut at the same places."""


class Place(NamedTuple):
    """Where a chunk of scores is."""

    chunk: tuple[int, ...]
    """The number of the chunk along each axis."""
    first: tuple[int, ...]
    """The place of its first score along each axis."""
    shape: tuple[int, ...]


class Places(ArrayBlockwiseDep):
    """The argument that tells each task where its chunk is.

    A task is sent no other place, so the bytes of a graph grow linearly with the number of chunks. `kept` are the axes
    of the scores that the results of the tasks have. Along all others, a task has the first chunk.
    """

    def __init__(self, cuts: Sequence[tuple[int, ...]], kept: Labels) -> None:
        super().__init__(tuple(cuts[k] for k in kept))
        self._cuts, self._kept = tuple(cuts), kept
        self._starts = [tuple(accumulate(cut, initial=0)) for cut in cuts]

    def __getitem__(self, numbers: tuple[int, ...]) -> Place:
        chunk = [0] * len(self._cuts)
        for axis, number in zip(self._kept, numbers, strict=True):
            chunk[axis] = number
        first, shape = (tuple(x[k] for x, k in zip(some, chunk, strict=True)) for some in (self._starts, self._cuts))
        return Place(tuple(chunk), first, shape)

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self._cuts, self._kept


def lazy(name: str, x: Any) -> da.Array:
    """An argument as a Dask array, whose chunks are NumPy arrays of known sizes."""
    found: da.Array = x if is_dask(x) else da.asarray(np.asarray(x))
    kind = type(found._meta)  # noqa: SLF001 Dask has no public name for it
    if kind is not np.ndarray:
        raise TypeError(f"{name}: expected a Dask array of NumPy arrays, got one of {kind.__name__}")
    if any(map(math.isnan, found.shape)):
        raise ValueError(
            f"{name}: expected chunks of known sizes, got shape {found.shape}; call {name}.compute_chunk_sizes()"
        )
    return found


class Chunks(NamedTuple):
    """The chunks of scores. The label of an axis of the scores is its number."""

    cuts: tuple[tuple[int, ...], ...]
    """The sizes of the chunks along each axis."""
    axes: tuple[int, ...]
    """The axes of a row."""

    @classmethod
    def of(cls, cuts: tuple[tuple[int, ...], ...], axes: tuple[int, ...], *, spreads: bool) -> Chunks:
        """The chunks of scores in which rows are cut only at the ends of blocks, or nowhere."""
        found = list(cuts)
        for axis in axes:
            sizes = whole_blocks(cuts[axis]) if spreads and len(axes) == 1 else ()
            found[axis] = tuple(n for n in sizes if n) or (sum(cuts[axis]),)
        return cls(tuple(found), axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return tuple(map(sum, self.cuts))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of scores per row in each part of the rows. There is one part if rows do not have one axis."""
        return self.cuts[self.axes[0]] if len(self.axes) == 1 else (0,)

    @property
    def labels(self) -> Labels:
        """The labels of scores."""
        return tuple(range(len(self.cuts)))

    @property
    def rows(self) -> Labels:
        """The labels of an array with one number per row."""
        return tuple(k for k in self.labels if k not in self.axes)

    def own(self, place: int) -> int:
        """The label of an axis that scores do not have."""
        return 2 * len(self.cuts) + place

    def placed(self, name: str, x: da.Array) -> tuple[da.Array, Labels]:
        """Cut an argument to fit the scores. Return it, and the labels of its axes."""
        ndim = len(self.cuts)
        if name in ROWWISE and 0 < x.ndim < ndim:
            x = da.expand_dims(x.reshape((1,) * (len(self.rows) - x.ndim) + x.shape), self.axes)
        if name == "h":
            labels = (*self.rows, self.own(0))
        elif name in OF_CLASSES:
            labels = (*self.axes, self.own(1))[: x.ndim]
        elif name in OF_ROWS and x.ndim < ndim:
            labels = self.rows[len(self.rows) - x.ndim :]
        elif name == "index":  # several classes of each row
            labels = tuple(self.own(0) if k in self.axes else k for k in self.labels)
        else:
            labels = self.labels[ndim - x.ndim :]
        of_one_row = name in ROWWISE and not self.rows
        sizes = [self.shape[k] if k < ndim else n for k, n in zip(labels, x.shape, strict=False)]
        exact = name in (*OF_ROWS, *OF_CLASSES)
        fits = [n == size or (n == 1 and not exact) for n, size in zip(x.shape, sizes, strict=False)]
        if len(labels) < x.ndim or not all(fits) or (of_one_row and x.size > 1):
            raise ValueError(f"{name}: expected a shape that fits scores of {self.shape}, got {x.shape}")
        cuts = [self.cuts[k] if k < ndim and n == self.shape[k] else (n,) for k, n in zip(labels, x.shape, strict=True)]
        return x.rechunk(tuple(cuts)), labels

    def along(self, labels: Labels) -> int | None:
        """Which axis of an array is the axis of a row."""
        return next((k for k, label in enumerate(labels) if label in self.axes), None)

    def example(self, name: str, x: da.Array, labels: Labels, least: int) -> Any:
        """The argument for one row with a few scores, or, if rows are cut, for a part without scores."""
        scores = 0 if len(self.sizes) > 1 else max(least, 64)
        few = dict.fromkeys(self.rows, 1) | dict.fromkeys(self.axes, scores)
        shape = [min(n, few.get(k, n)) if k >= len(self.cuts) or n == self.shape[k] else n
                 for k, n in zip(labels, x.shape, strict=True)]  # fmt: skip
        return np.full(shape, 0 if name in OF_ROWS else 1, x.dtype)

    def numbers_of_rows(self) -> da.Array:
        """The number of each row, in the order of memory."""
        sizes = [self.shape[k] for k in self.rows]
        found: da.Array = da.zeros((), dtype=np.int64)
        for place, k in enumerate(self.rows):
            along = da.arange(sizes[place], chunks=(self.cuts[k],), dtype=np.int64)
            found = found + (along * math.prod(sizes[place + 1 :]))[(..., *[None] * (len(sizes) - place - 1))]
        return found
