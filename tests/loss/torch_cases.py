"""Test cases: the losses of tensors with their options, as functions of all differentiated arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import softargmax as s

IGNORED = (
    "ignore:`torch.jit.*is deprecated:DeprecationWarning",
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
)


class Case(NamedTuple):
    """A function f and its inputs. Derivatives are taken with respect to every input."""

    name: str
    f: Callable[..., Any]
    inputs: tuple[Tensor, ...]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


Y = torch.tensor([2, 0, -100])
MASK = torch.tensor([[True, False, True, True], [True, True, True, True], [False, True, True, True]])


def of(function: Callable[..., Any], *fixed: Any, **options: Any) -> Callable[..., Any]:
    """Return a function of the differentiated inputs. In order, they replace each None in `fixed` and `options`."""

    def f(*values: Tensor) -> Any:
        given = iter(values)
        arguments = [next(given) if x is None else x for x in fixed]
        keywords = {name: next(given) if x is None else x for name, x in options.items()}
        return function(*arguments, **keywords)

    return f


def _cases() -> list[Case]:
    z, w4 = draw(3, 4), positive(4)
    soft = positive(3, 4) / positive(3, 4).sum(-1, keepdim=True)
    everything = {"label_smoothing": 0.2, "z_loss": 0.1, "softcap": 2.0, "where": MASK}
    cases = []
    for function, name in ((s.cross_entropy, "cross_entropy"), (s.cross_entropy_terms, "terms")):
        cases += [
            Case(name, of(function, None, Y), (z,)),
            Case(
                f"{name}, all", of(function, None, Y, weight=None, temperature=None, **everything), (z, w4, positive(3))
            ),
            Case(f"{name}, rows, T", of(function, None, Y, temperature=None, reduction="none"), (z, positive(1)[0])),
            Case(f"{name}, soft", of(function, None, None, weight=None, label_smoothing=0.1), (z, soft, w4)),
            Case(f"{name}, axis 0", of(function, None, torch.tensor([0, 2, 1, 2]), axis=0), (z,)),
        ]
    h, w, b = draw(3, 2), draw(4, 2, seed=1), draw(4, seed=2)
    for function, name in ((s.linear_cross_entropy, "linear"), (s.linear_cross_entropy_terms, "linear terms")):
        cases += [
            Case(name, of(function, None, None, Y), (h, w)),
            Case(
                f"{name}, all",
                of(function, None, None, Y, bias=None, weight=None, temperature=None, **everything),
                (h, w, b, w4, positive(3)),
            ),
            Case(f"{name}, soft", of(function, None, None, None, reduction="none"), (h, w, soft)),
        ]
    cases += [
        Case("selected", of(s.selected_log_softmax, None, Y, temperature=None, softcap=3.0), (z, positive(3))),
        Case("linear selected", of(s.linear_selected_log_softmax, None, None, Y, bias=None), (h, w, b)),
        Case("gradient", of(s.cross_entropy_and_gradient, None, Y, **everything), (z,)),
        Case("linear gradient", of(_linear_and_gradient, None, None, Y, bias=None, **everything), (h, w, b)),
    ]
    for kind in ("forward", "reverse", "js"):
        cases += [
            Case(
                f"distillation, {kind}",
                of(s.distillation, None, None, divergence=kind, temperature=None, where=MASK),
                (z, draw(3, 4, seed=3), positive(3)),
            ),
            Case(
                f"linear distillation, {kind}",
                of(s.linear_distillation, None, None, None, None, divergence=kind, bias_student=None, temperature=2.0),
                (h, w, draw(3, 3, seed=4), draw(4, 3, seed=5), b),
            ),
        ]
    return cases


def _linear_and_gradient(*arguments: Any, **options: Any) -> tuple[Tensor, ...]:
    return tuple(s.linear_cross_entropy_and_gradient(*arguments, **options))


CASES = _cases()
