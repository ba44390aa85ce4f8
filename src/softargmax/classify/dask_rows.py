"""Training rows in the chunks of Dask arrays and dataframes.

The rows are brought to blocks that do not depend on the chunks. A task computes what its blocks add to a sum. The
parts are added in the order of the rows, so a sum has the bits of the sum over the same rows in memory.
"""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._expr import LLGExpr
from dask._task_spec import TaskRef, convert_legacy_graph
from dask.base import compute, get_scheduler, persist
from dask.core import flatten, get_dependencies
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import _check_feature_names, check_non_negative

from softargmax.classify.rows import Blocks, Training
from softargmax.core.arrays import is_lazy
from softargmax.core.check import located
from softargmax.parallel import array_of_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from softargmax.classify.rows import Block, Sums

JOINED = 16
"""Number of tasks whose results are joined by one task, or by this process."""
ENTRIES = 1 << 22
"""Limit for the numbers in the sums of a task's blocks, which limits the number of blocks of a task."""
REPEATS = 3
"""Number of times that `examined` repeats each label. scikit-learn warns if half of the labels occur only once."""


class DaskTraining(Training):
    """Training data in Dask arrays: rows, class indices, and sample weights (None if all weights are 1)."""

    __slots__ = ()

    def blocks(self, rows: int, prepare: Callable[[Block], Any] | None = None) -> DaskBlocks:
        """Cut the data into blocks of this many rows. See `Training.blocks`."""
        return DaskBlocks(self, rows, prepare)

    def sample(self, step: int) -> Training:
        """Return every row whose index is a multiple of `step`, in memory."""
        x, target, weight = compute(*super().sample(step))
        return Training(_dense(x), target, weight)

    def factors(self, each: Any) -> Any:
        """Return the number of each row's class."""
        return self.target.map_blocks(partial(np.take, each), dtype=np.float64)


