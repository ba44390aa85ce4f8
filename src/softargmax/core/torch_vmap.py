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
    """Apply the operation's own rule, `batch`. If there is none for these tensors, map the definition."""
    places = [dim if isinstance(x, Tensor) else None for x, dim in zip(flat, dims, strict=True)]
    batched = of.operation.batch(of.unflatten(*flat), of.unflatten(*places), info.batch_size)
    if batched is None:
        return by_definition(of, info, dims, *flat)
    if batched.axis is None:
        return along_rows(of, info, dims, *of.flatten(batched.i))
    found = of.run(batched.i)
    if batched.split is not None:
        found = batched.split(found) if of.many else batched.split([found])[0]
    return found, _places(of, found, batched.axis)


def by_definition(of: Any, _info: Any, dims: Any, *flat: Any) -> Any:
    """Map the definition, for operations that have no axes and no rule of their own."""
    found = torch.func.vmap(lambda *x: of.operation.define(of.unflatten(*x)), dims)(*flat)
    return (tuple(found), (0,) * len(found)) if of.many else (found, 0)


def _places(of: Any, found: Any, axis: int) -> Any:
    """The batch axis of each result. Gradients that are not wanted have the shape (0,), and none."""
    return tuple(None if x.shape == (0,) else axis for x in found) if of.many else axis
