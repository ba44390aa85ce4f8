"""Fits on Dask arrays: bits for any chunks and workers, objectives equal to those in memory, and errors of chunks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import pytest
from dask.core import get_dependencies, istask
from sklearn.base import clone
from tests.classify.dask_fits import CHUNKS, arrays
from tests.classify.fits import ESTIMATORS, FEATURES, NAMES, WEIGHT, N, X, Y, fitted, same

from softargmax.classify import (
    BernoulliNaiveBayes,
    GaussianNaiveBayes,
    MultinomialNaiveBayes,
    SoftmaxRegression,
    TemperatureScaling,
    dask_rows,
)

pytestmark = pytest.mark.usefixtures("small_blocks")

# --- bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_chunks_have_the_bits_of_arrays_in_memory(name: str, chunks: Any) -> None:
    with dask.config.set(scheduler="threads"):
        same(fitted(name, *arrays(chunks)), fitted(name, X, NAMES, WEIGHT))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_without_weights(name: str) -> None:
    with dask.config.set(scheduler="synchronous"):
        same(fitted(name, *arrays((300, 7), weight=False)), fitted(name, X, NAMES))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_stay_with_the_workers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass brings as many numbers to the caller as the rows have. What workers keep does not count."""
    monkeypatch.setattr(dask_rows, "persist", lambda *kept, **_: kept)
    sizes = []

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        found = dask.get(graph, keys, **options)
        sizes.append(len(pickle.dumps(found)))
        return found

    with dask.config.set(scheduler=get):
        fitted(name, *arrays((250, 7)))
    assert max(sizes) < X.nbytes / 2


def test_rows_in_float32_and_two_classes() -> None:
    x, y = X.astype(np.float32), Y % 2
    model = SoftmaxRegression(tol=1e-5).fit(da.from_array(x, chunks=(170, 7)), y)
    assert model.coef_.dtype == np.float32
    same(model, SoftmaxRegression(tol=1e-5).fit(x, y))


