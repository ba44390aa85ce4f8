"""Functions of layers whose parameters may be DTensors: the classes are then spread over processes."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from softargmax.core.arrays import is_dtensor
from softargmax.core.torch_compile import compile_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    F = TypeVar("F", bound="Callable[..., Any]")


def spreadable(function: F) -> F:
    """Decorate a function. With a DTensor, the function of the same name in the room `parallel` is called.

    It gets the function as its first argument.
    """

    def spread(*arguments: Any, **options: Any) -> Any:
        return getattr(_layers(), function.__name__)(function, *arguments, **options)

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        return (spread if any(map(is_dtensor, arguments)) else function)(*arguments, **options)

    compile_function(spread)
    return cast("F", called)


def _layers() -> Any:
    return importlib.import_module("softargmax.parallel.torch_layers")


def telling(weight: Tensor) -> AbstractContextManager[None]:
    """A block whose errors are raised in all processes that have a part of the weight.

    While one of them compiles, the others may not listen.
    """
    if not is_dtensor(weight) or torch.compiler.is_compiling():
        return nullcontext()
    return cast("AbstractContextManager[None]", _layers().telling(weight))


def alike(weight: Tensor, function: str, **named: Any) -> None:
    """Compare tensors and numbers in all processes that have a part of the weight. If they differ, all raise an error.

    They decide what the processes exchange next.
    """
    if is_dtensor(weight) and not torch.compiler.is_compiling():
        _layers().alike(weight, function, named)


def full(x: Any) -> Any:
    """x, or all of a DTensor, in every process."""
    return x.full_tensor() if is_dtensor(x) else x
