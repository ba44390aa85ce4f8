"""The losses in extended precision, row by row, without any code of softargmax.

The largest score is subtracted first, and log1p then gives the small loss of a confident row accurately. 1 - p_k is
computed as a sum over all classes but k. Only the soft-cap is evaluated in float64, as in the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Wide = np.longdouble
INF = np.inf


class Row(NamedTuple):
    """The results for a row.

    Each entry of the gradient is a difference of two numbers. `scale` is the largest of these numbers in the row.
    """

    loss: Any
    lse: Any
    entropy: Any
    z_loss: Any
    gradient: Array
    scale: Any


class Batch(NamedTuple):
    """The results of every row, and the reduced results."""

    rows: Row
    loss: Any
    gradient: Array
    scale: Array


def without(values: Array) -> Array:
    """Return for each entry the sum of all other entries, added from the smallest to the largest."""
    return np.array([np.sort(np.delete(values, k)).sum() for k in range(len(values))], Wide)


def numpy_tanh(u: Array) -> Array:
    return np.tanh(u)


def row(
    z: Array,
    t: Array,
    *,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    temperature: float = 1.0,
    where: Array | None = None,
    tanh: Callable[[Array], Array] = numpy_tanh,
) -> Row:
    """Return the results of a row with target probabilities t. T must be finite and not 0, and scores below +inf."""
    zero = np.zeros(z.shape, Wide)
    T = Wide(temperature)
    support = z / T != -INF
    if where is not None:
        support = support & where
    if not support.any():
        return Row(Wide(INF), Wide(-INF), Wide(0), Wide(z_loss * INF if z_loss else 0), zero, Wide(0))
    s = z[support].astype(np.float64)
    slope = np.ones(s.shape, Wide)
    if softcap is not None:
        u = s / softcap
        s, slope = softcap * tanh(u), 1 / np.cosh(u.astype(Wide)) ** 2
    s = s.astype(Wide)
    top = np.argmax(s * np.sign(T))
    d = (s - s[top]) / T
    e = np.exp(d)
    rest = np.sort(np.delete(e, top)).sum()
    log_p = d - np.log1p(rest)
    p = e / (1 + rest)
    lse = s[top] / T + np.log1p(rest)
    w = np.ones(z.shape, Wide) if weight is None else weight.astype(Wide)
    t = (1 - Wide(label_smoothing)) * t.astype(Wide)
    mass = w[support] * (t[support] + Wide(label_smoothing) / support.sum())
    beyond = (w * t)[~support].sum()
    ours = Wide(z_loss) * lse**2
    loss = (mass * -log_p).sum() + ours + (INF if beyond > 0 else 0)
    up, down = p * (without(mass) + beyond) + 2 * Wide(z_loss) * lse * p, mass * (without(e) / (1 + rest))
    gradient = zero
    gradient[support] = (up - down) / T * slope
    scale = np.maximum(np.abs(up), down) / abs(T) * slope
    return Row(loss, lse, (-p * log_p).sum(), ours, gradient, scale.max())


CACHE: dict[tuple[Any, ...], Row] = {}


def cached_row(*scores: Array, **options: Any) -> Row:
    """Return the results of `row`, cached so that all reductions and implementations share them."""
    named = (*scores, *(x for pair in sorted(options.items()) for x in pair))
    key = tuple((x.dtype.str, x.tobytes()) if isinstance(x, np.ndarray) else x for x in named)
    if key not in CACHE:
        CACHE[key] = row(*scores, **options)
    return CACHE[key]


def batch(
    z: Array,
    target: Array,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    weight: Array | None = None,
    where: Array | None = None,
    temperature: Any = 1.0,
    **options: Any,
) -> Batch:
    """Return the exact results for scores of shape (rows, classes)."""
    soft = target.ndim == z.ndim
    rows, counts = [], []
    each_t = np.broadcast_to(temperature, len(z))
    for i, scores in enumerate(z):
        if not soft and target[i] == ignore_index:
            rows.append(Row(Wide(0), Wide(0), Wide(0), Wide(0), np.zeros(z.shape[1], Wide), Wide(0)))
            counts.append(0.0)
            continue
        t = target[i] if soft else (np.arange(z.shape[1]) == target[i]).astype(float)
        mask = None if where is None else np.broadcast_to(where, z.shape)[i]
        with np.errstate(all="ignore"):
            rows.append(cached_row(scores, t, weight=weight, where=mask, temperature=float(each_t[i]), **options))
        counts.append(1.0 if soft or weight is None else float(weight[target[i]]))
    every = Row(*(np.array(part, Wide) for part in zip(*rows, strict=True)))
    if reduction == "none":
        return Batch(every, every.loss, every.gradient, every.scale)
    total = Wide(sum(counts)) if reduction == "mean" else Wide(1)
    if not total:
        return Batch(every, Wide(0), every.gradient * 0, every.scale * 0)
    return Batch(every, every.loss.sum() / total, every.gradient / total, every.scale / total)


def ulp(found: Any, expected: Any, at: Any = None) -> Array:
    """Return |found - expected| in ulp of found's dtype. Infinities must be equal.

    The ulp is that of the number `at`, or of `expected` if `at` is None.
    """
    found, expected = np.asarray(found), np.asarray(expected, Wide)
    kind = found.dtype.type
    nonfinite = ~np.isfinite(expected.astype(kind))
    with np.errstate(all="ignore"):
        error = np.abs(found.astype(Wide) - expected) / np.spacing(
            np.abs(np.where(nonfinite, 1, expected if at is None else np.broadcast_to(at, expected.shape))).astype(kind)
        )
        same = (found.astype(kind) == expected.astype(kind)) | (np.isnan(found) & np.isnan(expected))
    return np.where(nonfinite, np.where(same, 0.0, INF), error.astype(np.float64))
