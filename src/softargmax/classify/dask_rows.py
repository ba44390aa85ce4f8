"""Training rows in the chunks of Dask arrays and dataframes.

The rows are brought to blocks that do not depend on the chunks. A task computes what its blocks add to a sum. The
parts are added in the order of the rows, so a sum has the bits of the sum over the same rows in memory.
"""

from __future__ import annotations

import warnings
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import _check_feature_names, check_non_negative

from softargmax.classify.rows import Blocks, Training
from softargmax.core.arrays import is_lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.rows import Block, Sums

JOINED = 16
"""Number of pieces whose results are joined by one task."""
ENTRIES = 1 << 22
"""Limit for the numbers in the sums of a piece's blocks, which limits the number of blocks in a piece."""
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


class DaskBlocks:
    """The blocks of rows in Dask arrays.

    The data are cut into pieces of whole blocks, of about the size of the chunks. Each piece is one task. A task also
    prepares its blocks.
    """

    def __init__(self, training: DaskTraining, rows: int, prepare: Callable[[Block], Any] | None) -> None:
        self._training, self._rows, self._prepare = training, rows, prepare
        self._pieces: dict[int, list[Any]] = {}

    def sum(self, add: Callable[..., None], into: Sums, *arguments: Any) -> Sums:
        """Return `into` after add(into, block, *arguments) for every block in order. See `Blocks.sum`."""
        shapes = [total.shape for total in into]
        most = ENTRIES // max(1, sum(total.size for total in into))
        return tuple(self.fold(partial(_part_of_sum, add, shapes), _plus, into, *arguments, most=most))

    def fold(
        self,
        part: Callable[..., Any],
        join: Callable[[Any, Any], Any],
        start: Any,
        *arguments: Any,
        most: int = ENTRIES,
    ) -> Any:
        """Join the results of part(block, *arguments) for all blocks in order. See `Blocks.fold`.

        A piece has at most `most` blocks.
        """
        sent = [delayed(argument, traverse=False) for argument in (part, *arguments)]  # once, not once per piece
        found, pieces = delayed(start, traverse=False), self._cut(most)
        results = [delayed(_parts)(self._rows, self._prepare, *piece, *sent) for piece in pieces]
        for first in range(0, len(results), JOINED):
            found = delayed(_joined)(join, found, results[first : first + JOINED])
        return found.compute()

    def _cut(self, most: int) -> list[Any]:
        """Return the pieces of the training data: rows, class indices and weights, as tasks."""
        chunk = max(self._training.X.chunks[0])
        number = max(1, min(round(chunk / self._rows), most))
        if number not in self._pieces:
            arrays = (_cut(array, number * self._rows, len(self._training.target)) for array in self._training)
            self._pieces[number] = list(zip(*arrays, strict=True))
        return self._pieces[number]


def _parts(rows: int, prepare: Any, x: Any, target: Any, weight: Any, part: Any, *arguments: Any) -> list[Any]:
    """Return the results of the blocks of a piece."""
    return list(Blocks(Training(_dense(x), target, weight), rows, prepare).each(part, *arguments))


def _joined(join: Any, start: Any, results: list[list[Any]]) -> Any:
    return reduce(join, chain.from_iterable(results), start)


def _part_of_sum(add: Any, shapes: Any, block: Block, *arguments: Any) -> Sums:
    """Return what `add` adds for a block."""
    into = tuple(np.zeros(shape) for shape in shapes)
    add(into, block, *arguments)
    return into


def _plus(one: Sums, other: Sums) -> Sums:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _cut(array: Any, size: int, rows: int) -> list[Any]:
    """Return an array's pieces of `size` rows, or None for each if there is no array."""
    if array is None:
        return [None] * -(-rows // size)
    pieces = array.rechunk({0: min(size, rows)}, method="tasks")  # its pieces can be computed again and again
    return list(pieces.to_delayed().ravel())


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
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Dask currently has limited support for converting pandas", UserWarning)
            value = value.to_dask_array(lengths=lengths or None)
        kind = value.dtype if isinstance(value.dtype, np.dtype) else np.dtype(object)
        value = value.map_blocks(np.asarray, meta=np.empty((0,) * value.ndim, kind))  # not pandas' arrays of strings
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
    try:
        return function(chunk)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from error


def _labels(y: Any) -> Any:
    assert_all_finite(y, input_name="y")
    return np.unique(y)


def _largest_weight(weight: Any) -> float:
    assert_all_finite(weight, input_name="sample_weight")
    check_non_negative(weight, "sample_weight")
    return float(weight.max())
