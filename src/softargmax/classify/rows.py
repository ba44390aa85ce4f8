"""Training rows, and sums over them by blocks of rows.

The number of rows of a block depends on the shape of the problem only, and blocks are added in order. So a sum has the
same bits for rows in one array and for rows in the chunks of a Dask array (`dask_rows.py`), however they are cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from scipy import sparse

from softargmax.classify.sparse_products import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Sums = tuple[NDArray[np.float64], ...]

BLOCK = 1 << 20
"""Usual size of a block of rows: the number of entries of X or the number of scores, whichever is larger.

For 50,000 rows of 64 features and 1000 classes, a pass takes 71 ms. With a quarter of this block size it takes 85 ms.
"""


class Block(NamedTuple):
    """A block of rows with their classes and weights (None if all weights are 1).

    If the rows are sparse, `transposed` is their transpose in CSR format. All transposes together are a second copy of
    X, which is kept during the fit. With 20 classes, a gradient takes half as long with `transposed` as with `x`.
    """

    x: Any
    transposed: Any
    target: Any
    weight: Any


class Blocks:
    """The blocks of rows in memory, or what `prepare` makes of each. It is called once."""

    def __init__(self, training: Training, rows: int, prepare: Callable[[Block], Any] | None = None) -> None:
        starts = range(0, len(training.target), rows)
        blocks = (training.block(slice(start, start + rows)) for start in starts)
        self._blocks = list(blocks if prepare is None else map(prepare, blocks))

    def sum(self, add: Callable[..., None], into: Sums, *arguments: Any) -> Sums:
        """Call add(into, block, *arguments) for every block in order, and return `into`.

        `add` adds numbers of the block to the arrays of `into`, and depends on nothing but its arguments. It adds to an
        entry only once, unless the sums are exact.
        """
        for block in self._blocks:
            add(into, block, *arguments)
        return into

    def fold(self, part: Callable[..., Any], join: Callable[[Any, Any], Any], start: Any, *arguments: Any) -> Any:
        """Return join(.. join(join(start, p), q) .., r) for the results p, q, .., r of part(block, *arguments)."""
        for found in self.each(part, *arguments):
            start = join(start, found)
        return start

    def each(self, part: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Yield part(block, *arguments) for every block in order."""
        return (part(block, *arguments) for block in self._blocks)


class Training(NamedTuple):
    """Training data: rows, class indices, and sample weights (None if all weights are 1)."""

    X: Any
    target: Any
    weight: Any

    def blocks(self, rows: int, prepare: Callable[[Block], Any] | None = None) -> Any:
        """Cut the data into blocks of this many rows. Sums are of what `prepare` makes of a block, if it is given."""
        return Blocks(self, rows, prepare)

    def usual_blocks(self, prepare: Callable[[Block], Any] | None = None) -> Any:
        """Cut the data into blocks of the usual size."""
        return self.blocks(max(1, BLOCK // max(1, self.stored)), prepare)

    @property
    def stored(self) -> int:
        """Number of entries of X per row that are stored: all entries of dense rows."""
        return int(self.X.nnz // max(1, len(self.target)) if sparse.issparse(self.X) else self.X.shape[1])

    def block(self, part: slice) -> Block:
        """Return the rows of a slice."""
        weight = None if self.weight is None else self.weight[part]
        if not sparse.issparse(self.X):
            return Block(self.X[part], None, self.target[part], weight)
        x = rows_of(self.X, part)
        return Block(x, x.T.tocsr(), self.target[part], weight)

    def sample(self, step: int) -> Training:
        """Return every row whose index is a multiple of `step`, in memory."""
        weight = None if self.weight is None else self.weight[::step]
        return Training(self.X[::step], self.target[::step], weight)

    def weighed(self, each: NDArray[np.float64]) -> Self:
        """Multiply the weight of each row by the number of its class."""
        return self._replace(weight=self.factors(each) * (1.0 if self.weight is None else self.weight))

    def factors(self, each: NDArray[np.float64]) -> Any:
        """Return the number of each row's class."""
        return each[self.target]

    def largest(self) -> float:
        """Return the largest absolute value in X."""
        return float(self.usual_blocks().fold(_largest, max, 0.0))

    def per_class(self, classes: int) -> NDArray[np.float64]:
        """Return the sum of the sample weights of each class."""
        labels = self._replace(X=self.target[:, None])
        return np.asarray(labels.usual_blocks().sum(_add_counts, (np.zeros(classes),))[0])


def _add_counts(into: Sums, block: Block) -> None:
    counts = into[0]
    counts += np.bincount(block.target, block.weight, minlength=len(counts))


def _largest(block: Block) -> float:
    return max(float(block.x.max(initial=0.0)), -float(block.x.min(initial=0.0)))
