"""What torch modules do with an option that is a number or a tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def keep(module: nn.Module, name: str, value: Any) -> None:
    """Hold it under its name: a Parameter is learned, another tensor is a buffer."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def shown(value: Any) -> str:
    """It in a module's repr: of a tensor the shape."""
    return f"<{', '.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)
