"""Time functions and fits on a cluster on this machine, on Dask's threads, and by formulas of dask.array and dask-ml.

    python -m bench.dask              4 minutes; writes bench/results/dask.json

The cluster has WORKERS workers with one thread each, and Dask's threads are as many. All arrays are in memory, or on
the workers, before a call. The sides take turns. On the cluster, functions and fits should take at most RATIO times
their time on threads. A function should need at most CHUNKS chunks of memory per worker in addition to its input. The
results of a function are added up, so that memory for results does not count.

Rows of one more array have ROW_CHUNKS chunks each. For these the number of tasks is printed, and the largest number of
inputs of a task. Results for several chunkings are compared with those for one chunk: how many have other bits. The
exit code is 1 if a limit is missed, or if a result of ours has other bits. dask-ml takes part if it is installed.
"""

from __future__ import annotations

import json
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict
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
ROWS, COLUMNS, CHUNK = 1024, 65_536, (256, 16_384)  # chunks of 16 MiB
LONG, ROW_CHUNKS = 16, 1000
CHUNKINGS = (6, 9001), (2, 9001), (6, 4096), (3, 5000), (1, 777)
RATIO, CHUNKS = 1.3, 4.0
ROUNDS, STEPS = 5, 20
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


FITS: dict[str, tuple[tuple[int, int, int, int], Callable[[], Any]]] = {
    "SoftmaxRegression 20000 x 784, 10 classes": ((20_000, 784, 10, 2500), regression),
    "SoftmaxRegression 100000 x 784, 10 classes": ((100_000, 784, 10, 6250), regression),
    "SoftmaxRegression 100000 x 100, 2 classes": ((100_000, 100, 2, 12_500), regression),
    "GaussianNaiveBayes 100000 x 100, 10 classes": ((100_000, 100, 10, 12_500), GaussianNaiveBayes),
    "LinearDiscriminant 100000 x 100, 10 classes": ((100_000, 100, 10, 12_500), LinearDiscriminant),
}


def peers() -> dict[str, Callable[[], Any]]:
    """Return the models of dask-ml for fits of ours, by the case's name, or nothing if it is not installed.

    Its LogisticRegression has two classes only.
    """
    if package_version(PEER) is None:
        return {}
    from dask_ml.linear_model import LogisticRegression
    from dask_ml.naive_bayes import GaussianNB

    *_, two, bayes, _ = FITS
    return {two: lambda: LogisticRegression(solver="lbfgs", max_iter=STEPS, tol=0.0), bayes: GaussianNB}


