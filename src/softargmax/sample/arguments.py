"""Arguments that every operation record of this room has."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Beta, Rowwise


class Filters(NamedTuple):
    """Each a float, an array that broadcasts with the rows (the classes' axis kept as 1), or None: no such filter.

    An array of integers stays one: float32, where it is the widest there is, would round those above 2^24.
    """

    top_k: Rowwise | None = None
    top_p: Rowwise | None = None
    min_p: Rowwise | None = None
    typical_p: Rowwise | None = None
    epsilon: Rowwise | None = None
    eta: Rowwise | None = None


class Distribution(NamedTuple):
    """The distribution to draw from; with `joint` each filter sees the whole row, not what the previous one kept."""

    beta: Beta
    where: Array | None = None
    filters: Filters = Filters()
    joint: bool = False
