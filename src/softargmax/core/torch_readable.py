"""Find out whether kernels may read a tensor's memory now."""

from __future__ import annotations

import torch
from torch import Tensor

from softargmax.core.dispatch import requested_name
from softargmax.core.record import generated
from softargmax.core.torch_private import EAGER, PLAIN_TENSOR, READY, READY_NAMES

_eager = generated("", [f"return {EAGER}"], **READY_NAMES)
_plain_tensor = generated("_x", [f"return {PLAIN_TENSOR.format('_x')}"], **READY_NAMES)
ready = generated("_x", [f"return {READY.format('_x')}"], **READY_NAMES)
"""True if a kernel may read the tensor's memory and there is no derivative to record."""


def eager(tensor: Tensor) -> bool:
    """True if the tensor is `ready`, and no transform, mode or compiler is active."""
    return bool(ready(tensor) and _eager()) and not torch.compiler.is_compiling()


def direct(tensor: Tensor) -> bool:
    """True if the tensor is `eager` and in CPU memory."""
    return tensor.is_cpu and eager(tensor)


def as_they_are(*tensors: Tensor | None) -> bool:
    """True if CPU kernels may run on the tensors: no compiler, transform or mode is active.

    Autograd may be active. The result is False if the implementation "reference" is requested.
    """
    if torch.compiler.is_compiling() or requested_name() == "reference":
        return False
    return _eager() and all(x.is_cpu and _plain_tensor(x) for x in tensors if x is not None)
