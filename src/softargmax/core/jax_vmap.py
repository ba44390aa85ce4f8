"""The vmap rules of JAX primitives: one call with more rows, the operation's rule, or one call after the other.

torch_vmap.py explains the first two. Operations that have neither axes nor a rule run one call after the other where
kernels serve them, so that the scores of a last layer are not stored. Elsewhere their definition is mapped.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp

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
    """Apply the operation's own rule, `batch`. If there is none for these arrays, run the calls one after the other."""
    batched = of.operation.batch(of.unflatten(*flat), of.unflatten(*dims), size)
    if batched is None:
        return by_calls(of, flat, dims, size)
    if batched.axis is None:
        return along_rows(of, of.flatten(batched.i), dims, size)
    results = of.bind(of.flatten(batched.i))
    return results if batched.split is None else batched.split(results), batched.axis


def by_calls(of: Any, flat: list[Any], dims: list[Any], size: int) -> tuple[Any, Any]:
    """Run the calls one after the other on one CPU. XLA can split the definition among devices, but not a loop."""
    if jax.device_count() > 1 or jax.default_backend() != "cpu":
        return by_definition(of, flat, dims, size)
    places = [place for place in of.arrays_of(flat) if dims[place] is not None]
    arrays = tuple(mapped(flat[place], dims[place], size) for place in places)

    def call(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(of.bind(replaced(flat, places, arrays)))

    if size and not any(isinstance(flat[place], jax.core.Tracer) for place in of.arrays_of(flat)):
        # JAX would compile a loop again at each eager call.
        found = [call(tuple(x[k] for x in arrays)) for k in range(size)]
        return [jnp.stack(each) for each in zip(*found, strict=True)], 0
    return jax.lax.map(call, arrays), 0


def by_definition(of: Any, flat: list[Any], dims: list[Any], _size: int) -> tuple[Any, Any]:
    """Map the definition."""
    of.refuse_native()
    places = of.arrays_of(flat)

    def definition(*arrays: Any) -> Any:
        found = of.operation.define(of.unflatten(*replaced(flat, places, arrays)))
        return tuple(found) if len(of.fields) > 1 else (found,)

    return jax.vmap(definition, [dims[place] for place in places])(*(flat[place] for place in places)), 0
