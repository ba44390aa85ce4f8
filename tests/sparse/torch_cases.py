"""The sparse maps on torch tensors, as functions of all differentiable inputs. Most results contain zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import softargmax as s

# Warnings that torch itself raises in forward mode and in a compiled vmap.
IGNORED = (
    "ignore:`torch.jit.*is deprecated:DeprecationWarning",
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
)


class Case(NamedTuple):
    """A function and its inputs, all of which are differentiated."""

    name: str
    f: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    zeros: bool = True  # True if some results are 0


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


MASK = torch.tensor([[True, False, True, True], [True, True, True, True], [False, False, False, False]])
PER_ROW = torch.tensor([1.3, 1.8, 2.4], dtype=torch.float64)


def on(operation: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the operation with these options as a function of z and, if present, alpha."""

    def f(z: Tensor, *alpha: Tensor) -> Any:
        return operation(z, *alpha, **options)

    return f


def tau(z: Tensor, alpha: Any = 1.5, **options: Any) -> Tensor:
    """Return the threshold, with 0 in place of -inf."""
    found = s.threshold(z, alpha, **options).tau
    return torch.where(found.isinf(), 0, found)


def _cases() -> list[Case]:
    z, wide = draw(3, 4), 2 * draw(3, 5, seed=2)
    return [
        Case("sparsemax", s.sparsemax, (z,)),
        Case("entmax 1.5", s.entmax, (wide,)),
        Case("entmax 1 + 1e-6", on(s.entmax, alpha=1 + 1e-6), (z,), zeros=False),
        Case("entmax 1.25", on(s.entmax, alpha=1.25), (2 * wide,)),
        Case("entmax 3", on(s.entmax, alpha=3.0), (z,)),
        Case("entmax 1.5, where, axis 0", on(s.entmax, axis=0, where=MASK), (z,)),
        Case("entmax 1.75, two axes", on(s.entmax, alpha=1.75, axis=(0, 2), where=MASK[:, :2]), (draw(2, 3, 2),)),
        Case("entmax, per row", on(s.entmax), (wide, PER_ROW)),
        Case("entmax, per row, where", on(s.entmax, where=MASK), (z, PER_ROW)),
        Case("entmax, per row near 1", on(s.entmax), (z, PER_ROW * 1e-3 + 1.0), zeros=False),
        Case("entmax, one order for all", on(s.entmax, axis=0), (wide, number(1.6))),
        Case("entmax 0.5", on(s.entmax, alpha=0.5), (wide,), zeros=False),
        Case("entmax 0.1, where", on(s.entmax, alpha=0.1, where=MASK), (z,)),
        Case("entmax, per row on either side of 1", on(s.entmax), (wide, PER_ROW - 0.6), zeros=False),
        Case("entmax, one order below 1, axis 0", on(s.entmax, axis=0), (wide, number(0.9)), zeros=False),
        Case("tau, per row below 1", on(tau), (wide, PER_ROW / 2.5), zeros=False),
        Case("tau", tau, (wide,), zeros=False),
        Case("tau 2, where", on(tau, alpha=2.0, where=MASK), (z,), zeros=False),
        Case("tau, per row", on(tau), (wide, PER_ROW), zeros=False),
        Case("tau, one order, axis 0", on(tau, axis=0), (z, number(1.6)), zeros=False),
    ]


CASES = _cases()
