"""Definitions of linear chains in array-API Python: one step of the recurrence per position.

alpha_t(j) = e(t, j) + log sum_i exp(alpha_t-1(i) + T(i, j))        log Z = log sum_j exp(alpha_last(j))
p(y_t = i, y_t+1 = j) = p(y_t+1 = j) exp(alpha_t(i) + T(i, j)) / sum_k exp(alpha_t(k) + T(k, j))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core.arrays import device_of, namespace, working_dtype
from softargmax.core.scale import UNIT
from softargmax.normalize.operations import LogSumExp, Scores, logsumexp, softmax

INF = math.inf


def _wide(*arrays: Any) -> tuple[Any, ...]:
    xp = namespace(arrays[0])
    return tuple(xp.astype(x, working_dtype(x, xp)) for x in arrays)


def plus(a: Any, b: Any, zero: Any = -INF) -> Any:
    """Return the product a + b of the log semiring, and its zero if one of them is the zero."""
    xp = namespace(a)
    outside = (a == zero) | (b == zero)
    return xp.where(outside, zero, xp.where(outside, 0.0, a) + xp.where(outside, 0.0, b))


def _lse(z: Any, axis: int) -> Any:
    """Return the logsumexp along an axis, which is removed."""
    axis %= z.ndim
    found = logsumexp.first(LogSumExp(z, None, None, UNIT, (axis,), z.dtype))
    return namespace(z).squeeze(found, axis=axis)


def _softmax(z: Any, axis: int) -> Any:
    return softmax.first(Scores(z, None, UNIT, (axis,), z.dtype))


def _step(transitions: Any, t: int) -> Any:
    """Return the transitions from position t to t + 1."""
    return transitions[:, 0 if transitions.shape[1] == 1 else t, ...]


def _alphas(e: Any, transitions: Any, lengths: Any) -> list[Any]:
    xp = namespace(e)
    found: list[Any] = []
    for t in range(e.shape[1]):
        to = e[:, t, :]
        if t:
            to = plus(to, _lse(plus(found[-1][:, :, None], _step(transitions, t - 1)), 1))
        found.append(xp.where((t < lengths)[:, None], to, -INF))
    return found


def _log_z(alphas: list[Any], lengths: Any, e: Any) -> Any:
    xp = namespace(e)
    log_z = xp.zeros(e.shape[0], dtype=e.dtype, device=device_of(e))
    for t, alpha in enumerate(alphas):
        log_z = xp.where(lengths == t + 1, _lse(alpha, -1), log_z)
    return log_z


def ends(lengths: Any) -> tuple[Any, Any]:
    """Return the first and the last position of each sequence, and 0 for an empty one."""
    xp = namespace(lengths)
    return xp.zeros_like(lengths), xp.where(lengths > 0, lengths - 1, 0)


def at_position(x: Any, place: Any) -> Any:
    """Return the row of x at one position of each sequence: (N, L, C) to (N, C)."""
    xp, (items, length, tags) = namespace(x), x.shape
    if length == 0:
        return xp.zeros((items, tags), dtype=x.dtype, device=device_of(x))
    index = xp.broadcast_to(place[:, None, None], (items, 1, tags))
    return xp.take_along_axis(x, index, axis=1)[:, 0, :]


def with_ends(e: Any, start: Any, end: Any, lengths: Any) -> Any:
    """Add `start` and `end` to the emissions of the first and of the last position."""
    xp = namespace(e)
    positions = xp.arange(e.shape[1], device=device_of(e))
    for place, scores in zip(ends(lengths), (start, end), strict=True):
        here = (positions == place[:, None]) & (lengths > 0)[:, None]
        moved = plus(at_position(e, place), xp.astype(scores, e.dtype)[None, :])
        e = xp.where(here[..., None], moved[:, None, :], e)
    return e


@np.errstate(all="ignore")
def partition(emissions: Any, transitions: Any, start: Any, end: Any, lengths: Any) -> tuple[Any, Any]:
    """Return log Z and alpha."""
    e, transitions = _wide(emissions, transitions)
    e = with_ends(e, start, end, lengths)
    alphas = _alphas(e, transitions, lengths)
    return _log_z(alphas, lengths, e), namespace(e).stack(alphas, axis=1) if alphas else e


@np.errstate(all="ignore")
def marginals(emissions: Any, transitions: Any, start: Any, end: Any, lengths: Any, g: Any) -> tuple[Any, Any]:
    """Return g times the marginals of tags, and of pairs of tags summed to the shape of the transitions."""
    e, wide_transitions, g = _wide(emissions, transitions, g)
    e = with_ends(e, start, end, lengths)
    xp, length = namespace(e), e.shape[1]
    p = xp.zeros_like(e[:, 0, :]) if length else e
    of_tags: list[Any] = []
    pairs: list[Any] = []
    alphas = _alphas(e, wide_transitions, lengths)
    for t in reversed(range(length)):
        before = xp.zeros_like(p)
        if t + 1 < length:
            shares = _softmax(plus(alphas[t][:, :, None], _step(wide_transitions, t)), 1)
            pairs.insert(0, shares * p[:, None, :])
            before = xp.sum(pairs[0], axis=2)
        p = xp.where((t + 1 == lengths)[:, None], _softmax(alphas[t], 1), before)
        of_tags.insert(0, p)
    to_e = xp.astype(g[:, None, None] * xp.stack(of_tags, axis=1), emissions.dtype) if of_tags else emissions
    empty = xp.zeros((e.shape[0], 0, *transitions.shape[2:]), dtype=e.dtype, device=device_of(e))
    of_steps = g[:, None, None, None] * (xp.stack(pairs, axis=1) if pairs else empty)
    for axis in (0, 1):
        if transitions.shape[axis] == 1:
            of_steps = xp.sum(of_steps, axis=axis, keepdims=True)
    return to_e, xp.astype(of_steps, emissions.dtype)


@np.errstate(all="ignore")
def best_paths(emissions: Any, transitions: Any, start: Any, end: Any, lengths: Any, num_paths: int) -> tuple[Any, Any]:
    """Return the largest scores of paths, and their tags.

    The state has the largest scores of paths to each tag, (N, C, K). Each comes from an entry tag * K + rank.
    """
    e, transitions = _wide(emissions, transitions)
    e, xp = with_ends(e, start, end, lengths), namespace(e)
    (items, length, tags), ranks = e.shape, xp.arange(num_paths, device=device_of(e))
    value = xp.where(ranks == 0, xp.zeros((items, tags, 1), dtype=e.dtype, device=device_of(e)), -INF)
    own = xp.broadcast_to(xp.reshape(xp.arange(tags * num_paths, device=device_of(e)), (tags, num_paths)), value.shape)
    froms: list[Any] = []
    for t in range(length):
        previous, source = value, own
        if t:
            step = _step(transitions, t - 1)
            terms = xp.permute_dims(plus(value[:, :, None, :], step[..., None]), (0, 2, 1, 3))
            previous, source = _largest(xp.reshape(terms, (items, tags, tags * num_paths)), num_paths)
        inside = (t < lengths)[:, None, None]
        value = xp.where(inside, plus(previous, e[:, t, :, None]), value)
        froms.append(xp.where(inside, source, own))
    scores, at = _largest(xp.reshape(value, (items, tags * num_paths)), num_paths)
    best: list[Any] = []
    for t in reversed(range(length)):
        best.insert(0, xp.where((t < lengths)[:, None], at // num_paths, -1))
        at = xp.take_along_axis(xp.reshape(froms[t], (items, tags * num_paths)), at, axis=1)
    scores = xp.where((lengths == 0)[:, None], xp.where(ranks == 0, 0.0, xp.full_like(scores, -INF)), scores)
    none = (scores == -INF) | xp.isnan(scores)
    empty = xp.zeros((items, num_paths, 0), dtype=lengths.dtype, device=device_of(e))
    return scores, xp.where(none[..., None], -1, xp.stack(best, axis=2) if best else empty)


def _largest(z: Any, count: int) -> tuple[Any, Any]:
    """Return the largest scores of the last axis, from the largest, and their places: of equal ones, the first.

    If a score is NaN, all results are.
    """
    xp = namespace(z)
    nan = xp.any(xp.isnan(z), axis=-1, keepdims=True)
    order = xp.argsort(xp.where(nan, 0.0, z), axis=-1, descending=True, stable=True)[..., :count]
    return xp.where(nan, math.nan, xp.take_along_axis(z, order, axis=-1)), order
