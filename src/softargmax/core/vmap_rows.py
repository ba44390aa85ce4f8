"""What the vmap rules of torch and JAX share: calls that are mapped become one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.arrays import mapped
from softargmax.core.record import AXES, LEADING, SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Batched(NamedTuple):
    """All mapped calls as one call. An operation's own rule, `Operation.batch`, returns it."""

    i: Any
    """The arguments of the call."""
    axis: int | None = 0
    """The batch axis of the results. None if the arrays of `i` still have their batch axes: then the general rule maps
    them."""
    split: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    """A function of the results that makes the batch their first axis, if it is not an axis of them yet."""


def batch_first(
    kinds: Sequence[Any], flat: Sequence[Any], dims: Sequence[Any], size: int, places: Sequence[int], seed_axes: int = 0
) -> list[Any]:
    """Return the slots of a record with the batch as the first axis of every array, and with 1 added to all axes.

    `kinds` are the kinds of the slots, `dims` their batch axes, and `places` the slots that have arrays. All arrays
    must broadcast with the first one. A seed has `seed_axes` axes of its own.
    """
    rank = flat[places[0]].ndim - (dims[places[0]] is not None)
    moved = list(flat)
    for place, (kind, x, dim) in enumerate(zip(kinds, flat, dims, strict=True)):
        if place in places:
            front = mapped(x, dim, size)
            missing = rank + 1 + seed_axes * (kind is SEED) - front.ndim
            moved[place] = front.reshape((size, *[1] * missing, *front.shape[1:]))
        elif kind == AXES and isinstance(x, tuple | list):  # the other slot of AXES says how rows are spread
            moved[place] = tuple(axis + 1 for axis in x)
        elif kind is LEADING:
            moved[place] = x + 1
    return moved
