"""The definition of attention for some of the queries, in any array-API library:

    S = softcap(scale q k^T) + bias        p = entmax_alpha(S) over the keys a query sees        output = p v

The sink is a score more, without a value. Sums run over the keys that are seen: whatever stands in another key or its
value reaches neither the output nor a gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.attend.dropout import kept
from softargmax.attend.results import AttentionWithLse
from softargmax.core import check
from softargmax.core.chunks import SIZE, cut
from softargmax.core.dispatch import device_of, frozen, namespace
from softargmax.core.exact import working_dtype
from softargmax.normalize import softmax_with_lse
from softargmax.sparse import entmax

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Heads, Options

INF = math.inf


def few(heads: Heads, beside: Beside, *others: Any) -> list[slice]:
    """Slices of the queries so small that temporaries stay in the cache; one of all where derivatives are recorded."""
    given = tuple(x for x in (*heads, *beside, *others) if hasattr(x, "shape"))
    return parts(heads, SIZE if cut(given) else None)


def parts(heads: Heads, size: int | None) -> list[slice]:
    """Slices of the queries with so many scores, or a query's; None: one of all."""
    length, rows = heads.q.shape[-2], math.prod(heads.q.shape[:-2]) * heads.k.shape[-2]
    step = max(1, length if size is None else size // max(rows, 1))
    return [slice(start, min(start + step, length)) for start in range(0, max(length, 1), step)]


@np.errstate(all="ignore")
def some(heads: Heads, beside: Beside, options: Options, start: int, length: int) -> AttentionWithLse:
    """Attention of some queries, the first of which is number `start` of `length`."""
    xp, dtype = namespace(heads.q), working_dtype(heads.q, namespace(heads.q))
    z, seen = _scores(heads, beside, options, start, length)
    p, lse = _normalized(z, beside)
    v = xp.astype(xp.expand_dims(heads.v, axis=-3), dtype)
    keys = z.shape[-1]
    p = p[..., :keys]
    if beside.seeds is not None:
        p = p * kept(beside.seeds, start, p.shape[-2], slice(0, keys), options.dropout, p.dtype)
    output = times(grouped(p, heads), v, grouped(seen & (z > -INF), heads))
    output = xp.reshape(output, (*heads.q.shape[:-1], v.shape[-1]))
    return AttentionWithLse(xp.astype(output, heads.q.dtype), lse)


@np.errstate(all="ignore")
def weights(heads: Heads, beside: Beside, options: Options, start: int, length: int) -> tuple[Any, Any, Any]:
    """The scores, p, and p with the sink's, of some queries."""
    z, _ = _scores(heads, beside, options, start, length)
    whole, _ = _normalized(z, beside)
    return z, whole[..., : z.shape[-1]], whole


def grouped(x: Any, heads: Heads) -> Any:
    """(..., H, L, n) as (..., G, H / G, L, n): heads that share keys beside each other."""
    *leading, count, length, last = x.shape
    groups = heads.k.shape[-3]
    return namespace(x).reshape(x, (*leading, groups, count // max(groups, 1), length, last))


def _scores(heads: Heads, beside: Beside, options: Options, start: int, length: int) -> tuple[Any, Any]:
    """The scores, -inf where a key is not seen, and where one is."""
    xp, dtype = namespace(heads.q), working_dtype(heads.q, namespace(heads.q))
    q, k = xp.astype(grouped(heads.q, heads), dtype), xp.astype(xp.expand_dims(heads.k, axis=-3), dtype)
    z = xp.reshape(_product(q, k), heads.scores)
    seen = xp.broadcast_to(visible(start, length, heads, beside, options), heads.scores) & (z != -INF)
    if beside.bias is not None:
        seen = seen & (beside.bias != -INF)
    z = xp.where(seen, z, 0.0) * beside.scale  # before: what is not seen moves the scale neither
    if options.softcap is not None:
        z = options.softcap * xp.tanh(z / options.softcap)
    if beside.bias is not None:
        bias = xp.astype(beside.bias, z.dtype)
        z = z + xp.where(bias == -INF, 0.0, bias)
    return xp.where(seen, z, -INF), seen


def visible(start: int, length: int, heads: Heads, beside: Beside, options: Options) -> Any:
    """Which keys some queries see, whatever their scores: broadcasts with the scores."""
    xp, device = namespace(heads.q), device_of(heads.q)
    queries, keys = heads.scores[-2:]
    count = keys if beside.lengths is None else beside.lengths
    key = xp.arange(keys, device=device)
    place = xp.expand_dims(xp.arange(start, start + queries, device=device), axis=-1) + (count - length)
    seen = (key < count) & options.sees(place, key)
    return seen if beside.mask is None else seen & beside.mask


def _normalized(z: Any, beside: Beside) -> tuple[Any, Any]:
    """p over the keys and the sink, and lse; 0 and -inf where there is nothing."""
    xp = namespace(z)
    if beside.sink is not None:
        sink = xp.reshape(xp.astype(beside.sink, z.dtype), (-1, 1, 1))
        z = xp.concat([z, xp.broadcast_to(sink, (*z.shape[:-1], 1))], axis=-1)
    if isinstance(beside.alpha, float) and beside.alpha == 1.0:
        return softmax_with_lse(z)
    return entmax(z, beside.alpha), xp.full(z.shape[:-1], math.nan, dtype=z.dtype, device=device_of(z))


def _product(q: Any, k: Any) -> Any:
    """q k^T. Of a key that is not finite the product is a constant: what is not seen of it moves nothing."""
    xp = namespace(q)
    turned = xp.matrix_transpose(k)
    if _known_finite(k):
        return q @ turned
    whole = xp.all(xp.isfinite(turned), axis=-2, keepdims=True)
    safe = q @ xp.where(xp.isfinite(turned), turned, 0.0)
    return xp.where(whole, safe, frozen(q) @ frozen(turned))


def times(p: Any, v: Any, seen: Any) -> Any:
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
