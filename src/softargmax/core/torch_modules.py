"""What torch modules do with an option that is a number or a tensor."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from softargmax.core import check
from softargmax.core.arrays import axes_of, one_axis


def keep(module: nn.Module, name: str, value: Any) -> None:
    """Hold it under its name: a Parameter is learned, another tensor is a buffer."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def check_dim(dim: Any, *, one: bool = False) -> None:
    """What can be said of axes before there are scores: torch has no more than 64."""
    try:
        (one_axis if one else axes_of)(dim, 64)
    except (TypeError, ValueError) as error:
        raise type(error)("dim" + str(error).removeprefix("axis")) from None


def one_row(weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores and a target, to try a loss's options on before there are any."""
    z = torch.zeros(1, 1) if weight is None else weight.new_zeros(1, max(weight.numel(), 1))
    return z, torch.zeros(1, dtype=torch.int64, device=z.device)


def known(value: Any, name: str) -> Any:
    """What can be checked of an option before there are scores: a number; of an array the dtype, and 1 in its place."""
    if not isinstance(value, (Real, str, bytes, type(None))):
        check.scores(value, name)
        return 1.0
    return value


def shown(value: Any) -> str:
    """It in a module's repr: of a tensor the shape."""
    return f"<{', '.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)
