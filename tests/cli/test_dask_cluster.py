"""The option --scheduler: files that the workers of a Dask cluster read and write."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import softargmax
from softargmax.cli import scores_file
from softargmax.cli.app import SUBCOMMANDS
from softargmax.cli.dask_cluster import Cluster, chunks_of

Z = np.random.default_rng(0).normal(0, 5, (120, 5000)).astype(np.float32)
Z[3, 7], Z[5, 10:] = np.inf, -np.inf
HEIGHTS = (1, 0, 70, 2, 5, 0, 1, 1, 30, 3, 7)  # of eleven files, so that 10.npy follows 9.npy


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers:
        yield workers.scheduler_address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scores in eleven files."""
    (tmp_path / "scores").mkdir()
    ends = np.cumsum(HEIGHTS)
    for place, (end, height) in enumerate(zip(ends, HEIGHTS, strict=True)):
        np.save(tmp_path / "scores" / f"{place}.npy", Z[end - height : end])
    return tmp_path / "scores"


def hidden(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def same(found: Any, expected: Any) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


OPTIONS: dict[str, tuple[list[str], Any]] = {
    "softmax": ([], softargmax.softmax),
    "small chunks": (["--memory", "1M"], softargmax.softmax),
    "log": (
        ["--log", "-t", "2", "--dtype", "f64"],
        lambda z: softargmax.log_softmax(z, temperature=2, dtype="float64"),
    ),
    "axis": (["--axis", "0", "--memory", "1M"], lambda z: softargmax.softmax(z, axis=0)),
    "all": (["--axis", "all", "--memory", "1M"], lambda z: softargmax.softmax(z, axis=None)),
    "sparsemax": (["sparsemax"], softargmax.sparsemax),
    "entmax": (["entmax", "--alpha", "1.3"], lambda z: softargmax.entmax(z, alpha=1.3)),
    "top-k": (["top-k", "-k", "3"], lambda z: softargmax.topk_softmax(z, 3)),
}


@pytest.mark.parametrize(("words", "function"), OPTIONS.values(), ids=OPTIONS)
def test_a_folder_of_files(run: Any, folder: Path, address: str, words: list[str], function: Any) -> None:
    sub, rest = (words[:1], words[1:]) if words and words[0] in SUBCOMMANDS else ([], words)
    done = run(*sub, "scores", "--scheduler", address, "-o", "probs", "--json", *rest)
    assert (done.code, done.err) == (0, "")
    assert done.json()["shape"] == list(Z.shape)
    assert (done.json()["output"], done.json()["bytes"]) == ("probs", function(Z).nbytes)
    probs = folder.with_name("probs")
    same(da.from_npy_stack(probs).compute(scheduler="synchronous"), function(Z))  # Dask's own format
    assert hidden(folder.parent) == []


ROWS: dict[str, tuple[list[str], Any]] = {
    "logsumexp": (["-t", "3"], lambda z: softargmax.logsumexp(z, temperature=3)),
    "entropy": (["--axis", "0"], lambda z: softargmax.entropy(z, axis=0)),
    "sample": (["--seed", "4", "-n", "2"], lambda z: softargmax.categorical(z, seed=4, num_samples=2)),
}


@pytest.mark.parametrize(("name", "words", "function"), [(n, *of) for n, of in ROWS.items()], ids=ROWS)
def test_numbers_per_row_come_back(run: Any, folder: Path, address: str, name: str, words: Any, function: Any) -> None:
    assert run(name, "scores", "--scheduler", address, "-o", "found.npy", *words).code == 0
    same(np.load(folder.with_name("found.npy")), function(Z))
    printed = run(name, folder, "--scheduler", address, *words).out
    assert printed == "".join(scores_file.text_of(function(Z), "\t"))


@pytest.mark.parametrize("dtype", [">f4", "f8", "i4", "?", "f2"])
def test_one_file_of_any_dtype(run: Any, tmp_path: Path, address: str, dtype: str) -> None:
    z = (10 * Z[6:26]).astype(dtype)
    np.save(tmp_path / "z.npy", np.asfortranarray(z))
    assert run("z.npy", "--scheduler", address, "-o", "probs", "--memory", "1M").code == 0
    same(
        da.from_npy_stack(tmp_path / "probs").compute(scheduler="synchronous"),
        softargmax.softmax(z.astype(dtype.strip(">"))),
    )


def test_a_row_in_many_files(run: Any, tmp_path: Path, address: str) -> None:
    """Rows are cut, because files follow each other along the first axis."""
    (tmp_path / "scores").mkdir()
    row = Z[:110].reshape(-1)
    for place, part in enumerate(np.array_split(row, 3)):
        np.save(tmp_path / "scores" / f"{place}.npy", part)
    assert run("scores", "--scheduler", address, "-o", "probs", "--memory", "1M").code == 0
    same(da.from_npy_stack(tmp_path / "probs").compute(scheduler="synchronous"), softargmax.softmax(row))


@pytest.mark.parametrize("single", [True, False], ids=["file", "folder"])
def test_parquet(run: Any, tmp_path: Path, address: str, single: bool) -> None:
    names = ["a", "b", "c"]
    frame = pd.DataFrame(Z[6:36, :3], columns=names)
    frame["text"] = "word"
    if single:
        frame.to_parquet(tmp_path / "z.parquet")
    else:
        dd.from_pandas(frame, npartitions=9).to_parquet(tmp_path / "z.parquet", write_index=False)
    done = run("z.parquet", "--scheduler", address, "-o", "p.parquet", "--columns", "c,a")
    assert (done.code, done.err) == (0, "")
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert list(found.columns) == ["c", "a"]
    same(found.to_numpy(), softargmax.softmax(Z[6:36, [2, 0]]))
    wrong = run("z.parquet", "--scheduler", address, "-o", "q.parquet")
    assert wrong.code == 1
    assert "z.parquet: expected columns of numbers, got 'text' of " in wrong.err


def test_zarr(run: Any, folder: Path, address: str) -> None:
    pytest.importorskip("zarr")
    assert run("scores", "--scheduler", address, "-o", "p.zarr").code == 0
    p = softargmax.softmax(Z)
    same(da.from_zarr(str(folder.with_name("p.zarr"))).compute(scheduler="synchronous"), p)
    assert run("entropy", "p.zarr", "--scheduler", address, "-o", "h.npy").code == 0
    same(np.load(folder.with_name("h.npy")), softargmax.entropy(p))


# --- errors come before work ------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[list[str], int, str]] = {
    "numbers": (["1", "2", "-o", "probs"], 2, "--scheduler: expected one file or folder, got 1 2"),
    "standard input": (["-", "-o", "probs"], 2, "--scheduler: expected one file or folder, got -"),
    "nothing there": (["nowhere", "-o", "probs"], 1, "nowhere: no such file or folder"),
    "empty": (["empty", "-o", "probs"], 1, "empty: expected a folder with .npy or .parquet files, got none"),
    "text": (["z.csv", "-o", "probs"], 1, "z.csv: expected a folder of .npy files, or a file that ends in .npy, .zarr"),
    "no output": (["scores"], 2, "--scheduler: expected -o FOLDER, because the workers write the probabilities"),
    "output exists": (["scores", "-o", "empty"], 2, "empty: expected a new name, got one that exists"),
    "output is a file": (["scores", "-o", "p.npy"], 2, "p.npy: expected the name of a folder with --scheduler"),
    "output in no folder": (["scores", "-o", "no/p"], 2, "no/p: expected a folder that exists before the last name"),
    "columns": (["scores", "-o", "p", "--columns", "1"], 2, "--columns, --header: with --scheduler, only --columns, "),
    "axis": (["scores", "-o", "probs", "--axis", "2"], 2, "axis"),
    "temperature": (["scores", "-o", "probs", "-t", "nan"], 2, "temperature: expected any number except NaN"),
    "dtypes": (["mixed", "-o", "probs"], 1, "got float32 of shape (2, 3) in a.npy, and float64 of shape (2, 3) in b.n"),
    "shapes": (["ragged", "-o", "probs"], 1, "ragged: expected arrays of one dtype and of rows of one shape"),
    "number": (["number", "-o", "probs"], 1, "number: expected arrays of one dtype and of rows of one shape"),
    "objects": (["objects", "-o", "probs"], 1, "a.npy is not a valid .npy file: "),
    "complex": (["complex", "-o", "probs"], 1, "complex: source: expected dtype float16, float32, "),
    "truncated": (["truncated", "-o", "probs"], 1, "a.npy is not a valid .npy file: "),
    "sum to csv and not there": (["logsumexp", "scores", "-o", "p.no"], 2, "p.no: expected a name that ends in .npy"),
    "parquet of three axes": (["cube", "-o", "p.parquet"], 2, "p.parquet: expected scores of two dimensions for .parq"),
}  # fmt: skip


