"""The definition of attention, in any array-API library, a few queries at a time:

    S = softcap(scale q k^T) + terms       p = entmax_alpha(S) over the visible keys        output = p v

The sink is an additional score without a value. Sums run over the visible keys only, so hidden keys and their values
affect neither the output nor the gradients. From the incoming gradients g and g_lse the gradients are:

    p = e^(S - lse)      dS = p (g v^T - delta)      delta = <g, o> - g_lse      dz = dS (1 - tanh^2), z = scale q k^T
    dq = scale dz k      dk = dz^T (scale q)      dv = p^T g      dscale = <dz, q k^T>
    dsink = -e^(sink - lse) delta

A term is an option (bias or slopes) times a constant factor (`Places.terms`). The option's gradient is <dS, factor>,
summed over the axes along which the option was broadcast.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.attend.arguments import Attention, AttentionGradients
from softargmax.attend.dropout import keep_factors
from softargmax.attend.results import AttentionWithLse
from softargmax.core import check
from softargmax.core.arrays import device_of, frozen, namespace, working_dtype
from softargmax.core.row_chunks import SIZE, cut, piece
from softargmax.normalize import softmax_with_lse
from softargmax.sparse import entmax

if TYPE_CHECKING:
    from softargmax.attend.arguments import Options

INF = math.inf


def attention(q: Any, k: Any, v: Any, options: Options) -> AttentionWithLse:
    """Return the output in q's dtype, and lse in working precision. For orders other than 1, lse is NaN."""
    i, length = Attention(q, k, v, options), q.shape[-2]
    found = [some_queries(i.part(part), part.start, length) for part in cached_parts(i)]
    xp = namespace(q)
    return AttentionWithLse(
        xp.concat([one.output for one in found], axis=-2), xp.concat([one.lse for one in found], axis=-1)
    )


def cached_parts(i: Attention, *others: Any) -> list[slice]:
    """Return slices of queries whose temporaries fit in the cache. If derivatives are recorded, return one slice."""
    inputs = tuple(x for x in (*i[:3], *i.options, *others) if hasattr(x, "shape"))
    return parts(i, SIZE if cut(inputs) else None)


