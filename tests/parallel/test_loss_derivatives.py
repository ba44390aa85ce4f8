"""First and second derivatives of losses with respect to all arrays, through a group, compared with one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.parallel.cases import cuts
from tests.parallel.workers import Workers
from torch import Tensor

import softargmax

ROWS, WIDTH, COLUMNS = 6, 4, 7
SPREAD = {"z": -1, "w": 0, "bias": 0, "probabilities": -1, "weight": -1}
"""The axis of which each process has a part."""
TARGET = torch.tensor([0, 6, 3, -100, 3, 5])
ALL = {"label_smoothing": 0.1, "z_loss": 0.2, "softcap": 5.0}


def arrays(names: str) -> dict[str, Tensor]:
    """Random arrays of all processes."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    found = {
        "z": normal(ROWS, COLUMNS),
        "h": normal(ROWS, WIDTH),
        "w": normal(COLUMNS, WIDTH),
        "bias": normal(COLUMNS),
        "probabilities": normal(ROWS, COLUMNS).softmax(-1),
        "weight": normal(COLUMNS).exp(),
        "temperature": normal(ROWS, 1).exp(),
    }
    return {name: found[name] for name in names.split()}


def derivatives(function: Any, given: Mapping[str, Tensor], parts: slice, options: Mapping[str, Any]) -> Any:
    """The loss, its gradients, and those of a sum of the gradients with weights, of this process's parts."""
    weights = {name: torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) for name, x in given.items()}
    mine, of_first = (
        {
            name: x.narrow(SPREAD[name], parts.start, parts.stop - parts.start) if name in SPREAD else x
            for name, x in of.items()
        }
        for of in (given, weights)
    )
    x = {name: one.clone().requires_grad_() for name, one in mine.items()}
    scores = [x[name] for name in ("z", "h", "w") if name in x]
    target = x.get("probabilities", TARGET)
    more = {name: one for name, one in x.items() if name in ("bias", "weight", "temperature")}
    found = function(*scores, target, **more, **options)
    loss = torch.cat([one.reshape(-1) for one in found]) if isinstance(found, tuple) else found
    seeds = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).reshape(loss.shape) * torch.sin(loss.detach())
    first = torch.autograd.grad(loss, tuple(x.values()), seeds, create_graph=True)
    second = torch.autograd.grad(first, tuple(x.values()), tuple(of_first.values()), allow_unused=True)
    return loss.detach(), dict(zip(x, first, strict=True)), dict(zip(x, second, strict=True))


def compared(group: Any, name: str, names: str, kind: str, options: dict[str, Any]) -> None:
    bounds, rank, given = cuts(kind, group.size(), COLUMNS), group.rank(), arrays(names)
    whole = derivatives(getattr(softargmax, name), given, slice(0, COLUMNS), options)
    part = slice(bounds[rank], bounds[rank + 1])
    found = derivatives(getattr(softargmax.parallel, name), given, part, {**options, "group": group})
    torch.testing.assert_close(found[0], whole[0], rtol=0, atol=0)
    for of_found, of_whole in zip(found[1:], whole[1:], strict=True):
        for argument, of_all in of_whole.items():
            expected, got = of_all, of_found[argument]
            assert (expected is None) == (got is None), argument
            if expected is None:
                continue
            if argument in SPREAD:
                expected = expected.narrow(SPREAD[argument], part.start, part.stop - part.start)
            # Sums over seven classes of numbers of at most 10, in float64: 100 roundings.
            torch.testing.assert_close(
                got, expected, rtol=1e-12, atol=1e-13, msg=lambda text, of=argument: f"{of}: {text}"
            )


CASES = {
    "terms": ("cross_entropy_terms", "z weight temperature", {**ALL, "reduction": "none"}),
    "terms, mean": ("cross_entropy_terms", "z temperature", ALL),
    "selected": ("selected_log_softmax", "z temperature", {"softcap": 5.0}),
    "scores": ("cross_entropy", "z", {**ALL, "reduction": "none"}),
    "mean": ("cross_entropy", "z weight temperature", ALL),
    "probabilities": (
        "cross_entropy",
        "z probabilities weight temperature",
        {"reduction": "sum", "label_smoothing": 0.1},
    ),
    "layer": ("linear_cross_entropy", "h w bias", {"reduction": "none"}),
    "layer, mean": ("linear_cross_entropy", "h w bias weight temperature", ALL),
    "layer, probabilities": ("linear_cross_entropy", "h w probabilities", {"z_loss": 0.2}),
}


@pytest.mark.parametrize("kind", ["even", "empty", "ragged"])
@pytest.mark.parametrize("case", CASES)
def test_the_derivatives_are_those_of_one_process(workers: Workers, case: str, kind: str) -> None:
    name, names, options = CASES[case]
    for world in (2, 3):
        workers.run(world, compared, name, names, kind, options)
