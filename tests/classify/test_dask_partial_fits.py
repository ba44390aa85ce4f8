"""Fits to batches that are Dask arrays or dataframes: the bits of fits to batches in memory."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from tests.classify.dask_fits import CHUNKS, arrays
from tests.classify.fits import ALL, BATCHES, BAYES, DISCRIMINANTS, ESTIMATORS, NAMES, WEIGHT, N, X, in_batches, same

from softargmax.classify import GaussianNaiveBayes, LinearDiscriminant, MultinomialNaiveBayes, QuadraticDiscriminant

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("name", BAYES)
def test_naive_bayes(name: str) -> None:
    lazy, memory = clone(ESTIMATORS[name]), clone(ESTIMATORS[name])
    x, y, weight = arrays(CHUNKS["ragged"])
    for batch in (slice(0, 10), slice(10, 700), slice(700, N)):
        lazy.partial_fit(x[batch], y[batch], ALL, weight[batch])
        memory.partial_fit(X[batch], NAMES[batch], ALL, WEIGHT[batch])
        same(lazy, memory)


@pytest.mark.parametrize("name", DISCRIMINANTS)
def test_discriminants(name: str) -> None:
    x, y = arrays(CHUNKS["ragged"], weight=False)
    batches = (slice(0, 2), *BATCHES[1:])
    same(in_batches(DISCRIMINANTS[name], x, y, *batches), in_batches(DISCRIMINANTS[name], X, NAMES, *batches))


def test_names_of_columns() -> None:
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    lazy = clone(DISCRIMINANTS["linear"])
    for batch in BATCHES:
        lazy.partial_fit(dd.from_pandas(frame[batch], npartitions=2), NAMES[batch], ALL)
    same(lazy, in_batches(DISCRIMINANTS["linear"], frame, NAMES, *BATCHES))
    with pytest.raises(ValueError, match="feature names should match"):
        lazy.partial_fit(dd.from_pandas(frame[frame.columns[::-1]], npartitions=2), NAMES)


@pytest.mark.parametrize(
    "model", [GaussianNaiveBayes(), MultinomialNaiveBayes(), LinearDiscriminant(), QuadraticDiscriminant(tol=0.0)]
)
def test_errors_name_the_chunk(model: Any) -> None:
    lazy, wrong = da.from_array(X, chunks=(100, 7)), np.where(np.arange(N) == 270, "wasp", NAMES)
    with pytest.raises(ValueError, match=r"y: chunk 2 \(rows 260 to 389\): label: expected one of"):
        clone(model).partial_fit(lazy, da.from_array(wrong, chunks=130), ALL)


def test_predictions_from_too_few_rows() -> None:
    """The error is raised at once, not by a task."""
    x, y = arrays(CHUNKS["even"], weight=False)
    model = LinearDiscriminant().partial_fit(x[:3], y[:3], ALL)
    with pytest.raises(NotFittedError, match="partial_fit: expected more rows before predictions; X: expected more"):
        model.predict_proba(x)
