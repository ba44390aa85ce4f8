"""Test cases: the operations with their options, as functions of all tensors that are differentiated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import softargmax

# Ignore warnings about torch's own code. They come from forward mode and from a compiled vmap.
IGNORED = (
    "ignore:`torch.jit.*is deprecated:DeprecationWarning",
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
)


class Case(NamedTuple):
    """A function and its inputs. Derivatives are taken with respect to every input."""

    name: str
    f: Callable[..., Any]
    inputs: tuple[Tensor, ...]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


MASK = torch.tensor([[True, False, True, True], [True, True, True, True], [False, False, False, False]])
DEGENERACIES = positive(4)
OFFSETS = torch.tensor([0, 2, 2, 5])


def finite(result: Any) -> Any:
    """Replace infinities by 0: -inf outside the support is constant, but its finite differences are NaN."""
    if isinstance(result, tuple):
        return tuple(map(finite, result))
    return torch.where(result.isinf(), 0, result)


def on(operation: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the operation with its options, as a function of z and of one tensor for each option that is None."""
    names = [name for name, value in options.items() if value is None]
    fixed = {name: value for name, value in options.items() if value is not None}

    def f(z: Tensor, *values: Tensor) -> Any:
        return finite(operation(z, **fixed, **dict(zip(names, values, strict=True))))

    return f


def _cases() -> list[Case]:
    z = draw(3, 4)
    cases = []
    for operation in (softargmax.softmax, softargmax.log_softmax, softargmax.softmax_with_lse, softargmax.logsumexp):
        name = operation.__name__
        cases += [
            Case(f"{name}", on(operation), (z,)),
            Case(f"{name}, T < 0, base, axis 0", on(operation, temperature=-0.7, base=3.0, axis=0), (z,)),
            Case(f"{name}, where", on(operation, where=MASK), (z,)),
            Case(f"{name}, two axes", on(operation, axis=(0, 2), where=MASK[:, :2]), (draw(2, 3, 2),)),
            Case(f"{name}, T per row", on(operation, temperature=None, where=MASK), (z, positive(3))),
            Case(f"{name}, T a scalar", on(operation, temperature=None, base=2.0, axis=0), (z, -positive(1)[0])),
        ]
    weights = torch.where(MASK, positive(3, 4), 0)
    inside = torch.where(MASK, 1.0, 0.0).double()
    cases += [
        Case("logsumexp, weights", on(softargmax.logsumexp, weights=None), (z, positive(3, 4))),
        Case("logsumexp, broadcast weights", on(softargmax.logsumexp, weights=None, axis=0), (z, positive(3, 1))),
        Case(
            "logsumexp, some weights 0", lambda z, w: finite(softargmax.logsumexp(z, weights=w * inside)), (z, weights)
        ),
        Case(
            "logsumexp, weights, T, where",
            on(softargmax.logsumexp, weights=None, temperature=None, where=MASK, keepdims=True),
            (z, positive(4), positive(3, seed=2)),
        ),
        Case("logcumsumexp", on(softargmax.logcumsumexp), (z,)),
        Case("logcumsumexp, axis 0", on(softargmax.logcumsumexp, axis=0), (z,)),
        Case("logcumsumexp, long", on(softargmax.logcumsumexp), (3 * draw(11),)),
        Case(
            "logcumsumexp, T < 0, base, where",
            on(softargmax.logcumsumexp, temperature=-0.7, base=3.0, where=MASK),
            (z,),
        ),
        Case("logcumsumexp, T per row", on(softargmax.logcumsumexp, temperature=None), (z, positive(3))),
        Case(
            "logcumsumexp, T a scalar, axis 0",
            on(softargmax.logcumsumexp, temperature=None, axis=0),
            (z, positive(1)[0]),
        ),
    ]
    for operation in (softargmax.entropy, softargmax.soft_argmax):
        name = operation.__name__
        cases += [
            Case(f"{name}", on(operation), (z,)),
            Case(f"{name}, T < 0, axis 0", on(operation, temperature=-0.7, axis=0), (z,)),
            Case(f"{name}, two axes", on(operation, axis=(0, 2), where=MASK[:, :2]), (draw(2, 3, 2),)),
            Case(f"{name}, T per row, where", on(operation, temperature=None, where=MASK), (z, positive(3))),
        ]
    cases += [
        Case("renyi_entropy, order 0.3", on(softargmax.renyi_entropy, order=0.3), (z,)),
        Case("renyi_entropy, order 1", on(softargmax.renyi_entropy, order=1.0, where=MASK), (z,)),
        Case("renyi_entropy, order inf", on(softargmax.renyi_entropy, order=math.inf, axis=0), (z,)),
        Case(
            "renyi_entropy, two axes, T < 0",
            on(softargmax.renyi_entropy, order=1.7, axis=(0, 2), where=MASK[:, :2], temperature=-0.7),
            (draw(2, 3, 2),),
        ),
        Case(
            "renyi_entropy, order and T per row, where",
            on(softargmax.renyi_entropy, order=None, temperature=None, where=MASK),
            (z, torch.tensor([0.4, 1.0, 3.0], dtype=torch.float64), positive(3)),
        ),
        Case(
            "renyi_entropy, order a scalar",
            on(softargmax.renyi_entropy, order=None, axis=0),
            (3 * z, torch.tensor(1.2, dtype=torch.float64)),
        ),
        Case("soft_argmax, values", on(softargmax.soft_argmax, values=None, where=MASK), (z, draw(4, seed=2))),
        Case("soft_argmax, vectors", on(softargmax.soft_argmax, values=None, axis=0), (z, draw(3, 2, seed=2))),
        Case("kl_divergence", softargmax.kl_divergence, (z, draw(3, 4, seed=2))),
        Case(
            "kl_divergence, where, axis 0",
            lambda p, q: softargmax.kl_divergence(p, q, axis=0, where=MASK),
            (z, draw(3, 4, seed=2)),
        ),
        Case("signed_logsumexp", lambda z, w: softargmax.signed_logsumexp(z, w).log_abs, (z, draw(3, 4, seed=2))),
        Case("boltzmann", lambda e, t: tuple(softargmax.boltzmann(e, t)), (z, positive(3))),
        Case(
            "boltzmann, weights",
            lambda e, t: tuple(softargmax.boltzmann(e, t, weights=DEGENERACIES, k=1.5)),
            (z, positive(3)),
        ),
    ]
    for operation in (softargmax.segment_softmax, softargmax.segment_log_softmax, softargmax.segment_logsumexp):
        name = operation.__name__
        cases += [
            Case(f"{name}", on(operation, offsets=OFFSETS, temperature=0.7), (draw(5),)),
            Case(f"{name}, heads", on(operation, offsets=OFFSETS), (draw(5, 2),)),
            Case(f"{name}, T per head", on(operation, offsets=OFFSETS, temperature=None), (draw(5, 2), positive(2))),
        ]
    return cases


CASES = _cases()
