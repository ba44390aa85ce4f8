"""Attention with entmax in place of softmax, for NumPy arrays: scores, entmax and product, a few queries at a time.

The compiled core computes the products and entmax. A product skips each small block of p that contains only 0. For
orders above 1 these are most blocks.

A query that sees a nonfinite number is flagged. Sums over queries use 0 in place of flagged queries, and sums over keys
use 0 in place of nonfinite numbers in k and v. Therefore nonfinite numbers do not affect the results of other queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.attend.arguments import AttentionGradients
from softargmax.attend.dropout import keep_factors
from softargmax.attend.reference import Places
from softargmax.core import _native
from softargmax.core.native import BLOCK, widened
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from softargmax.attend.arguments import Attention, Options

Array = np.ndarray[Any, Any]
SCORES = 1 << 19
"""The largest number of scores per part: 2 MiB of float32, which stay in the third-level cache."""


class _Part(NamedTuple):
    """Some queries of a head and their scores, in working precision. The last column of the scores is the sink."""

    at: tuple[Any, ...]  # index of these queries in an array (..., H, L, n)
    group: tuple[Any, ...]  # index of all keys that these queries may see, in an array (..., G, K, n)
    keys: int  # the number of these keys
    q: Array  # multiplied by the scale
    scale: Array
    alpha: Any
    z: Array
    factors: dict[str, Any]  # by option, the factor of the term that it adds to the scores; None is 1
    slope: Any  # derivative of the soft-cap; None is 1
    keep: Any  # dropout factors of p; None is 1
    nonfinite: Any  # flags of the queries that see a nonfinite number; None: there are no such queries


def attend(i: Attention, output: Array) -> Array | None:
    """Write attention to `output`. Return flags of the queries that see a nonfinite number.

    Return None if only the definition can compute the output.
    """
    if not serves(i):
        return None
    nonfinite, v = np.zeros(i.q.shape[:-1], bool), _finite(i.v)
    for part in _parts(i):
        _native.entmax(part.z, part.alpha, None, UNIT, (1,), part.z, None)
        found = np.empty((len(part.z), i.v.shape[-1]), part.z.dtype)
        p = part.z[:, : part.keys]
        if part.keep is not None:
            p *= part.keep
        _native.product(p, v[part.group], found, sparse=True)
        _put(found, output, part.at)
        nonfinite[part.at] = part.nonfinite is not None and part.nonfinite
    return nonfinite


def serves(i: Attention) -> bool:
    """True if there is no soft-cap, or if it is between 1e-30 and 1e30.

    Then dividing float32 scores by the soft-cap neither overflows nor underflows.
    """
    return i.options.softcap is None or 1e-30 < i.options.softcap < 1e30


def attend_vjp(i: Attention, g: Array) -> tuple[AttentionGradients, Array] | None:
    """Return the gradients of <g, output> over the queries that are not flagged, and the flags of all queries.

    The order, alpha, has no gradient here. Return None if only the definition can compute the gradients.
    """
    if not serves(i):
        return None
    left_out, g_finite = np.zeros(i.q.shape[:-1], bool), _all_finite((g,))
    k, v = map(_finite, i[1:3])
    kind, options = _kind(i.q), i.options
    dq, dk, dv = (np.zeros(x.shape, kind) for x in i[:3])
    dscale = np.zeros((*i.q.shape[:-1], 1))
    added = Places(np.zeros(1), np.zeros(1), 0).terms(options)
    of_terms = {name: np.zeros(getattr(options, name).shape, kind) for name in added}
    dsink = None if options.sink is None else np.zeros((*options.sink.shape[:-3], i.q.shape[-3], 1, 1))
    for part in _parts(i):
        tau, p, g_part = np.empty((len(part.z), 1), kind), part.z, widened(g[part.at], kind)
        _native.entmax(p, part.alpha, None, UNIT, (1,), p, tau)
        nonfinite, q, scaled = part.nonfinite, widened(i.q[part.at], kind), part.q
        if not g_finite:
            wrong = ~np.isfinite(g_part).all(-1)
            nonfinite = wrong if nonfinite is None else nonfinite | wrong
        if nonfinite is not None:
            left_out[part.at] = nonfinite
            p[nonfinite] = 0.0
            g_part, q, scaled = (_finite(np.where(nonfinite[:, None], kind(0), x)) for x in (g_part, q, scaled))
        dp = np.zeros_like(p)
        _native.product(g_part, v[part.group].T, dp[:, : part.keys])
        weight = p[:, : part.keys]
        if part.keep is not None:
            weight = weight * part.keep
            dp[:, : part.keys] *= part.keep
        _native.product(weight.T, g_part, dv[part.group], None, True, sparse=True)
        _native.entmax_vjp(p, tau, part.alpha, dp, (1,), dp)
        if nonfinite is not None:
            dp[nonfinite] = 0.0
        dz = dp[:, : part.keys]
        if dsink is not None:
            total = dp[:, part.keys].sum(dtype=np.float64, keepdims=True)[None]
            _add_to(dsink, total, (*part.at, slice(None)), len(i.scores))
        for name, factor in part.factors.items():
            gains = dz if factor is None else dz * factor.astype(kind)
            _add_to(of_terms[name], gains, (*part.at, part.group[-1]), len(i.scores))
        if part.slope is not None:
            dz = dz * part.slope if nonfinite is None else np.where(dz == 0.0, dz, dz * part.slope)
        found = np.empty_like(part.q)
        _native.product(dz, k[part.group], found, sparse=True)
        dscale[part.at] = (found * q).sum(-1, dtype=np.float64, keepdims=True)
        dq[part.at] = found * part.scale
        _native.product(dz.T, scaled, dk[part.group], None, True, sparse=True)
    whole = {"q": dq, "k": dk, "v": dv, "scale": dscale, "sink": dsink} | of_terms
    return AttentionGradients(**dict.fromkeys(AttentionGradients._fields) | whole), left_out


def _parts(i: Attention) -> Iterator[_Part]:
    """Yield all queries in parts. The scores of hidden keys are -inf."""
    q, k, _, options = i
    kind, (length, keys) = _kind(q), i.scores[-2:]
    each, with_sink = q.shape[-3] // max(k.shape[-3], 1), options.sink is not None

    def broadcast(x: Any, *last: int) -> Any:
        """Broadcast an array to all heads. Return numbers and None unchanged."""
        return np.broadcast_to(x, (*q.shape[:-2], *last)) if hasattr(x, "shape") else x

    scale = np.broadcast_to(np.asarray(options.scale, kind), (*q.shape[:-1], 1))
    alpha, sink, seeds = (
        broadcast(options.alpha, length, 1),
        broadcast(options.sink, 1, 1),
        broadcast(options.seeds, 1, 2),
    )
    mask = broadcast(options.mask, length, keys)
    step = max(1, min(length, SCORES // max(keys, 1)))
    memory = np.empty(step * (keys + with_sink), kind)
    nonfinite_values = None if _all_finite(i[:3]) else ~np.isfinite(widened(i.v, kind)).all(-1)
    for *entry, head in np.ndindex(q.shape[:-2]):
        count = keys if options.lengths is None else int(options.lengths[tuple(entry)].item())
        for start in range(0, length, step):
            at = (*entry, head, slice(start, min(start + step, length)))
            places = start + count - length, at[-1].stop + count - length
            window = _keys_in_window(options, *places, count)
            candidates = slice(window.start // BLOCK * BLOCK, window.stop)  # keys start at a block boundary
            group = (*entry, head // each, candidates)
            n = candidates.stop - candidates.start
            rows = at[-1].stop - start
            z = memory[: rows * (n + with_sink)].reshape(rows, n + with_sink)
            scaled = widened(q[at], kind) * scale[at]
            _native.product(scaled, k[group].T, z[:, :n])
            positions = Places(np.arange(*places)[:, None], np.arange(candidates.start, candidates.stop), count)
            visible = positions.in_window(options)
            if mask is not None:
                visible = visible & mask[(*at, candidates)]
            added = positions.terms(options)
            terms = [(broadcast(x, length, keys)[(*at, candidates)], factor) for x, factor in added.values()]
            nonfinite = None if nonfinite_values is None else ~np.isfinite(z[:, :n]) | nonfinite_values[group]
            slope = _cap_and_mask(z[:, :n], visible, terms, options.softcap)
            if nonfinite is not None:
                nonfinite = (nonfinite & (z[:, :n] != -np.inf)).any(-1)
            if sink is not None:
                z[:, n] = sink[(*entry, head, 0)]
            order = alpha if isinstance(alpha, float) else np.ascontiguousarray(alpha[at], np.float64)
            keep = None
            if seeds is not None:
                keep = keep_factors(seeds[(*entry, head)], start, len(z), candidates, options.dropout, kind)
            factors = {name: factor for name, (_, factor) in added.items()}
            yield _Part(at, group, n, scaled, scale[at], order, z, factors, slope, keep, nonfinite)


def _cap_and_mask(z: Array, visible: Array, added: list[tuple[Array, Any]], softcap: float | None) -> Array | None:
    """Apply soft-cap, added terms and mask in place. Return the soft-cap's derivative, or None without a soft-cap."""
    slope = None
    if softcap is not None:
        tanh = np.tanh(z / z.dtype.type(softcap))
        np.multiply(tanh, z.dtype.type(softcap), out=z)
        slope = (1 - tanh) * (1 + tanh)
    for x, factor in added:
        its = widened(x, _kind(x))
        z += its if factor is None else its * factor.astype(z.dtype)
    np.copyto(z, -np.inf, where=~visible)
    return slope


