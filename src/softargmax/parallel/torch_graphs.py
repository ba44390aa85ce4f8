"""Calls in the graphs of torch.compile: each is one operator, which makes the call when the graph runs.

While a process compiles, it knows its own part only, so nothing is exchanged then. The operator compares arguments and
exchanges scores as the call does without a compiler, and has the same bits. For torch it has an effect: no pass of a
compiler removes, repeats or reorders it. So all processes make their calls in the order of the program.

The operator keeps nothing for the backward pass but its arguments. There, a second operator makes the call again, and
differentiates it. A last layer's loss that is one number comes with its gradients, as without a compiler.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from softargmax.core import _native
from softargmax.core.torch_compile import compile_constant, compile_function
from softargmax.core.torch_operation import LIBRARY
from softargmax.core.torch_private import in_order, recording
from softargmax.parallel.torch_agreement import compiled, process_group
from softargmax.parallel.torch_spread import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

F = TypeVar("F", bound="Callable[..., Any]")


class _Call(NamedTuple):
    """A function that may be called in a graph."""

    function: Callable[..., Any]
    whole: Callable[..., Any]
    """The function of whole rows. For this process's part, its results have the shapes of the function's results."""
    shaping: tuple[str, ...] | None
    """The options that `whole` needs to compute shapes. None: all that it has."""
    results: Callable[..., Any] | None
    """The named tuple of the results, or None for one result."""
    differentiable: bool
    together: bool
    """True if the kernel of a loss that is one number computes its gradients along with it."""


_CALLS: dict[str, _Call] = {}


def in_graphs(
    whole: Callable[..., Any],
    *,
    shaping: tuple[str, ...] | None = None,
    results: Callable[..., Any] | None = None,
    differentiable: bool = True,
    together: bool = False,
) -> Callable[[F], F]:
    """Decorate a function for rows that are spread over processes: in a graph of torch.compile, it is one operator.

    The parameters are those of `_Call`.
    """

    def decorate(function: F) -> F:
        name = function.__name__
        _CALLS[name] = _Call(function, whole, shaping, results, differentiable, together)

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if not _native.still() and any(map(is_fake, _tensors(arguments, options))):
                return _traced(name, arguments, options)
            return function(*arguments, **options)

        compile_function(called, _with_name_of_group)
        return cast("F", called)

    return decorate


def _tensors(arguments: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Tensor]:
    return (x for x in (*arguments, *options.values()) if isinstance(x, Tensor))


# --- while a graph is made --------------------------------------------------------------------------------------------


def _with_name_of_group(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the name of the group in its place: a graph can store it. The compiler traces this function."""
    group = options.get("group")
    return options if group is None else {**options, "group": _name_of_group(group)}


def _name_of_group(group: Any) -> str:
    return process_group(getattr(group, "real_obj", group)).group_name  # the compiler may pass an object in its place


compile_constant(_name_of_group)


