"""Files that several processes write in parts."""

from __future__ import annotations

import multiprocessing
import os
import sys
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softargmax.cli.dask_npy import NpyStack


def refuse_to_read() -> None:
    """Raise an error when this process opens a `.npy` file in another way than for writing."""

    def check(event: str, arguments: Any) -> None:
        if event == "open" and str(arguments[0]).endswith(".npy") and arguments[2] & os.O_ACCMODE != os.O_WRONLY:
            raise AssertionError(f"a task opened {arguments[0]} with flags {arguments[2]}")

    sys.addaudithook(check)


def parts_of(chunks: tuple[tuple[int, ...], ...]) -> list[tuple[slice, ...]]:
    """Return the parts that chunks cut from an array."""
    along = [[slice(end - size, end) for end, size in zip(accumulate(of), of, strict=True)] for of in chunks]
    return list(product(*along))


@pytest.mark.parametrize(
    "chunks", [((2, 3), (7, 1, 5)), ((1, 4), (2, 1), (3, 3)), ((3,), (4,), (2, 2)), ((4, 2),)], ids=str
)
def test_processes_write_parts_of_a_file(tmp_path: Path, chunks: Any) -> None:
    """Each of them only writes: it reads no page of a file, which another machine may have written meanwhile."""
    expected = np.random.default_rng(0).standard_normal([sum(of) for of in chunks]).astype(np.float32)
    files, parts = NpyStack(tmp_path, chunks, expected.dtype), parts_of(chunks)
    with multiprocessing.get_context("spawn").Pool(2, refuse_to_read) as processes:
        processes.starmap(files.__setitem__, [(part, expected[part]) for part in parts], chunksize=1)
    found = np.concatenate([np.load(tmp_path / f"{place}.npy") for place in range(len(chunks[0]))])
    np.testing.assert_array_equal(found, expected)
