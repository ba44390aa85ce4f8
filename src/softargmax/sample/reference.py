"""Definitions of draws and filters in array-API Python, for tests and libraries without kernels.

The arithmetic of speculative sampling, at the end of this file, serves all libraries.

    x = beta (z - m)        p = exp(x) / sum exp(x)        draw = arg max (x + g)

The definitions sort whole rows and compute the noise of whole rows. The working precision is float64 if the library has
it, otherwise float32. Control flow does not depend on values, so the functions can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check, philox
from softargmax.core.arrays import device_of, namespace, row_dtype, working_dtype
from softargmax.core.row_layout import INF, Rows
from softargmax.core.scale import rounded
from softargmax.sample.undrawable_rows import refuse, unsound

if TYPE_CHECKING:
    from softargmax.core.scale import Scale
    from softargmax.sample.arguments import Distribution, Filters


# --- noise ------------------------------------------------------------------------------------------------------------


def uniforms(like: Any, seed: Any, stream: Any, rows: int, draws: Any, columns: int) -> tuple[Any, Any]:
    """Return V and 1 - V for every row, draw and column, both accurate to the last digit."""
    xp, device = namespace(like), device_of(like)
    wide = working_dtype(like, xp)
    stream = xp.arange(rows, dtype=philox.word_dtype(xp, device), device=device) if stream is None else stream
    high, low = philox.words(like, seed, stream, draws, columns)

    def fraction(high: Any, low: Any) -> Any:
        return xp.astype(high, wide) * 2.0**-32 + (xp.astype(low, wide) + 0.5) * 2.0**-64

    ones = philox.word(philox.WORD, high)
    return fraction(high, low), fraction(high ^ ones, low ^ ones)


def noise(like: Any, seed: Any, stream: Any, rows: int, draws: Any, columns: int) -> Any:
    """Return g = -log(-log(1 - V)) of shape (rows, draws, columns), in working precision."""
    xp = namespace(like)
    v, u = uniforms(like, seed, stream, rows, draws, columns)
    return -xp.log(xp.where(v < 0.5, -xp.log1p(-xp.where(v < 0.5, v, 0.0)), -xp.log(u)))


def _draws(like: Any, n: int) -> Any:
    xp, device = namespace(like), device_of(like)
    return xp.arange(n, dtype=philox.word_dtype(xp, device), device=device)


@np.errstate(all="ignore")
def gumbel(z: Any, seed: Any, stream: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return noise of z's shape, with one stream per row."""
    rows = Rows(z, axes)
    g = noise(z, seed, stream, math.prod(rows.outer), _draws(z, 1), rows.length)
    return rows.xp.astype(rows.restore(rows.xp.reshape(g, (*rows.outer, rows.length))), dtype)


# --- the distribution -------------------------------------------------------------------------------------------------


class Distances(NamedTuple):
    """Distances x = beta (z - m) from the maximum, scores z to compare, and the error code of each row (kernels.cpp).

    x is -inf outside the support. top_k and top_p compare z, because different scores may round to the same x. In the
    field z, all finite scores are 0 if beta is 0. In a row with +inf, its infinite scores are 0 and all others -inf. An
    error code of 0 means no error.
    """

    x: Any
    z: Any
    status: Any


