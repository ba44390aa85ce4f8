"""Draws from spread rows are those of one process with the same seed, in all processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.parallel.cases import COLUMNS, CUTS, cuts, part, scores
from tests.parallel.test_bits import WORLDS
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel

MASK = torch.rand(6, COLUMNS, generator=torch.Generator().manual_seed(1)) < 0.3
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"num_samples": 40},
    "none": {"num_samples": 0},
    "temperature": {"temperature": 7.0, "num_samples": 3},
    "zero": {"temperature": 0.0},
    "uniform": {"temperature": math.inf, "num_samples": 3},
    "by row": {"temperature": torch.tensor([1.0, 0.0, 30.0, math.inf, 5.0])},
    "masked": {"where": MASK, "num_samples": 2},
    "stream": {"stream": torch.tensor([7, 7, 3, 9, 1 << 40])},
}


def rows(dtype: str) -> torch.Tensor:
    """Rows that can be drawn from: one has infinities, one few scores in the support."""
    z = scores(dtype)
    z[2] = 0.0
    return z[[0, 2, 3, 4, 5]].clone()


def each_cut(group: Any, options: dict[str, Any], dtype: str) -> None:
    z = rows(dtype)
    options = {key: x[:5] if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    for kind in CUTS:
        bounds = cuts(kind, group.size())
        for seed in range(3):
            expected = softargmax.categorical(z, seed=seed, **options)
            of_parts = {key: part(group, x, bounds) for key, x in options.items()}
            found = parallel.categorical(part(group, z, bounds), seed=seed, group=group, **of_parts)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(workers: Workers, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, each_cut, options, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    workers.run(3, each_cut, {"num_samples": 5}, dtype)


def transposed(group: Any) -> None:
    z, rank = rows("float32").T.contiguous(), group.rank()
    bounds = cuts("ragged", group.size())
    found = parallel.categorical(z[bounds[rank] : bounds[rank + 1]], axis=0, seed=5, group=group)
    assert torch.equal(found, softargmax.categorical(z, axis=0, seed=5))


def test_the_first_axis(workers: Workers) -> None:
    workers.run(3, transposed)


def of_many_streams(group: Any) -> None:
    """Equal scores: the draw depends only on the noise, and comes from every process."""
    z, rank = torch.zeros(1, COLUMNS).expand(300, -1), group.rank()
    bounds = cuts("even", group.size())
    found = parallel.categorical(z[:, bounds[rank] : bounds[rank + 1]], seed=11, group=group)
    assert torch.equal(found, softargmax.categorical(z, seed=11))
    assert len(set(torch.bucketize(found, torch.tensor(bounds[1:-1]), right=True).tolist())) == group.size()


def test_every_process_has_draws(workers: Workers) -> None:
    workers.run(4, of_many_streams)


def drawn(group: Any, row: int | None, options: list[dict[str, Any]]) -> Any:
    z = scores()[:, :4500] if row is None else scores()[row : row + 1, :4500].clone()
    if row == 1 and group.rank():
        z[:] = 0.0
    return parallel.categorical(z, group=group, **options[group.rank()])


@pytest.mark.parametrize(
    ("row", "options", "kind", "message"),
    [
        (1, {"seed": 0}, "ValueError", "z: expected"),
        (2, {"seed": 0, "temperature": 0.0}, "ValueError", "z: expected"),
        (2, {"seed": 0}, "ValueError", "z: expected"),
        (
            5,
            {"seed": 0, "top_k": 3},
            "NotImplementedError",
            "process 0: top_k: rows that are spread over processes have",
        ),
        (
            5,
            {"seed": 0, "replace": False},
            "NotImplementedError",
            "process 0: replace: rows that are spread over processes",
        ),
        (5, [{"seed": 0}, {"seed": 1}], "ValueError", "seed: expected the same in all processes, got int64 () with"),
        (5, [{"seed": 0, "stream": torch.tensor([k])} for k in (0, 1)], "ValueError", "stream: expected the same in"),
        (5, [{"seed": 0}, {"seed": -1}], "ValueError", "process 1: seed: expected an integer from 0 to 2^64 - 1"),
    ],
)
def test_one_error_in_all_processes(workers: Workers, row: int, options: Any, kind: str, message: str) -> None:
    of_each = options if isinstance(options, list) else [options] * 2
    found = workers.errors(2, drawn, row, of_each)
    assert len(set(found)) == 1, found
    assert found[0][0] == kind
    assert found[0][1].startswith(message), found
