"""What attention may be asked for, checked once at the public edge."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.attend.dropout import rate_of, seeds_of
from softargmax.core import arrays, check
from softargmax.core.chunks import piece
from softargmax.core.dispatch import device_of, namespace
from softargmax.core.targets import flag, integer

_FAR = 1 << 48
"""Beyond every key: to places it can be added."""


class Options(NamedTuple):
    """Plain numbers. left, right: how many keys a query sees to either side of its own place; None: all."""

    left: int | None
    right: int | None
    softcap: float | None
    dropout: float = 0.0

    def sees(self, place: Any, key: Any) -> Any:
        """Whether a query at this place sees a key, as far as the window goes."""
        seen = key >= place - self.left if self.left is not None else key == key  # noqa: PLR0124 all
        return seen if self.right is None else seen & (key <= place + self.right)

    def range(self, start: int, stop: int, keys: int) -> slice:
        """The keys that queries at these places see at most."""
        first = 0 if self.left is None else max(0, start - self.left)
        last = keys if self.right is None else min(keys, stop + self.right)
        return slice(min(first, keys), max(last, min(first, keys)))


class Beside(NamedTuple):
    """Arrays beside q, k and v, or None; scale and alpha a float, or an array with an axis of 1 for the keys.

    Seeds are the heads' own, (..., H, 1, 2) words (dropout.py); None where nothing is dropped.
    """

    scale: Any
    mask: Any
    bias: Any
    sink: Any
    alpha: Any
    lengths: Any
    seeds: Any = None


class Heads(NamedTuple):
    """q (..., H, L, D), k (..., G, K, D), v (..., G, K, Dv); G divides H."""

    q: Any
    k: Any
    v: Any

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, which are never all there: (..., H, L, K)."""
        return (*self.q.shape[:-1], self.k.shape[-2])


class Pages(NamedTuple):
    """k (pages, page size, G, D), v (pages, page size, G, Dv), and the table (B, P) of which pages an entry has."""

    k: Any
    v: Any
    table: Any

    @property
    def keys(self) -> int:
        """How many keys an entry may have."""
        count: int = self.table.shape[1] * self.k.shape[1]
        return count


def part_of(heads: Heads, beside: Beside, part: slice) -> tuple[Heads, Beside]:
    """The same of some queries."""
    scale, mask, bias, alpha = (
        piece(x, -2, part.start, part.stop) for x in (beside.scale, beside.mask, beside.bias, beside.alpha)
    )
    return heads._replace(q=heads.q[..., part, :]), beside._replace(scale=scale, mask=mask, bias=bias, alpha=alpha)


def heads_of(q: Any, k: Any, v: Any) -> Heads:
    """q, k and v of one kind and dtype, with shapes that fit."""
    q = check.scores(q, "q")
    k, v = (check.scores(arrays.like(x, q, name), name) for x, name in ((k, "k"), (v, "v")))
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        if x.ndim < 3:
            raise ValueError(f"{name}: shape {tuple(x.shape)}; it may be (..., heads, length, width)")
    if len({arrays.dtype_name(x.dtype) for x in (q, k, v)}) > 1:
        raise TypeError(f"k, v: dtypes {k.dtype} and {v.dtype} beside q's {q.dtype}; they may be of one dtype")
    leading, heads = tuple(q.shape[:-3]), q.shape[-3]
    if tuple(k.shape[:-3]) != leading or k.shape[-1] != q.shape[-1]:
        may = f"({', '.join(map(str, leading))}{', ' * bool(leading)}heads, keys, {q.shape[-1]})"
        raise ValueError(f"k: shape {tuple(k.shape)}; beside q of shape {tuple(q.shape)} it may be {may}")
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(f"v: shape {tuple(v.shape)}; beside k it may be ({', '.join(map(str, k.shape[:-1]))}, width)")
    groups = k.shape[-3]
    if (groups == 0 and heads) or (groups and heads % groups):
        raise ValueError(f"k: {groups} heads; they may be as many as q's {heads}, or a divisor of them")
    return Heads(q, k, v)


def options_of(causal: Any, window: Any, softcap: Any, dropout: Any = 0.0) -> Options:
    """The window that causal and window make together, the soft-cap, and the share that is dropped."""
    left, right = (None, None) if window is None else _sides(window)
    if flag(causal, "causal"):
        right = 0
    return Options(left, right, None if softcap is None else check.positive(softcap, "softcap"), rate_of(dropout))


def _sides(window: Any) -> tuple[int | None, int | None]:
    may = "it may be (left, right), each an integer, 0 or above, or None: without a limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window: {window!r}; {may}")
    left, right = (None if side is None else integer(side, "window") for side in window)
    if min(left or 0, right or 0) < 0:
        raise ValueError(f"window: {window!r}; {may}")
    return tuple(side if side is None else min(side, _FAR) for side in (left, right))  # type: ignore[return-value]


def asked_of(  # noqa: PLR0913 what callers may ask for
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: Any,
    window: Any,
    softcap: Any,
    scale: Any,
    mask: Any,
    bias: Any,
    key_lengths: Any,
    sink: Any = None,
    alpha: Any = 1.0,
    dropout: Any = 0.0,
    seed: Any = None,
    stream: Any = None,
) -> tuple[Heads, Beside, Options]:
    """All that attention of one batch is asked for, checked."""
    heads, options = heads_of(q, k, v), options_of(causal, window, softcap, dropout)
    beside = beside_of(heads.q, heads.k.shape[-2], scale, mask, bias, sink, alpha, key_lengths)
    seeds = seeds_of(heads.q, tuple(heads.q.shape[:-3]), options.dropout, seed, stream)
    return heads, beside._replace(seeds=seeds), options