def distances(z: Any, distribution: Distribution) -> Distances:
    """Return the distances of all scores from the maximum of their row.

    In a row with +inf, only the infinite scores stay in the support.
    """
    xp, device = namespace(z), device_of(z)
    wide = working_dtype(z, xp)
    x = xp.astype(z, wide)
    if distribution.where is not None:
        x = xp.where(distribution.where, x, -INF)
    if x.shape[-1] == 0:
        x = xp.full((*x.shape[:-1], 1), -INF, dtype=wide, device=device)
    hi, lo = _beta(z, distribution.beta, wide)
    nan = _any(xp.isnan(x))
    x = xp.where(xp.isnan(x), 0.0, x)
    x = xp.where((hi == 0.0) & (xp.abs(x) < INF), 0.0, x)
    infinite = xp.max(x, axis=-1, keepdims=True) == INF
    zero = xp.zeros_like(x)
    x = xp.where(infinite, xp.where(x == INF, zero, -INF), x)
    m = xp.max(x, axis=-1, keepdims=True)
    inside, frozen = x > -INF, hi == INF
    d = 0.5 * xp.where(inside, x, 0.0) - 0.5 * xp.where(m > -INF, m, 0.0)
    b, c = xp.where(frozen | (hi == 0.0), 1.0, hi), xp.where(frozen | (hi == 0.0), 0.0, lo)
    far = -1e300 if wide == xp.float64 else -1e30
    near = d * b > far
    found = xp.where(near, 2.0 * (xp.where(near, d * b, 0.0) + xp.where(near, d, 0.0) * c), far)
    found = xp.where(frozen, xp.where(_first(x == m), zero, -INF), found)
    no_error = xp.zeros_like(m, dtype=xp.int32)
    status = xp.where(nan, 2, xp.where(_any(inside), no_error, 1))
    if (wrong := unsound(distribution)) is not None:
        status = xp.where(wrong, 4, status)
    return Distances(xp.where(inside, found, -INF), x, status)


def _beta(z: Any, beta: Scale, wide: Any) -> tuple[Any, Any]:
    xp = namespace(z)
    hi, lo = beta
    if isinstance(hi, float):
        pair = rounded(beta, 53 if wide == xp.float64 else 24)
        one = (1,) * z.ndim
        return tuple(xp.full(one, part, dtype=wide, device=device_of(z)) for part in pair)
    return xp.astype(hi, wide), xp.astype(lo, wide)


def _any(mask: Any) -> Any:
    return namespace(mask).any(mask, axis=-1, keepdims=True)


def _first(mask: Any) -> Any:
    """Return a mask that is True only at the first True of each row."""
    xp = namespace(mask)
    integer = xp.astype(mask, xp.int32)
    return mask & (xp.cumulative_sum(integer, axis=-1) == 1)


# --- filters ----------------------------------------------------------------------------------------------------------


def kept_scores(found: Distances, filters: Filters, joint: bool) -> Any:
    """Return the mask of the scores that the filters keep."""
    x, z, _ = found
    xp = namespace(x)
    base = kept = x > -INF
    for name, value in filters._asdict().items():
        if value is None:
            continue
        base = base if joint else kept
        if name in _ORDERED:
            here = _ORDERED[name](xp.where(base, x, -INF), xp.where(base, z, -INF), value)
        else:
            here = _FILTERS[name](xp.where(base, x, -INF), xp.zeros_like(x[..., :1]) + value)
        kept = kept & base & here
    top = z == xp.max(z, axis=-1, keepdims=True)
    return kept | (_first(top) & ~_any(kept))  # if joint filters have no common score, keep the largest


def _smallest(keys: Any, weights: Any, goal: Any) -> Any:
    """Sort by key, then by column. Return the mask of the shortest prefix whose weights sum to the goal or more."""
    xp = namespace(keys)
    order = xp.argsort(keys, axis=-1, stable=True)
    sums = xp.cumulative_sum(xp.take_along_axis(weights, order, axis=-1), axis=-1)
    reached = xp.concat([xp.zeros_like(sums[..., :1], dtype=xp.bool), sums[..., :-1] >= goal], axis=-1)
    return xp.take_along_axis(~reached, xp.argsort(order, axis=-1, stable=True), axis=-1)


def _mass(x: Any) -> tuple[Any, Any, Any]:
    """Return exp(x), its sum, and <p, x>, the mean of x under p."""
    xp = namespace(x)
    w = xp.exp(x)
    l = xp.sum(w, axis=-1, keepdims=True)
    return w, l, xp.sum(xp.where(w > 0.0, w * xp.where(w > 0.0, x, 0.0), 0.0), axis=-1, keepdims=True) / l


def _top_k(_x: Any, z: Any, k: Any) -> Any:
    xp = namespace(z)
    return below(xp.argsort(xp.argsort(-z, axis=-1, stable=True), axis=-1), k)


