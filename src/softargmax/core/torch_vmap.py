"""The three vmap rules of torch operators: one call with more rows, the operation's rule, or vmap of its definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core.record import AXES, LEADING


def along_rows(of: Any, info: Any, dims: Any, *flat: Any) -> Any:
    """Make the batch the first axis of every tensor, and add 1 to the operation's axes.

    All tensors must broadcast with the first one.
    """
    place = of.slots.slots.index(of.slots.arrays[0])
    rank = flat[place].ndim - (dims[place] is not None)
    axes = {leaf.name for leaf in of.operation.leaves if leaf.kind == AXES}
    leading = {leaf.name for leaf in of.operation.leaves if leaf.kind is LEADING}
    mapped: list[Any] = []
    for name, x, dim in zip(of.slots.names, flat, dims, strict=True):
        if isinstance(x, Tensor):
            front = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            front = front[(slice(None),) + (None,) * (rank + 1 - front.ndim)]
            mapped.append(front.expand(info.batch_size, *front.shape[1:]))
        else:
            mapped.append([axis + 1 for axis in x] if name in axes else x + 1 if name in leading else x)
    found = of.run(of.unflatten(*mapped))
    return found, (0,) * len(found) if of.many else 0


def by_batch(of: Any, info: Any, dims: Any, *flat: Any) -> Any:
    """Apply the operation's own rule, `batch`.

    The rule receives the record of the arguments, and a record that contains the batch axis of each argument. It
    returns a new record, and an integer or None. An integer means that the batch is now an axis like any other. The new
    record is then run, and the integer is the batch axis of the results. None means that the arrays of the new record
    still have their batch axes. `along_rows` then maps the new record.
    """
    batch: Any = of.operation.batch
    places = [dim if isinstance(x, Tensor) else None for x, dim in zip(flat, dims, strict=True)]
    i, axis = batch(of.unflatten(*flat), of.unflatten(*places), info.batch_size)
    if axis is None:
        return along_rows(of, info, dims, *of.flatten(i))
    found = of.run(i)
    return found, tuple(None if x.shape == (0,) else axis for x in found) if of.many else axis


def by_definition(of: Any, _info: Any, dims: Any, *flat: Any) -> Any:
    """Map the definition, for operations that have no axes and no rule of their own."""
    found = torch.func.vmap(lambda *x: of.operation.define(of.unflatten(*x)), dims)(*flat)
    return (tuple(found), (0,) * len(found)) if of.many else (found, 0)
