"""The three vmap rules of JAX primitives: one call with more rows, the operation's rule, or one call after the other.

torch_vmap.py explains the rules.
"""

from __future__ import annotations

from typing import Any

import jax

from softargmax.core.arrays import mapped
from softargmax.core.jax_rules import replaced
from softargmax.core.record import AXES
from softargmax.core.vmap_rows import batch_first


def rule_of(of: Any) -> Any:
    """Return the rule of an operation: a function (operation, flat record, batch axis of each slot, size)."""
    if of.operation.batch is not None:
        return by_batch
    return along_rows if AXES in [leaf.kind for leaf in of.operation.leaves] else by_calls


def along_rows(of: Any, flat: list[Any], dims: list[Any], size: int) -> tuple[Any, Any]:
    """Make the batch the first axis of every array. A seed has two words, along an axis of their own."""
    return of.bind(batch_first(of.kinds, flat, dims, size, of.arrays_of(flat), seed_axes=1)), 0


def by_batch(of: Any, flat: list[Any], dims: list[Any], size: int) -> tuple[Any, Any]:
    """Apply the operation's own rule, `batch`."""
    i, axis = of.operation.batch(of.unflatten(*flat), of.unflatten(*dims), size)
    return along_rows(of, of.flatten(i), dims, size) if axis is None else (of.bind(of.flatten(i)), axis)


def by_calls(of: Any, flat: list[Any], dims: list[Any], size: int) -> tuple[Any, Any]:
    """Run the calls one after the other, for operations that have no axes and no rule of their own.

    So the scores of a last layer are not stored. With several devices, the definition is mapped instead: XLA can split
    it among them, but not a loop.
    """
    if jax.device_count() > 1:
        return by_definition(of, flat, dims, size)
    places = [place for place in of.arrays_of(flat) if dims[place] is not None]

    def call(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(of.bind(replaced(flat, places, arrays)))

    return jax.lax.map(call, tuple(mapped(flat[place], dims[place], size) for place in places)), 0


def by_definition(of: Any, flat: list[Any], dims: list[Any], _size: int) -> tuple[Any, Any]:
    """Map the definition."""
    places = of.arrays_of(flat)

    def definition(*arrays: Any) -> Any:
        found = of.operation.define(of.unflatten(*replaced(flat, places, arrays)))
        return tuple(found) if len(of.fields) > 1 else (found,)

    return jax.vmap(definition, [dims[place] for place in places])(*(flat[place] for place in places)), 0
