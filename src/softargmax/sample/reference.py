"""The definition in array-API Python: sorted rows, whole rows of noise. The oracle, and what serves other libraries.

    x = beta (z - m)        p = exp(x) / sum exp(x)        draw = arg max (x + g)

No control flow depends on values, so it can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check, philox
from softargmax.core.dispatch import device_of, namespace
from softargmax.core.exact import working_dtype
from softargmax.core.rows import INF
from softargmax.core.scale import rounded
from softargmax.sample.options import Asked, Filters, refuse, unsound

if TYPE_CHECKING:
    from softargmax.core.seeds import Source


class Drawn(NamedTuple):
    """Draws (..., n), their log-probabilities, and each row's number of classes; the last two if they were wanted."""

    index: Any
    logprob: Any
    support_size: Any


# --- noise ------------------------------------------------------------------------------------------------------------


def uniforms(like: Any, source: Source, rows: int, draws: Any, columns: int) -> tuple[Any, Any]:
    """V and 1 - V of every row, draw and column, each to its last digit."""
    xp, device = namespace(like), device_of(like)
    wide = working_dtype(like, xp)
    stream = (
        xp.arange(rows, dtype=philox.word_dtype(xp, device), device=device) if source.stream is None else source.stream
    )
    high, low = philox.words(like, source.seed, stream, draws, columns)

    def fraction(high: Any, low: Any) -> Any:
        return xp.astype(high, wide) * 2.0**-32 + (xp.astype(low, wide) + 0.5) * 2.0**-64

    ones = philox.word(philox.WORD, high)
    return fraction(high, low), fraction(high ^ ones, low ^ ones)


def noise(like: Any, source: Source, rows: int, draws: Any, columns: int) -> Any:
    """g = -log(-log(1 - V)), (rows, draws, columns), in working precision."""
    xp = namespace(like)
    v, u = uniforms(like, source, rows, draws, columns)
    return -xp.log(xp.where(v < 0.5, -xp.log1p(-xp.where(v < 0.5, v, 0.0)), -xp.log(u)))


def _draws(like: Any, n: int) -> Any:
    xp, device = namespace(like), device_of(like)
    return xp.arange(n, dtype=philox.word_dtype(xp, device), device=device)


@np.errstate(all="ignore")
def gumbel(like: Any, shape: tuple[int, ...], dtype: Any, source: Source) -> Any:
    """Noise of this shape, a stream to each row along the last axis."""
    xp = namespace(like)
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    return xp.astype(xp.reshape(noise(like, source, rows, _draws(like, 1), columns), shape), dtype)


# --- the distribution -------------------------------------------------------------------------------------------------


class Distances(NamedTuple):
    """x = beta (z - m), -inf where a score is out of the support; what is wrong with a row (kernels.cpp), or 0.

    z: the scores as they are compared, since x merges different ones; equal where beta is 0, of an infinite row 0.
    """

    x: Any
    z: Any
    status: Any


def distances(z: Any, asked: Asked) -> Distances:
    """Where every score lies below its row's maximum. A row that holds +inf is that of its infinities, all equal."""
    xp, device = namespace(z), device_of(z)
    wide = working_dtype(z, xp)
    x = xp.astype(z, wide)
    if asked.where is not None:
        x = xp.where(asked.where, x, -INF)
    if x.shape[-1] == 0:
        x = xp.full((*x.shape[:-1], 1), -INF, dtype=wide, device=device)
    hi, lo = _beta(z, asked, wide)
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
    fine = xp.zeros_like(m, dtype=xp.int32)
    status = xp.where(nan, 2, xp.where(_any(inside), fine, 1))
    if (wrong := unsound(asked)) is not None:
        status = xp.where(wrong, 4, status)
    return Distances(xp.where(inside, found, -INF), x, status)


def _beta(z: Any, asked: Asked, wide: Any) -> tuple[Any, Any]:
    xp = namespace(z)
    hi, lo = asked.scale
    if isinstance(hi, float):
        pair = rounded(asked.scale, 53 if wide == xp.float64 else 24)
        one = (1,) * z.ndim
        return tuple(xp.full(one, part, dtype=wide, device=device_of(z)) for part in pair)
    return xp.astype(hi, wide), xp.astype(lo, wide)


def _any(mask: Any) -> Any:
    return namespace(mask).any(mask, axis=-1, keepdims=True)