def below(rank: Any, k: Any) -> Any:
    """Return the mask of ranks below k. Ranks are compared as integers, because float32 is exact only up to 2^24."""
    return rank < (int(k) if isinstance(k, float) else namespace(rank).astype(k, rank.dtype))


def _top_p(x: Any, z: Any, p: Any) -> Any:
    w, l, _ = _mass(x)
    p = namespace(x).zeros_like(l) + p
    return _smallest(-z, w, p * l) | (p >= 1.0)


def _min_p(x: Any, p: Any) -> Any:
    return x >= namespace(x).log(p)


def _typical(x: Any, p: Any) -> Any:
    xp = namespace(x)
    w, l, mean = _mass(x)
    key = xp.where(x > -INF, xp.abs(xp.where(x > -INF, x, 0.0) - mean), INF)
    return _smallest(key, w, p * l) | (p >= 1.0)


def _at_least(x: Any, log_p: Any, l: Any) -> Any:
    """Return the mask of entries with a log-probability x - log(l) of at least log_p. The largest is always kept."""
    xp = namespace(x)
    bound = log_p + xp.log(l)
    top = xp.max(x, axis=-1, keepdims=True)
    return x >= xp.where(bound < top, bound, top)


def _epsilon(x: Any, epsilon: Any) -> Any:
    _, l, _ = _mass(x)
    return _at_least(x, namespace(x).log(epsilon), l)


def _eta(x: Any, epsilon: Any) -> Any:
    xp = namespace(x)
    _, l, mean = _mass(x)
    log_eta = xp.log(epsilon)
    other = 0.5 * log_eta - (xp.log(l) - mean)
    return _at_least(x, xp.where(log_eta < other, log_eta, other), l)


_ORDERED = {"top_k": _top_k, "top_p": _top_p}
_FILTERS = {
    "min_p": _min_p,
    "typical_p": _typical,
    "epsilon": _epsilon,
    "eta": _eta,
}


@np.errstate(all="ignore")
def filter_mask(z: Any, distribution: Distribution) -> Any:
    """Return the mask of kept scores, of z's shape. For a row that cannot be drawn from, return its support."""
    found = distances(z, distribution)
    inside = ~(z == -INF) if distribution.where is None else ~(z == -INF) & distribution.where
    kept = kept_scores(found, distribution.filters, distribution.joint)[..., : z.shape[-1]]
    return inside & (kept | (found.status != 0))


