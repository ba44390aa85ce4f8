"""The definition of attention, a few queries at a time, in any array-API library:

    S = softcap(scale q k^T) + bias        p = entmax_alpha(S) over the keys a query sees        output = p v

The sink is a score more, without a value. Sums run over the keys that are seen: whatever stands in another key or its
value reaches neither the output nor a gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.attend.results import AttentionWithLse
from softargmax.core import check
from softargmax.core.chunks import SIZE, cut, piece
from softargmax.core.dispatch import device_of, frozen, namespace
from softargmax.core.exact import working_dtype
from softargmax.normalize import softmax_with_lse
from softargmax.sparse import entmax

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Heads, Options

INF = math.inf


def attention(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse:
    """The output, in q's dtype, and lse in working precision (of other orders than 1: NaN)."""
    length = heads.q.shape[-2]
    given = tuple(x for x in (*heads, *beside) if hasattr(x, "shape"))
    found = [
        some(*part_of(heads, beside, part), options, part.start, length)
        for part in parts(heads, SIZE if cut(given) else None)
    ]
    xp = namespace(heads.q)
    return AttentionWithLse(
        xp.concat([one.output for one in found], axis=-2), xp.concat([one.lse for one in found], axis=-1)
    )


def parts(heads: Heads, size: int | None) -> list[slice]:
    """Slices of the queries with so many scores, or a query's; None: one of all."""
    length, rows = heads.q.shape[-2], math.prod(heads.q.shape[:-2]) * heads.k.shape[-2]
    step = max(1, length if size is None else size // max(rows, 1))
    return [slice(start, min(start + step, length)) for start in range(0, max(length, 1), step)]


def part_of(heads: Heads, beside: Beside, part: slice) -> tuple[Heads, Beside]:
    """The same of some queries."""
    scale, mask, bias, alpha = (
        piece(x, -2, part.start, part.stop) for x in (beside.scale, beside.mask, beside.bias, beside.alpha)
    )
    q = heads.q[..., part, :]
    return heads._replace(q=q), beside._replace(scale=scale, mask=mask, bias=bias, alpha=alpha)


@np.errstate(all="ignore")
def some(heads: Heads, beside: Beside, options: Options, start: int, length: int) -> AttentionWithLse:
    """Attention of some queries, the first of which is number `start` of `length`."""
    q, k, v = _grouped(heads)
    xp, dtype = namespace(q), working_dtype(q, namespace(q))
    k, v = xp.astype(k, dtype), xp.astype(v, dtype)
    z, seen = _scores(xp.astype(q, dtype), k, visible(start, length, heads, beside, options), heads, beside, options)
    p, lse = _normalized(z, beside)
    output = _times(_grouped_scores(p, heads), v, _grouped_scores(seen & (z > -INF), heads))
    shape = (*heads.q.shape[:-1], v.shape[-1])
    return AttentionWithLse(xp.astype(xp.reshape(output, shape), heads.q.dtype), lse)


def _grouped(heads: Heads) -> tuple[Any, Any, Any]:
    """Heads that share keys beside each other: q (..., G, H / G, L, D), k and v (..., G, 1, K, D)."""
    xp = namespace(heads.q)
    *leading, count, length, width = heads.q.shape
    groups = heads.k.shape[-3]
    q = xp.reshape(heads.q, (*leading, groups, count // max(groups, 1), length, width))
    return q, xp.expand_dims(heads.k, axis=-3), xp.expand_dims(heads.v, axis=-3)


def _grouped_scores(z: Any, heads: Heads) -> Any:
    """(..., H, L, K) as (..., G, H / G, L, K)."""
    *leading, count, length, keys = z.shape
    groups = heads.k.shape[-3]
    return namespace(z).reshape(z, (*leading, groups, count // max(groups, 1), length, keys))


def _scores(q: Any, k: Any, seen: Any, heads: Heads, beside: Beside, options: Options) -> tuple[Any, Any]:
    """The scores, -inf where a key is not seen, and where one is."""
    xp = namespace(q)
    z = xp.reshape(_product(q, k), heads.scores)
    out = z == -INF
    z = z * beside.scale
    if options.softcap is not None:
        z = options.softcap * xp.tanh(z / options.softcap)
    if beside.bias is not None:
        bias = xp.astype(beside.bias, z.dtype)
        out = out | (bias == -INF)
        z = z + xp.where(bias == -INF, 0.0, bias)
    seen = xp.broadcast_to(seen, heads.scores) & ~out
    return xp.where(seen, z, -INF), seen


def visible(start: int, length: int, heads: Heads, beside: Beside, options: Options) -> Any:
    """Which keys some queries see, whatever their scores: broadcasts with the scores."""
    xp, device = namespace(heads.q), device_of(heads.q)
    queries, keys = heads.scores[-2:]
    count = keys if beside.lengths is None else beside.lengths
    key = xp.arange(keys, device=device)
    place = xp.expand_dims(xp.arange(start, start + queries, device=device), axis=-1) + (count - length)
    seen = key < count
    if options.left is not None:
        seen = seen & (key >= place - options.left)
    if options.right is not None:
        seen = seen & (key <= place + options.right)
    return seen if beside.mask is None else seen & beside.mask


def _normalized(z: Any, beside: Beside) -> tuple[Any, Any]:
    """p over the keys, and lse with the sink's part; 0 and -inf where there is nothing."""
    xp = namespace(z)
    keys = z.shape[-1]
    if beside.sink is not None:
        sink = xp.reshape(xp.astype(beside.sink, z.dtype), (-1, 1, 1))
        z = xp.concat([z, xp.broadcast_to(sink, (*z.shape[:-1], 1))], axis=-1)
    if isinstance(beside.alpha, float) and beside.alpha == 1.0:
        p, lse = softmax_with_lse(z)
        return p[..., :keys], lse
    p = entmax(z, beside.alpha)
    return p[..., :keys], xp.full(z.shape[:-1], math.nan, dtype=z.dtype, device=device_of(z))


def _product(q: Any, k: Any) -> Any:
    """q k^T. Of a key that is not finite the product is a constant: what is not seen of it moves nothing."""
    xp = namespace(q)
    turned = xp.matrix_transpose(k)
    if _known_finite(k):
        return q @ turned
    whole = xp.all(xp.isfinite(turned), axis=-2, keepdims=True)
    safe = q @ xp.where(xp.isfinite(turned), turned, 0.0)
    return xp.where(whole, safe, frozen(q) @ frozen(turned))


def _times(p: Any, v: Any, seen: Any) -> Any:
    """p v over the keys that are seen."""
    xp = namespace(p)
    if _known_finite(v):
        return p @ v
    found = p @ xp.where(xp.isfinite(v), v, 0.0)
    at = xp.astype(seen, p.dtype)
    high, low, nan = (at @ xp.astype(mask, p.dtype) > 0.0 for mask in (v == INF, v == -INF, xp.isnan(v)))
    found = xp.where(high, INF, xp.where(low, -INF, found))
    return xp.where(nan | (high & low), math.nan, found)


def _known_finite(x: Any) -> bool:
    """Whether it may be looked at and is finite: what follows takes one product then, not two to four."""
    xp = namespace(x)
    return check.seen(x) and bool(xp.all(xp.isfinite(x)))