def _first(mask: Any) -> Any:
    """The first place in each row where the mask holds."""
    xp = namespace(mask)
    integer = xp.astype(mask, xp.int32)
    return mask & (xp.cumulative_sum(integer, axis=-1) == 1)


# --- filters ----------------------------------------------------------------------------------------------------------


def left(found: Distances, filters: Filters, joint: bool) -> Any:
    """Which scores the filters leave."""
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
    return kept | (_first(top) & ~_any(kept))  # jointly, what is typical may not be among the others


def _smallest(keys: Any, weights: Any, goal: Any) -> Any:
    """The first in the order of the keys, of equal ones by column, whose weights together reach the goal."""
    xp = namespace(keys)
    order = xp.argsort(keys, axis=-1, stable=True)
    sums = xp.cumulative_sum(xp.take_along_axis(weights, order, axis=-1), axis=-1)
    reached = xp.concat([xp.zeros_like(sums[..., :1], dtype=xp.bool), sums[..., :-1] >= goal], axis=-1)
    return xp.take_along_axis(~reached, xp.argsort(order, axis=-1, stable=True), axis=-1)


def _mass(x: Any) -> tuple[Any, Any, Any]:
    """exp(x), its sum, and <p, x>."""
    xp = namespace(x)
    w = xp.exp(x)
    l = xp.sum(w, axis=-1, keepdims=True)
    return w, l, xp.sum(xp.where(w > 0.0, w * xp.where(w > 0.0, x, 0.0), 0.0), axis=-1, keepdims=True) / l


def _top_k(_x: Any, z: Any, k: Any) -> Any:
    xp = namespace(z)
    return below(xp.argsort(xp.argsort(-z, axis=-1, stable=True), axis=-1), k)


def below(rank: Any, k: Any) -> Any:
    """Which ranks are below k, a number or one per row: compared as integers, which float32 has up to 2^24 only."""
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
    """Those with this log-probability or more, and the greatest anyway."""
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
def keep(z: Any, asked: Asked) -> Any:
    """Where the filters leave a score, of z's shape; in a row that cannot be drawn from its support."""
    found = distances(z, asked)
    inside = ~(z == -INF) if asked.where is None else ~(z == -INF) & asked.where
    kept = left(found, asked.filters, asked.joint)[..., : z.shape[-1]]
    return inside & (kept | (found.status != 0))


# --- draws ------------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def draw(z: Any, asked: Asked, source: Source, n: int, *, replace: bool, counts: bool) -> Drawn:
    """n draws of each row."""
    xp = namespace(z)
    found = distances(z, asked)
    kept, status = left(found, asked.filters, asked.joint), found.status
    x = xp.where(kept, found.x, -INF)
    count = xp.sum(xp.astype(kept & (x > -INF), xp.int32), axis=-1, keepdims=True)
    if not replace:
        status = xp.where((status == 0) & (count < n), 3, status)
    _check(status, z, n)

    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    each = n if replace else 1
    g = noise(z, source, rows, _draws(z, each), columns)
    key = x[..., None, :] + xp.reshape(g, (*x.shape[:-1], each, columns))
    if replace:
        index = xp.argmax(key, axis=-1) if columns else xp.zeros(key.shape[:-1], dtype=count.dtype)
    else:
        index = xp.argsort(-key, axis=-1, stable=True)[..., 0, :n]
    index = _int64(index, xp)
    fine = status == 0
    number = xp.where(fine, index, -1)
    if not counts:
        return Drawn(number, None, None)
    _, l, _ = _mass(x)
    logprob = xp.take_along_axis(x, index, axis=-1) - xp.log(l)
    dtype = check.row_dtype(None, z)
    logprob = xp.astype(xp.where(fine, logprob, math.nan), dtype)
    return Drawn(number, logprob, _int64(xp.where(fine, count, 0), xp)[..., 0])


def _int64(index: Any, xp: Any) -> Any:
    known = xp.__array_namespace_info__().dtypes(device=device_of(index), kind="integral")
    return xp.astype(index, known.get("int64", index.dtype))


def _check(status: Any, z: Any, n: int) -> None:
    """Name the first row that cannot be drawn from, where it can be seen."""
    xp = namespace(status)
    status = xp.reshape(xp.broadcast_to(status, (*z.shape[:-1], 1)), (-1,))
    if status.shape[0] and check.seen(status) and bool(xp.any(status != 0)):
        row = int(xp.argmax(xp.astype(status != 0, xp.int32)))
        refuse(row, int(status[row]), tuple(z.shape[:-1]), n)