@pytest.fixture
def wrong_folders(folder: Path) -> Path:
    eye = np.eye(2, 3)
    arrays: dict[str, list[Any]] = {
        "empty": [],
        "mixed": [eye.astype("f4"), eye],
        "ragged": [eye, eye[:, :2]],
        "number": [np.float64(1.0)],
        "objects": [np.array([[None]])],
        "complex": [eye.astype(complex)],
        "truncated": [eye],
        "cube": [np.ones((2, 3, 4))],
    }
    for name, of in arrays.items():
        folder.with_name(name).mkdir()
        for letter, array in zip("ab", of, strict=False):
            np.save(folder.parent / name / f"{letter}.npy", array)
    with (folder.parent / "truncated" / "a.npy").open("r+b") as file:
        file.truncate(140)
    folder.with_name("z.csv").write_text("1,2\n")
    return folder.parent


@pytest.mark.parametrize(("words", "code", "message"), WRONG.values(), ids=WRONG)
def test_errors(run: Any, wrong_folders: Path, address: str, words: list[str], code: int, message: str) -> None:
    before = sorted(wrong_folders.iterdir())
    done = run(*words, "--scheduler", address)
    assert message in done.err
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert sorted(wrong_folders.iterdir()) == before


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("tcp://127.0.0.1:1", 1, "--scheduler tcp://127.0.0.1:1: no scheduler answers there within 0.5 s"),
        ("here", 2, "--scheduler here: expected an address such as tcp://10.0.0.1:8786; "),
        ("ftp://127.0.0.1:1", 2, "--scheduler ftp://127.0.0.1:1: expected an address such as tcp://10.0.0.1:8786; "),
    ],
)
def test_addresses(run: Any, folder: Path, monkeypatch: Any, where: str, code: int, message: str) -> None:
    monkeypatch.setattr("softargmax.cli.dask_cluster.WAIT", 0.5)
    done = run("scores", "--scheduler", where, "-o", "probs")
    assert done.err.startswith(f"softargmax: {message}")
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["scores"]


