"""Functions of layers whose parameters may be DTensors: the classes are then spread over processes."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

from softargmax.core.arrays import is_dtensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    F = TypeVar("F", bound="Callable[..., Any]")


def spreadable(function: F) -> F:
    """Decorate a function. With a DTensor, the function of the same name in the room `parallel` is called.

    It gets the function as its first argument.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if any(map(is_dtensor, arguments)):
            spread = importlib.import_module("softargmax.parallel.torch_layers")
            return getattr(spread, function.__name__)(function, *arguments, **options)
        return function(*arguments, **options)

    return cast("F", called)


@spreadable
def telling(weight: Tensor) -> AbstractContextManager[None]:
    """A block whose errors are raised in all processes that have a part of the weight."""
    return nullcontext()


def full(x: Any) -> Any:
    """x, or all of a DTensor, in every process."""
    return x.full_tensor() if is_dtensor(x) else x
