"""Time functions and fits on a cluster on this machine, on Dask's threads, and by formulas of dask.array and dask-ml.

    python -m bench.dask              15 minutes; writes bench/results/dask.json

The cluster has WORKERS workers with one thread each, and Dask's threads are as many. All arrays are in memory, or on
the workers, before a call. The cluster and threads take turns. On the cluster, functions of LARGE chunks and fits
should take at most RATIO times their time on threads. A function should need at most CHUNKS chunks of memory per worker
in addition to its input. The results of a function are added up, so that memory for results does not count.

A task costs the cluster 2 to 3 ms of processor time, also if it does nothing, and a logsumexp of 128 MiB takes 13 ms.
So the functions are timed with SMALL chunks, too, and with rows of ROW_CHUNKS chunks each, but without a limit. For
these rows the number of tasks is printed, and the largest number of inputs of a task. Results for several chunkings are
compared with those for one chunk: how many have other bits. The exit code is 1 if a limit is missed, or if a result of
ours has other bits. dask-ml takes part if it is installed.
"""

from __future__ import annotations

import json
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
from bench.machine import Run
from bench.peak import reset_peak, resident
from dask.base import wait
from dask.core import get_dependencies
from distributed import Client, LocalCluster
from tools.measurements import RESULTS

import softargmax as sa
from softargmax.classify import GaussianNaiveBayes, LinearDiscriminant, SoftmaxRegression
from softargmax.measure import OURS, Timing, package_version, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Function = Callable[..., Any]

WORKERS = 2
Scores = tuple[int, int, tuple[int, int]]
"""Numbers of rows and columns, and the shape of a chunk."""
LARGE: Scores = 8192, 131_072, (2048, 65_536)  # 8 chunks of 512 MiB
SMALL: Scores = 1024, 65_536, (256, 16_384)  # 16 chunks of 16 MiB
ROW_CHUNKS = 1000
LONG: Scores = 16, 4096 * ROW_CHUNKS, (16, 4096)
CHUNKINGS = (6, 9001), (2, 9001), (6, 4096), (3, 5000), (1, 777)
RATIO, CHUNKS = 1.3, 4.0
ROUNDS, FEW_ROUNDS, STEPS = 5, 2, 8  # few for fits and peers, which take long
PAUSE = 0.1  # after it, the cluster has released results of the last call
THREADS, CLUSTER = "threads", "cluster"
FORMULA, PEER = "dask.array", "dask-ml"


# --- what is measured -------------------------------------------------------------------------------------------------


def exponentials(z: Any) -> tuple[Any, Any, Any]:
    """Return the maximum of each row, exp(z - maximum), and the sum of the exponentials."""
    m = z.max(axis=-1, keepdims=True)
    e = np.exp(z - m)
    return m, e, e.sum(axis=-1, keepdims=True)


def softmax(z: Any, _: Any) -> Any:
    """Return the softmax by the usual formula."""
    _, e, total = exponentials(z)
    return e / total


def logsumexp(z: Any, _: Any) -> Any:
    """Return the logsumexp by the usual formula."""
    m, _, total = exponentials(z)
    return (m + np.log(total))[:, 0]


def entropy(z: Any, _: Any) -> Any:
    """Return the entropy by the usual formula."""
    p = softmax(z, None)
    return -(p * np.log(p)).sum(axis=-1)


def cross_entropy(z: Any, y: Any) -> Any:
    """Return the mean cross-entropy by the usual formula."""
    return (logsumexp(z, None) - (z * (np.arange(z.shape[-1]) == y[:, None])).sum(axis=-1)).mean()


def gradient(z: Any, y: Any) -> Any:
    """Return the gradient of the mean cross-entropy by the usual formula."""
    return (softmax(z, None) - (np.arange(z.shape[-1]) == y[:, None])) / len(z)


FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "softmax": (lambda z, _: sa.softmax(z), softmax),
    "logsumexp": (lambda z, _: sa.logsumexp(z), logsumexp),
    "entropy": (lambda z, _: sa.entropy(z), entropy),
    "cross_entropy": (sa.cross_entropy, cross_entropy),
    "cross_entropy_and_gradient": (lambda z, y: sa.cross_entropy_and_gradient(z, y).gradient, gradient),
}


def regression() -> Any:
    """Return softmax regression that takes STEPS steps."""
    return SoftmaxRegression(max_iter=STEPS, tol=0.0)


