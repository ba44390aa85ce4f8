"""Find out whether kernels may read a tensor's memory now. Compute gradients of definitions in a custom backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.dispatch import requested_name
from softargmax.core.record import generated
from softargmax.core.torch_private import EAGER, PLAIN_TENSOR, READY, READY_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensors = tuple[Any, ...]  # an element may also be a number or None

_eager = generated("", [f"return {EAGER}"], **READY_NAMES)
_plain_tensor = generated("_x", [f"return {PLAIN_TENSOR.format('_x')}"], **READY_NAMES)
ready = generated("_x", [f"return {READY.format('_x')}"], **READY_NAMES)
"""True if a kernel may read the tensor's memory and there is no derivative to record."""


def direct(tensor: Tensor) -> bool:
    """True if a kernel may read the tensor's memory: `ready`, and no transform, mode or compiler is active."""
    return bool(ready(tensor) and _eager()) and not torch.compiler.is_compiling()


def as_they_are(*tensors: Tensor | None) -> bool:
    """True if kernels may run on the tensors: no compiler, transform or mode is active, nor "reference" requested.

    Autograd may be active.
    """
    if torch.compiler.is_compiling() or requested_name() == "reference":
        return False
    return _eager() and all(_plain_tensor(x) for x in tensors if x is not None)


def by_definition(
    f: Callable[..., Tensor], inputs: Tensors, wanted: Sequence[bool], g: Tensor, *, again: bool
) -> list[Tensor | None]:
    """The gradients of <g, f(inputs)> with respect to the wanted inputs, for use inside a backward.

    With `again`, the gradients can be differentiated.

    They are computed with respect to aliases of the inputs. Gradients with respect to the inputs themselves would run
    the inputs' hooks twice. They would also count a part of the gradient twice if one input is computed from another
    (tied weights).
    """
    with torch.enable_grad():
        aliases = [x.view_as(x) if needed else x for x, needed in zip(inputs, wanted, strict=True)]
        value = f(*aliases)
    requested = [x for x, needed in zip(aliases, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(value, requested, g, create_graph=again))
    return [next(found) if needed else None for needed in wanted]
