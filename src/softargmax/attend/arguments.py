"""Arguments of the attention operations.

All arrays of `Options` broadcast with the scores (..., H, L, K). An option that is the same for all queries has size 1
along L, and an option that is the same for all keys has size 1 along K. A sink has the shape (..., H, 1, 1).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core import types
from softargmax.core.record import Array, Dense, Integers, Rowwise
from softargmax.core.row_chunks import piece
from softargmax.core.types import of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable


class Options(NamedTuple):
    """The options of attention.

    left, right: the number of keys that a query sees before and after its own position; None means no limit.
    lengths: the number of keys of each entry of the batch, of shape (*batch, 1, 1, 1).
    seeds: the seed of each head as two words (dropout.py), of shape (..., H, 1, 2); None without dropout.
    """

    scale: Rowwise
    mask: Array | None
    bias: Array | None
    sink: Array | None
    alpha: Rowwise
    lengths: Integers | None
    seeds: Integers | None
    left: int | None
    right: int | None
    softcap: float | None
    dropout: float
    slopes: Array | None = None

    @property
    def is_softmax(self) -> bool:
        """True if p is a softmax: the order alpha is the number 1."""
        return isinstance(self.alpha, float) and self.alpha == 1.0

    def each(self, change: Callable[[Any], Any]) -> Options:
        """Apply a function to every array."""
        return self._replace(**{name: change(x) for name, x in self._asdict().items() if hasattr(x, "shape")})

    def in_window(self, place: Any, key: Any) -> Any:
        """True if a key is in the window of a query at this position."""
        visible = key >= place - self.left if self.left is not None else key == key  # noqa: PLR0124 all True
        return visible if self.right is None else visible & (key <= place + self.right)

    def range(self, start: int, stop: int, keys: int) -> slice:
        """Return the slice of keys that the windows of queries at positions start to stop - 1 cover."""
        first = 0 if self.left is None else max(0, start - self.left)
        last = keys if self.right is None else min(keys, stop + self.right)
        return slice(min(first, keys), max(last, min(first, keys)))


@of_arrays
class AttentionGradients(NamedTuple):
    """Result of `attention_vjp`: the gradients with respect to q, k, v, scale, bias, sink and slopes.

    If an option is not an array, its field is None.

    Examples
    --------
    >>> import softargmax
    >>> q = [[[1.0]]]
    >>> softargmax.attention_vjp(q, [[[1.0], [1.0]]], [[[2.0], [4.0]]], [[[1.0]]]).v
    array([[[0.5],
            [0.5]]])
    """

    q: types.Array
    k: types.Array
    v: types.Array
    scale: types.Array | None
    bias: types.Array | None
    sink: types.Array | None
    slopes: types.Array | None = None


class Attention(NamedTuple):
    """q (..., H, L, D), k (..., G, K, D), v (..., G, K, Dv), and options. G divides H."""

    q: Array
    k: Array
    v: Array
    options: Options

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, (..., H, L, K)."""
        return (*self.q.shape[:-1], self.k.shape[-2])

    def each(self, change: Callable[[Any], Any]) -> Attention:
        """Apply a function to every array."""
        return Attention(change(self.q), change(self.k), change(self.v), self.options.each(change))

    @property
    def learned(self) -> AttentionGradients:
        """The arguments with respect to which attention has gradients, if they are arrays."""
        return AttentionGradients(*_LEARNED(self))

    def part(self, part: slice) -> Attention:
        """Return the arguments for a part of the queries."""
        options = self.options.each(lambda x: piece(x, -2, part.start, part.stop))
        return self._replace(q=self.q[..., part, :], options=options)


_LEARNED = attrgetter(*(n if n in Attention._fields else f"options.{n}" for n in AttentionGradients._fields))


class Pages(NamedTuple):
    """q, k_pages (pages, page size, G, D), v_pages (pages, page size, G, Dv), and page_table (B, pages of an entry)."""

    q: Array
    k_pages: Array
    v_pages: Array
    page_table: Integers
    options: Options


class AttentionVjp(NamedTuple):
    """The incoming gradients of output and lse, the arguments, and the results of the forward pass."""

    g: Array
    g_lse: Dense | None
    of: Attention
    output: Array
    lse: Dense
    to_bias: bool


class Queries(NamedTuple):
    """Arguments for a part of the queries. The part begins at query `start`; there are `length` queries in all."""

    of: Attention
    start: int
    length: int


class QueriesVjp(NamedTuple):
    """The incoming gradients for a part of the queries, and the attention arguments of this part."""

    g: Array
    g_lse: Array
    some_: Queries
    to_bias: bool