Shape = tuple[int, int, int, int]
"""Numbers of rows, features, classes, and rows of a chunk."""
TWO_CLASSES = "SoftmaxRegression 2097152 x 100, 2 classes"
BAYES = "GaussianNaiveBayes 2097152 x 100, 10 classes"
FITS: dict[str, tuple[Shape, Callable[[], Any]]] = {
    "SoftmaxRegression 524288 x 784, 10 classes": ((524_288, 784, 10, 32_768), regression),
    TWO_CLASSES: ((2_097_152, 100, 2, 262_144), regression),
    BAYES: ((2_097_152, 100, 10, 262_144), GaussianNaiveBayes),
    "LinearDiscriminant 2097152 x 100, 10 classes": ((2_097_152, 100, 10, 262_144), LinearDiscriminant),
}
SMALL_FITS: dict[str, tuple[Shape, Callable[[], Any]]] = {
    "SoftmaxRegression 20000 x 784, 10 classes": ((20_000, 784, 10, 2500), regression),
    "GaussianNaiveBayes 100000 x 100, 10 classes": ((100_000, 100, 10, 12_500), GaussianNaiveBayes),
}


def rows_of(n: int, features: int, classes: int, chunk: int) -> list[Any]:
    """Return random rows, and classes that depend on them. Workers make them."""
    rng = da.random.default_rng(0)
    X = rng.standard_normal((n, features), chunks=(chunk, features), dtype=np.float32)
    w = np.random.default_rng(0).standard_normal((features, classes), dtype=np.float32) * 2 / np.sqrt(features)
    z = X.map_blocks(np.matmul, w.astype(np.float32), chunks=(X.chunks[0], (classes,)), dtype=np.float32)
    return [X, (z + rng.gumbel(size=z.shape, chunks=z.chunks)).argmax(axis=1)]


def scores_of(rows: int, columns: int, chunk: tuple[int, int]) -> list[Any]:
    """Return random scores, and a class for each row. Workers make them."""
    z = da.random.default_rng(0).standard_normal((rows, columns), chunks=chunk, dtype=np.float32)
    return [z, da.arange(rows, chunks=chunk[0])]


# --- where it runs ----------------------------------------------------------------------------------------------------


class Places:
    """Dask's threads, and a cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Let Dask compute there."""
        options = {} if place == CLUSTER else {"scheduler": "threads", "num_workers": WORKERS}
        with dask.config.set(options), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fits stop early
            yield

    def load(self, place: str, *arrays: Any) -> Any:
        """Compute arrays, and leave them there."""
        with self.at(place):
            found = dask.persist(*arrays)
            wait(found)
            return found

    def seconds(self, functions: dict[str, Function], arrays: Sequence[Any], rounds: int) -> dict[str, Timing]:
        """Time functions of arrays, each at both places in turns. Results that are arrays are computed, and left there.

        The peer's turns come after all of ours, because workers that release GiB of its arrays are slow for a while.
        """
        loaded = {place: self.load(place, *arrays) for place in (CLUSTER, THREADS)}
        samples: dict[tuple[str, str], list[float]] = {(name, place): [] for name in functions for place in loaded}
        for name, function in functions.items():
            for _ in range((rounds if name == OURS else FEW_ROUNDS) + 1):
                for place, its in loaded.items():
                    time.sleep(PAUSE)
                    samples[name, place].append(self.once(place, function, its))
        return {f"{name}, {place}": Timing.of(some[1:]) for (name, place), some in samples.items()}

    def once(self, place: str, function: Function, arrays: Sequence[Any]) -> float:
        """Time a call. Its result is released after it, since a cluster computes nothing that it still has.

        Of results as large as the scores, tasks keep a column. A virtual machine may give freed memory back to its
        host. Getting GiB of it again took from a third to three times the time of softmax.
        """
        with self.at(place):
            start = time.perf_counter()
            result = function(*arrays)
            if getattr(result, "shape", None) == arrays[0].shape:
                result = result.map_blocks(column, chunks=(result.chunks[0], (1,) * result.numblocks[1]))
            if dask.is_dask_collection(result):
                wait(result := dask.persist(result))
            return time.perf_counter() - start

    def beyond(self, call: Callable[[], object]) -> float:
        """Return the largest number of bytes by which a call raises the memory of a worker."""
        time.sleep(10 * PAUSE)
        before = self.client.run(reset_peak)
        call()
        after = self.client.run(resident, "VmHWM")
        return float(max(after[worker] - before[worker] for worker in before))


