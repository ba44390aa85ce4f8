"""What attention takes, as the records of its operations.

All arrays of `Options` are aligned with the scores (..., H, L, K), which are never all there: they have an axis of 1
where one number is for many queries or keys, or none in front. A sink is a score, (..., H, 1, 1).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core import types
from softargmax.core.chunks import piece
from softargmax.core.record import Array, Dense, Integers, Rowwise
from softargmax.core.types import of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable


class Options(NamedTuple):
    """What may be asked for beside q, k and v.

    left, right: how many keys a query sees to either side of its own place; None: all. lengths, (..., 1, 1, 1), are of
    the batch's full shape. seeds are the heads' own, (..., H, 1, 2) words (dropout.py); None where nothing is dropped.
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
        """Whether p is a softmax: of order 1."""
        return isinstance(self.alpha, float) and self.alpha == 1.0

    def each(self, change: Callable[[Any], Any]) -> Options:
        """The same with every array changed."""
        return self._replace(**{name: change(x) for name, x in self._asdict().items() if hasattr(x, "shape")})

    def sees(self, place: Any, key: Any) -> Any:
        """Whether a query at this place sees a key, as far as the window goes."""
        seen = key >= place - self.left if self.left is not None else key == key  # noqa: PLR0124 all
        return seen if self.right is None else seen & (key <= place + self.right)

    def range(self, start: int, stop: int, keys: int) -> slice:
        """The keys that queries at these places see at most."""
        first = 0 if self.left is None else max(0, start - self.left)
        last = keys if self.right is None else min(keys, stop + self.right)
        return slice(min(first, keys), max(last, min(first, keys)))


@of_arrays
class AttentionGradients(NamedTuple):
    """What `attention_vjp` returns: gradients to q, k and v, and to scale, bias, sink and slopes where these are
    arrays.

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
    """q (..., H, L, D), k (..., G, K, D), v (..., G, K, Dv); G divides H."""

    q: Array
    k: Array
    v: Array
    options: Options

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores: (..., H, L, K)."""
        return (*self.q.shape[:-1], self.k.shape[-2])

    def each(self, change: Callable[[Any], Any]) -> Attention:
        """The same with every array changed."""
        return Attention(change(self.q), change(self.k), change(self.v), self.options.each(change))

    @property
    def learned(self) -> AttentionGradients:
        """What the gradients go to; what is no array has none."""
        return AttentionGradients(*_LEARNED(self))

    def part(self, part: slice) -> Attention:
        """The same of some queries."""
        options = self.options.each(lambda x: piece(x, -2, part.start, part.stop))
        return self._replace(q=self.q[..., part, :], options=options)


_LEARNED = attrgetter(*(n if n in Attention._fields else f"options.{n}" for n in AttentionGradients._fields))


class Pages(NamedTuple):
    """k_pages (pages, page size, G, D), v_pages (.., Dv), and which of them an entry has: page_table (B, P)."""

    q: Array
    k_pages: Array
    v_pages: Array
    page_table: Integers
    options: Options


class AttentionVjp(NamedTuple):
    """The gradients that come in for output and lse, and what came out."""

    g: Array
    g_lse: Dense | None
    of: Attention
    output: Array
    lse: Dense
    to_bias: bool


class Queries(NamedTuple):
    """Some of the queries, from number `start` on, of `length` that there are."""

    of: Attention
    start: int
    length: int


class QueriesVjp(NamedTuple):
    """The gradients that come in for some of the queries."""

    g: Array
    g_lse: Array
    some_: Queries
    to_bias: bool
