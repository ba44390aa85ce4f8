"""The three vmap rules of torch operators: one call with more rows, the operation's rule, or vmap of its definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core.vmap_rows import batch_first


def along_rows(of: Any, info: Any, dims: Any, *flat: Any) -> Any:
    """Make the batch the first axis of every tensor."""
    places = [place for place, x in enumerate(flat) if isinstance(x, Tensor)]
    found = of.run(of.unflatten(*batch_first(of.slots.kinds, flat, dims, info.batch_size, places)))
    return found, _places(of, found, 0)


def by_batch(of: Any, info: Any, dims: Any, *flat: Any) -> Any:
    """Apply the operation's own rule, `batch`.

    The rule receives the record of the arguments, and a record that contains the batch axis of each argument. It
    returns a new record, and an integer, a function or None. An integer means that the batch is now an axis like any
    other. The new record is then run, and the integer is the batch axis of the results. A function takes a list of the
    results, and returns them with the batch as their first axis. None means that the arrays of the new record still
    have their batch axes. `along_rows` then maps the new record. If the rule returns None alone, because it does not
    apply to these arrays, the definition is mapped.
    """
    batch: Any = of.operation.batch
    places = [dim if isinstance(x, Tensor) else None for x, dim in zip(flat, dims, strict=True)]
    applied = batch(of.unflatten(*flat), of.unflatten(*places), info.batch_size)
    if applied is None:
        return by_definition(of, info, dims, *flat)
    i, axis = applied
    if axis is None:
        return along_rows(of, info, dims, *of.flatten(i))
    found = of.run(i)
    if callable(axis):
        found, axis = axis(found) if of.many else axis([found])[0], 0
    return found, _places(of, found, axis)


def by_definition(of: Any, _info: Any, dims: Any, *flat: Any) -> Any:
    """Map the definition, for operations that have no axes and no rule of their own."""
    found = torch.func.vmap(lambda *x: of.operation.define(of.unflatten(*x)), dims)(*flat)
    return (tuple(found), (0,) * len(found)) if of.many else (found, 0)


def _places(of: Any, found: Any, axis: int) -> Any:
    """The batch axis of each result. Gradients that are not wanted have the shape (0,), and none."""
    return tuple(None if x.shape == (0,) else axis for x in found) if of.many else axis
