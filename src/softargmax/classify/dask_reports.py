"""Numbers of single rows of Dask arrays, from which reports are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed

from softargmax.classify.dask_rows import array_of, place
from softargmax.core.check import located

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def rows_of(y: Any, p: Any) -> tuple[Any, Any, NDArray[Any]]:
    """Return classes and probabilities as Dask arrays with the same chunks of rows, and all labels that occur in y."""
    p = array_of(p, "p", 2)
    y = array_of(y, "y", 1, p.chunks[0])
    if len(y) != len(p):
        raise ValueError(f"y: expected one class per row, shape {p.shape[:1]}, got {y.shape}")
    y = y.rechunk(p.chunks[:1])
    labels = compute(*(delayed(np.unique)(chunk) for chunk in y.to_delayed()))
    return y, p, np.unique(np.concatenate(labels))


def numbers_of_rows(measure: Callable[[Any, Any], Any], y: Any, p: Any, width: int) -> NDArray[np.float64]:
    """Return measure(y, p), shape (n, width), for the chunks of `rows_of`, in memory. An error names the chunk."""

    def of_chunk(p: Any, y: Any, block_id: Any) -> Any:
        if not len(p):
            return np.empty((0, width))
        with located(place("p", lengths, block_id[0])):
            return measure(y[:, 0], p)

    lengths = p.chunks[0]
    found = da.map_blocks(of_chunk, p, y[:, None], chunks=(lengths, (width,)), meta=np.empty((0, width)))
    return np.asarray(found.compute())
