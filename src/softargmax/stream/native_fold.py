"""Fold the windows of rows with the compiled core, which carries their states from window to window.

`native()` is False under ``using("reference")``. Then whole rows are read and passed to the in-memory function, because
the results must have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import dispatch
from softargmax.core.scale import UNIT

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

Array = np.ndarray[Any, Any]

BLOCK = 4096  # a copy of core.native.BLOCK, which is not imported here; a test checks that both are equal


class State(NamedTuple):
    """The states of rows in the compiled core, as arrays of shape (outer, inner).

    `scaled` is at the scale of the call; `plain` is at beta = 1, and only computed if beta is 0.
    """

    scaled: tuple[Array, Array, Array]
    plain: tuple[Array, Array, Array] | None  # needed since logsumexp at beta = 0 of a single score is the score


def native() -> bool:
    """True if functions of arrays in memory currently use the compiled core."""
    return dispatch.requested_name() != "reference"


def fold(window: Array, scale: Scale, state: State | None) -> State:
    """Fold a window (outer, length, inner) into the state of its rows.

    All windows of a row except the last must have whole blocks.
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
