"""The gradients of attention by their formulas, a few queries at a time, in any array-API library (design section 8):

    p = e^(S - lse)      dS = p (g v^T - delta)      delta = <g, o> - g_lse      dz = dS (1 - tanh^2), z = scale q k^T
    dq = scale dz k      dk = dz^T (scale q)      dv = p^T g      dscale = <dz, q k^T>      dbias = dS
    dsink = -e^(sink - lse) delta

Whatever stands in a key or value that a query does not see takes no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.attend.dropout import kept
from softargmax.attend.options import part_of
from softargmax.attend.reference_parts import few, grouped, times, weights
from softargmax.attend.results import AttentionGradients
from softargmax.core.chunks import piece
from softargmax.core.dispatch import namespace
from softargmax.core.exact import working_dtype

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Heads, Options


@np.errstate(all="ignore")
def vjp(heads: Heads, beside: Beside, options: Options, g: Any, g_lse: Any) -> AttentionGradients:
    """The gradients of <g, output> + <g_lse, lse>, in working precision."""
    length, xp = heads.q.shape[-2], namespace(heads.q)
    found = []
    for part in few(heads, beside, g):
        g_part = piece(g, -2, part.start, part.stop)
        lse_part = None if g_lse is None else g_lse[..., part]
        found.append(_some(*part_of(heads, beside, part), options, part.start, length, g_part, lse_part))
    q, k, v, scale, bias, sink = zip(*found, strict=True)
    return AttentionGradients(
        xp.concat(q, axis=-2),
        sum(k[1:], k[0]),
        sum(v[1:], v[0]),
        _joined(scale, beside.scale, length),
        _joined(bias, beside.bias, length),
        None if sink[0] is None else sum(sink[1:], sink[0]),
    )


def _joined(pieces: tuple[Any, ...], like: Any, length: int) -> Any:
    """Gradients of parts beside each other, or their sum where one number serves all queries."""
    if pieces[0] is None:
        return None
    if like.ndim >= 2 and like.shape[-2] == length:
        return namespace(like).concat(pieces, axis=-2)
    return sum(pieces[1:], pieces[0])


def _some(
    heads: Heads, beside: Beside, options: Options, start: int, length: int, g: Any, g_lse: Any
) -> tuple[Any, ...]:
    xp, dtype = namespace(heads.q), working_dtype(heads.q, namespace(heads.q))
    _, p, whole = weights(heads, beside, options, start, length)
    q, k, v, g = (xp.astype(x, dtype) for x in (*heads, g))
    finite: Any = lambda x: xp.where(xp.isfinite(x), x, 0.0)  # noqa: E731
    seen = p > 0.0
    dp, weight = _scores_like(g, v, heads), p
    if beside.seeds is not None:
        keep = kept(beside.seeds, start, p.shape[-2], slice(0, p.shape[-1]), options.dropout, dtype)
        dp, weight = dp * keep, p * keep
    delta = xp.sum(xp.where(seen, p * dp, 0.0), axis=-1, keepdims=True)
    if g_lse is not None:
        delta = delta - xp.expand_dims(xp.astype(g_lse, dtype), axis=-1)
    ds = xp.where(seen, p * (dp - delta), 0.0)
    dz, raw = ds, _scores_like(q, k, heads)
    if options.softcap is not None:
        dz = dz * (1.0 - xp.tanh(raw * beside.scale / options.softcap) ** 2)
    dz = xp.where(seen, dz, 0.0)
    scaled = dz * beside.scale
    return (
        _to_queries(scaled, finite(k), heads),
        _to_keys(scaled, finite(q), heads),
        _to_values(weight, g, seen, heads),
        summed(xp.sum(xp.where(seen, dz * raw, 0.0), axis=-1, keepdims=True), beside.scale),
        summed(ds, beside.bias),
        _to_sink(whole, p, delta, beside.sink),
    )


def _scores_like(a: Any, b: Any, heads: Heads) -> Any:
    """a b^T of every query and key."""
    xp = namespace(a)
    turned = xp.matrix_transpose(xp.expand_dims(b, axis=-3))
    return xp.reshape(grouped(a, heads) @ turned, heads.scores)


def _to_queries(p: Any, x: Any, heads: Heads) -> Any:
    xp = namespace(x)
    found = grouped(p, heads) @ xp.expand_dims(x, axis=-3)
    return xp.reshape(found, (*heads.q.shape[:-1], x.shape[-1]))


def _to_keys(p: Any, x: Any, heads: Heads) -> Any:
    xp = namespace(x)
    p, x = grouped(p, heads), grouped(x, heads)
    return xp.sum(xp.matrix_transpose(p) @ x, axis=-3)


def _to_values(p: Any, g: Any, seen: Any, heads: Heads) -> Any:
    """p^T g; a g that is not finite goes where its query sees, and nowhere else."""
    xp = namespace(p)
    p, seen = (xp.matrix_transpose(grouped(x, heads)) for x in (p, seen))
    return xp.sum(times(p, grouped(g, heads), seen), axis=-3)


def summed(gradient: Any, like: Any) -> Any:
    """Summed over the axes along which `like` was broadcast; None where it is no array."""
    if not hasattr(like, "shape"):
        return None
    xp, shape = namespace(gradient), tuple(like.shape)
    shape = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, whole) in enumerate(zip(shape, gradient.shape, strict=True)) if n == 1 != whole)
    return xp.reshape(xp.sum(gradient, axis=axes, keepdims=True) if axes else gradient, tuple(like.shape))


def _to_sink(whole: Any, p: Any, delta: Any, sink: Any) -> Any:
    """The sink's p is the last column."""
    if sink is None:
        return None
    xp = namespace(p)
    found = -whole[..., p.shape[-1] :] * delta
    return summed(xp.sum(found, axis=(*range(found.ndim - 3), -2, -1)), sink)
