"""Default derivative rules of operations: the vjp of the definition, and the jvp as the transpose of the vjp.

The argument `of` is the operation's TorchOperation.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from softargmax.core.torch_private import unwrap_dead_wrappers

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.core.record import Gradients, Tangents, Wanted


def defined_vjp(of: Any, i: Any, _r: Any, g: Any, wanted: Wanted) -> Gradients:
    """The gradients of <g, definition>. They can be differentiated again."""
    operation, flat = of.operation, unwrap_dead_wrappers(of.flatten(i))
    slots = [slot for name, slot in of.slots.gradients if name in wanted]
    names = [name for name, _ in of.slots.gradients if name in wanted]
    varying = [field not in operation.constant for field in operation.fields]

    def definition(*values: Tensor) -> tuple[Tensor, ...]:
        full = list(flat)
        for slot, value in zip(slots, values, strict=True):
            full[slot] = value
        found = operation.define(of.unflatten(*full))
        return tuple(itertools.compress(found if of.many else (found,), varying))

    # A pullback of torch.func.vjp may call this rule after the transform level of that vjp has ended. Tensors may
    # then still have wrappers of the ended level. `unwrap_dead_wrappers` removes them.
    found, pullback = torch.func.vjp(definition, *(flat[slot] for slot in slots))  # type: ignore[misc]
    incoming = unwrap_dead_wrappers(tuple(itertools.compress(g, varying)))
    full = tuple(
        torch.zeros_like(x) if one is None else one.to(x.dtype) for x, one in zip(found, incoming, strict=True)
    )
    return dict(zip(names, pullback(full), strict=True))


def transposed(of: Any, i: Any, r: Any, t: Tangents) -> Any:
    """The tangents of the results: the transpose of the vjp, which is linear in the incoming gradient.

    `torch.func.jvp` is not used, because it cannot be called inside a jvp.
    """
    operation, names = of.operation, list(t)
    fields = [field for field in operation.fields if field not in operation.constant]
    inputs = {name: of.flatten(i)[slot] for name, slot in of.slots.gradients if name in t}
    first = inputs[names[0]]

    def gradients(*g: Tensor) -> tuple[Tensor, ...]:
        full = type(r)(**{**dict.fromkeys(operation.fields), **dict(zip(fields, g, strict=True))})
        found = of.vjp(i, r, full, frozenset(names))
        return tuple(of.fitted(found[name], inputs[name].shape, inputs[name].dtype) for name in names)

    likes = [getattr(r, field) for field in fields]
    start = (torch.zeros(like.shape, dtype=like.dtype, device=first.device) for like in likes)
    _, transpose = torch.func.vjp(gradients, *start)  # type: ignore[misc]
    tangents = transpose(tuple(t[name].to(inputs[name].dtype) for name in names))
    return type(r)(**{**dict.fromkeys(operation.fields), **dict(zip(fields, tangents, strict=True))})
