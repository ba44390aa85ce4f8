"""The native left fold that carries a row's state across windows, and what stands in for it where there is none.

`native()` says whether the compiled core serves arrays in memory now. Where it does not (``using("reference")``), rows
are not carried: they are read whole, and the in-memory function keeps the promise of equal bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import dispatch
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

Array = np.ndarray[Any, Any]

BLOCK = 4096


class State(NamedTuple):
    """(m, r) of rows, arrays of shape (outer, inner); m is the largest score, negated where beta < 0."""

    m: Array
    r: Array
    largest: Array | None  # at beta = 0, where m has forgotten it: a row of one score is that score


def native() -> bool:
    """Say whether the compiled core serves arrays in memory now."""
    serving = dispatch.implementation("normalize", np.empty(0))
    return bool(serving.__name__.endswith(".native"))


def fold(window: Array, scale: Scale, state: State | None) -> State:
    """Fold a window (outer, length, inner) into its rows' state; all but the last have whole blocks of elements."""
    from softargmax.core import native as core

    m, r = core.fold(window, (1,), scale, None, None if state is None else state[:2])
    largest = None
    if scale.hi == 0:
        before = None if state is None or state.largest is None else (state.largest, np.zeros_like(state.largest))
        largest, _ = core.fold(window, (1,), UNIT, None, before)
    return State(m, r, largest)


def apply(name: str, window: Array, scale: Scale, state: State, out: Array) -> None:
    """Write "softmax" or "log_softmax" of a window, given the finished state of its rows."""
    from softargmax.core import native as core

    core.apply(name, window, (1,), scale, None, state[:2], out)


def finish(state: State, scale: Scale, dtype: np.dtype[Any]) -> Array:
    """Give logsumexp of rows, m + log(l) / beta, given their finished state.

    The in-memory kernel's own log(l) comes from it as -log p of the largest score.
    """
    m, r, largest = state
    with np.errstate(all="ignore"):
        if largest is not None:
            lse = np.where(np.isinf(m), m + 0 * r, np.where(r == 0, largest, r * np.inf))
        else:
            sign = -1.0 if scale.hi < 0 else 1.0
            top = np.where(np.isinf(m), 0.0, sign * m)[:, None, :]
            log_p = np.empty_like(top)
            apply("log_softmax", top, scale, state, log_p)
            log_l = -log_p[:, 0, :]
            more = log_l / (sign * scale.hi) * (1.0 - scale.lo / scale.hi)
            lse = sign * np.where(np.isinf(m), m + 0 * r, np.where(log_l == 0, m, m + more))
        return lse.astype(dtype)
