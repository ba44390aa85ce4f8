"""The options of attention, and their checks. Each public function checks its options once.

Each option appears twice here: as a keyword with its type, and in `options_of` with its check. `DEFAULTS` lists the
defaults that are not None. A checked option becomes a field of `arguments.Options`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from softargmax.attend.arguments import Attention, Options, Pages
from softargmax.core import arrays, check, philox, signature
from softargmax.core._native import plain_heads
from softargmax.core.arrays import device_of, namespace, row_dtype, shown
from softargmax.core.check import between, flag, integer
from softargmax.core.dispatch import PROCESSES, requested
from softargmax.core.seeds import source
from softargmax.core.types import Integers, Mask, Numbers, PerRow, Seed

if TYPE_CHECKING:
    from collections.abc import Mapping

_FAR = 1 << 48
"""A distance larger than any number of keys. Adding it to a position does not overflow int64."""


class OfPlaces(TypedDict, total=False):
    """The options that every attention function has. The docstring of `attention` explains them."""

    scale: PerRow | None
    causal: bool
    window: tuple[int | None, int | None] | None
    softcap: float | None
    slopes: Numbers | None


class OfSequences(OfPlaces, total=False):
    """The options for packed and paged sequences."""

    sink: Numbers | None
    alpha: PerRow


class OfParts(OfPlaces, total=False):
    """The options of `attention_state`."""

    mask: Mask | None
    bias: Numbers | None
    key_lengths: Integers | None


class OfStats(OfParts, total=False):
    """The options of `attention_stats`."""

    sink: Numbers | None
    alpha: PerRow


class OfSoftmax(OfParts, total=False):
    """The options of functions that return or use lse. Their order alpha is 1."""

    sink: Numbers | None
    dropout: float
    seed: Seed | None
    stream: Integers | None


class OfAttention(OfSoftmax, total=False):
    """All options of attention."""

    alpha: PerRow


DEFAULTS = {"causal": False, "alpha": 1.0, "dropout": 0.0}
"""Defaults of these options. All other options default to None."""
_ALL_DEFAULTS: dict[str, Any] = dict.fromkeys(OfAttention.__optional_keys__) | DEFAULTS
takes = functools.partial(signature.takes, defaults=DEFAULTS)


def plain_attention_of(q: Any, k: Any, v: Any, causal: bool = False) -> Attention:
    """Return the operation's arguments for checked arrays. All options except `causal` have their defaults."""
    return Attention(q, k, v, _common_options(q.shape[-1], causal))


