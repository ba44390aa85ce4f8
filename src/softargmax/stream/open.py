"""A stream's arguments: checked before any work, and made into a store and a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import check
from softargmax.stream.dtypes import check_readable, returned, working
from softargmax.stream.npy import open_npy
from softargmax.stream.passes import Job
from softargmax.stream.pieces import checked_pieces
from softargmax.stream.stores import ArrayStore, ListStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from softargmax.core.scale import Scale
    from softargmax.stream.stores import Store

MEMORY = 256 << 20
LEAST_MEMORY = 1 << 20


def opened(source: Any, axis: Any, stack: ExitStack) -> Store:
    """Open a source that can be read twice; files are closed when the stack is."""
    if isinstance(source, str | os.PathLike):
        return stack.enter_context(open_npy(source))
    if isinstance(source, np.ma.MaskedArray):
        raise TypeError("source: a masked array, whose mask a stream does not read; fill it with -inf")
    if isinstance(source, np.ndarray):
        check_readable(source.dtype, "source")
        return ArrayStore(source)
    refuse_others(source)
    if isinstance(source, Sequence):
        pieces = list(checked_pieces(source, one_axis(axis)))
        if not pieces:
            raise ValueError("source: an empty sequence; it may be a sequence of at least one array")
        return ListStore(pieces, axis % pieces[0].ndim)
    raise TypeError(
        f"source: {type(source).__name__}, which may be readable only once, and this function reads twice; it may be "
        "the path of a .npy file, an array or a sequence of arrays (logsumexp takes any iterable)"
    )


def refuse_others(source: Any) -> None:
    """Refuse arrays of other libraries: iterating over one would take its rows for pieces."""
    if hasattr(source, "__array__") or hasattr(source, "__dlpack__"):
        raise TypeError(
            f"source: {type(source).__name__}; it may be the path of a .npy file, a NumPy array or several NumPy arrays"
        )


def one_axis(axis: Any) -> int:
    """Check the axis along which arrays follow one another."""
    if not isinstance(axis, int):
        raise TypeError(f"axis: {axis!r}; it may be one integer where the source is several arrays")
    return axis


def scale_of(temperature: Any, base: Any) -> Scale:
    """Check temperature and base: a stream takes numbers, not one temperature a row."""
    if not isinstance(temperature, Real):
        raise TypeError(f"temperature: {temperature!r}; it may be a number in a stream")
    return check.scale_of(temperature, base, np.empty(()), ())


def job_of(
    store: Store,
    axis: Any,
    options: dict[str, Any],
    memory: Any,
    progress: Callable[[int, int], None] | None,
    *,
    lse: bool = False,
) -> Job:
    """Check the options of a call against the opened source."""
    if not isinstance(memory, int) or isinstance(memory, bool):
        raise TypeError(f"memory: {memory!r}; it may be a number of bytes, an int")
    if memory < LEAST_MEMORY:
        raise ValueError(f"memory: {memory} bytes; it may be {LEAST_MEMORY} (1 MiB) or more")
    dtype = returned(store.dtype, options["dtype"], lse=lse)
    return Job(
        axes=check.axes_of(axis, len(store.shape)),
        temperature=options["temperature"],
        base=options["base"],
        scale=scale_of(options["temperature"], options["base"]),
        work=working(store.dtype, dtype),
        dtype=dtype,
        asked=options["dtype"],
        memory=memory,
        progress=progress,
    )


def refuse_same(source: Any, target: str | os.PathLike[str]) -> None:
    """Refuse to replace the file that is being read."""
    names = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    for name in names:
        path = name.filename if isinstance(name, np.memmap) else name
        if isinstance(path, str | os.PathLike) and Path(target).exists() and Path(path).samefile(target):
            raise ValueError(f"target: {os.fspath(target)} is the source itself; it may be any other file")
