"""Scores in files that the workers of a Dask cluster read (the option ``--scheduler``).

The workers also write probabilities. They write to a new folder, which gets its name when it is complete. Results with
one number per row come back to the command. All machines need the same files under the same names.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from distributed import Client, KilledWorker
from distributed.client import futures_of
from distributed.diagnostics.progressbar import ProgressBar

import softargmax
from softargmax.cli import parse, scores_file, texts
from softargmax.cli.dask_npy import NpyFile, NpyStack, report
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as
from softargmax.core.native import BLOCK
from softargmax.parallel import array_of_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Progress = Callable[[int, int], None] | None

WAIT = 10
"""Seconds after which a scheduler that does not answer is given up."""


class Cluster(NamedTuple):
    """The address of a scheduler, and the files with the scores."""

    address: str
    path: Path
    columns: str | None
    memory: int
    """Bytes of a chunk and its result together."""

    @classmethod
    def of(cls, address: str, words: list[str], reading: scores_file.Reading, memory: int) -> Cluster:
        """Check the words of a command line."""
        path = parse.source(words)
        if path is None or path == "-":
            raise WrongUseError(f"--scheduler: expected one file or folder, got {' '.join(words)}")
        if not Path(path).exists():
            raise FailedRunError(f"{path}: no such file or folder")
        found = cls(address, Path(path).absolute(), reading.columns, memory)
        if reading.header is not None or (reading.columns is not None and not found.is_parquet):
            raise WrongUseError("--columns, --header: with --scheduler, only --columns, and only for .parquet files")
        return found

    @property
    def is_parquet(self) -> bool:
        """True for a .parquet file, or a folder that contains one."""
        return self.path.suffix.lower() == ".parquet" or any(self.path.glob("*.parquet"))

    def write(self, function: Callable[..., Any], output: str | None, *, progress: Progress, **options: Any) -> Any:
        """Write the result of a function, which is laid out like the scores. Return it as an array not yet computed."""
        if output is None:
            raise WrongUseError("--scheduler: expected -o FOLDER, because the workers write the probabilities")
        with new_folder(output) as folder, connected(self.address, self.path, folder) as client:
            scores, names = self.scores(options.get("dtype"))
            with refused_as(WrongUseError):
                found = function(scores, **options)
                writer = _writer(output, found, names)
            with computing(client, int(scores.nbytes), progress):
                writer(str(folder))
        return found

    def rows(self, function: Callable[..., Any], *, progress: Progress, **options: Any) -> Any:
        """Return the result of a function, which has numbers per row."""
        with connected(self.address, self.path) as client:
            scores, _ = self.scores()
            with refused_as(WrongUseError):
                found = function(scores, **options)
            with computing(client, int(scores.nbytes), progress):
                return found.compute()

    def scores(self, dtype: Any = None) -> tuple[da.Array, list[str] | None]:
        """Return the scores, and the names of their columns if they have names.

        A chunk and its result, which may have another dtype, have at most `memory` bytes.
        """
        suffix, names = self.path.suffix.lower(), None
        of_chunk = partial(_most_scores, self.memory, dtype)
        with refused_as(FailedRunError, f"{self.path}: "):
            if self.is_parquet:
                found, names = _of_parquet(self.path, self.columns, self.memory // 2)
                found = _cut(found, of_chunk(found.dtype))
            elif suffix == ".zarr":
                _check_zarr()
                found = _of_zarr(self.path, of_chunk)
            elif self.path.is_dir():
                found = _of_files(_npy_files(self.path), of_chunk)
            elif suffix == ".npy":
                found = _of_files([self.path], of_chunk)
            else:
                raise ValueError("expected a folder of .npy files, or a file that ends in .npy, .zarr or .parquet")
        scores_file.check_dtype(found, str(self.path))
        return found, names


# --- files ------------------------------------------------------------------------------------------------------------


def _npy_files(folder: Path) -> list[Path]:
    """Return the `.npy` files of a folder, in the order of the numbers in their names: 9.npy precedes 10.npy."""

    def order(path: Path) -> list[Any]:
        return [int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", path.name)]

    found = sorted((path for path in folder.glob("*.npy") if not path.name.startswith(".")), key=order)
    if not found:
        raise ValueError("expected a folder with .npy or .parquet files, got none")
    return found


def _of_files(paths: Sequence[Path], of_chunk: Callable[[np.dtype[Any]], int]) -> da.Array:
    """Return the arrays in files, one below the other, in chunks of at most of_chunk(dtype) scores."""
    files = [scores_file.valid_npy(partial(NpyFile, path), str(path)) for path in paths]
    first = files[0]
    for file in files:
        if not file.ndim or (file.dtype, file.shape[1:]) != (first.dtype, first.shape[1:]):
            raise ValueError(f"expected arrays of one dtype and of rows of one shape, got {first}, and {file}")
    filled = [file for file in files if file.shape[0]] or files[:1]
    meta, most = np.empty((0,) * first.ndim, first.dtype), of_chunk(first.dtype)
    arrays = [
        da.from_array(file, chunks_of(file.shape, most), name=False, inline_array=True, meta=meta) for file in filled
    ]
    found: da.Array = da.concatenate(arrays)
    return found


def _most_scores(memory: int, dtype: Any, of: np.dtype[Any]) -> int:
    """Return how many scores fit in the memory, together with their results of `dtype` (None: that of functions)."""
    result = np.dtype(dtype or (of if of.kind == "f" else np.float64))
    return memory // (of.itemsize + result.itemsize)


def chunks_of(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """Return the shape of chunks with at most this many elements, which follow each other in a file in C order.

    A long row is cut at the ends of blocks.

    >>> chunks_of((100, 30), 1000), chunks_of((5, 30_000), 10_000)
    ((33, 30), (1, 8192))
    """
    found: list[int] = []
    for size in reversed(shape):
        left = max(1, elements // math.prod(found))
        found.insert(0, max(1, size if size <= left else left - left % BLOCK or left))
    return tuple(found)


def cut_to(chunks: tuple[tuple[int, ...], ...], elements: int) -> tuple[tuple[int, ...], ...]:
    """Cut chunks into chunks of at most this many elements.

    >>> cut_to(((10, 4), (30,)), 100)
    ((3, 3, 3, 1, 3, 1), (30,))
    """
    most = chunks_of(tuple(max(along) for along in chunks), elements)
    return tuple(
        tuple(min(size, n - start) for n in along for start in range(0, max(n, 1), size))
        for along, size in zip(chunks, most, strict=True)
    )


def _cut(array: da.Array, elements: int) -> da.Array:
    with dask.config.set({"array.rechunk.method": "tasks"}):
        found: da.Array = array.rechunk(cut_to(array.chunks, elements))
    return found


def _of_zarr(path: Path, of_chunk: Callable[[np.dtype[Any]], int]) -> da.Array:
    """Return a Zarr array. A stored chunk that is too large is read again for each of its parts."""
    stored = da.from_zarr(str(path), inline_array=True)
    found: da.Array = da.from_zarr(str(path), chunks=cut_to(stored.chunks, of_chunk(stored.dtype)), inline_array=True)
    return found


def _of_parquet(path: Path, columns: str | None, size: int) -> tuple[da.Array, list[str]]:
    """Return columns of Parquet files, and their names. A partition has row groups of about `size` bytes together."""
    import dask.dataframe as dd

    frame = dd.read_parquet(str(path), blocksize=max(1, size))
    names = [str(name) for name in frame.columns]
    wanted = texts.columns(columns, names, str(path))
    frame = frame.iloc[:, wanted]
    for name, dtype in frame.dtypes.items():
        if dtype.kind not in "biuf":
            raise ValueError(f"expected columns of numbers, got {name!r} of {dtype}; --columns selects columns")
    return array_of_frame(frame), [names[place] for place in wanted]


def _check_zarr() -> None:
    if find_spec("zarr") is None:
        raise ImportError(".zarr needs zarr, which is not installed: pip install zarr")


def _writer(output: str, found: da.Array, names: list[str] | None) -> Callable[[str], None]:
    """Return the writer of a result, by the name of the output. It writes to a folder that exists."""
    kind = Path(output).suffix.lower()
    if kind == ".parquet":
        import dask.dataframe as dd

        if found.ndim != 2:
            raise ValueError(f"{output}: expected scores of two dimensions for .parquet, got {found.ndim}")
        labels = names or [str(place) for place in range(found.shape[1])]
        frame = dd.from_dask_array(found.rechunk({1: -1}), columns=labels)
        return partial(frame.to_parquet, write_index=False)
    if kind == ".zarr":
        _check_zarr()
        return partial(found.rechunk(tuple(map(max, found.chunks))).to_zarr, mode="w")
    return partial(_write_npy, found)


def _write_npy(found: da.Array, folder: str) -> None:
    files: Any = NpyStack(Path(folder), found.chunks, found.dtype)
    da.store(found, files, lock=False)


@contextmanager
def new_folder(output: str) -> Iterator[Path]:
    """Make a folder that gets the name `output` when the ``with`` block ends without an error."""
    target = Path(output).absolute()
    if target.exists():
        raise WrongUseError(f"{output}: expected a new name, got one that exists")
    if target.suffix.lower() in (".npy", *scores_file.DELIMITERS):
        raise WrongUseError(f"{output}: expected the name of a folder with --scheduler, or of a .zarr or .parquet")
    if not target.parent.is_dir():
        raise WrongUseError(f"{output}: expected a folder that exists before the last name")
    folder = target.with_name(f".{target.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.part")
    folder.mkdir()
    try:
        yield folder
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


# --- cluster ----------------------------------------------------------------------------------------------------------


@contextmanager
def connected(address: str, *paths: Path) -> Iterator[Client]:
    """Connect to a scheduler, whose workers compute all Dask arrays. They must see the paths."""
    with _client(address) as client:
        _check_workers(client, address, [str(path) for path in paths])
        try:
            with dask.config.set(scheduler=client):
                yield client
        except KilledWorker as error:
            raise FailedRunError(
                f"--scheduler {address}: {error.allowed_failures + 1} workers were lost while they computed one chunk, "
                f"the last one {error.last_worker.address}; their logs may say why, and often a worker has too little "
                "memory for a chunk"
            ) from error


def _client(address: str) -> Client:
    try:
        return Client(address, timeout=WAIT, set_as_default=False)
    except ValueError as error:
        raise WrongUseError(
            f"--scheduler {address}: expected an address such as tcp://10.0.0.1:8786; {error}"
        ) from None
    except OSError:
        raise FailedRunError(f"--scheduler {address}: no scheduler answers there within {WAIT} s") from None


def _check_workers(client: Client, address: str, paths: list[str]) -> None:
    """Raise FailedRunError unless there is a worker, and all have this version of softargmax and see the paths."""
    with refused_as(FailedRunError, f"--scheduler {address}: "):
        found = client.run(report, paths)
    if not found:
        raise FailedRunError(f"--scheduler {address}: the scheduler has no workers")
    for worker, (version, missing) in found.items():
        if version != softargmax.__version__:
            raise FailedRunError(
                f"--scheduler {address}: expected softargmax {softargmax.__version__} on all workers, got {version} on "
                f"{worker}"
            )
        if missing:
            raise FailedRunError(f"{missing[0]}: does not exist on worker {worker}; all machines need the same files")


@contextmanager
def computing(client: Client, size: int, progress: Progress) -> Iterator[None]:
    """Show the progress of what the block computes: the share of finished tasks, of `size` bytes."""
    with refused_as(FailedRunError), dask.config.set(scheduler=partial(_get, client, size, progress)):
        yield


def _get(client: Client, size: int, progress: Progress, graph: Any, keys: Any, **options: Any) -> Any:
    found = client.get(graph, keys, sync=False, **options)
    if progress is not None:
        client.sync(_Bar(futures_of(found), size, progress).listen)
    return client.gather(found)


class _Bar(ProgressBar):
    def __init__(self, futures: list[Any], size: int, progress: Callable[[int, int], None]) -> None:
        super().__init__(futures, futures[0].client.scheduler.address)  # type: ignore[no-untyped-call]
        self._size, self._progress = size, progress

    def _draw_bar(self, remaining: int, all: int, **_: Any) -> None:  # noqa: A002 the name in distributed
        self._progress((all - remaining) * self._size // max(all, 1), self._size)