class Run(NamedTuple):
    """The blocks that begin in one chunk of X. The numbers are places in the rows of all chunks."""

    chunk: int
    begin: int
    """The first row of the chunk."""
    start: int
    """The first row of the first block."""
    whole: int
    """The end of the last block of which no other chunk has a part."""
    stop: int
    """The end of the last block."""

    @classmethod
    def of(cls, chunks: tuple[int, ...], rows: int) -> list[Run]:
        """Cut chunks of these lengths into blocks of this many rows. Chunks in which no block begins are left out.

        >>> Run.of((250, 30, 120), 100)
        [Run(chunk=0, begin=0, start=0, whole=200, stop=300), Run(chunk=2, begin=280, start=300, whole=400, stop=400)]
        """
        found, end, total = [], 0, sum(chunks)
        for chunk, length in enumerate(chunks):
            begin, end = end, end + length
            start, stop = (min(-(-edge // rows) * rows, total) for edge in (begin, end))
            if start < stop:
                found.append(cls(chunk, begin, start, stop if stop == end else end // rows * rows, stop))
        return found


class DaskBlocks:
    """The blocks of rows in Dask arrays.

    The blocks that begin in one chunk are one task, or several. A task gets the chunk as it is. If the next chunks have
    the rest of the last block, other tasks bring this block together. A task also prepares its blocks.

    If all arrays are in memory, or on workers, their parts are kept there from the second sum on: the blocks that
    chunks cut, classes, weights, and X if it is computed from other arrays. Then a sum is one task for each chunk, and
    those that join the results.
    """

    def __init__(self, training: DaskTraining, rows: int, prepare: Callable[[Block], Any] | None) -> None:
        self._rows, self._prepare, self._sums = rows, prepare, 0
        self._runs = Run.of(training.X.chunks[0], rows)
        self._given = _cut(training, self._runs)
        self._arrays: Sequence[Any] = ()
        self._graph: dict[Any, Any] = {}
        self._futures: Any = None

    def sum(self, add: Callable[..., None], into: Sums, *arguments: Any) -> Sums:
        """Return `into` after add(into, block, *arguments) for every block in order. See `Blocks.sum`."""
        shapes = [total.shape for total in into]
        most = ENTRIES // max(1, sum(total.size for total in into))
        return tuple(self.fold(partial(_part_of_sum, add, shapes), _plus, into, *arguments, most=max(1, most)))

    def fold(
        self,
        part: Callable[..., Any],
        join: Callable[[Any, Any], Any],
        start: Any,
        *arguments: Any,
        most: int = ENTRIES,
    ) -> Any:
        """Join the results of part(block, *arguments) for all blocks in order. See `Blocks.fold`.

        A task has at most `most` blocks.
        """
        self._load()
        name, task = f"blocks-{uuid4()}", Task(self._rows, self._prepare, part, arguments)
        tasks = {(name, i): (task, *piece) for i, piece in enumerate(self._pieces(most))}
        first: list[Any] = []
        graph, results = {**self._graph, **tasks}, list(tasks)
        while len(results) > JOINED:
            joined = name, "joined", len(results)
            graph[joined] = (partial(_joined, join), *(first or [start]), results[:JOINED])
            first, results = [joined], results[JOINED:]
        found = self._computed(graph, [*first, *results])
        if first:
            start, *found = found
        return _joined(join, start, found)

    def _computed(self, graph: Any, keys: list[Any]) -> Any:
        """Compute keys of a graph."""
        futures: Any = None
        get = get_scheduler(collections=self._given)
        if client := getattr(get, "__self__", None):
            from distributed import Future

            # A client waits for 10 ms after each message to its scheduler, and releasing futures sends one. So those of
            # this sum are released after the next sum was sent. A token saves the hash of all arguments.
            futures = [Future(key, client) for key in keys]
            graph = LLGExpr(graph, _determ_token=uuid4().hex)
        found = get(graph, keys)
        self._futures = futures
        return found

    def _load(self) -> None:
        """Find the tasks that compute the parts of the arrays. The second time, keep the parts in memory."""
        self._sums += 1
        if self._sums == 1:
            self._arrays = _optimized(self._given)
        elif self._sums == 2 and all(map(_is_in_memory, _not_none(self._given))):
            self._arrays = persist(*self._arrays, optimize_graph=False)
        else:
            return
        self._graph = dict(_joint(self._arrays))

    def _pieces(self, most: int) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each task, with references to the arrays' parts."""
        chunks, cut, target, weight = (_references(array, len(self._runs)) for array in self._arrays)
        blocks = iter(cut)
        for run, *of_run in zip(self._runs, target, weight, strict=True):
            last = next(blocks) if run.whole < run.stop else None
            for start in range(run.start, run.stop, most * self._rows):
                stop = min(start + most * self._rows, run.stop)
                inside = slice(start - run.begin, max(start, min(stop, run.whole)) - run.begin)
                x = chunks[run.chunk] if start < run.whole else None, last if stop > run.whole else None
                yield *x, *of_run, inside, slice(start - run.start, stop - run.start)


class Task(NamedTuple):
    """What a task computes for its blocks."""

    rows: int
    prepare: Any
    part: Any
    arguments: tuple[Any, ...]

    def __call__(self, x: Any, last: Any, target: Any, weight: Any, inside: slice, labels: slice) -> bytes:
        """Return the results of the blocks inside a chunk, and of the last one, which the chunk cuts, as bytes.

        A cluster sends each array by itself. For 16 tasks of 25 blocks, that takes 90 ms, and as bytes 27 ms.
        """
        target, weight = target[labels], None if weight is None else weight[labels]
        arguments = deepcopy(self.arguments)  # arrays from another process may be misaligned
        whole, found = inside.stop - inside.start, list[Any]()
        for some, its in ((None if x is None else x[inside], slice(whole)), (last, slice(whole, None))):
            if some is not None:
                training = Training(_dense(some), target[its], None if weight is None else weight[its])
                found += Blocks(training, self.rows, self.prepare).each(self.part, *arguments)
        return pickle.dumps(found)


def _cut(training: DaskTraining, runs: list[Run]) -> list[Any]:
    """Return X, the blocks that its chunks cut, and the classes and weights of each run. Those not needed are None."""
    edges = sorted({edge for run in runs for edge in (run.start, run.whole, run.stop)})
    cut = [edges.index(run.whole) for run in runs if run.whole < run.stop]
    blocks = _rechunked(training.X, tuple(stop - start for start, stop in pairwise(edges))).blocks[cut] if cut else None
    labels = [_rechunked(array, tuple(run.stop - run.start for run in runs)) for array in training[1:]]
    return [training.X, blocks, *labels]


def _rechunked(array: Any, sizes: tuple[int, ...]) -> Any:
    """Return an array with chunks of these numbers of rows, or None if there is no array."""
    return None if array is None else array.rechunk({0: sizes}, method="tasks")  # its chunks can be computed again


def _references(array: Any, number: int) -> list[Any]:
    """Return references to an array's chunks, or None for each if there is no array."""
    return [None] * number if array is None else [TaskRef(key) for key in flatten(array.__dask_keys__())]


def _not_none(arrays: Sequence[Any]) -> list[Any]:
    return [array for array in arrays if array is not None]


def _joint(arrays: Sequence[Any]) -> Any:
    """Return the graph of several arrays, some of which may be None."""
    return HighLevelGraph.merge(*(array.__dask_graph__() for array in _not_none(arrays)))


def _optimized(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays whose tasks are optimized together, and have names that no other tasks have.

    Dask's `optimize` optimizes each array alone. Where arrays share tasks, it computes some of them twice. Optimized
    together with other arrays, a task may depend on others than before, and keep its name. The scheduler of a cluster,
    which may not have forgotten the task of that name yet, refuses it with a warning. Arrays on workers keep their
    names.
    """
    some, own = _not_none(arrays), uuid4().hex
    graph = convert_legacy_graph(dict(some[0].__dask_optimize__(_joint(some), [one.__dask_keys__() for one in some])))
    names = {key: f"{key}-{own}" if isinstance(key, str) else (f"{key[0]}-{own}", *key[1:]) for key in graph}
    tasks = {names[key]: task.substitute(names, key=names[key]) for key, task in graph.items()}

    def renamed(array: Any) -> Any:
        first = next(flatten(array.__dask_keys__()))
        return da.Array(tasks, names.get(first, first)[0], array.chunks, meta=array._meta)  # noqa: SLF001

    return [None if array is None else renamed(array) for array in arrays]


def _is_in_memory(array: Any) -> bool:
    """True if an array is computed from NumPy arrays and from arrays on workers only, and nothing is read."""
    graph = dict(array.__dask_graph__())  # in it, an array on workers depends on itself
    return all(get_dependencies(graph, key) or type(getattr(x, "value", x)) is np.ndarray for key, x in graph.items())


def _joined(join: Any, start: Any, results: list[bytes]) -> Any:
    return reduce(join, chain.from_iterable(map(pickle.loads, results)), start)


def _part_of_sum(add: Any, shapes: Any, block: Block, *arguments: Any) -> Sums:
    """Return what `add` adds for a block."""
    into = tuple(np.zeros(shape) for shape in shapes)
    add(into, block, *arguments)
    return into


def _plus(one: Sums, other: Sums) -> Sums:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _dense(x: Any) -> Any:
    """Return rows as the kernels need them. Chunks from another process may be misaligned."""
    return np.require(x, requirements=["C", "A"])


class Examined(NamedTuple):
    """Checked Dask arrays, and all labels that occur in y, each of them several times."""

    X: Any
    y: Any
    weight: Any
    labels: Any

    def training(self, indices_of: Callable[..., Any], classes: Any) -> DaskTraining:
        """Return the training data with the index of each label. If a label is not one of the classes, a task fails."""
        task = partial(_of_chunk, partial(indices_of, classes=classes, name="label"), "y", self.y.chunks[0])
        return DaskTraining(self.X, self.y.map_blocks(task, meta=np.empty(0, np.int64)), self.weight)


def examined(X: Any, y: Any, weight: Any, check_rows: Callable[[Any], Any] | None = None) -> Examined:
    """Check every chunk in one pass over the data. An error names the chunk.

    Arrays in memory become Dask arrays, if another argument is one.
    """
    X = array_of(X, "X", 2)
    if not len(X):
        raise ValueError("X: expected one row or more, got 0 rows")
    y, weight = _beside(X, y, "y"), _beside(X, weight, "sample_weight")
    kind = np.float32 if X.dtype == np.float32 else np.float64
    looks = [[] if check_rows is None else _each_chunk(X, "X", check_rows), _each_chunk(y, "y", _labels)]
    if weight is not None:
        looks.append(_each_chunk(weight, "sample_weight", _largest_weight))
        weight = weight.astype(np.float64)
    _, labels, *largest = compute(*looks)
    if largest and not max(largest[0]) > 0:
        raise ValueError("sample_weight: expected at least one weight above 0, got only zeros")
    return Examined(X.astype(kind), y, weight, np.tile(np.concatenate(labels), REPEATS))


def by_chunks(method: Callable[[Any], Any], X: Any, estimator: Any, *, lengths: bool = False) -> Any:
    """Return a method's results for every chunk of rows, as a lazy array.

    A dataframe's chunks have unknown lengths, unless `lengths` asks for a pass over the data that counts their rows.
    """
    columns = None
    if _is_frame(X):
        _check_feature_names(estimator, without_rows(X), reset=False)
        columns = list(X.columns)
    X = array_of(X, "X", 2, lengths=lengths)
    example = method(_rows(np.zeros((1, X.shape[1]), np.float32 if X.dtype == np.float32 else np.float64), columns))
    task = partial(_of_chunk, partial(_of_rows, method, columns, example[:0]), "X", X.chunks[0])
    if example.ndim == 1:
        return X.map_blocks(task, drop_axis=1, meta=example[:0])
    return X.map_blocks(task, chunks=(X.chunks[0], example.shape[1:]), meta=example[:0])


def accuracy(estimator: Any, X: Any, y: Any, weight: Any) -> float:
    """Return the share of rows whose class is predicted correctly, by sums over the blocks of `Training.per_class`."""
    found = by_chunks(estimator.predict, X, estimator, lengths=True)
    right = (found == _beside(found, y, "y")).astype(np.int64)
    counts = DaskTraining(None, right, _beside(found, weight, "sample_weight")).per_class(2)
    return float(counts[1] / counts.sum())


def array_of(value: Any, name: str, dimensions: int, rows: Any = "auto", *, lengths: bool = True) -> Any:
    """Return a Dask array, with all columns in one chunk, from a Dask array, a Dask dataframe, or an array in memory.

    `rows` are the chunks of an array in memory. With `lengths`, all chunks have known lengths.
    """
    if _is_frame(value):
        value = array_of_frame(value, lengths=lengths)
    elif is_lazy(value) and not isinstance(value, da.Array):
        raise TypeError(f"{name}: expected a Dask array or dataframe, got a {type(value).__name__}")
    elif not is_lazy(value):
        value = np.asarray(value)
        fits = rows != "auto" and value.shape[:1] == (sum(rows),)
        value = da.from_array(value, chunks=(rows if fits else "auto", *(-1,) * (value.ndim - 1)))
    if value.ndim != dimensions:
        raise ValueError(f"{name}: expected shape {'(n, D)' if dimensions == 2 else '(n,)'}, got {value.shape}")
    if lengths and np.isnan(value.shape).any():
        raise ValueError(f"{name}: expected chunks of known sizes, got unknown ones; call {name}.compute_chunk_sizes()")
    return value if all(n == 1 for n in value.numblocks[1:]) else value.rechunk({1: -1})


def _beside(X: Any, value: Any, name: str) -> Any:
    """Return an array with one number or label per row of X, or None."""
    if value is None:
        return None
    found = array_of(value, name, 1, X.chunks[0])
    if len(found) != len(X):
        raise ValueError(f"X, {name}: expected the same number of rows, got {len(X)} and {len(found)}")
    return found


def _each_chunk(array: Any, name: str, check: Callable[[Any], Any]) -> list[Any]:
    """Return the results of a check of every chunk of rows that has rows, as tasks."""
    chunks = array.to_delayed().ravel()
    return [
        delayed(_named)(check, chunk, place(name, array.chunks[0], i))
        for i, (chunk, rows) in enumerate(zip(chunks, array.chunks[0], strict=True))
        if rows
    ]


def _of_chunk(function: Any, name: str, lengths: Any, chunk: Any, block_id: Any = None) -> Any:
    return _named(function, chunk, place(name, lengths, block_id[0]))


def _of_rows(method: Any, columns: Any, empty: Any, x: Any) -> Any:
    return method(_rows(_dense(x), columns)) if len(x) else empty


def _is_frame(X: Any) -> bool:
    """True for a Dask dataframe or series."""
    return hasattr(type(X), "to_dask_array")


def _rows(x: Any, columns: Any) -> Any:
    """Return rows as a data frame, if their columns have names."""
    if columns is None:
        return x
    from pandas import DataFrame

    return DataFrame(x, columns=columns)


def without_rows(X: Any) -> Any:
    """Return a data frame with the columns of a Dask dataframe. Return anything else unchanged."""
    return _rows(np.empty((0, len(X.columns))), list(X.columns)) if _is_frame(X) else X


def place(name: str, lengths: Any, chunk: int) -> str:
    """Return the name of a chunk for error messages."""
    end = sum(lengths[: chunk + 1])
    rows = "" if np.isnan(end) else f" (rows {end - lengths[chunk]} to {end - 1})"
    return f"{name}: chunk {chunk}{rows}"


def _named(function: Callable[[Any], Any], chunk: Any, where: str) -> Any:
    """Return function(chunk). An error names the chunk."""
    with located(where):
        return function(chunk)


def _labels(y: Any) -> Any:
    assert_all_finite(y, input_name="y")
    return np.unique(y)


def _largest_weight(weight: Any) -> float:
    assert_all_finite(weight, input_name="sample_weight")
    check_non_negative(weight, "sample_weight")
    return float(weight.max())
