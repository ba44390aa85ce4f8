"""The problem of `fits.py` as Dask arrays."""

from __future__ import annotations

from typing import Any

import dask.array as da
from tests.classify.fits import FEATURES, NAMES, WEIGHT, N, X

CHUNKS = {"one": (N, FEATURES), "even": (250, FEATURES), "ragged": ((1, 0, 333, 600, 66), (3, 4)), "small": (47, 5)}


def arrays(chunks: Any, *, weight: bool = True) -> list[Any]:
    """Return the problem as Dask arrays, with other chunks for labels than for rows."""
    rows = [da.from_array(X, chunks=chunks), da.from_array(NAMES, chunks=130)]
    return [*rows, da.from_array(WEIGHT, chunks=211)] if weight else rows
