"""Multithreaded products of sparse matrices in CSR format and dense matrices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from softargmax.core.native import get_num_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = 4
"""Number of parts per thread. If the system interrupts a thread, only its current part is late."""
SMALL = 1 << 20
"""Products with fewer multiplications than this use one thread, since starting threads takes 0.1 ms."""


def add_product(x: Any, table: NDArray[Any], into: NDArray[Any]) -> None:
    """Add x times a dense matrix to `into`. The bits of a row do not depend on threads or other rows.

    Each thread multiplies parts of x, which have about the same number of stored entries. SciPy releases the GIL during
    a product.
    """
    table, threads = np.ascontiguousarray(table), get_num_threads()
    if threads == 1 or x.nnz * table.shape[1] < SMALL:
        into += x @ table
        return
    ends = np.searchsorted(x.indptr, np.linspace(0, x.nnz, PARTS * threads + 1))
    ends[0], ends[-1] = 0, x.shape[0]

    errors = np.geterr()

    def add(begin: int, end: int) -> None:
        with np.errstate(**errors):  # every thread has its own error state
            into[begin:end] += rows_of(x, slice(begin, end)) @ table

    with ThreadPoolExecutor(threads) as pool:
        sums = [pool.submit(add, *part) for part in pairwise(ends.tolist())]
    for done in sums:
        done.result()


def rows_of(x: Any, part: slice) -> Any:
    """Return a slice of the rows of a CSR matrix without copying values."""
    begin, end, _ = part.indices(x.shape[0])
    first, last = x.indptr[begin], x.indptr[end]
    data = x.data[first:last], x.indices[first:last], x.indptr[begin : end + 1] - first
    return sparse.csr_array(data, shape=(end - begin, x.shape[1]), copy=False)