# --- draws ------------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """The draws, and quantities of the rows from which they were drawn.

    `index`, of shape (..., n), is -1 in a row that cannot be drawn from. `place` equals `index` in all other rows, and
    is a valid position in every row. x are the distances of the kept scores. `count` is the number of kept scores.
    `fine` is True for rows that can be drawn from.
    """

    index: Any
    place: Any
    x: Any
    count: Any
    fine: Any


def _draw(z: Any, distribution: Distribution, seed: Any, stream: Any, n: int, replace: bool) -> Drawn:
    xp = namespace(z)
    found = distances(z, distribution)
    kept, status = kept_scores(found, distribution.filters, distribution.joint), found.status
    x = xp.where(kept, found.x, -INF)
    count = xp.sum(xp.astype(kept & (x > -INF), xp.int32), axis=-1, keepdims=True)
    if not replace:
        status = xp.where((status == 0) & (count < n), 3, status)
    _check(status, z, n)

    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    each = n if replace else 1
    g = noise(z, seed, stream, rows, _draws(z, each), columns)
    key = x[..., None, :] + xp.reshape(g, (*x.shape[:-1], each, columns))
    if replace:
        index = xp.argmax(key, axis=-1) if columns else xp.zeros(key.shape[:-1], dtype=count.dtype)
    else:
        index = xp.argsort(-key, axis=-1, stable=True)[..., 0, :n]
    index, fine = _int64(index, xp), status == 0
    return Drawn(xp.where(fine, index, -1), index, x, count, fine)


@np.errstate(all="ignore")
def categorical(z: Any, distribution: Distribution, seed: Any, stream: Any, draws: int, replace: bool) -> Any:
    """Return the draws of each row."""
    return _draw(z, distribution, seed, stream, draws, replace).index


@np.errstate(all="ignore")
def categorical_with_logprob(
    z: Any, distribution: Distribution, seed: Any, stream: Any, draws: int, replace: bool
) -> tuple[Any, Any, Any]:
    """Return the draws, their log-probabilities, and the number of classes that could be drawn."""
    xp, drawn = namespace(z), _draw(z, distribution, seed, stream, draws, replace)
    _, l, _ = _mass(drawn.x)
    logprob = xp.where(drawn.fine, xp.take_along_axis(drawn.x, drawn.place, axis=-1) - xp.log(l), math.nan)
    size = _int64(xp.where(drawn.fine, drawn.count, 0), xp)
    return drawn.index, xp.astype(logprob, row_dtype(z.dtype)), size


def _int64(index: Any, xp: Any) -> Any:
    known = xp.__array_namespace_info__().dtypes(device=device_of(index), kind="integral")
    return xp.astype(index, known.get("int64", index.dtype))


def _check(status: Any, z: Any, n: int) -> None:
    """Raise an error for the first row that cannot be drawn from, if values can be read."""
    xp = namespace(status)
    status = xp.reshape(xp.broadcast_to(status, (*z.shape[:-1], 1)), (-1,))
    if status.shape[0] and check.inspectable(status) and bool(xp.any(status != 0)):
        row = int(xp.argmax(xp.astype(status != 0, xp.int32)))
        refuse((row, int(status[row])), tuple(z.shape[:-1]), n)


# --- speculative sampling ---------------------------------------------------------------------------------------------
#
#     accept x with min(1, p_x / q_x), else draw from (p - q)_+ / sum (p - q)_+


def accepted_guesses(p: Any, q: Any, tokens: Any, v: Any) -> tuple[Any, Any]:
    """Return the number of guesses to accept in each sequence, and which sequences have a guess out of range.

    v are uniform numbers in (0, 1]. A sequence with a guess out of range has no accepted guess. In CPU memory without
    tracing there is no such sequence, because `speculative_sample` raises an error for it.
    """
    xp = namespace(p)
    classes = xp.clip(tokens, 0, q.shape[-1] - 1)
    wrong = xp.any(classes != tokens, axis=-1)
    p_x, q_x = (xp.take_along_axis(a, classes[..., None], axis=-1)[..., 0] for a in (p[..., : q.shape[-2], :], q))
    accept = v * q_x < p_x
    run = xp.cumulative_sum(xp.astype(~accept, tokens.dtype), axis=-1) == 0
    return xp.where(wrong, 0, xp.sum(xp.astype(run, tokens.dtype), axis=-1)), wrong


def residual(p: Any, q: Any, accepted: Any) -> Any:
    """Return max(p - q, 0) of the row after the accepted guesses, or its p if all are 0. The last row has q = 0."""
    xp, row = namespace(p), accepted[..., None, None]
    q = xp.concat([q, xp.zeros_like(p[..., :1, :])], axis=-2)
    p_row, q_row = (xp.take_along_axis(each, row, axis=-2)[..., 0, :] for each in (p, q))
    rest = xp.maximum(p_row - q_row, xp.zeros_like(p_row))
    return xp.where(xp.sum(rest, axis=-1, keepdims=True) == 0.0, p_row, rest)


def continued(tokens: Any, accepted: Any, wrong: Any, index: Any) -> Any:
    """Return the accepted guesses, then the token `index`, then -1. Where `wrong`, return only -1."""
    xp = namespace(tokens)
    index = xp.where(wrong[..., None], -1, xp.astype(index, tokens.dtype, copy=False))
    step = xp.arange(tokens.shape[-1] + 1, dtype=tokens.dtype, device=device_of(tokens))
    guesses, end = xp.concat([tokens, xp.zeros_like(index)], axis=-1), accepted[..., None]
    return xp.where(step < end, guesses, xp.where(step == end, index, -1))
