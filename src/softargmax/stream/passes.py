"""One or two passes over the windows of a stream.

A window is a part of an array that is read as one piece. If windows contain whole rows, the data is read once, and each
window is passed to the in-memory function. Rows longer than a window are read in pieces. The first pass folds each
piece into the states of its rows. The second pass applies the final states to each piece (logsumexp needs only the
first pass). Pieces are cut at the block boundaries of the in-memory kernels, so the results have the bits of the
in-memory functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.normalize import log_softmax, logsumexp, softmax
from softargmax.stream import native_fold
from softargmax.stream.stores import ScatteredStoreRows, rows_like, rows_of
from softargmax.stream.windows import Form, parts, window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from softargmax.core.scale import Scale
    from softargmax.stream.stores import Array, Rows, Store
    from softargmax.stream.windows import Box

    Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """The checked options of a call: axes, scale, dtypes, memory and progress callback."""

    axes: tuple[int, ...]
    temperature: float
    base: float | None
    scale: Scale
    work: np.dtype[Any]
    dtype: np.dtype[Any]
    requested: Any  # the option `dtype` as it was passed
    memory: int
    progress: Progress | None


class Ticker:
    """Counts the bytes read and reports them to `progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress = progress
        self.total = total
        self.read = 0

    def __call__(self, bytes_: int) -> None:
        self.read += bytes_
        if self.progress is not None:
            self.progress(self.read, self.total)


class WindowReader:
    """Reads the rows of a source in windows and converts them to the working dtype."""

    def __init__(self, source: Store, job: Job, out_bytes: int) -> None:
        self.source = source
        self.work = job.work
        self.rows: Rows = rows_of(source, job.axes)
        form = self.rows.form
        converted = job.work.itemsize if job.work != source.dtype else 0
        copies = 2 if isinstance(self.rows, ScatteredStoreRows) else 1  # scattered rows are copied to windows
        each = copies * (source.dtype.itemsize + out_bytes) + converted
        # Without the compiled core a row is never cut, even if it exceeds `memory`.
        elements = max(job.memory // each, 0 if native_fold.native() else form.length)
        self.window = window_of(form, elements, native_fold.BLOCK, source.dtype.itemsize)
        self.converted = np.empty(0, self.work)
        self.whole = self.window.length == form.length
        size = math.prod(form) * source.dtype.itemsize
        self.tick = Ticker(job.progress, size if self.whole or not out_bytes else 2 * size)

    def read(self, box: Box) -> Array:
        """Return one window, which is valid until the next read."""
        window = self.rows.read(box)
        if window.dtype == self.work:
            return window
        if self.converted.size < window.size:
            self.converted = np.empty(window.size, self.work)
        converted = self.converted[: window.size].reshape(window.shape)
        converted[...] = window
        return converted

    def done(self, window: Array) -> None:
        """Release a window and count its bytes."""
        self.source.done()
        self.tick(window.size * self.source.dtype.itemsize)

    def groups(self) -> Iterator[tuple[slice, slice]]:
        """Yield groups of rows that are read together, each as a pair: a slice of `outer` and a slice of `inner`."""
        for outer in parts(self.rows.form.outer, self.window.outer):
            for inner in parts(self.rows.form.inner, self.window.inner):
                yield outer, inner

    def pieces(self, outer: slice, inner: slice) -> Iterator[Box]:
        """Yield the windows of a group of rows. Each window contains a piece of every row of the group."""
        for part in parts(self.rows.form.length, self.window.length):
            yield outer, part, inner

    def folded(self, outer: slice, inner: slice, job: Job) -> native_fold.State:
        """Fold a group of rows piece by piece and return its state."""
        state = None
        for box in self.pieces(outer, inner):
            window = self.read(box)
            state = native_fold.fold(window, job.scale, state)
            self.done(window)
        if state is None:
            raise RuntimeError("a group of rows has no pieces")
        return state


def normalise(name: str, source: Store, target: Store, job: Job) -> None:
    """Write softmax or log_softmax (`name`) of every row of the source to the target, window by window."""
    windows = WindowReader(source, job, job.dtype.itemsize)
    results = rows_like(windows.rows, target, job.axes)
    buffer = np.empty(math.prod(windows.window), job.dtype)
    whole = {"softmax": softmax, "log_softmax": log_softmax}[name]

    for outer, inner in windows.groups():
        state = None if windows.whole else windows.folded(outer, inner, job)
        for box in windows.pieces(outer, inner):
            window = windows.read(box)
            out = buffer[: window.size].reshape(window.shape)
            if state is None:
                whole(window, axis=1, temperature=job.temperature, base=job.base, dtype=job.requested, out=out)
            else:
                native_fold.apply(name, window, job.scale, state, out)
            results.write(box, out)
            target.done()
            windows.done(window)


def reduce(source: Store, job: Job) -> Array:
    """Return logsumexp of every row, as a flat array in storage order."""
    windows = WindowReader(source, job, 0)
    form: Form = windows.rows.form
    lse = np.empty((form.outer, form.inner), job.dtype)
    for outer, inner in windows.groups():
        if windows.whole:
            window = windows.read((outer, slice(0, form.length), inner))
            options: dict[str, Any] = {"temperature": job.temperature, "base": job.base, "dtype": job.requested}
            lse[outer, inner] = logsumexp(window, axis=1, **options)
            windows.done(window)
        else:
            state = windows.folded(outer, inner, job)
            lse[outer, inner] = native_fold.finish(state, job.scale, job.dtype)
    return lse.reshape(-1)