def _traced(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Put a call into the graph that is being made."""
    refuse(name, (*arguments, *options.values()))
    arrays: list[Tensor] = []
    options = {**options, "group": process_group(options.get("group")).group_name}
    packed = [name, _packed(arguments, arrays), {option: _packed(x, arrays) for option, x in options.items()}]
    if not _CALLS[name].differentiable:
        arrays = [x.detach() for x in arrays]
    found = _Recorded.apply(json.dumps(packed), *arrays)  # type: ignore[no-untyped-call]
    results = _CALLS[name].results
    return found[0] if results is None else results(*found)


def _packed(x: Any, arrays: list[Tensor]) -> Any:
    """An argument as JSON has it. Arrays are added to `arrays`, and their places stand for them."""
    if isinstance(x, Tensor):
        arrays.append(x)
        return {"array": len(arrays) - 1}
    if isinstance(x, torch.dtype):
        return {"dtype": str(x).removeprefix("torch.")}
    if isinstance(x, tuple | list):
        return [_packed(one, arrays) for one in x]
    if isinstance(x, torch.SymInt | torch.SymFloat):
        return int(x) if isinstance(x, torch.SymInt) else float(x)
    if isinstance(x, bool | int | float | str | None):
        return x
    raise TypeError(f"expected tensors, numbers and text in a compiled graph, got {type(x).__name__}")


def _unpacked(x: Any, arrays: Sequence[Tensor]) -> Any:
    if isinstance(x, list):
        return tuple(_unpacked(one, arrays) for one in x)
    if isinstance(x, dict):
        return arrays[x["array"]] if "array" in x else getattr(torch, x["dtype"])
    return x


def _with_arrays(call: str, arrays: Sequence[Tensor]) -> tuple[_Call, tuple[Any, ...], dict[str, Any]]:
    """The function, arguments and options of a call."""
    name, arguments, options = json.loads(call)
    return _CALLS[name], _unpacked(arguments, arrays), {key: _unpacked(x, arrays) for key, x in options.items()}


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: str, *arrays: Tensor) -> Any:
        ctx.call, ctx.trained = call, list(ctx.needs_input_grad[1:])
        results, gradients = torch.ops.softargmax.over_processes(call, arrays, ctx.trained)
        ctx.together = bool(gradients)
        ctx.save_for_backward(*(gradients or arrays))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        saved = ctx.saved_tensors
        found: Iterable[Tensor] = (
            (x * g[0] for x in saved)
            if ctx.together
            else torch.ops.softargmax.over_processes_vjp(ctx.call, saved, ctx.trained, g)
        )
        each = iter(found)
        return None, *(next(each) if one else None for one in ctx.trained)


# --- the operators ----------------------------------------------------------------------------------------------------


def _over_processes(call: str, arrays: list[Tensor], trained: list[bool]) -> tuple[list[Tensor], list[Tensor]]:
    """Make a call. Return its results, and the gradients of the trained arrays if the kernel computes them as well."""
    results, leaves = _made(call, arrays, trained)
    gradients: Sequence[Tensor] = []
    if _together(call, results, arrays, trained):
        gradients = _gradients(results, leaves, [torch.ones_like(results[0])])
    own = _owned([*results, *gradients], arrays)
    return own[: len(results)], own[len(results) :]


def _over_processes_vjp(call: str, arrays: list[Tensor], trained: list[bool], g: list[Tensor]) -> list[Tensor]:
    """Make a call again, and return the gradients of the trained arrays."""
    results, leaves = _made(call, arrays, trained)
    return _owned(_gradients(results, leaves, g), [*arrays, *g])


def _made(call: str, arrays: Sequence[Tensor], trained: Sequence[bool]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    leaves = [x.detach().requires_grad_(one) for x, one in zip(arrays, trained, strict=True)]
    of, arguments, options = _with_arrays(call, leaves)
    with recording(), compiled():
        return _all(of.function(*arguments, **options)), leaves


def _all(found: Any) -> tuple[Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


def _together(call: str, results: Sequence[Tensor], arrays: Sequence[Tensor], trained: Sequence[bool]) -> bool:
    """True if a call returns gradients as well. In half precision, they would be rounded before they are scaled."""
    wide = all(x.dtype.itemsize > 2 for x, one in zip(arrays, trained, strict=True) if one)
    return any(trained) and wide and results[0].ndim == 0 and _with_arrays(call, arrays)[0].together


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor], g: Sequence[Tensor]) -> Sequence[Tensor]:
    wanted = [x for x in leaves if x.requires_grad]
    of = [(x, of_x) for x, of_x in zip(results, g, strict=True) if x.requires_grad]
    if not of:
        return [torch.zeros_like(x) for x in wanted]
    outputs, incoming = zip(*of, strict=True)
    return torch.autograd.grad(outputs, wanted, incoming, allow_unused=True, materialize_grads=True)


def _owned(results: Iterable[Tensor], arrays: Iterable[Tensor]) -> list[Tensor]:
    """The results, contiguous, each in memory of its own, as torch expects them of an operator."""
    used, own = {x.untyped_storage().data_ptr() for x in arrays}, []
    for x in (one.detach().contiguous() for one in results):
        own.append(x.clone() if x.untyped_storage().data_ptr() in used else x)
        used.add(own[-1].untyped_storage().data_ptr())
    return own


def _fake(call: str, arrays: list[Tensor], trained: list[bool]) -> tuple[list[Tensor], list[Tensor]]:
    of, arguments, options = _with_arrays(call, arrays)
    del options["group"]
    for name in ("reproducible", "by"):  # shapes do not depend on them
        options.pop(name, None)
    shaping = options if of.shaping is None else {name: options[name] for name in of.shaping if name in options}
    results = _all(of.whole(*arguments, **shaping))
    together = _together(call, results, arrays, trained)
    return [x.new_empty(x.shape) for x in results], _fake_vjp(call, arrays, trained, results) if together else []


def _fake_vjp(_call: str, arrays: list[Tensor], trained: list[bool], _g: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, one in zip(arrays, trained, strict=True) if one]


for _name, _schema, _kernel, _shapes in (
    ("over_processes", "(str call, Tensor[] arrays, bool[] trained) -> (Tensor[], Tensor[])", _over_processes, _fake),
    (
        "over_processes_vjp",
        "(str call, Tensor[] arrays, bool[] trained, Tensor[] g) -> Tensor[]",
        _over_processes_vjp,
        _fake_vjp,
    ),
):
    LIBRARY.define(f"{_name}{_schema}", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"softargmax::{_name}", _shapes, lib=LIBRARY)
    in_order(LIBRARY, f"softargmax::{_name}")
