"""The rows of Dask dataframes as Dask arrays: values, dtypes, and the lengths of chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from tests.parallel.dask_cases import refuses, same

import softargmax
from softargmax.parallel import array_of_frame

N = 100
TABLE = pd.DataFrame(np.random.default_rng(0).normal(0, 5, (N, 3)).astype(np.float32), columns=["a", "b", "c"])
LENGTHS = (1, 0, 60, 7, 0, 32)


def parts(table: Any = TABLE) -> Any:
    """Return a Dask dataframe whose partitions have unequal lengths, of which some are 0."""
    ends = np.cumsum(LENGTHS)
    return dd.from_delayed([dask.delayed(table.iloc[end - n : end]) for end, n in zip(ends, LENGTHS, strict=True)])


def test_partitions_of_unequal_lengths() -> None:
    z = array_of_frame(parts())
    assert isinstance(z, da.Array)
    assert z.chunks == ((1, 60, 7, 32), (3,))
    same(z.compute(), TABLE.to_numpy())
    same(softargmax.softmax(z).compute(), softargmax.softmax(TABLE.to_numpy()))


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # in Dask's reader
@pytest.mark.parametrize(
    "some",
    [lambda table: table[["c", "a"]], lambda table: table["b"], lambda table: 2 * table[["a", "b", "c"]]],
    ids=["columns", "series", "numbers"],
)
def test_files_that_dask_reads_together(tmp_path: Path, some: Callable[[Any], Any]) -> None:
    ends = np.cumsum(LENGTHS)
    wide = TABLE.assign(**{f"more{k}": 0.0 for k in range(9)})
    for place, (end, n) in enumerate(zip(ends, LENGTHS, strict=True)):
        wide.iloc[end - n : end].to_parquet(tmp_path / f"{place}.parquet")
    frame, expected = some(dd.read_parquet(tmp_path)), some(TABLE).to_numpy()
    assert frame.optimize().npartitions < frame.npartitions == len(LENGTHS)
    z = array_of_frame(frame)
    assert [len(chunk) for chunk in dask.compute(*z.to_delayed().ravel())] == list(z.chunks[0])
    same(z.compute(), expected)
    same(softargmax.softmax(z).compute(), softargmax.softmax(expected))


def test_no_rows_at_all() -> None:
    frame = parts()
    z = array_of_frame(frame[frame["a"] > 1e9])
    assert z.shape == (0, 3)
    assert softargmax.softmax(z).compute().shape == (0, 3)


def test_one_column_and_a_series() -> None:
    one, series = array_of_frame(parts()[["b"]]), array_of_frame(parts()["b"])
    assert (one.shape, series.shape) == ((N, 1), (N,))
    same(one.compute(), TABLE[["b"]].to_numpy())
    same(series.compute(), TABLE["b"].to_numpy())
    same(softargmax.logsumexp(series, axis=0).compute(), softargmax.logsumexp(TABLE["b"].to_numpy()))


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"x": np.arange(N), "y": TABLE["a"]}, "float64"),
        ({"x": TABLE["a"] > 0, "y": TABLE["a"]}, "float32"),
        ({"x": TABLE["a"] > 0, "y": np.arange(N, dtype="u1")}, "uint8"),
        ({"x": TABLE["a"].astype("f2")}, "float16"),
        ({"x": ["word"] * N, "y": TABLE["a"]}, "object"),
        ({"x": pd.array(range(N), dtype="Int64")}, "object"),
    ],
    ids=["int64, float32", "bool, float32", "bool, uint8", "float16", "words", "Int64"],
)
def test_columns_of_several_dtypes(columns: Any, dtype: str) -> None:
    table = pd.DataFrame(columns)
    z = array_of_frame(parts(table))
    assert (z.dtype, z.compute().dtype) == (dtype, dtype)
    np.testing.assert_array_equal(z.compute(), table.to_numpy())


def test_lengths_that_nobody_asked_for_are_not_counted() -> None:
    frame = parts()
    with dask.config.set(scheduler=refuses):
        z = array_of_frame(frame, lengths=False)
    assert np.isnan(z.chunks[0]).all()
    with pytest.raises(ValueError, match="z: expected chunks of known sizes"):
        softargmax.softmax(z)
    z.compute_chunk_sizes()
    assert z.chunks[0] == LENGTHS


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"^frame: expected a Dask dataframe or series, got DataFrame$"):
        array_of_frame(TABLE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^frame: expected a Dask dataframe or series, got Array$"):
        array_of_frame(da.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^frame: expected one column or more, got none$"):
        array_of_frame(parts()[[]])