def rows_of(n: int, features: int, classes: int, chunk: int) -> list[Any]:
    """Return random rows, and classes that depend on them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, features), dtype=np.float32)
    z = X @ rng.standard_normal((features, classes), dtype=np.float32) * np.float32(2 / np.sqrt(features))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return [da.from_array(X, chunks=(chunk, features)), da.from_array(y, chunks=chunk)]


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

    def seconds(self, functions: dict[str, Function], arrays: Sequence[Any]) -> dict[str, Timing]:
        """Time functions of arrays at both places, in turns. Results that are arrays are computed, and left there."""
        loaded = {place: self.load(place, *arrays) for place in (CLUSTER, THREADS)}
        sides = [(name, place) for name in functions for place in loaded]
        samples: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
        for turn in range(ROUNDS + 1):
            for name, place in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                time.sleep(PAUSE)
                samples[name, place].append(self.once(place, functions[name], loaded[place]))
        return {f"{name}, {place}": Timing.of(some[1:]) for (name, place), some in samples.items()}

    def once(self, place: str, function: Function, arrays: Sequence[Any]) -> float:
        """Time a call. Its result is released after it, since a cluster computes nothing that it still has."""
        with self.at(place):
            start = time.perf_counter()
            result = function(*arrays)
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


def timed(places: Places, name: str, functions: dict[str, Function], arrays: Sequence[Any]) -> dict[str, Any]:
    """Time functions of arrays at both places. Print and return what was found."""
    found = places.seconds(functions, arrays)
    ratio = found[f"{OURS}, {CLUSTER}"].median / found[f"{OURS}, {THREADS}"].median
    missed = "" if ratio <= RATIO else f" MISSED (<= {RATIO})"
    times = ", ".join(f"{side} {readable(timing.median)}" for side, timing in found.items())
    print(f"{name:45} cluster / threads {ratio:.2f}{missed}; {times}", flush=True)
    seconds = {side: asdict(timing) for side, timing in found.items()}
    return {"seconds": seconds, "cluster / threads": ratio, "beyond": beyond(places, functions, arrays)}


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


def graph(places: Places, name: str) -> dict[str, Any]:
    """Count the tasks for rows of many chunks, and time them."""
    z = da.random.default_rng(0).standard_normal((LONG, 4096 * ROW_CHUNKS), chunks=(LONG, 4096), dtype=np.float32)
    function, _ = FUNCTIONS[name]
    arrays = [z, np.arange(LONG)]
    tasks = dict(dask.optimize(function(*places.load(THREADS, z), arrays[1]))[0].__dask_graph__())
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


def bits_of_fits(models: dict[str, Callable[[], Any]], shape: tuple[int, int, int, int]) -> dict[str, int]:
    """Count the chunkings for which a fit has other bits than with one chunk."""
    n, features, classes, _ = shape
    found = {}
    with dask.config.set(scheduler="threads"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for side, model in models.items():
            of_chunks = [learned(model().fit(*rows_of(n // 10, features, classes, chunk))) for chunk in (n, 700, 999)]
            found[side] = sum(not np.array_equal(of_chunks[0], one) for one in of_chunks[1:])
    return found


def learned(model: Any) -> Any:
    """Return the coefficients or the means of a fitted model."""
    return np.asarray(model.coef_ if hasattr(model, "coef_") else model.theta_)


# --- the whole --------------------------------------------------------------------------------------------------------


def measured(places: Places) -> dict[str, Any]:
    """Measure everything."""
    rng, fits, of_peers = da.random.default_rng(0), {}, peers()
    z, y = rng.standard_normal((ROWS, COLUMNS), chunks=CHUNK, dtype=np.float32), da.arange(ROWS, chunks=CHUNK[0])
    functions = {
        name: timed(places, name, {OURS: ours, FORMULA: formula}, [z, y]) for name, (ours, formula) in FUNCTIONS.items()
    }
    for name, (shape, model) in FITS.items():
        models = {OURS: model} | ({PEER: of_peers[name]} if name in of_peers else {})
        calls = {side: (lambda X, y, model=model: model().fit(X, y)) for side, model in models.items()}
        record = timed(places, name, calls, rows_of(*shape))
        fits[name] = {**record, "other bits": bits_of_fits(models, shape)}
    return {
        "functions": functions,
        "fits": fits,
        "graphs": {name: graph(places, name) for name in ("softmax", "logsumexp", "entropy")},
        "bits": {name: bits(name) for name in FUNCTIONS},
    }


def missed(record: dict[str, Any]) -> list[str]:
    """Return the limits that were missed."""
    long_rows = {f"{name}, {ROW_CHUNKS} chunks in each row": one for name, one in record["graphs"].items()}
    timings = {**record["functions"], **record["fits"], **long_rows}
    found = [f"time of {name}" for name, one in timings.items() if one["cluster / threads"] > RATIO]
    found += [f"memory of {name}" for name, one in record["functions"].items() if one["beyond"][OURS] > CHUNKS]
    found += [f"bits of {name}" for name, one in record["bits"].items() if one[OURS]["other bits"]]
    return found + [f"bits of {name}" for name, one in record["fits"].items() if one["other bits"][OURS]]


def main() -> int:
    """Measure, print, write the results, and return the exit code."""
    watched = Run()
    sa.set_num_threads(1)
    versions = {name: package_version(name) for name in ("dask", "distributed", PEER)}
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": "4GiB"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        found = measured(Places(client))
    record = {"machine": watched.machine(), "versions": versions, **found}
    for limit in missed(record):
        print("MISSED:", limit)
    (RESULTS / "dask.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(bool(missed(record)))


if __name__ == "__main__":
    raise SystemExit(main())
