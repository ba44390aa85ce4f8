"""Terms of losses and log-probabilities of selected classes of spread rows have the bits of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.cases import CUTS, cuts, part, same, scores
from tests.parallel.test_bits import LOSSES, TARGET, WORLDS
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel


def each_result(group: Any, name: str, target: torch.Tensor, options: dict[str, Any], dtype: str = "float32") -> None:
    """Compare all results of a function, and the gradient of each of them, for all cuts."""
    for kind in CUTS:
        z, bounds = scores(dtype).requires_grad_(), cuts(kind, group.size())
        mine = part(group, z, bounds)
        of_parts = {key: part(group, x, bounds) for key, x in options.items()}
        whole = getattr(softargmax, name)(z, target, **options)
        found = getattr(parallel, name)(mine, part(group, target, bounds), group=group, **of_parts)
        assert type(found) is type(whole)
        both = zip(found, whole, strict=True) if isinstance(whole, tuple) else [(found, whole)]
        for one, other in both:
            same(one, other)
            g = torch.from_numpy(np.random.default_rng(7).standard_normal(other.shape)).to(other.dtype)
            (expected,) = torch.autograd.grad(other, z, g, retain_graph=True)
            (got,) = torch.autograd.grad(one, mine, g, retain_graph=True)
            same(got, part(group, expected, bounds))


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_terms(workers: Workers, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, each_result, "cross_entropy_terms", TARGET, options)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_narrow_classes(workers: Workers, dtype: torch.dtype) -> None:
    """Also in a process without classes."""
    target = torch.tensor([200, 100, 0, 7, 255, 156], dtype=torch.uint8)[: len(TARGET)].to(dtype)
    for world in (2, 4):
        workers.run(world, each_result, "cross_entropy_terms", target, {"weight": LOSSES["weight"]["weight"]})


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes_of_terms(workers: Workers, dtype: str) -> None:
    for options in (LOSSES["plain"], LOSSES["weight"]):
        workers.run(2, each_result, "cross_entropy_terms", TARGET, options, dtype)


def test_terms_of_probabilities(workers: Workers) -> None:
    target = torch.softmax(scores(spread=1.0).nan_to_num(0.0, 1.0, -1.0), -1)
    for options in (LOSSES["plain"], LOSSES["weight"]):
        workers.run(3, each_result, "cross_entropy_terms", target, options)


SEVERAL = torch.stack([TARGET, TARGET.roll(1), torch.full_like(TARGET, 4095)], -1)
SELECTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft-cap, temperature": {"softcap": 5.0, "temperature": 1.5},
    "masked": {"where": LOSSES["all"]["where"]},
    "float64": {"dtype": torch.float64},
}


@pytest.mark.parametrize("options", SELECTED.values(), ids=SELECTED.keys())
@pytest.mark.parametrize("index", [TARGET, SEVERAL, SEVERAL[:, :0]], ids=["one class", "several", "none"])
def test_selected_classes(workers: Workers, index: torch.Tensor, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, selected, index, options)


def selected(group: Any, index: torch.Tensor, options: dict[str, Any]) -> None:
    if index.numel():
        return each_result(group, "selected_log_softmax", index, options)
    found = parallel.selected_log_softmax(scores(), index, group=group, **options)
    return same(found, softargmax.selected_log_softmax(scores(), index, **options))


def wrong_class(group: Any, places: list[int]) -> None:
    index = SEVERAL.clone()
    index[2, 1] = places[group.rank()]
    parallel.selected_log_softmax(scores()[:, :5000], index, group=group)


def different_numbers(group: Any, numbers: list[int]) -> None:
    parallel.selected_log_softmax(scores()[:, :5000], SEVERAL[:, : numbers[group.rank()]], group=group)


def wrong_terms(group: Any, options: list[dict[str, Any]]) -> None:
    of_classes = torch.ones(2 + group.rank())
    z, target = torch.zeros(3, 2 + group.rank()), torch.tensor([0, 4, -100])
    parallel.cross_entropy_terms(z, target, weight=of_classes, group=group, **options[group.rank()])


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "message"),
    [
        (wrong_class, [10000, 10000], "IndexError", "index: expected 0 to 9999, or -100 (ignored), got 10000 at (2,)"),
        (wrong_class, [3, 4], "ValueError", "index: expected the same in all processes, got int64 (6) with checksum"),
        (different_numbers, [2, 3], "ValueError", "index: expected the same in all processes, got (6, 2), (6, 3) in"),
        (wrong_terms, [{}, {"dtype": torch.float64}], "ValueError", "dtype: expected the same in all processes, got"),
        (wrong_terms, [{}, {"dtype": torch.int64}], "ValueError", "dtype: expected the same in all processes, got"),
        (wrong_terms, [{}, {"reduction": "sum"}], "ValueError", "reduction: expected the same in all processes, got"),
        (wrong_terms, [{}, {"ignore_index": 3}], "ValueError", "ignore_index: expected the same in all processes, got"),
    ],
)
def test_one_error_in_all_processes(
    workers: Workers, function: Any, arguments: list[Any], kind: str, message: str
) -> None:
    found = workers.errors(2, function, arguments)
    assert len(set(found)) == 1, found
    assert found[0][0] == kind
    assert found[0][1].startswith(message), found


def without_classes(group: Any) -> Any:
    return parallel.selected_log_softmax(
        torch.zeros(2, 3), torch.zeros(2, 0 if group.rank() == 0 else 2, dtype=torch.int64), group=group
    )


def test_a_process_without_classes_to_select_is_compared(workers: Workers) -> None:
    for kind, text in workers.errors(2, without_classes):
        assert kind == "ValueError"
        assert "expected the same in all processes" in text
