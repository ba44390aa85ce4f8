"""Fit classifiers to data that are larger than the memory of a worker.

    python examples/dask_classifier.py [FILES]

The data are images of handwritten digits, which scikit-learn contains, each many times with other noise: 2 million
rows, 520 MB in 62 files. A worker has 500 MB.
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
from sklearn.datasets import load_digits

from softargmax.classify import GaussianNaiveBayes, LinearDiscriminant, SoftmaxRegression

PER_FILE = 32_768  # whole blocks (of 2**20 / 64 rows), so that a pass moves no rows between chunks
FILES, TEST, MEMORY = 62, 4 * PER_FILE, 500_000_000


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def noisy(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the images of rows, with noise that depends on the numbers of the rows."""
    noise = np.random.default_rng(int(rows[0])).standard_normal((len(rows), images.shape[1]), dtype=np.float32)
    return images[rows % len(images)] + 4 * noise


def main(folder: Path, files: int) -> None:
    """Write the data, and fit and test the classifiers."""
    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32)
    rows = da.arange(files * PER_FILE, chunks=PER_FILE)
    X = rows.map_blocks(lambda part: noisy(images, part), new_axis=1, chunks=(rows.chunks[0], (64,)), dtype=np.float32)
    da.to_npy_stack(folder, X)

    X, y = da.from_npy_stack(folder, mmap_mode=None), rows.map_blocks(lambda part: digits[part % len(digits)])
    print(f"{X.nbytes / 1e6:.0f} MB of rows, workers of {MEMORY / 1e6:.0f} MB")
    train, test = slice(0, -TEST), slice(-TEST, None)
    for model in (GaussianNaiveBayes(), LinearDiscriminant(), SoftmaxRegression(tol=1e-2)):
        model.fit(X[train], y[train])
        print(f"{type(model).__name__} {model.score(X[test], y[test]):.4f}")

    # Some files fit in memory. NumPy gives the same bits.
    few = slice(0, 3 * PER_FILE)
    lazy, memory = (SoftmaxRegression(tol=1e-2).fit(*data) for data in ((X[few], y[few]), dask.compute(X[few], y[few])))
    print(f"same bits as NumPy: {(lazy.coef_ == memory.coef_).all()}")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        before = client.run(peak_memory)
        main(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else FILES)
        growth = max(peak - before[worker] for worker, peak in client.run(peak_memory).items())
        print(f"memory of a worker: {max(before.values()) / 1e6:.0f} MB, in the run {growth / 1e6:.0f} MB more")