def beside_of(q: Any, keys: int, scale: Any, mask: Any, bias: Any, sink: Any, alpha: Any, key_lengths: Any) -> Beside:
    """Everything that stands beside q, k and v."""
    shape = (*q.shape[:-1], keys)
    each, axes = "the heads' queries", (q.ndim - 1,)
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    else:
        scale = check.within(scale, q, axes, "scale", lambda x: abs(x) < math.inf, "a finite number", each)
    may = "a finite number, 1 or above"
    alpha = check.within(alpha, q, axes, "alpha", lambda a: (a >= 1.0) & (a < math.inf), may, each)
    if mask is not None:
        mask = _fits(arrays.like(mask, q, "mask"), shape, "mask")
        if arrays.dtype_name(mask.dtype) != "bool":
            raise TypeError(f"mask: dtype {mask.dtype}; it may be bool, True where a query attends (bias is added)")
    if bias is not None:
        bias = _fits(check.scores(arrays.like(bias, q, "bias"), "bias"), shape, "bias")
    if sink is not None:
        sink = check.scores(arrays.like(sink, q, "sink"), "sink")
        sink = namespace(sink).astype(sink, check.row_dtype(None, sink), copy=False)
        if not check.broadcasts(tuple(sink.shape), (shape[-3],)):
            raise ValueError(f"sink: shape {tuple(sink.shape)}; it may be one number per head, ({shape[-3]},)")
    return Beside(scale, mask, bias, sink, alpha, None if key_lengths is None else _lengths(key_lengths, q, shape))


def _fits(array: Any, shape: tuple[int, ...], name: str) -> Any:
    if not check.broadcasts(tuple(array.shape), shape):
        raise ValueError(f"{name}: shape {tuple(array.shape)} does not broadcast to {shape}")
    return array


def _lengths(lengths: Any, q: Any, shape: tuple[int, ...], name: str = "key_lengths") -> Any:
    """How many keys there are, one per entry of the batch, with three axes of 1 behind."""
    lengths = arrays.like(lengths, q, name)
    if arrays.dtype_name(lengths.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"{name}: dtype {lengths.dtype}; it may be integers")
    batch, keys = shape[:-3], shape[-1]
    if not check.broadcasts(tuple(lengths.shape), batch):
        raise ValueError(f"{name}: shape {tuple(lengths.shape)}; it may be that of the batch, {batch}")
    xp = namespace(lengths)
    if check.seen(lengths) and bool(xp.any((lengths < 0) | (lengths > keys))):
        raise ValueError(f"{name}: some are out of range; each may be from 0 to {keys}")
    return xp.reshape(lengths, (*lengths.shape, 1, 1, 1))


def pages_of(q: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths: Any) -> tuple[Any, Pages, Any]:
    """Queries (B, H, L, D), pages and their table, and lengths with three axes of 1 behind."""
    q = check.scores(q, "q")
    if q.ndim != 4:
        raise ValueError(f"q: shape {tuple(q.shape)}; beside pages it may be (batch, heads, length, width)")
    k, v = (check.scores(arrays.like(x, q, n), n) for x, n in ((k_pages, "k_pages"), (v_pages, "v_pages")))
    if len({arrays.dtype_name(x.dtype) for x in (q, k, v)}) > 1:
        raise TypeError(
            f"k_pages, v_pages: dtypes {k.dtype} and {v.dtype} beside q's {q.dtype}; they may be of one dtype"
        )
    batch, heads, _, width = q.shape
    if k.ndim != 4 or k.shape[-1] != width:
        raise ValueError(f"k_pages: shape {tuple(k.shape)}; it may be (pages, page size, heads, {width})")
    if v.ndim != 4 or tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(f"v_pages: shape {tuple(v.shape)}; beside k_pages it may be {(*k.shape[:-1], 'width')}")
    if (k.shape[2] == 0 and heads) or (k.shape[2] and heads % k.shape[2]):
        raise ValueError(f"k_pages: {k.shape[2]} heads; they may be as many as q's {heads}, or a divisor of them")
    table = arrays.like(page_table, q, "page_table")
    if arrays.dtype_name(table.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"page_table: dtype {table.dtype}; it may be integers")
    if table.ndim != 2 or table.shape[0] != batch:
        raise ValueError(f"page_table: shape {tuple(table.shape)}; it may be ({batch}, pages of an entry)")
    lengths = _lengths(lengths, q, (batch, heads, 1, table.shape[1] * k.shape[1]), "lengths")
    _are_there(table, lengths, k)
    return q, Pages(k, v, table), lengths


def _are_there(table: Any, lengths: Any, k: Any) -> None:
    """Whether the pages that lengths reach are there."""
    xp = namespace(table)
    if not (check.seen(table) and check.seen(lengths)):
        return
    used = xp.arange(table.shape[1], device=device_of(table)) * k.shape[1] < lengths[..., 0, 0]
    wrong = used & ((table < 0) | (table >= k.shape[0]))
    if bool(xp.any(wrong)):
        raise IndexError(f"page_table: {int(table[wrong][0])} among its pages; they may be from 0 to {k.shape[0] - 1}")
