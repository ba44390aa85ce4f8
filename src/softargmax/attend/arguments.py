"""Arguments of the attention operations.

All arrays of `Options` except `seeds` broadcast with the scores, of shape (..., H, L, K) for H query heads, L queries
and K keys. An option that is the same for all queries has size 1 along L. An option that is the same for all keys has
size 1 along K. A sink has the shape (..., H, 1, 1).
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import types
from softargmax.core.offsets import read_bounds_hold
from softargmax.core.record import Array, Dense, Integers, Rowwise
from softargmax.core.row_chunks import piece
from softargmax.core.types import of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Options(NamedTuple):
    """The options of attention.

    left, right: the number of keys that a query sees before and after its own position; None means no limit.
    lengths: the number of keys of each entry of the batch, of shape (*batch, 1, 1, 1); None: all keys.
    seeds: the dropout seed of each head as two integers of 32 bits, of shape (..., H, 1, 2); None without dropout.
    spread: how the keys are spread over processes (core/processes.py), or None. Then the arrays of `OF_KEYS` are parts,
    and lengths and places count all keys.
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
    spread: str | None = None

    @property
    def is_softmax(self) -> bool:
        """True if p is a softmax: the order alpha is the number 1."""
        return isinstance(self.alpha, float) and self.alpha == 1.0

    def each(self, change: Callable[[Any], Any]) -> Options:
        """Return the options with `change` applied to every array."""
        return self._replace(**{name: change(x) for name, x in self._asdict().items() if hasattr(x, "shape")})


ORDERS = (1.5, 2.0)
"""The orders above 1 that CUDA kernels serve."""
OF_KEYS = {"k": -2, "v": -2, "mask": -1, "bias": -1}
"""The arguments with numbers for each key, and the axis of the keys."""


@of_arrays
class AttentionGradients(NamedTuple):
    """Result of `attention_vjp`: the gradients with respect to q, k, v, scale, bias, sink and slopes.

    The field of an option that is not an array is None.

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
    """Arguments of attention: q (..., H, L, D), k (..., G, K, D), v (..., G, K, Dv), and options. G divides H."""

    q: Array
    k: Array
    v: Array
    options: Options

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, (..., H, L, K)."""
        return (*self.q.shape[:-1], self.k.shape[-2])

    def each(self, change: Callable[[Any], Any]) -> Attention:
        """Return the arguments with `change` applied to every array."""
        return Attention(change(self.q), change(self.k), change(self.v), self.options.each(change))

    @property
    def learned(self) -> AttentionGradients:
        """q, k, v, and the options that have a gradient if they are arrays: scale, bias, sink and slopes."""
        return AttentionGradients(*_LEARNED(self))

    def part(self, part: slice) -> Attention:
        """Return the arguments for a part of the queries."""
        options = self.options.each(lambda x: piece(x, -2, part.start, part.stop))
        return self._replace(q=self.q[..., part, :], options=options)


_LEARNED = attrgetter(*(n if n in Attention._fields else f"options.{n}" for n in AttentionGradients._fields))


class Packed(NamedTuple):
    """Arguments of attention for packed sequences: q (H, N, D), k (G, M, D), v (G, M, Dv), options, and bounds.

    Sequence s has the queries from cu_q[s] to cu_q[s + 1] - 1, and the keys from cu_k[s] to cu_k[s + 1] - 1.
    """

    whole: Attention
    cu_q: Integers
    cu_k: Integers

    def sequences(self) -> Iterator[tuple[slice, slice, Attention]]:
        """Yield the queries, the keys and the arguments of each sequence. Wrong bounds raise ValueError."""
        bounds = (
            _read(offsets, x.shape[-2], f"cu_{name}", name)
            for offsets, x, name in ((self.cu_q, self.whole.q, "q"), (self.cu_k, self.whole.k, "k"))
        )
        for (start, stop), (first, last) in zip(*map(pairwise, bounds), strict=True):
            queries, keys = slice(start, stop), slice(first, last)
            part = self.whole.part(queries)
            yield queries, keys, part._replace(k=part.k[:, keys, :], v=part.v[:, keys, :])


def _read(offsets: Any, length: int, name: str, of: str) -> list[int]:
    """Read bounds at once, and check them: on a GPU nothing else has."""
    bounds: list[int] = offsets.tolist() if hasattr(offsets, "tolist") else [int(x) for x in offsets]
    read_bounds_hold(np.asarray(bounds), length, name, of)
    return bounds


class Pages(NamedTuple):
    """Arguments of paged attention, for a batch of B entries.

    They are q, k_pages (pages, page size, G, D), v_pages (pages, page size, G, Dv), page_table (B, pages of an entry),
    and options.
    """

    q: Array
    k_pages: Array
    v_pages: Array
    page_table: Integers
    options: Options


class AttentionVjp(NamedTuple):
    """Arguments of the backward pass: the incoming gradients, and the arguments and results of the forward pass.

    If `to_bias` is False, the gradient with respect to the bias is not computed.
    """

    g: Array
    g_lse: Dense | None
    of: Attention
    output: Array
    lse: Dense
    to_bias: bool


class PackedVjp(NamedTuple):
    """Arguments of the backward pass for packed sequences."""

    g: Array
    g_lse: Dense | None
    packed: Packed
    output: Array
    lse: Dense


class Queries(NamedTuple):
    """Arguments for a part of the queries. The part begins at query `start` of all `length` queries."""

    of: Attention
    start: int
    length: int


class QueriesVjp(NamedTuple):
    """Arguments of the backward pass for a part of the queries."""

    g: Array
    g_lse: Array
    some_: Queries
    to_bias: bool