@contextmanager
def new_cluster() -> Iterator[Places]:
    """Start a cluster for one case: after a peer's GiB, workers were up to three times slower in the next case."""
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": "10GiB"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield Places(client)


def column(x: Any) -> Any:
    """Return a copy of the first column of a chunk."""
    return x[:, :1].copy()


def peers() -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return the models of dask-ml for fits of ours, by the case's name, and the errors of those that fail here.

    Its LogisticRegression has two classes only. There are none if dask-ml is not installed.
    """
    if package_version(PEER) is None:
        return {}, {}
    from dask_ml.linear_model import LogisticRegression
    from dask_ml.naive_bayes import GaussianNB

    work: dict[str, Callable[[], Any]] = {}
    fail: dict[str, str] = {}
    models = {TWO_CLASSES: partial(LogisticRegression, solver="lbfgs", max_iter=STEPS, tol=0.0), BAYES: GaussianNB}
    for name, model in models.items():
        try:
            with new_cluster() as places:
                for place in (CLUSTER, THREADS):
                    places.once(place, model().fit, places.load(place, *rows_of(1000, 5, 2, 500)))
        except Exception as error:  # noqa: BLE001 whatever a peer raises with this version of Dask
            fail[name] = f"{type(error).__name__}: {error}".split("\n")[0]
            print(f"{name}: {PEER} fails, {fail[name]}", flush=True)
        else:
            work[name] = model
    return work, fail


def timed(
    places: Places, name: str, functions: dict[str, Function], arrays: Sequence[Any], rounds: int = ROUNDS
) -> dict[str, Any]:
    """Time functions of arrays at both places. Print and return what was found."""
    found = places.seconds(functions, arrays, rounds)
    ratio = found[f"{OURS}, {CLUSTER}"].median / found[f"{OURS}, {THREADS}"].median
    times = ", ".join(f"{side} {readable(timing.median)}" for side, timing in found.items())
    print(f"{name:45} cluster / threads {ratio:.2f}; {times}", flush=True)
    seconds = {side: asdict(timing) for side, timing in found.items()}
    chunk = arrays[0].nbytes / arrays[0].npartitions
    return {
        "seconds": seconds, "cluster / threads": ratio, "chunk": chunk, "beyond": beyond(places, functions, arrays)
    }  # fmt: skip


def beyond(places: Places, functions: dict[str, Function], arrays: Sequence[Any]) -> dict[str, float]:
    """Return the memory of a worker beyond the input, in chunks, of a sum of the results of each function."""
    loaded, chunk, found = places.load(CLUSTER, *arrays), arrays[0].nbytes / arrays[0].npartitions, {}
    for name, function in functions.items():

        def call(function: Function = function) -> None:
            with places.at(CLUSTER):
                result = function(*loaded)
                if dask.is_dask_collection(result):
                    result.sum().compute()

        found[name] = places.beyond(call) / chunk
    print(" " * 45, ", ".join(f"{name} {chunks:.1f} chunks" for name, chunks in found.items()), flush=True)
    return found


# --- graphs and bits --------------------------------------------------------------------------------------------------


def graph(name: str) -> dict[str, Any]:
    """Count the tasks for rows of many chunks, and time them."""
    function, _ = FUNCTIONS[name]
    arrays = scores_of(*LONG)
    with new_cluster() as places:
        tasks = dict(dask.optimize(function(*places.load(THREADS, *arrays)))[0].__dask_graph__())
        record = timed(places, f"{name}, {ROW_CHUNKS} chunks in each row", {OURS: function}, arrays)
    inputs = max(len(get_dependencies(tasks, key)) for key in tasks)
    print(" " * 45, f"{len(tasks)} tasks, at most {inputs} inputs", flush=True)
    return {**record, "tasks": len(tasks), "inputs": inputs}


def edges() -> tuple[Any, Any]:
    """Return scores, some rows of which have infinities, or nothing in the support, and targets."""
    z = np.random.default_rng(0).normal(0, 10, (6, 9001)).astype(np.float32)
    z[1] = -np.inf
    z[2, 77] = np.inf
    z[3, ::2] = -np.inf
    return z, np.arange(6)


def bits(name: str) -> dict[str, Any]:
    """Count the chunkings for which a result has other bits than with one chunk, and the rows with NaN."""
    z, y = edges()
    found: dict[str, Any] = {}
    for side, function in zip((OURS, FORMULA), FUNCTIONS[name], strict=True):
        with dask.config.set(scheduler="threads"), np.errstate(all="ignore"):
            results = [function(da.from_array(z, chunks=chunks), y).compute() for chunks in CHUNKINGS]
        rows = np.atleast_1d(results[0])
        found[side] = {
            "other bits": sum(not np.array_equal(results[0], x, equal_nan=True) for x in results[1:]),
            "NaN": int(np.isnan(rows.reshape(len(rows), -1)).any(axis=1).sum()),
        }
    print(f"{name:45} of {len(CHUNKINGS) - 1} chunkings: {found}", flush=True)
    return found


def bits_of_fits(models: dict[str, Callable[[], Any]], shape: Shape) -> dict[str, int]:
    """Count the chunkings for which a fit has other bits than with one chunk."""
    n, features, classes, _ = shape
    found, n = {}, n // 10
    with dask.config.set(scheduler="threads"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X, y = dask.compute(*rows_of(n, features, classes, n))
        chunkings = [[da.from_array(X, chunks=(chunk, features)), da.from_array(y, chunks=chunk)]
                     for chunk in (n, n // 7, n // 3 + 1)]  # fmt: skip
        for side, model in models.items():
            first, *others = [learned(model().fit(*arrays)) for arrays in chunkings]
            found[side] = sum(not np.array_equal(first, one) for one in others)
    return found


def learned(model: Any) -> Any:
    """Return the coefficients or the means of a fitted model."""
    return np.asarray(model.coef_ if hasattr(model, "coef_") else model.theta_)


# --- the whole --------------------------------------------------------------------------------------------------------


def functions_of(shape: Scores) -> dict[str, Any]:
    """Time all functions."""
    arrays, found = scores_of(*shape), {}
    for name, (ours, formula) in FUNCTIONS.items():
        with new_cluster() as places:
            found[name] = timed(places, name, {OURS: ours, FORMULA: formula}, arrays)
    return found


def fits_of(fits: dict[str, tuple[Shape, Any]], of_peers: dict[str, Any]) -> dict[str, Any]:
    """Time fits, and those of peers, and compare their bits."""
    found = {}
    for name, (shape, model) in fits.items():
        models = {OURS: model} | ({PEER: of_peers[name]} if name in of_peers else {})
        # A fit of dask-ml may leave its results to be computed.
        calls = {side: (lambda X, y, model=model: learned(model().fit(X, y))) for side, model in models.items()}
        with new_cluster() as places:
            record = timed(places, name, calls, rows_of(*shape), FEW_ROUNDS)
        found[name] = {**record, "other bits": bits_of_fits(models, shape)}
    return found


def measured() -> dict[str, Any]:
    """Measure everything."""
    of_peers, fail = peers()
    return {
        "functions": functions_of(LARGE),
        "fits": fits_of(FITS, of_peers),
        "small": {**functions_of(SMALL), **fits_of(SMALL_FITS, {})},
        "graphs": {name: graph(name) for name in ("softmax", "logsumexp", "entropy")},
        "bits": {name: bits(name) for name in FUNCTIONS},
        "fail": fail,
    }


def missed(record: dict[str, Any]) -> list[str]:
    """Return the limits that were missed."""
    functions, fits, small = record["functions"], record["fits"], record["small"]
    found = [f"time of {name}" for name, one in {**functions, **fits}.items() if one["cluster / threads"] > RATIO]
    found += [f"memory of {name}" for name, one in functions.items() if one["beyond"][OURS] > CHUNKS]
    found += [f"bits of {name}" for name, one in record["bits"].items() if one[OURS]["other bits"]]
    every_fit = {**fits, **{name: small[name] for name in SMALL_FITS}}
    return found + [f"bits of {name}" for name, one in every_fit.items() if one["other bits"][OURS]]


def main() -> int:
    """Measure, print, write the results, and return the exit code."""
    watched = Run()
    sa.set_num_threads(1)
    versions = {name: package_version(name) for name in ("dask", "distributed", PEER)}
    record = {**measured(), "machine": watched.machine(), "versions": versions}
    for limit in missed(record):
        print("MISSED:", limit)
    (RESULTS / "dask.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(bool(missed(record)))


if __name__ == "__main__":
    raise SystemExit(main())
