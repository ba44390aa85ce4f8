"""Score, calibrate and sample the logits of a large evaluation, which are larger than the memory of all workers.

    python examples/dask_evaluation.py [ROWS]

The logits of 210,000 rows and 1,000 classes are 840 MB in files, and two workers have 400 MB each. The cluster is on
this machine. For one on other machines, pass the address of its scheduler: Client("tcp://10.0.0.1:8786").
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator

import softargmax as sa
from softargmax.classify import TemperatureScaling, calibration_report

ROWS, CLASSES, PER_FILE, MEMORY, WORKERS = 210_000, 1_000, 1_250, 400_000_000, 2
HELD = 5_000  # rows to which the temperature is fitted
OVERCONFIDENT = 2.5  # the factor of the logits, which calibration has to find


class Logits(ClassifierMixin, BaseEstimator):
    """A classifier whose scores are known: they are its input."""

    classes_ = np.arange(CLASSES)

    def decision_function(self, logits: np.ndarray) -> np.ndarray:
        """Return the scores."""
        return logits


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_logits(folder: Path, rows: int) -> None:
    """Write one file for each PER_FILE rows. In practice, a model has written them."""
    chunks = (PER_FILE, CLASSES)
    z = da.random.default_rng(0).standard_normal((rows, CLASSES), dtype=np.float32, chunks=chunks)
    da.to_npy_stack(folder, z * np.float32(4 * OVERCONFIDENT))


def main(folder: Path, rows: int) -> None:
    """Evaluate the logits."""
    write_logits(folder, rows)
    z = da.from_npy_stack(folder, mmap_mode=None)
    print(f"{z.nbytes / 1e6:.0f} MB of logits, {WORKERS} workers of {MEMORY / 1e6:.0f} MB")
    y = sa.categorical(z, temperature=OVERCONFIDENT, seed=1).compute()  # the classes that were right

    # One pass over the files for both numbers.
    loss, accuracy = dask.compute(sa.cross_entropy(z, y), (z.argmax(axis=1) == y).mean())
    print(f"loss {loss:.4f}, accuracy {accuracy:.4f}")

    # One number needs few rows. The temperature is fitted to some of them, and tested on the others.
    held, rest = slice(0, HELD), slice(HELD, None)
    model = TemperatureScaling(FrozenEstimator(Logits())).fit(z[held].persist(), y[held])  # read once, not in each step
    print(f"temperature {model.temperature_:.3f}")
    test, names = z[rest], np.arange(CLASSES)
    before = calibration_report(y[rest], sa.softmax(test), classes=names)
    after = calibration_report(y[rest], sa.softmax(test, temperature=model.temperature_), classes=names)
    print(f"calibration error {before.ece:.3f}, calibrated {after.ece:.3f}")
    print(f"log-loss {before.log_loss:.3f}, calibrated {after.log_loss:.3f}")

    draws = sa.categorical(z, temperature=model.temperature_, seed=2)
    drawn = draws.compute()
    print(f"share of draws that are right {(drawn == y).mean():.4f}")

    # The first file fits in memory. NumPy gives the same bits.
    part, target = np.load(folder / "0.npy"), y[:PER_FILE]
    losses = sa.cross_entropy(z, y, reduction="none")[:PER_FILE].compute()
    same = [
        (losses == sa.cross_entropy(part, target, reduction="none")).all(),
        (drawn[:PER_FILE] == sa.categorical(part, temperature=model.temperature_, seed=2)).all(),
        (sa.softmax(z)[:PER_FILE].compute() == sa.softmax(part)).all(),
    ]
    print(f"same bits as NumPy: {all(same)}")


if __name__ == "__main__":
    # A worker is a process with one thread, because the threads of one process share its memory.
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        before = client.run(peak_memory)
        main(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
        growth = max(peak - before[worker] for worker, peak in client.run(peak_memory).items())
        print(f"memory of a worker: {max(before.values()) / 1e6:.0f} MB, in the run {growth / 1e6:.0f} MB more")
