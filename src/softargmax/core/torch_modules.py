"""What torch modules do with an option that is a number or a tensor."""

from __future__ import annotations

import functools
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from softargmax.core import check
from softargmax.core.arrays import StandInError, axes_of, namespace, one_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])


for _some in (torch.empty(0), nn.Parameter(torch.empty(0))):
    namespace(_some)  # a compiler that looks into modules finds the namespace known; to find it is not for graphs


def keep(module: nn.Module, name: str, value: Any) -> None:
    """Hold it under its name: a Parameter is learned, another tensor is a buffer."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def one_call(forward: F) -> F:
    """A `forward` that `torch.fx` does not look into: in its graph the module is called, as those of torch.nn are."""

    @functools.wraps(forward)
    def called(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        try:
            return forward(self, *arguments, **options)
        except StandInError as one:
            tracer = one.argument.tracer
            return tracer.create_proxy("call_module", tracer.path_of_module(self), arguments, options)

    return called  # type: ignore[return-value]


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


def class_axis(z: Tensor) -> int:
    """The axis of the classes, as torch's losses have it."""
    return min(z.ndim - 1, 1)


def known(value: Any, name: str) -> Any:
    """What can be checked of an option before there are scores: a number; of an array the dtype, and 1 in its place."""
    if not isinstance(value, (Real, str, bytes, type(None))):
        check.scores(value, name)
        return 1.0
    return value


def shown(value: Any) -> str:
    """It in a module's repr: of a tensor the shape."""
    return f"<{', '.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)