def parts(i: Attention, size: int | None) -> list[slice]:
    """Return slices of queries. Each has one query, or at most `size` scores. If size is None, return one slice."""
    length, rows = i.q.shape[-2], math.prod(i.q.shape[:-2]) * i.k.shape[-2]
    step = max(1, length if size is None else size // max(rows, 1))
    return [slice(start, min(start + step, length)) for start in range(0, max(length, 1), step)]


@np.errstate(all="ignore")
def some_queries(of: Attention, start: int, length: int) -> AttentionWithLse:
    """Return attention for a part of the queries. The part begins at query `start` of all `length` queries."""
    xp, dtype = namespace(of.q), working_dtype(of.q, namespace(of.q))
    z, visible = _scores(of, start, length)
    p, lse = _normalized(z, of.options)
    v = xp.astype(xp.expand_dims(of.v, axis=-3), dtype)
    keys = z.shape[-1]
    p = p[..., :keys]
    if of.options.seeds is not None:
        p = p * keep_factors(of.options.seeds, start, p.shape[-2], slice(0, keys), of.options.dropout, p.dtype)
    output = times(grouped(p, of), v, grouped(visible & (z > -INF), of))
    output = xp.reshape(output, (*of.q.shape[:-1], v.shape[-1]))
    return AttentionWithLse(xp.astype(output, of.q.dtype), lse)


@np.errstate(all="ignore")
def weights(of: Attention, start: int, length: int) -> tuple[Any, Any, Any]:
    """For a part of the queries, return the scores, p over the keys, and p over the keys and the sink."""
    z, visible = _scores(of, start, length)
    whole, _ = _normalized(z, of.options)
    # p of a hidden key is 0, even if the query's other p are NaN.
    p = namespace(z).where(visible, whole[..., : z.shape[-1]], 0.0)
    return z, p, whole


def grouped(x: Any, of: Attention) -> Any:
    """Reshape (..., H, L, n) to (..., G, H / G, L, n): one axis for the heads that share keys."""
    *leading, count, length, last = x.shape
    groups = of.k.shape[-3]
    return namespace(x).reshape(x, (*leading, groups, count // max(groups, 1), length, last))


def _scores(of: Attention, start: int, length: int) -> tuple[Any, Any]:
    """Return the scores and the mask of visible keys. The scores of hidden keys are -inf."""
    xp, dtype, options = namespace(of.q), working_dtype(of.q, namespace(of.q)), of.options
    q, k = xp.astype(grouped(of.q, of), dtype), xp.astype(xp.expand_dims(of.k, axis=-3), dtype)
    z = xp.reshape(_product(q, k), of.scores)
    at = places(of, start, length)
    visible = xp.broadcast_to(at.visible(options), of.scores) & (z != -INF)
    if options.bias is not None:
        visible = visible & (options.bias != -INF)
    # Mask before scaling, so that hidden keys do not affect the gradient of the scale.
    z = xp.where(visible, z, 0.0) * options.scale
    if options.softcap is not None:
        z = options.softcap * xp.tanh(z / options.softcap)
    for x, factor in at.terms(options).values():
        wide = xp.astype(x, z.dtype)
        z = z + (xp.where(wide == -INF, 0.0, wide) if factor is None else wide * xp.astype(factor, z.dtype))
    z, wrong = xp.where(visible, z, -INF), _wrong_lengths(of)
    return z if wrong is None else z + xp.where(wrong, math.nan, 0.0), visible


def _wrong_lengths(of: Attention) -> Any:
    """Return True for lengths out of range. Their entries become NaN. None if all lengths were checked before."""
    lengths = of.options.lengths
    if lengths is None or check.inspectable(lengths):
        return None
    return (lengths < 0) | (lengths > of.scores[-1])


class Places(NamedTuple):
    """Positions of queries and keys, and the number of keys. Each field broadcasts with the scores."""

    place: Any
    key: Any
    count: Any

    def visible(self, options: Options) -> Any:
        """Return the mask of the keys that lengths, window and mask allow. `_scores` also hides keys with bias -inf."""
        visible = (self.key < self.count) & self.in_window(options)
        return visible if options.mask is None else visible & options.mask

    def in_window(self, options: Options) -> Any:
        """Return True for the keys in the window of a query."""
        left, right, key = options.left, options.right, self.key
        visible = key == key if left is None else key >= self.place - left  # noqa: PLR0124 all True
        return visible if right is None else visible & (key <= self.place + right)

    def terms(self, options: Options) -> dict[str, tuple[Any, Any]]:
        """Return the terms that are added to the scores: for each option name, the option and its factor (None: 1)."""
        found: dict[str, tuple[Any, Any]] = {}
        if options.bias is not None:
            found["bias"] = options.bias, None
        if options.slopes is not None:
            found["slopes"] = options.slopes, -abs(self.place - self.key)
        return found


def places(of: Attention, start: int, length: int) -> Places:
    """Return the positions for a part of the queries. The part begins at query `start` of all `length` queries."""
    xp, device, options = namespace(of.q), device_of(of.q), of.options
    queries, keys = of.scores[-2:]
    count, wrong = keys if options.lengths is None else options.lengths, _wrong_lengths(of)
    if wrong is not None:
        count = xp.where(wrong, keys, count)  # so that gradients are NaN, too
    place = xp.expand_dims(xp.arange(start, start + queries, device=device), axis=-1) + (count - length)
    return Places(place, xp.arange(keys, device=device), count)


def _normalized(z: Any, options: Options) -> tuple[Any, Any]:
    """Return p over the keys and the sink, and lse. lse is -inf for an empty support, NaN for orders other than 1."""
    xp = namespace(z)
    if options.sink is not None:
        sink = xp.broadcast_to(xp.astype(options.sink, z.dtype), (*z.shape[:-1], 1))
        z = xp.concat([z, sink], axis=-1)
    if options.is_softmax:
        return softmax_with_lse(z)
    return entmax(z, options.alpha), xp.full(z.shape[:-1], math.nan, dtype=z.dtype, device=device_of(z))


def _product(q: Any, k: Any) -> Any:
    """Return q k^T. Nonfinite queries and keys have no derivative, so hidden keys add no NaN to gradients."""
    xp = namespace(q)
    transposed = xp.matrix_transpose(k)
    if _known_finite(q) and _known_finite(k):
        return q @ transposed
    in_q, in_k = xp.isfinite(q), xp.isfinite(transposed)
    whole = xp.all(in_q, axis=-1, keepdims=True) & xp.all(in_k, axis=-2, keepdims=True)
    safe = xp.where(in_q, q, 0.0) @ xp.where(in_k, transposed, 0.0)
    return xp.where(whole, safe, frozen(q) @ frozen(transposed))


def times(p: Any, v: Any, visible: Any) -> Any:
    """Return p v over the visible keys."""
    xp = namespace(p)
    if _known_finite(v):
        return p @ v
    found = p @ xp.where(xp.isfinite(v), v, 0.0)
    at = xp.astype(visible, p.dtype)
    high, low, nan = (at @ xp.astype(mask, p.dtype) > 0.0 for mask in (v == INF, v == -INF, xp.isnan(v)))
    found = xp.where(high, INF, xp.where(low, -INF, found))
    return xp.where(nan | (high & low), math.nan, found)


def _known_finite(x: Any) -> bool:
    """True if the values can be inspected and are all finite.

    `_product` then needs one matrix product instead of two, `times` one instead of four.
    """
    xp = namespace(x)
    return check.inspectable(x) and bool(xp.all(xp.isfinite(x)))


# --- the gradients ----------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def vjp(of: Attention, g: Any, g_lse: Any) -> AttentionGradients:
    """Return the gradients of <g, output> + <g_lse, lse>, in working precision.

    The gradient of an option that is not an array is None.
    """
    length, found = of.q.shape[-2], []
    for part in cached_parts(of, g):
        g_part = piece(g, -2, part.start, part.stop)
        lse_part = None if g_lse is None else g_lse[..., part]
        found.append(some_queries_vjp(of.part(part), part.start, length, g_part, lse_part))
    likes = of.learned._replace(k=None, v=None)
    return AttentionGradients(
        *(joined(each, x, length) for each, x in zip(zip(*found, strict=True), likes, strict=True))
    )


def joined(pieces: tuple[Any, ...], like: Any, length: int) -> Any:
    """Concatenate the results of all parts if `like` has one row per query, and otherwise add them. None stays None."""
    if pieces[0] is None:
        return None
    if hasattr(like, "shape") and like.ndim >= 2 and like.shape[-2] == length:
        return namespace(like).concat(pieces, axis=-2)
    return sum(pieces[1:], pieces[0])


@np.errstate(all="ignore")
def some_queries_vjp(of: Attention, start: int, length: int, g: Any, g_lse: Any) -> AttentionGradients:
    """Return the gradients for a part of the queries. The part begins at query `start` of all `length` queries."""
    xp, dtype, options = namespace(of.q), working_dtype(of.q, namespace(of.q)), of.options
    _, p, whole = weights(of, start, length)
    q, k, v, g = (xp.astype(x, dtype) for x in (*of[:3], g))
    finite: Any = lambda x: xp.where(xp.isfinite(x), x, 0.0)  # noqa: E731
    visible = p != 0.0
    dp, weight = _scores_like(g, v, of), p
    if options.seeds is not None:
        keep = keep_factors(options.seeds, start, p.shape[-2], slice(0, p.shape[-1]), options.dropout, dtype)
        dp, weight = dp * keep, p * keep
    slope, sink_slope = p, whole[..., p.shape[-1] :]  # dS = slope (dp - <slope, dp> / <slope, 1>)
    if not options.is_softmax:
        there = whole != 0.0
        slope = xp.where(there, xp.where(there, whole, 1.0) ** (2.0 - options.alpha), 0.0)
        total = xp.sum(slope, axis=-1, keepdims=True)
        slope, sink_slope = slope[..., : p.shape[-1]], slope[..., p.shape[-1] :]
        p = slope / total
    delta = xp.sum(xp.where(visible, p * dp, 0.0), axis=-1, keepdims=True)
    if g_lse is not None:
        delta = delta - xp.expand_dims(xp.astype(g_lse, dtype), axis=-1)
    ds = xp.where(visible, slope * (dp - delta), 0.0)
    dz, raw = ds, _scores_like(q, k, of)
    if options.softcap is not None:
        dz = dz * (1.0 - xp.tanh(raw * options.scale / options.softcap) ** 2)
    dz = xp.where(visible, dz, 0.0)
    scaled = dz * options.scale
    of_terms = {
        name: summed(ds if factor is None else ds * xp.astype(factor, dtype), x)
        for name, (x, factor) in places(of, start, length).terms(options).items()
    }
    found = dict.fromkeys(AttentionGradients._fields) | of_terms
    return AttentionGradients(**found)._replace(
        q=_to_queries(scaled, finite(k), of),
        k=_to_keys(scaled, finite(q), of),
        v=_to_values(weight, g, visible, of),
        scale=summed(xp.sum(xp.where(visible, dz * raw, 0.0), axis=-1, keepdims=True), options.scale),
        sink=None if options.sink is None else summed(to_heads(-sink_slope * delta, options.sink), options.sink),
    )


def _scores_like(a: Any, b: Any, of: Attention) -> Any:
    """Return a b^T for every query and key."""
    xp = namespace(a)
    transposed = xp.matrix_transpose(xp.expand_dims(b, axis=-3))
    return xp.reshape(grouped(a, of) @ transposed, of.scores)


def _to_queries(p: Any, x: Any, of: Attention) -> Any:
    xp = namespace(x)
    found = grouped(p, of) @ xp.expand_dims(x, axis=-3)
    return xp.reshape(found, (*of.q.shape[:-1], x.shape[-1]))


def _to_keys(p: Any, x: Any, of: Attention) -> Any:
    xp = namespace(x)
    p, x = grouped(p, of), grouped(x, of)
    return xp.sum(xp.matrix_transpose(p) @ x, axis=-3)


def _to_values(p: Any, g: Any, visible: Any, of: Attention) -> Any:
    """Return p^T g. A nonfinite g of a query affects only the keys that this query sees."""
    xp = namespace(p)
    p, visible = (xp.matrix_transpose(grouped(x, of)) for x in (p, visible))
    return xp.sum(times(p, grouped(g, of), visible), axis=-3)


def summed(gradient: Any, like: Any) -> Any:
    """Sum a gradient over the axes along which `like` was broadcast. Return None if `like` is not an array."""
    return _sum_to(gradient, tuple(like.shape)) if hasattr(like, "shape") else None


def _sum_to(gradient: Any, shape: tuple[int, ...]) -> Any:
    xp, full = namespace(gradient), (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, whole) in enumerate(zip(full, gradient.shape, strict=True)) if n == 1 != whole)
    return xp.reshape(xp.sum(gradient, axis=axes, keepdims=True) if axes else gradient, shape)


def to_heads(gradient: Any, sink: Any) -> Any:
    """Sum the sink's gradients (..., H, L, 1) over all queries. The result has one gradient per head."""
    return _sum_to(gradient, (*sink.shape[:-3], gradient.shape[-3], 1, 1))


# --- pages ------------------------------------------------------------------------------------------------------------


def keys_of_pages(q: Any, k_pages: Any, v_pages: Any, page_table: Any, options: Options) -> Attention:
    """Copy the keys and values of pages into contiguous sequences. Unused page indices are replaced by 0."""
    xp = namespace(q)
    lengths: Any = options.lengths
    used = xp.arange(page_table.shape[1], device=device_of(q)) * k_pages.shape[1] < lengths[..., 0, 0]
    table = xp.where(used, page_table, 0)
    return Attention(q, _gather_pages(k_pages, table), _gather_pages(v_pages, table), options)


def _gather_pages(x: Any, table: Any) -> Any:
    """Gather pages of shape (pages, page size, heads, width) into one array (batch, heads, keys, width)."""
    xp = namespace(x)
    batch, count = table.shape
    if not x.shape[0]:
        return xp.zeros((batch, x.shape[2], count * x.shape[1], x.shape[3]), dtype=x.dtype, device=device_of(x))
    found = xp.take(x, xp.reshape(table, (-1,)), axis=0)
    found = xp.reshape(found, (batch, count * x.shape[1], *x.shape[2:]))
    return xp.permute_dims(found, (0, 2, 1, 3))
