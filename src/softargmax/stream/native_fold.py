"""Fold an array with the compiled core, one part (a window) after the other.

The states of the rows are carried from window to window.

`native()` is False under ``using("reference")``. Then whole rows are read and passed to the in-memory function, so that
the results have the same bits as in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import dispatch
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

Array = np.ndarray[Any, Any]

# A copy of core.native.BLOCK, because core.native is imported only where it is used. A test compares the two.
BLOCK = 4096


class State(NamedTuple):
    """The states of rows: tuples (m, r, low) of arrays of shape (outer, inner), as defined in core/native.py.

    `scaled` holds the states at the requested beta. `plain` holds the states at beta = 1 if the requested beta is 0,
    and is None otherwise. At beta = 0, logsumexp of a row with exactly one score above -inf is this score, if the score
    is finite. `finish` reads the score from `plain`, where it is the maximum of the row.
    """

    scaled: tuple[Array, Array, Array]
    plain: tuple[Array, Array, Array] | None


def native() -> bool:
    """True if functions of arrays in memory currently use the compiled core."""
    return dispatch.requested_name() != "reference"


def fold(window: Array, scale: Scale, state: State | None) -> State:
    """Fold a window (outer, length, inner) into the state of its rows.

    All windows of a row except the last must consist of whole blocks.
    """
    from softargmax.core import native as core

    scaled = core.fold(window, (1,), scale, None, None if state is None else state.scaled)
    if scale.hi != 0:
        return State(scaled, None)
    return State(scaled, core.fold(window, (1,), UNIT, None, None if state is None else state.plain))


def apply(name: str, window: Array, scale: Scale, state: State, out: Array) -> None:
    """Write softmax or log_softmax (`name`) of a window to `out`, from the final state of its rows."""
    from softargmax.core import native as core

    core.apply(name, window, (1,), scale, None, state.scaled, out)


def finish(state: State, scale: Scale, dtype: np.dtype[Any]) -> Array:
    """Return logsumexp of rows, from their final state."""
    from softargmax.core import native as core

    lse: Array = core.finish(state.scaled, scale, dtype)
    if state.plain is None:
        return lse
    alone = (state.scaled[1] == 0) & np.isfinite(state.plain[0])
    return np.where(alone, state.plain[0], lse).astype(dtype)
