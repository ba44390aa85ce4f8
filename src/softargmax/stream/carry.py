"""The native left fold that carries a row's state across windows, and what stands in for it where there is none.

`native()` says whether the compiled core serves arrays in memory now. Where it does not (``using("reference")``), rows
are not carried: they are read whole, and the in-memory function keeps the promise of equal bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import dispatch

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

    Array = np.ndarray[Any, Any]

BLOCK = 4096
State = tuple[Any, Any]
"""(m, r) of rows, arrays of shape (outer, inner)."""


def native() -> bool:
    """Say whether the compiled core serves arrays in memory now."""
    serving = dispatch.implementation("normalize", np.empty(0))
    return bool(serving.__name__.endswith(".native"))


def fold(window: Array, scale: Scale, state: State | None) -> State:
    """Fold a window (outer, length, inner) into its rows' state; all but the last have whole blocks of elements."""
    from softargmax.core import native as core

    folded: State = core.fold(window, (1,), scale, None, state)
    return folded


def apply(name: str, window: Array, scale: Scale, state: State, out: Array) -> None:
    """Write "softmax" or "log_softmax" of a window, given the finished state of its rows."""
    from softargmax.core import native as core

    core.apply(name, window, (1,), scale, None, state, out)


def finish(state: State, scale: Scale, dtype: np.dtype[Any]) -> Array:
    """Give logsumexp of rows, given their finished state."""
    raise NotImplementedError
