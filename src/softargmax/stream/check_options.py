"""The options of a stream, and their checks."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import axes_of
from softargmax.stream.dtypes import check_readable, numpy_of, returned, working
from softargmax.stream.npy import open_npy
from softargmax.stream.passes import Job
from softargmax.stream.piece_fold import checked_pieces
from softargmax.stream.stores import ArrayStore, ListStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from softargmax.core.scale import Scale
    from softargmax.stream.stores import Store

MEMORY = 256 << 20
MINIMUM_MEMORY = 1 << 20


def open_source(source: Any, axis: Any, stack: ExitStack) -> Store:
    """Return the `Store` of a source that can be read twice. If the source is a file, `stack` closes the file."""
    if isinstance(source, str | os.PathLike):
        return stack.enter_context(open_npy(source))
    if isinstance(source, np.ndarray):
        source = numpy_of(source, "source")
        check_readable(source.dtype, "source")
        return ArrayStore(source)
    refuse_others(source)
    if isinstance(source, Sequence):
        pieces = list(checked_pieces(source, one_axis(axis)))
        if not pieces:
            raise ValueError("source: expected a sequence of at least one array, got an empty sequence")
        return ListStore(pieces, axis % pieces[0].ndim)
    raise TypeError(
        "source: expected a source that can be read twice (the path of a .npy file, an array or a sequence of arrays), "
        f"got {type(source).__name__}; logsumexp takes any iterable"
    )


def refuse_others(source: Any) -> None:
    """Raise TypeError for arrays of other libraries, and for sources that are not iterable."""
    if hasattr(source, "__array__") or hasattr(source, "__dlpack__") or not isinstance(source, Iterable):
        raise TypeError(
            f"source: expected the path of a .npy file or one or several NumPy arrays, got {type(source).__name__}"
        )


def one_axis(axis: Any) -> int:
    """Check that `axis`, along which the arrays are concatenated, is one integer, and return it."""
    try:
        return operator.index(axis)
    except TypeError:
        raise TypeError(f"axis: expected one integer for a source of several arrays, got {axis!r}") from None


def scale_of(temperature: Any, base: Any) -> Scale:
    """Return the scale of a temperature and a base. Each must be one number, not an array with one number per row."""
    if not isinstance(temperature, Real):
        raise TypeError(f"temperature: expected one number for the whole stream, got {temperature!r}")
    return check.scale_of(temperature, base, np.empty(()), ())


def bytes_of(memory: Any) -> int:
    """Check `memory`, the number of bytes that a stream may use, and return it."""
    try:
        size = operator.index(memory)
    except TypeError:
        raise TypeError(f"memory: expected an integer number of bytes, got {memory!r}") from None
    if size < MINIMUM_MEMORY:
        raise ValueError(f"memory: expected {MINIMUM_MEMORY} (1 MiB) or more, got {size} bytes")
    return size


def check_progress(progress: Any) -> None:
    """Check that `progress` is None or callable."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: expected a function of (done, total), got {progress!r}")


def job_of(
    store: Store,
    axis: Any,
    options: dict[str, Any],
    memory: Any,
    progress: Callable[[int, int], None] | None,
    *,
    lse: bool = False,
) -> Job:
    """Check the options of a call on an opened source, and return them as a `Job`."""
    check_progress(progress)
    dtype = returned(store.dtype, options["dtype"], lse=lse)
    return Job(
        axes=axes_of(axis, len(store.shape)),
        temperature=options["temperature"],
        base=options["base"],
        scale=scale_of(options["temperature"], options["base"]),
        work=working(store.dtype, dtype),
        dtype=dtype,
        requested=options["dtype"],
        memory=bytes_of(memory),
        progress=progress,
    )


def check_target(source: Any, target: Any) -> None:
    """Check that the target is the path of a .npy file other than the source."""
    if not isinstance(target, str | os.PathLike):
        raise TypeError(f"target: expected the path of a .npy file, or None for an array in memory, got {target!r}")
    if not Path(target).is_dir() and not os.fspath(target).lower().endswith(".npy"):
        raise ValueError(f"target: expected a name that ends in .npy, the format written, got {os.fspath(target)}")
    names = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    for name in names:
        path = name.filename if isinstance(name, np.memmap) else name
        if isinstance(path, str | os.PathLike) and Path(target).exists() and Path(path).samefile(target):
            raise ValueError(f"target: expected another file than the source, got {os.fspath(target)}")
