"""Fold pieces of any length, after cutting them at the block boundaries of the in-memory kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import one_axis
from softargmax.normalize import logsumexp
from softargmax.stream import native_fold
from softargmax.stream.dtypes import check_readable, numpy_of, returned, working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from softargmax.core.scale import Scale
    from softargmax.stream.stores import Array


class ReblockedFold:
    """Folds pieces of any length, in order, along one axis.

    Complete blocks are folded without a copy. An incomplete block is copied and kept until the next pieces fill it.
    """

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.state: native_fold.State | None = None
        self.rest: Array | None = None  # shape (outer, block, inner); the first `held` elements of each row are used
        self.held = 0

    def add(self, piece: Array) -> None:
        """Fold a piece of shape (outer, any length, inner) into the state."""
        if self.rest is None:
            self.rest = np.empty((piece.shape[0], native_fold.BLOCK, piece.shape[2]), piece.dtype)
        length, start = piece.shape[1], 0
        if self.held:
            start = min(length, native_fold.BLOCK - self.held)
            self._keep(piece[:, :start])
            if self.held < native_fold.BLOCK:
                return
            self._fold(self.rest)
            self.held = 0
        whole = start + (length - start) // native_fold.BLOCK * native_fold.BLOCK
        if whole > start:
            self._fold(piece[:, start:whole])
        self._keep(piece[:, whole:])

    def finish(self, dtype: np.dtype[Any]) -> Array:
        """Fold the incomplete block and return logsumexp of every row, shape (outer, inner)."""
        if self.rest is None:
            raise RuntimeError("finish: expected at least one added piece, got none")
        state = self.state
        if self.held or state is None:
            state = native_fold.fold(self.rest[:, : self.held], self.scale, state)
        return native_fold.finish(state, self.scale, dtype)

    def _fold(self, piece: Array) -> None:
        self.state = native_fold.fold(piece, self.scale, self.state)

    def _keep(self, piece: Array) -> None:
        if self.rest is not None and piece.shape[1]:
            self.rest[:, self.held : self.held + piece.shape[1]] = piece
            self.held += piece.shape[1]


def _frame(piece: Array, axis: int) -> tuple[int, ...]:
    """Return the shape of a piece, with -1 for its length along the axis."""
    where = axis % piece.ndim
    return (*piece.shape[:where], -1, *piece.shape[where + 1 :])


def checked_pieces(pieces: Iterable[Any], axis: int) -> Iterator[Array]:
    """Yield the pieces as arrays. All must have one dtype, and one shape except for the length along `axis`."""
    first: Array | None = None
    for index, item in enumerate(pieces):
        piece = numpy_of(item, f"source: piece {index}")
        if piece.ndim == 0:
            raise ValueError(f"source: expected arrays of at least one dimension, got a number as piece {index}")
        one_axis(axis, piece.ndim)
        check_readable(piece.dtype, f"source: piece {index}")
        if first is None:
            first = piece
        if _frame(piece, axis) != _frame(first, axis):
            raise ValueError(
                f"source: expected pieces whose shapes differ only along axis {axis}, got "
                f"shape {piece.shape} of piece {index} and {first.shape} of the first"
            )
        if piece.dtype != first.dtype:
            raise TypeError(
                f"source: expected one dtype, got {piece.dtype} of piece {index} and {first.dtype} of the first"
            )
        yield piece


def of_pieces(
    pieces: Iterable[Any],
    axis: int,
    options: dict[str, Any],
    scale: Scale,
    *,
    keepdims: bool,
    progress: Callable[[int, int], None] | None,
) -> Array:
    """Return logsumexp of the concatenation of pieces along `axis`."""
    if not native_fold.native():
        whole = np.concatenate(list(checked_pieces(pieces, axis)), axis)
        return np.asarray(logsumexp(whole, axis=axis, keepdims=keepdims, **options))[()]
    fold = ReblockedFold(scale)
    frame: tuple[int, ...] = ()
    read = 0
    dtype = np.dtype(np.float64)
    for piece in checked_pieces(pieces, axis):
        where = axis % piece.ndim
        frame, dtype = _frame(piece, axis), returned(piece.dtype, options["dtype"], lse=True)
        outer, inner = math.prod(frame[:where]), math.prod(frame[where + 1 :])
        fold.add(piece.astype(working(piece.dtype, dtype), copy=False).reshape(outer, piece.shape[where], inner))
        read += piece.nbytes
        if progress is not None:
            progress(read, read)
    if not frame:
        raise ValueError("source: expected at least one array, got an empty iterable")
    lse = fold.finish(dtype)
    return lse.reshape([1 if size < 0 else size for size in frame if keepdims or size >= 0])[()]
