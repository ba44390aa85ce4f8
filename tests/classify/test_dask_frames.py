"""Fits on Dask dataframes: coefficients of fits on arrays, names of columns, and files."""

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
from distributed import wait
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from tests.classify.fits import ESTIMATORS, FEATURES, NAMES, WEIGHT, N, X, Y, fitted, learned, same

from softargmax.classify import TemperatureScaling

pytestmark = pytest.mark.usefixtures("small_blocks")
COLUMNS = [f"x{i}" for i in range(FEATURES)]


def frames() -> tuple[Any, Any]:
    """Return a data frame with the columns COLUMNS, "class" and "weight", in memory and in partitions."""
    frame = pd.DataFrame(X, columns=COLUMNS).assign(**{"class": NAMES, "weight": WEIGHT})
    return frame, dd.from_pandas(frame, npartitions=3)


@pytest.fixture(params=ESTIMATORS)
def fit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """A function that fits an estimator to a data frame. Classifiers to be calibrated know the names of columns."""
    name = request.param
    calibrated = ESTIMATORS[name]
    if isinstance(calibrated, TemperatureScaling):
        frame, _ = frames()
        known = clone(calibrated.estimator.estimator).fit(frame[COLUMNS][::3], frame["class"][::3])
        monkeypatch.setitem(ESTIMATORS, name, TemperatureScaling(FrozenEstimator(known), method=calibrated.method))
    return lambda frame: fitted(name, frame[COLUMNS], frame["class"], frame["weight"])


def test_coefficients_and_names(fit: Any) -> None:
    """A fit on a Dask dataframe has learned what a fit on a data frame in memory has."""
    frame, lazy = frames()
    model, expected = fit(lazy), fit(frame)
    assert list(model.feature_names_in_) == COLUMNS
    assert model.n_features_in_ == FEATURES
    same(model, expected)
    p = model.predict_proba(lazy[COLUMNS])
    assert isinstance(p, da.Array)
    np.testing.assert_array_equal(p.compute(), expected.predict_proba(frame[COLUMNS]))
    assert model.score(lazy[COLUMNS], lazy["class"]) == expected.score(frame[COLUMNS], frame["class"])


@pytest.mark.parametrize("name", [name for name, of in ESTIMATORS.items() if not isinstance(of, TemperatureScaling)])
def test_numbers_are_those_of_arrays(name: str) -> None:
    _, lazy = frames()
    found = learned(fitted(name, lazy[COLUMNS], lazy["class"], lazy["weight"]))
    expected = learned(fitted(name, X, NAMES, WEIGHT))
    assert found.keys() - expected.keys() == {"feature_names_in_"}
    for key, value in expected.items():
        np.testing.assert_equal(found[key], value, err_msg=key)


def test_columns_in_another_order_and_other_columns(fit: Any) -> None:
    """The errors are those of data frames in memory, and they are raised before anything is computed."""
    frame, lazy = frames()
    model = fit(frame)
    wrong: list[Callable[[Any], Any]] = [
        lambda table: table[COLUMNS[::-1]],
        lambda table: table[COLUMNS[:-1]],
        lambda table: table[[*COLUMNS, "weight"]],
        lambda table: table[COLUMNS].rename(columns={"x0": "other"}),
    ]
    for change in wrong:
        for method in (model.predict, model.predict_log_proba):
            with pytest.raises(ValueError, match="feature names should match") as memory:
                method(change(frame))
            with dask.config.set(scheduler=_refuses), pytest.raises(ValueError, match="feature names") as of_dask:
                method(change(lazy))
            assert str(of_dask.value) == str(memory.value)
        with pytest.raises(ValueError, match="feature names should match"):
            model.score(change(lazy), lazy["class"])


def _refuses(*_: Any, **__: Any) -> Any:
    raise AssertionError("computed")


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # in Dask's reader
def test_parquet_files_that_dask_joins(tmp_path: Path) -> None:
    """Dask reads few columns of small files together, so rows and labels have other partitions."""
    frame, lazy = frames()
    lazy.repartition(npartitions=9).to_parquet(tmp_path, write_index=False)
    lazy = dd.read_parquet(tmp_path)
    assert lazy[COLUMNS].optimize().npartitions != lazy["class"].optimize().npartitions
    model = fitted("regression", lazy[COLUMNS], lazy["class"])
    same(model, fitted("regression", frame[COLUMNS], frame["class"]))
    assert model.score(lazy[COLUMNS], lazy["class"]) == model.score(frame[COLUMNS], frame["class"])


def test_dataframes_on_workers_are_read_once(tmp_path: Path, cluster: Any) -> None:
    frame, lazy = frames()
    lazy.to_parquet(tmp_path, write_index=False)
    expected = fitted("regression", frame[COLUMNS], frame["class"])
    with cluster.as_current():
        kept = dd.read_parquet(tmp_path).persist()
        wait(kept)
        for file in tmp_path.glob("*.parquet"):
            file.unlink()
        same(fitted("regression", kept[COLUMNS], kept["class"]), expected)


def test_columns_of_several_dtypes() -> None:
    frame = pd.DataFrame({"flag": X[:, 0] > 0.5, "count": np.arange(N), "size": X[:, 1].astype(np.float32)})
    expected = fitted("regression", frame, Y)
    same(fitted("regression", dd.from_pandas(frame, npartitions=3), Y), expected)
