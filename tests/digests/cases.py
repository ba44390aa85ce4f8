"""Tools for the cases of the digests: named calls of public functions with options, and derivatives of these calls.

Old and new installations run this file, so it uses only public names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from tests.digests.inputs import World, scores


class Case(NamedTuple):
    """A name, the variant (library, dtype and kind of derivative), and the call to run."""

    what: str
    variant: str
    run: Callable[[], Any]

    @property
    def name(self) -> str:
        return f"{self.what} | {self.variant}"


Options = Mapping[str, Mapping[str, Any]]
"""The keyword arguments of each option, by label."""


def alone(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield no options, then each option alone."""
    yield "", {}
    for label, given in options.items():
        yield label, dict(given)


def pairs(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every pair of options that have no keyword in common."""
    for (one, first), (other, second) in combinations(options.items(), 2):
        if not first.keys() & second.keys():
            yield f"{one} + {other}", {**first, **second}


def both(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield no options, each option alone, and every pair."""
    yield from alone(options)
    yield from pairs(options)


def chosen(options: Options, *labels: str) -> Options:
    """Return those of the options that have these labels."""
    return {label: given for label, given in options.items() if label in labels}


def titled(function: str, label: str) -> str:
    """Return the name of a function, followed by the label of its options."""
    return f"{function}: {label}" if label else function


def flat(found: Any) -> Iterator[Any]:
    """Yield the tensors in a nested result."""
    if isinstance(found, (tuple, list)):
        for part in found:
            yield from flat(part)
    elif hasattr(found, "grad_fn"):
        yield found


def with_gradients(function: Callable[..., Any], *given: Any, **options: Any) -> tuple[Any, Any]:
    """Return the result, and the gradients with respect to all floating tensors among arguments and options."""
    import torch

    def leaf(x: Any) -> Any:
        return x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    leaves, named = [leaf(x) for x in given], {name: leaf(x) for name, x in options.items()}
    found = function(*leaves, **named)
    return found, gradients(found, [x for x in (*leaves, *named.values()) if getattr(x, "requires_grad", False)])


def incoming(outputs: Iterable[Any]) -> list[Any]:
    """Return incoming gradients for outputs: fixed numbers that differ in size and sign."""
    import torch

    return [torch.tensor(scores(*x.shape, salt=f"incoming {i}", size=1.0)).to(x.dtype) for i, x in enumerate(outputs)]


def gradients(found: Any, leaves: Iterable[Any], *, create_graph: bool = False) -> Any:
    """Return the gradients with respect to the leaves, for fixed incoming gradients of all differentiable results."""
    import torch

    outputs = [x for x in flat(found) if x.requires_grad]
    leaves = list(leaves)
    if not outputs or not leaves:
        return None
    return torch.autograd.grad(outputs, leaves, incoming(outputs), allow_unused=True, create_graph=create_graph)


def second(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return the names of the tensor options, the gradients, and the gradients of the gradients.

    All gradients are with respect to all floating tensors among arguments and options.
    """
    names, tensors, called = _of_tensors(function, given, options)
    leaves = [x.detach().clone().requires_grad_() for x in (*given, *tensors)]
    first = gradients(called(*leaves), leaves, create_graph=True)
    return names, first, gradients(first, leaves)


def forward_mode(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return the names of the tensor options, and the results with their tangents.

    The tangents are along fixed directions of all floating tensors among arguments and options.
    """
    import torch

    names, tensors, called = _of_tensors(function, given, options)
    primals = (*given, *tensors)
    return names, torch.func.jvp(called, primals, tuple(incoming(primals)))


def _of_tensors(
    function: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any]
) -> tuple[list[str], list[Any], Callable[..., Any]]:
    """Return the names and values of the options that are floating tensors, and a function.

    The returned function takes the arguments and these options by position, and calls `function` with all options.
    """
    names = [name for name, x in options.items() if hasattr(x, "is_floating_point") and x.is_floating_point()]

    def called(*x: Any) -> Any:
        return function(*x[: len(given)], **{**options, **dict(zip(names, x[len(given) :], strict=True))})

    return names, [options[name] for name in names], called


def mapped(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return the results under vmap along the first axis.

    Also return the gradients of the sum of the squared results, computed without vmap.
    """
    import torch

    def total(*x: Any) -> Any:
        return sum((part.float() * part.float()).sum() for part in flat(function(*x, **options)))

    every = tuple(range(len(given)))
    return torch.func.vmap(lambda *x: function(*x, **options))(*given), torch.func.grad(total, every)(*given)


def in_manner(manner: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself, or a function that computes a derivative or vmap of it."""
    manners = {"": function, "grad": with_gradients, "second": second, "forward": forward_mode, "vmap": mapped}
    found = manners[manner]
    return function if found is function else lambda *given, **options: found(function, *given, **options)


def variant(world: World, *words: str) -> str:
    """Return the name of a variant: library, dtype, and the kind of derivative."""
    return " ".join(filter(None, (world.name, *words)))
