"""Arguments that the operations of sampling share."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.record import Array, Beta, Rowwise


class Filters(NamedTuple):
    """The parameters of the filters: floats, arrays that broadcast with the rows, or None (the filter is off).

    The class axis of an array has size 1. Arrays of integers are not converted to floats: in a library without float64,
    integers above 2^24 would be rounded.
    """

    top_k: Rowwise | None = None
    top_p: Rowwise | None = None
    min_p: Rowwise | None = None
    typical_p: Rowwise | None = None
    epsilon: Rowwise | None = None
    eta: Rowwise | None = None


class Distribution(NamedTuple):
    """The distribution to draw from.

    If `joint` is True, each filter sees the whole row, otherwise only the classes that the previous filters kept.
    """

    beta: Beta
    where: Array | None = None
    filters: Filters = Filters()
    joint: bool = False
