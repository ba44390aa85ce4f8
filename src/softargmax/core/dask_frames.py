"""The rows of Dask dataframes and series, as Dask arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import dask.array as da


def array_of_frame(frame: Any, *, lengths: bool = True) -> da.Array:
    """Return the values of a dataframe or series, one chunk per partition.

    Rows have the dtype that holds those of all columns, and object if there is none. With `lengths`, the rows of all
    partitions are counted now. Otherwise their number is unknown (nan).
    """
    import dask.array as da
    from dask.base import compute
    from dask.delayed import delayed

    # Not `to_dask_array`: it counts other partitions than those of the array if Dask joins small Parquet files.
    parts, dtype = frame.to_delayed(), _dtype_of(frame)
    shape = (len(frame.columns),) if frame.ndim == 2 else ()
    rows = compute(*(delayed(len)(part) for part in parts)) if lengths else [math.nan] * len(parts)
    values = [
        da.from_delayed(delayed(np.asarray)(part, dtype), (number, *shape), dtype)
        for part, number in zip(parts, rows, strict=True)
    ]
    found: da.Array = da.concatenate(values)
    return found


def _dtype_of(frame: Any) -> np.dtype[Any]:
    try:
        return np.result_type(*(frame.dtypes if frame.ndim == 2 else [frame.dtype]))
    except TypeError:  # no common dtype, or one of pandas' own
        return np.dtype(object)
