"""What attention may be asked for, checked once at the public edge."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import arrays, check
from softargmax.core.dispatch import namespace
from softargmax.core.targets import integer


class Options(NamedTuple):
    """Plain numbers. left, right: how many keys a query sees to either side of its own place; None: all."""

    left: int | None
    right: int | None
    softcap: float | None


class Beside(NamedTuple):
    """Arrays beside q, k and v, or None; scale and alpha a float, or an array with an axis of 1 for the keys."""

    scale: Any
    mask: Any
    bias: Any
    sink: Any
    alpha: Any
    lengths: Any


class Heads(NamedTuple):
    """q (..., H, L, D), k (..., G, K, D), v (..., G, K, Dv); G divides H."""

    q: Any
    k: Any
    v: Any

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, which are never all there: (..., H, L, K)."""
        return (*self.q.shape[:-1], self.k.shape[-2])


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


def options_of(causal: Any, window: Any, softcap: Any) -> Options:
    """The window that causal and window make together, and the soft-cap."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal: {causal!r}; it may be True or False")
    left, right = (None, None) if window is None else _sides(window)
    if causal:
        right = 0
    return Options(left, right, None if softcap is None else check.positive(softcap, "softcap"))


def _sides(window: Any) -> tuple[int | None, int | None]:
    may = "it may be (left, right), each an integer, 0 or above, or None: without a limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window: {window!r}; {may}")
    left, right = (None if side is None else integer(side, "window") for side in window)
    if min(left or 0, right or 0) < 0:
        raise ValueError(f"window: {window!r}; {may}")
    return left, right


def beside_of(heads: Heads, scale: Any, mask: Any, bias: Any, sink: Any, alpha: Any, key_lengths: Any) -> Beside:
    """Everything that stands beside q, k and v."""
    shape, q = heads.scores, heads.q
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
        if not check.broadcasts(tuple(sink.shape), (shape[-3],)):
            raise ValueError(f"sink: shape {tuple(sink.shape)}; it may be one number per head, ({shape[-3]},)")
    return Beside(scale, mask, bias, sink, alpha, None if key_lengths is None else _lengths(key_lengths, q, shape))


def _fits(array: Any, shape: tuple[int, ...], name: str) -> Any:
    if not check.broadcasts(tuple(array.shape), shape):
        raise ValueError(f"{name}: shape {tuple(array.shape)} does not broadcast to {shape}")
    return array


def _lengths(lengths: Any, q: Any, shape: tuple[int, ...]) -> Any:
    """How many keys there are, one per entry of the batch, with three axes of 1 behind."""
    lengths = arrays.like(lengths, q, "key_lengths")
    if arrays.dtype_name(lengths.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"key_lengths: dtype {lengths.dtype}; it may be integers")
    batch, keys = shape[:-3], shape[-1]
    if not check.broadcasts(tuple(lengths.shape), batch):
        raise ValueError(f"key_lengths: shape {tuple(lengths.shape)}; it may be that of the batch, {batch}")
    xp = namespace(lengths)
    if check.seen(lengths) and bool(xp.any((lengths < 0) | (lengths > keys))):
        raise ValueError(f"key_lengths: some are out of range; each may be from 0 to {keys}")
    return xp.reshape(lengths, (*lengths.shape, 1, 1, 1))