def attention_of(q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> Attention:
    """Check the arguments of a public function and return the operation's arguments."""
    # Shortcuts for the most common calls. The checks then take 2 us in place of 18 us, or 30 us with groups of heads.
    if not plain_heads(q, k, v):
        q, k, v = heads_of(q, k, v)
    elif options.keys() <= {"causal"}:
        return plain_attention_of(q, k, v, bool(options) and flag(options["causal"], "causal"))
    return Attention(q, k, v, options_of(q, k.shape[-2], options))


@functools.lru_cache(64)
def _common_options(width: int, causal: bool) -> Options:
    return Options(_scale_of(width), None, None, None, 1.0, None, None, None, 0 if causal else None, None, 0.0)


def _scale_of(width: int) -> float:
    return 1.0 / math.sqrt(width) if width else 1.0


def heads_of(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Check q, k and v, and broadcast their batch axes.

    A single head of k is broadcast to the heads of v, and a single head of v to the heads of k. A single head of q is
    broadcast to the heads of k and v.
    """
    q = check.scores(q, "q")
    k, v = (check.scores(arrays.like(x, q, name), name) for x, name in ((k, "k"), (v, "v")))
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        if x.ndim < 3:
            raise ValueError(f"{name}: expected shape (..., heads, length, width), got {tuple(x.shape)}")
    if len({arrays.dtype_name(x.dtype) for x in (q, k, v)}) > 1:
        raise TypeError(f"k, v: expected q's dtype, {q.dtype}, got {k.dtype} and {v.dtype}")
    leading = _broadcast_shapes(q.shape[:-3], k.shape[:-3])
    if leading is None or k.shape[-1] != q.shape[-1]:
        may = f"(..., heads, keys, {q.shape[-1]}) with broadcastable leading axes"
        raise ValueError(f"k: expected shape {may}, for q of shape {tuple(q.shape)}, got {tuple(k.shape)}")
    leading = _broadcast_shapes(leading, v.shape[:-3])
    groups = _broadcast_shapes(k.shape[-3:-2], v.shape[-3:-2])
    if leading is None or groups is None or v.shape[-2] != k.shape[-2]:
        may = f"(..., heads, {k.shape[-2]}, width) with broadcastable leading axes"
        raise ValueError(f"v: expected shape {may}, for k of shape {tuple(k.shape)}, got {tuple(v.shape)}")
    heads = groups if q.shape[-3] == 1 else tuple(q.shape[-3:-2])
    if (groups == (0,) != heads) or (groups != (0,) and heads[0] % groups[0]):
        raise ValueError(f"k: expected {heads[0]} heads, as in q, or a divisor of {heads[0]}, got {groups[0]}")
    return _broadcast(q, leading + heads), _broadcast(k, leading + groups), _broadcast(v, leading + groups)


def _broadcast_shapes(a: Any, b: Any) -> tuple[int, ...] | None:
    """Return the shape to which both broadcast, or None."""
    try:
        return np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        return None


def _broadcast(x: Any, front: tuple[int, ...]) -> Any:
    return x if x.shape[:-2] == front else namespace(x).broadcast_to(x, (*front, *x.shape[-2:]))


def options_of(q: Any, keys: int, options: Mapping[str, Any]) -> Options:
    """Check the options and fill in the defaults."""
    requested = {**_ALL_DEFAULTS, **options}
    left, right = window_of(requested["causal"], requested["window"])
    scale, softcap, rate = requested["scale"], requested["softcap"], rate_of(requested["dropout"])
    shape, each, axes = (*q.shape[:-1], keys), "the heads' queries", (q.ndim - 1,)
    if scale is None:
        scale = _scale_of(q.shape[-1])
    else:
        scale = check.within(scale, q, axes, "scale", lambda x: abs(x) < math.inf, "a finite number", each)
    alpha = check.order(options["alpha"], q, axes, "the heads' queries") if "alpha" in options else requested["alpha"]
    mask, bias, lengths = requested["mask"], requested["bias"], requested["key_lengths"]
    if mask is not None:
        mask = _fits(arrays.like(mask, q, "mask"), shape, "mask")
        if arrays.dtype_name(mask.dtype) != "bool":
            raise TypeError(
                f"mask: expected bool, True where a query sees a key (to add numbers, use bias), got dtype {mask.dtype}"
            )
    if bias is not None:
        bias = _fits(check.scores(arrays.like(bias, q, "bias"), "bias"), shape, "bias")
    return Options(
        scale,
        mask,
        bias,
        _per_head(requested["sink"], q, "sink"),
        alpha,
        None if lengths is None else lengths_of(lengths, q, shape),
        seeds_of(q, tuple(q.shape[:-3]), rate, requested["seed"], requested["stream"]),
        left,
        right,
        None if softcap is None else check.positive(softcap, "softcap"),
        rate,
        _per_head(requested["slopes"], q, "slopes", in_batch=True),
    )


def _per_head(x: Any, q: Any, name: str, *, in_batch: bool = False) -> Any:
    """Check an option with one number per head. Add axes of size 1 for queries and keys.

    With `in_batch`, each entry of the batch may have its own numbers.
    """
    if x is None:
        return None
    heads = tuple(q.shape[:-2] if in_batch else q.shape[-3:-2])
    x = check.scores(arrays.like(x, q, name), name)
    xp, shape = namespace(x), tuple(x.shape)
    if not check.broadcasts(shape, heads):
        raise ValueError(f"{name}: expected one number per head, shape {heads}, got shape {shape}")
    return xp.reshape(xp.astype(x, row_dtype(x.dtype), copy=False), (*(shape or (1,)), 1, 1))


def rate_of(dropout: Any) -> float:
    """Check the probability of dropout."""
    return between(dropout, "dropout", 1.0, below=True)


def seeds_of(q: Any, batch: tuple[int, ...], rate: float, seed: Any, stream: Any) -> Any:
    """Return the dropout seed of each head: two integers of 32 bits, the lower bits first. For rate 0, return None.

    The shape is (*batch, H, 1, 2).
    """
    if rate == 0.0:
        return None
    noise = source(q, batch, seed, stream, None)
    xp, heads, count = namespace(q), q.shape[-3], math.prod(batch)
    kind = philox.word_dtype(xp, device_of(q))
    if count * heads == 0:
        return xp.zeros((*batch, heads, 1, 2), dtype=kind, device=device_of(q))
    index = xp.arange(count, device=device_of(q))
    streams = index if noise.stream is None else noise.stream
    high, low = philox.words(q, noise.seed, streams, xp.zeros(1, dtype=kind, device=device_of(q)), heads)
    return xp.reshape(xp.stack([low, high], axis=-1), (*batch, heads, 1, 2))


def window_of(causal: Any, window: Any) -> tuple[int | None, int | None]:
    """Return the number of keys that a query sees before and after its position; None means no limit."""
    left, right = (None, None) if window is None else _sides(window)
    return left, 0 if flag(causal, "causal") else right


def _sides(window: Any) -> tuple[int | None, int | None]:
    may = "(left, right), each an integer, 0 or above, or None (no limit)"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window: expected {may}, got {shown(window)}")
    left, right = (None if side is None else integer(side, "window") for side in window)
    if min(left or 0, right or 0) < 0:
        raise ValueError(f"window: expected {may}, got {window!r}")
    return tuple(side if side is None else min(side, _FAR) for side in (left, right))  # type: ignore[return-value]


def _fits(array: Any, shape: tuple[int, ...], name: str) -> Any:
    if not check.broadcasts(tuple(array.shape), shape):
        raise ValueError(f"{name}: expected a shape that broadcasts to {shape}, got {tuple(array.shape)}")
    return array


def lengths_of(lengths: Any, q: Any, shape: tuple[int, ...], name: str = "key_lengths") -> Any:
    """Check the number of keys of each entry of the batch. Append three axes of size 1."""
    lengths = arrays.like(lengths, q, name)
    if arrays.dtype_name(lengths.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"{name}: expected integers, got dtype {lengths.dtype}")
    lengths = _wide(lengths)
    batch, keys = shape[:-3], shape[-1]
    if not check.broadcasts(tuple(lengths.shape), batch):
        raise ValueError(
            f"{name}: expected a shape that broadcasts to the batch's, {batch}, got {tuple(lengths.shape)}"
        )
    if requested() != PROCESSES:  # then `keys` may be those of one process
        check.counts(lengths, keys, name)
    xp = namespace(lengths)
    return xp.reshape(xp.broadcast_to(lengths, batch), (*batch, 1, 1, 1))


def _wide(x: Any) -> Any:
    """Integers in a dtype that holds any number of keys or pages, so that comparisons with it are right."""
    return namespace(x).astype(x, arrays.integer_dtype(x), copy=False)


def pages_of(q: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths: Any, options: Mapping[str, Any]) -> Pages:
    """Check the arguments of `attention_paged` and return the operation's arguments."""
    q = check.scores(q, "q")
    if q.ndim != 4:
        raise ValueError(f"q: expected shape (batch, heads, length, width), got {tuple(q.shape)}")
    k, v = (check.scores(arrays.like(x, q, n), n) for x, n in ((k_pages, "k_pages"), (v_pages, "v_pages")))
    if len({arrays.dtype_name(x.dtype) for x in (q, k, v)}) > 1:
        raise TypeError(f"k_pages, v_pages: expected q's dtype, {q.dtype}, got {k.dtype} and {v.dtype}")
    batch, heads, _, width = q.shape
    if k.ndim != 4 or k.shape[-1] != width:
        raise ValueError(f"k_pages: expected shape (pages, page size, heads, {width}), got {tuple(k.shape)}")
    if v.ndim != 4 or tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(f"v_pages: expected shape {(*k.shape[:-1], 'width')}, like k_pages, got {tuple(v.shape)}")
    if (k.shape[2] == 0 and heads) or (k.shape[2] and heads % k.shape[2]):
        raise ValueError(f"k_pages: expected {heads} heads, as in q, or a divisor of {heads}, got {k.shape[2]}")
    table = arrays.like(page_table, q, "page_table")
    if arrays.dtype_name(table.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"page_table: expected integers, got dtype {table.dtype}")
    if table.ndim != 2 or table.shape[0] != batch:
        raise ValueError(f"page_table: expected shape ({batch}, pages of an entry), got {tuple(table.shape)}")
    table, keys = _wide(table), table.shape[1] * k.shape[1]
    lengths = lengths_of(lengths, q, (batch, heads, 1, keys), "lengths")
    _check_pages(table, lengths, k)
    return Pages(q, k, v, table, options_of(q, keys, options)._replace(lengths=lengths))


def _check_pages(table: Any, lengths: Any, k: Any) -> None:
    """Raise IndexError if a page index is out of range. Indices beyond an entry's length are not checked."""
    xp = namespace(table)
    if not (check.inspectable(table) and check.inspectable(lengths)):
        return
    used = xp.arange(table.shape[1], device=device_of(table)) * k.shape[1] < lengths[..., 0, 0]
    wrong = used & ((table < 0) | (table >= k.shape[0]))
    if bool(xp.any(wrong)):
        raise IndexError(f"page_table: expected pages from 0 to {k.shape[0] - 1}, got {int(table[wrong][0])}")
