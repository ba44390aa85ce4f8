"""Pairs of options of cross_entropy on spread columns, drawn at random, have the bits of one process."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from tests.parallel.cases import CUTS, compare
from tests.parallel.workers import Workers

ROWS, COLUMNS, COUNT = 5, 5000, 200
GENERATOR = torch.Generator().manual_seed(11)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR)


CHOICES: dict[str, list[Any]] = {
    "reduction": ["sum", "none"],
    "weight": [drawn(COLUMNS) + 0.5],
    "label_smoothing": [0.1, 1.0],
    "z_loss": [0.01],
    "softcap": [20.0],
    "temperature": [2.5, -0.7, drawn(ROWS) + 0.5],
    "where": [drawn(ROWS, COLUMNS) < 0.8, drawn(COLUMNS) < 0.5],
    "ignore_index": [3],
    "dtype": [torch.float64],
}
"""The values of each option that differ from its default."""
SCORES = 8 * torch.randn(ROWS, COLUMNS, generator=GENERATOR)
TARGETS = {
    "classes": torch.tensor([0, COLUMNS - 1, -100, 3, 4096]),
    "probabilities": torch.softmax(4 * drawn(ROWS, COLUMNS), -1),
}


def pairs() -> list[tuple[str, str, str, dict[str, Any]]]:
    """A kind of target, a dtype, cuts, and options. Every pair of options is there at least once."""
    rng = random.Random(3)
    all_pairs = [*itertools.combinations(CHOICES, 2)]
    found = []
    for number in range(COUNT):
        names = all_pairs[number % len(all_pairs)]
        options = {name: rng.choice(CHOICES[name]) for name in names}
        kind = "classes" if "ignore_index" in options else rng.choice([*TARGETS])
        dtype = rng.choice(["float32", "float32", "float64", "bfloat16", "float16"])
        found.append((kind, dtype, rng.choice(CUTS), options))
    return found


def is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def compared(group: Any, cases: list[tuple[str, str, str, dict[str, Any]]]) -> None:
    """Loss and gradient of all cases."""
    for kind, dtype, cut, options in cases:
        target = TARGETS[kind]
        if "ignore_index" in options:
            target = torch.where(target == -100, options["ignore_index"], target)
        z, to = SCORES.to(getattr(torch, dtype)), torch.float64 if dtype == "float64" else torch.float32
        of_dtype = {name: x.to(to) if is_float(x) else x for name, x in options.items()}
        shown = f"{kind}, {dtype}, {cut}, {options.keys()}"
        try:
            compare(group, "cross_entropy", cut, [z.requires_grad_(), target], of_dtype, spreads=False)
        except Exception as error:
            raise AssertionError(shown) from error


@pytest.mark.parametrize("world", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_pairs_of_options(workers: Workers, world: int) -> None:
    cases = pairs()
    assert len({frozenset(options) for *_, options in cases}) == len(CHOICES) * (len(CHOICES) - 1) // 2
    workers.run(world, compared, cases)