def _add_to(total: Array, x: Array, at: tuple[Any, ...], rank: int) -> None:
    """Add x, the gradients with respect to the scores at index `at`, to the gradient of an option.

    The option broadcasts with the scores, so x is summed over the axes along which the option has size 1. `rank` is the
    number of axes of the scores.
    """
    aligned = total.reshape((1,) * (rank - total.ndim) + total.shape)
    for axis in (-2, -1):
        if aligned.shape[axis] == 1:
            x = x.sum(axis=axis, keepdims=True)
    broadcast = (slice(None) if isinstance(i, slice) else 0 for i in at)
    aligned[tuple(i if n > 1 else all_ for i, all_, n in zip(at, broadcast, aligned.shape, strict=True))] += x


def _kind(q: Array) -> type[np.floating[Any]]:
    return np.float64 if q.dtype == np.float64 else np.float32


def _put(found: Array, output: Array, at: tuple[Any, ...]) -> None:
    if output.dtype == np.uint16:
        bits = found.view(np.uint32)
        output[at] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        output[at] = found


def _finite(x: Array) -> Array:
    """Return the array with 0 in place of numbers that are not finite. A uint16 array holds bfloat16 bits."""
    return x if _all_finite((x,)) else np.where(np.isfinite(widened(x, _kind(x))), x, x.dtype.type(0))


def _keys_in_window(options: Options, start: int, stop: int, keys: int) -> slice:
    """Return the slice of keys that are in the window of any query at a position from start to stop - 1."""
    first = 0 if options.left is None else max(0, start - options.left)
    last = keys if options.right is None else min(keys, stop + options.right)
    return slice(min(first, keys), max(last, min(first, keys)))


def _all_finite(arrays: tuple[Array, ...]) -> bool:
    return all(_native.finite(x.reshape(-1, x.shape[-1])) for x in arrays if x.size)
