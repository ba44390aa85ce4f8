"""Whether the memory of tensors may be read now, and what backward functions without an operation record need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.dispatch import requested_name
from softargmax.core.record import generated
from softargmax.core.torch_private import AS_IT_IS, READY, READY_NAMES, STILL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensors = tuple[Any, ...]  # in the place of a tensor there may be a number or None

_still = generated("", [f"return {STILL}"], **READY_NAMES)
_as_it_is = generated("_x", [f"return {AS_IT_IS.format('_x')}"], **READY_NAMES)
ready = generated("_x", [f"return {READY.format('_x')}"], **READY_NAMES)
"""Whether a kernel may read this tensor as it is, with no derivative to record."""


def direct(tensor: Tensor) -> bool:
    """Whether the memory of a tensor may be read now: `ready`, and nobody else sees what is computed with it."""
    return bool(ready(tensor) and _still()) and not torch.compiler.is_compiling()


def as_they_are(*tensors: Tensor | None) -> bool:
    """Whether kernels may read these tensors, and nobody but autograd's graph sees what is computed with them."""
    if torch.compiler.is_compiling() or requested_name() == "reference":
        return False
    return _still() and all(_as_it_is(x) for x in tensors if x is not None)


def by_definition(
    f: Callable[..., Tensor], inputs: Tensors, wanted: Sequence[bool], g: Tensor, *, again: bool
) -> list[Tensor | None]:
    """The gradients of <g, f(inputs)> to what is wanted, for a backward; with `again` they can be differentiated.

    They are taken at aliases: at the inputs themselves, their hooks would run here and once more outside, and of an
    input that is made from another one (tied weights) that one's part would be counted twice.
    """
    with torch.enable_grad():
        aliases = [x.view_as(x) if needed else x for x, needed in zip(inputs, wanted, strict=True)]
        value = f(*aliases)
    asked = [x for x, needed in zip(aliases, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(value, asked, g, create_graph=again))
    return [next(found) if needed else None for needed in wanted]
