"""Helpers of torch modules: options that are numbers or tensors, and checks at construction."""

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


for _tensor in (torch.empty(0), nn.Parameter(torch.empty(0))):
    namespace(_tensor)  # cached now, because torch.compile cannot trace the look-up of a namespace


def keep(module: nn.Module, name: str, value: Any) -> None:
    """Store an option as an attribute of a module.

    A Parameter becomes a learned parameter of the module, and any other tensor becomes a buffer.
    """
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def one_call(forward: F) -> F:
    """Decorate a `forward` that `torch.fx` must not trace.

    A traced graph then contains one call of the module. torch.fx treats the modules of torch.nn in the same way.
    """

    @functools.wraps(forward)
    def called(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        try:
            return forward(self, *arguments, **options)
        except StandInError as error:
            tracer = error.argument.tracer
            return tracer.create_proxy("call_module", tracer.path_of_module(self), arguments, options)

    return called  # type: ignore[return-value]


def check_dim(dim: Any, *, one: bool = False) -> None:
    """Check `dim` at construction.

    The number of axes of the scores is not known yet. The check assumes 64, the most that torch allows.
    """
    try:
        (one_axis if one else axes_of)(dim, 64)
    except (TypeError, ValueError) as error:
        raise type(error)("dim" + str(error).removeprefix("axis")) from None


def one_row(weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """One row of scores and a target, used to check a loss's options at construction."""
    z = torch.zeros(1, 1) if weight is None else weight.new_zeros(1, max(weight.numel(), 1))
    return z, torch.zeros(1, dtype=torch.int64, device=z.device)


def class_axis(z: Tensor) -> int:
    """The axis of the classes by torch's convention: 1, or 0 if there is only one axis."""
    return min(z.ndim - 1, 1)


def known(value: Any, name: str) -> Any:
    """Return the value of an option for the checks of a module's constructor, which has no scores.

    A number, string or None is returned unchanged. For an array, the dtype is checked here, and 1 is returned.
    """
    if not isinstance(value, (Real, str, bytes, type(None))):
        check.scores(value, name)
        return 1.0
    return value


def shown(value: Any) -> str:
    """The text of an option in a module's repr. A tensor is shown by its shape."""
    return f"<{', '.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)