@pytest.mark.usefixtures("keys_with_one_meaning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_workers_in_other_processes(name: str, cluster: Any) -> None:
    expected = fitted(name, X, NAMES, WEIGHT)
    with cluster.as_current():
        for chunks in ("ragged", "even"):
            same(fitted(name, *[array.persist() for array in arrays(CHUNKS[chunks])]), expected)


def test_the_scheduler_of_processes() -> None:
    with dask.config.set(scheduler="processes", num_workers=2):
        found = fitted("gaussian", *arrays((400, 7)))  # a pool of processes starts for every pass
    same(found, fitted("gaussian", X, NAMES, WEIGHT))


def test_tasks_of_single_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("ENTRIES", "JOINED"):
        monkeypatch.setattr(f"softargmax.classify.dask_rows.{limit}", 1)
    for chunks in CHUNKS.values():
        same(fitted("l1", *arrays(chunks)), fitted("l1", X, NAMES, WEIGHT))


@pytest.mark.parametrize(("chunks", "begin"), [((250, 7), 4), ((90, 4), 11)])
def test_rows_in_memory_are_cut_once(chunks: Any, begin: int) -> None:
    """A pass of a solver has one task for each chunk in which blocks of 96 rows begin."""
    seen: list[int] = []

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        if isinstance(graph, dict):  # sums over blocks pass a graph, and Dask's collections an expression
            seen.append(sum(map(istask, graph.values())))
        return dask.threaded.get(graph, keys, **options)

    x, y, weight = arrays(chunks)
    with dask.config.set(scheduler=get):
        fitted("regression", x + 0, y, weight)
    assert set(seen[-5:]) == {begin}


def test_one_name_has_one_task() -> None:
    """Also in sums over other arrays, with which Dask fuses other tasks. A scheduler may still know those before."""
    needs: dict[Any, set[frozenset[Any]]] = {}

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        if isinstance(graph, dict):
            for key in graph:
                needs.setdefault(key, set()).add(frozenset(get_dependencies(graph, key)))
        return dask.get(graph, keys, **options)

    x, y = arrays(CHUNKS["one"], weight=False)
    y = y.rechunk(N).map_blocks(np.copy)
    with dask.config.set(scheduler=get):
        fitted("gaussian", x, y)
    assert [key for key, of in needs.items() if len(of) > 1] == []


def test_rows_in_files_are_read_in_every_pass() -> None:
    read: list[int] = []

    def of_chunk(block_info: Any = None) -> Any:
        start, stop = block_info[None]["array-location"][0]
        read.append(start)
        return X[start:stop]

    x = da.map_blocks(of_chunk, chunks=((600, 400), (FEATURES,)), meta=np.empty((0, 0)))
    _, y, weight = arrays((600, 7))
    expected = fitted("regression", X, NAMES, WEIGHT)
    same(fitted("regression", x, y, weight), expected)
    assert read.count(0) > 9
    read.clear()
    same(fitted("regression", x.persist(), y, weight), expected)
    assert read.count(0) == 1


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_pass_reads_each_chunk_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if chunks cut blocks, so that two tasks need a chunk."""
    read: list[int] = []
    in_passes: list[list[int]] = []
    fold = dask_rows.DaskBlocks.fold

    def of_chunk(block_info: Any = None) -> Any:
        start, stop = block_info[None]["array-location"][0]
        read.append(start)
        return X[start:stop]

    def counted(*arguments: Any, **options: Any) -> Any:
        read.clear()
        found = fold(*arguments, **options)
        in_passes.append(sorted(read))
        return found

    monkeypatch.setattr(dask_rows.DaskBlocks, "fold", counted)
    x = da.map_blocks(of_chunk, chunks=((330, 310, 360), (FEATURES,)), meta=np.empty((0, 0)))
    with dask.config.set(scheduler="synchronous"):
        same(fitted(name, x, *arrays((250, 7))[1:]), fitted(name, X, NAMES, WEIGHT))
    assert [0, 330, 640] in in_passes
    assert all(one in ([], [0, 330, 640]) for one in in_passes)


def coefficients(_: int) -> Any:
    return SoftmaxRegression(max_iter=3, tol=1.0).fit(*arrays((300, 7))).coef_


def test_fits_inside_tasks_of_all_workers(cluster: Any) -> None:
    """A fit waits for tasks that need the thread in which it runs."""
    one, other = [future.result(timeout=300) for future in cluster.map(coefficients, range(2), pure=False)]
    np.testing.assert_array_equal(one, other)


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba", "decision_function"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_are_lazy(name: str, method: str) -> None:
    model = fitted(name, X, NAMES)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("computed")

    predict = getattr(model, method, None)
    if predict is None:
        pytest.skip(f"{name} has no {method}")
    for x in (X, X.astype(np.float32)):
        with dask.config.set(scheduler=refuse):
            lazy = predict(da.from_array(x, chunks=CHUNKS["ragged"]))
        expected = predict(x)
        assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(lazy.compute(scheduler="threads"), expected)


def test_score() -> None:
    model = fitted("regression", X, NAMES)
    x, y, weight = arrays(CHUNKS["small"])
    assert model.score(x, y) == model.score(X, NAMES)
    assert model.score(x, NAMES, weight) == pytest.approx(model.score(X, NAMES, WEIGHT), rel=1e-14)
    assert model.score(x, y, weight) == model.score(x.rechunk((500, 7)), y, WEIGHT)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_chunk() -> None:
    x, y, weight = arrays((100, 7))
    bad = X.copy()
    bad[317, 2] = np.nan
    bad = da.from_array(bad, chunks=(100, 4))
    with pytest.raises(ValueError, match=r"^X: chunk 3 \(rows 300 to 399\): Input X contains NaN"):
        SoftmaxRegression().fit(bad, y)
    with pytest.raises(ValueError, match=r"^X: chunk 3 \(rows 300 to 399\): Input X contains NaN"):
        fitted("regression", X, NAMES).predict(bad).compute()
    labels = Y.astype(float)
    labels[999] = np.nan
    with pytest.raises(ValueError, match=r"^y: chunk 9 \(rows 900 to 999\): Input y contains NaN"):
        SoftmaxRegression().fit(x, da.from_array(labels, chunks=100))
    with pytest.raises(ValueError, match=r"^sample_weight: chunk \d \(rows \d+ to \d+\): Negative"):
        SoftmaxRegression().fit(x, y, -weight)
    with pytest.raises(ValueError, match="sample_weight: expected at least one weight above 0"):
        SoftmaxRegression().fit(x, y, 0 * weight)


def test_errors_of_models_name_the_chunk() -> None:
    x, y, _ = arrays((100, 7))
    with pytest.raises(ValueError, match=r"^X: chunk \d \(rows \d+ to \d+\): Negative values in data"):
        MultinomialNaiveBayes().fit(x - 1, y)
    with pytest.raises(ValueError, match=r"^X: chunk \d \(rows \d+ to \d+\): X: expected only 0 and 1"):
        BernoulliNaiveBayes(binarize=None).fit(x, y)
    with pytest.raises(ValueError, match=r"^y: chunk 2 \(rows 200 to 299\): label: expected one of"):
        clone(ESTIMATORS["vector"]).fit(x, da.from_array(np.where(np.arange(N) == 250, "wasp", NAMES), chunks=100))
    with pytest.raises(TypeError, match="estimator: expected a FrozenEstimator for Dask arrays"):
        TemperatureScaling(GaussianNaiveBayes()).fit(x, y)


def test_errors_of_arguments() -> None:
    x, y, _ = arrays((100, 7))
    with pytest.raises(ValueError, match="X, y: expected the same number of rows, got 1000 and 999"):
        SoftmaxRegression().fit(x, y[1:])
    with pytest.raises(ValueError, match=r"X: expected chunks of known sizes.*X\.compute_chunk_sizes\(\)"):
        SoftmaxRegression().fit(x[x[:, 0] > 0], y)
    with pytest.raises(ValueError, match=r"y: expected chunks of known sizes.*y\.compute_chunk_sizes\(\)"):
        SoftmaxRegression().fit(x, y[y != "ant"])
    with pytest.raises(ValueError, match=r"y: expected shape \(n,\), got \(1000, 7\)"):
        SoftmaxRegression().fit(x, x)
    with pytest.raises(TypeError, match="X: expected a Dask array or dataframe, got a Delayed"):
        SoftmaxRegression().fit(dask.delayed(X), y)
    with pytest.raises(ValueError, match="two classes or more for SoftmaxRegression, got one class: 0"):
        SoftmaxRegression().fit(x, da.zeros(N, dtype=int))
    with pytest.raises(TypeError, match="y: expected classes of one type"):
        SoftmaxRegression().fit(x, da.from_array(np.array(["a"] * 500 + [1] * 500, object), chunks=500))
    with pytest.raises(ValueError, match="expecting 7 features"):
        fitted("regression", X, NAMES).predict(x[:, 1:])


def test_dask_is_imported_only_for_its_arrays() -> None:
    program = (
        "import sys, softargmax.classify as c; c.GaussianNaiveBayes().fit([[0.0], [1.0]], [0, 1]).score([[0.0]], [0]);"
        "sys.exit('dask' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
