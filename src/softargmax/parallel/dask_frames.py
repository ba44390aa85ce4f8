"""The rows of Dask dataframes and series, as Dask arrays."""

from __future__ import annotations

import math
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed


class DaskFrame(Protocol):
    """A Dask dataframe or series."""

    def to_dask_array(self, lengths: Any = None) -> Any: ...


def array_of_frame(frame: DaskFrame, *, lengths: bool = True) -> da.Array:
    """Return the values of a Dask dataframe or series as a Dask array, one chunk for each partition that has rows.

    Rows are counted in the partitions that become chunks. (Dask's own `to_dask_array(lengths=True)` counts other
    partitions than those of its array, and fails, if Dask reads small Parquet files together.)

    Parameters
    ----------
    frame : dask dataframe or series
        n rows of D columns, or n values. Rows become NumPy arrays of the dtype that holds the numbers of all columns,
        as `numpy.result_type` finds it: float64 for int64 and float32. If there is none, as for words, and for
        pandas' own dtypes, the dtype is object.
    lengths : bool
        If True, rows are counted now. Each partition is read once for that, with the columns of `frame`. If False,
        nothing is computed, and the number of rows is unknown (nan).

    Returns
    -------
    dask.array.Array
        Shape (n, D) for a dataframe and (n,) for a series. All columns are in one chunk.

    Raises
    ------
    TypeError
        If `frame` is not a Dask dataframe or series.
    ValueError
        If a dataframe has no columns.

    Examples
    --------
    >>> import dask.dataframe as dd, pandas as pd, softargmax
    >>> frame = pd.DataFrame({"a": [0.0, 1.0, 5.0], "b": [0, 3, 1]})
    >>> z = softargmax.parallel.array_of_frame(dd.from_pandas(frame, npartitions=2))  # or of dd.read_parquet(folder)
    >>> z.chunks, z.dtype
    (((2, 1), (2,)), dtype('float64'))
    >>> softargmax.softmax(z).compute().round(3)
    array([[0.5  , 0.5  ],
           [0.119, 0.881],
           [0.982, 0.018]])
    """
    if not hasattr(type(frame), "to_dask_array"):
        raise TypeError(f"frame: expected a Dask dataframe or series, got {type(frame).__name__}")
    given: Any = frame
    parts, dtype = given.to_delayed(), _dtype_of(given)
    shape = (len(given.columns),) if given.ndim == 2 else ()
    rows = compute(*(delayed(len)(part) for part in parts)) if lengths else [math.nan] * len(parts)
    values = [
        da.from_delayed(delayed(np.asarray)(part, dtype), (number, *shape), dtype)
        for part, number in zip(parts, rows, strict=True)
    ]
    found: da.Array = da.concatenate(values)
    return found


def _dtype_of(frame: Any) -> np.dtype[Any]:
    dtypes = list(frame.dtypes) if frame.ndim == 2 else [frame.dtype]
    if not dtypes:
        raise ValueError("frame: expected one column or more, got none")
    try:
        return np.result_type(*dtypes)
    except TypeError:  # no common dtype, or one of pandas' own
        return np.dtype(object)