def test_a_cluster_without_workers(run: Any, folder: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, dashboard_address=":0") as none:
        done = run("scores", "--scheduler", none.scheduler_address, "-o", "probs")
    assert (done.code, done.err.partition(": ")[2].endswith("the scheduler has no workers\n")) == (1, True)


def test_workers_must_be_like_the_command(run: Any, folder: Path, address: str, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(softargmax, "__version__", "9.9")
        done = run("scores", "--scheduler", address, "-o", "probs")
    assert "expected softargmax 9.9 on all workers, got " in done.err
    monkeypatch.setattr("softargmax.cli.dask_cluster.report", _sees_nothing)
    done = run("scores", "--scheduler", address, "-o", "probs")
    assert f"{folder}: does not exist on worker tcp://" in done.err
    assert hidden(folder.parent) == []


def _sees_nothing(paths: list[str]) -> Any:
    return softargmax.__version__, paths


def test_a_folder_needs_a_scheduler(run: Any, folder: Path) -> None:
    done = run("scores")
    assert (done.code, done.err) == (
        2,
        "softargmax: scores: expected one file, or --scheduler ADDRESS, whose workers read folders\n",
    )


# --- progress, and results that are whole -----------------------------------------------------------------------------


def test_zarr_is_named_if_it_is_missing(run: Any, folder: Path, address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("softargmax.cli.dask_cluster.find_spec", lambda _: None)
    done = run("scores", "--scheduler", address, "-o", "p.zarr")
    assert (done.code, done.err) == (
        1,
        "softargmax: .zarr needs zarr, which is not installed: pip install zarr\n",
    )


def test_progress(folder: Path, address: str) -> None:
    seen: list[tuple[int, int]] = []
    cluster = Cluster(address, folder, None, 1 << 20)
    cluster.write(softargmax.softmax, str(folder.with_name("p")), progress=lambda *of: seen.append(of))
    assert seen[-1] == (Z.nbytes, Z.nbytes)
    assert seen == sorted(seen)
    seen.clear()
    cluster.rows(softargmax.logsumexp, progress=lambda *of: seen.append(of))
    assert seen[-1] == (Z.nbytes, Z.nbytes)


def test_a_failed_run_leaves_nothing(folder: Path, address: str) -> None:
    def fails(z: Any) -> Any:
        return z.map_blocks(_refused, dtype=z.dtype)

    cluster = Cluster(address, folder, None, 1 << 20)
    for progress in (None, lambda *_: None):
        with pytest.raises(Exception, match="no such number"):
            cluster.write(fails, str(folder.with_name("p")), progress=progress)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["scores"]


def _refused(_: Any) -> Any:
    raise ValueError("no such number")


def test_chunks_have_at_most_so_many_elements() -> None:
    assert chunks_of((3,), 100) == (3,)
    assert chunks_of((100, 7, 9), 200) == (3, 7, 9)
    assert chunks_of((4, 20_000), 16_384) == (1, 16_384)
    assert chunks_of((4, 20_000), 100) == (1, 100)
    assert chunks_of((0, 0), 100) == (1, 1)


def test_the_command_needs_the_extra(run: Any, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("softargmax.core.extras.find_spec", lambda name: None if name == "distributed" else name)
    done = run("scores", "--scheduler", "tcp://127.0.0.1:1", "-o", "probs")
    assert (done.code, "--scheduler needs distributed, which is not installed: pip install '.[dask]'" in done.err) == (
        1,
        True,
    )


# --- memory, and workers that are lost --------------------------------------------------------------------------------


def largest_chunk(address: str, path: Path, memory: int, function: Any, output: str, **options: Any) -> int:
    """Call `Cluster.write`. Return the bytes of the largest chunk of the scores and its result together."""
    seen: list[Any] = []

    def noting(z: Any, **options: Any) -> Any:
        found = function(z, **options)
        seen.append(math.prod(map(max, z.chunks)) * (z.dtype.itemsize + found.dtype.itemsize))
        return found

    Cluster(address, path, None, memory).write(noting, str(path.with_name(output)), progress=None, **options)
    return int(seen[0])


@pytest.mark.parametrize("kind", [".npy", ".zarr", ".parquet"])
@pytest.mark.parametrize(("dtype", "wanted"), [("f4", None), ("f4", "float64"), ("i1", None), ("f8", "float32")])
def test_memory_bounds_a_chunk_and_its_result(tmp_path: Path, address: str, kind: str, dtype: str, wanted: Any) -> None:
    z = np.random.default_rng(0).normal(0, 5, (3000, 60)).astype(dtype)
    path, memory = tmp_path / f"z{kind}", 100_000
    if kind == ".npy":
        np.save(path, z)
    elif kind == ".zarr":
        pytest.importorskip("zarr")
        da.from_array(z, chunks=(1100, 60)).to_zarr(str(path))  # a stored chunk is larger
    else:
        pd.DataFrame(z, columns=[f"c{k}" for k in range(60)]).to_parquet(path, row_group_size=700)
    most = largest_chunk(address, path, memory, softargmax.softmax, "p", dtype=wanted)
    assert memory / 2 < most <= memory
    same(da.from_npy_stack(tmp_path / "p").compute(scheduler="synchronous"), softargmax.softmax(z, dtype=wanted))


@pytest.mark.parametrize("shape", [(3, 40_000), (2, 3, 20_000), (2, 40, 500), (60_000,)], ids=str)
@pytest.mark.parametrize("axis", [-1, 0])
def test_rows_that_are_cut_are_written_in_parts(
    tmp_path: Path, address: str, monkeypatch: Any, shape: Any, axis: int
) -> None:
    """No task has a larger part of the result than a chunk, though a file has whole rows."""
    z, store, sizes = np.random.default_rng(0).normal(0, 5, shape).astype(np.float32), da.store, list[int]()

    def noting(found: Any, *more: Any, **options: Any) -> None:
        sizes.append(math.prod(map(max, found.chunks)) * 8)
        store(found, *more, **options)

    monkeypatch.setattr(da, "store", noting)
    np.save(tmp_path / "z.npy", z)
    most = largest_chunk(address, tmp_path / "z.npy", 80_000, softargmax.softmax, "p", axis=axis)
    assert sizes == [most]
    assert most <= 80_000
    same(da.from_npy_stack(tmp_path / "p").compute(scheduler="synchronous"), softargmax.softmax(z, axis=axis))
    assert all(
        len(np.load(tmp_path / "p" / f"{k}.npy")) == n
        for k, n in enumerate(da.from_npy_stack(tmp_path / "p").chunks[0])
    )


def _ends(x: Any) -> Any:
    """End the process of the worker if a chunk has the infinite score. Other chunks are returned."""
    if np.isinf(x).any():
        os._exit(1)
    return x


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["scores", "-o", "probs"], ["scores", "-o", "p.zarr"], ["logsumexp", "scores", "-o", "l.npy"]], ids=str
)
def test_a_chunk_that_ends_every_worker(run: Any, folder: Path, monkeypatch: Any, words: list[str]) -> None:
    from distributed import LocalCluster

    if "p.zarr" in words:
        pytest.importorskip("zarr")
    for name in ("softmax", "logsumexp"):
        function = getattr(softargmax, name)
        monkeypatch.setattr(softargmax, name, lambda z, function=function, **of: function(z.map_blocks(_ends), **of))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as lost,
    ):
        done = run(*words, "--scheduler", lost.scheduler_address)
        where = lost.scheduler_address
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(
        f"softargmax: --scheduler {where}: 2 workers were lost while they computed one chunk, the last one tcp://"
    )
    assert sorted(path.name for path in folder.parent.iterdir()) == ["scores"]
