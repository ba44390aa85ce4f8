"""Draws from spread rows are those of one process with the same seed, in all processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.cases import COLUMNS, CUTS, cuts, part, same, scores
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
    "lists": {"stream": [7, 7, 3, 9, 5], "temperature": [1.0, 0.0, 30.0, 1e6, 5.0]},
}
FILTERS: dict[str, Any] = {
    "top_k": 7,
    "top_p": 0.8,
    "min_p": 0.02,
    "typical_p": 0.6,
    "epsilon": 0.003,
    "eta": 0.002,
}
FILTERED: dict[str, dict[str, Any]] = {
    **{name: {name: x, "num_samples": 3} for name, x in FILTERS.items()},
    **{f"{name} by row": {name: torch.tensor([1.0, 0.7, 0.1, 1e-3, 0.9]) * x} for name, x in FILTERS.items() if x < 1},
    "all": FILTERS,
    "joint": {"order": "joint", **FILTERS},
    "joint top_k": {"order": "joint", "top_k": 7},
    "none of them": {"top_k": -1, "top_p": 1.0, "min_p": 0.0},
    "top_k by row": {"top_k": torch.tensor([1, 30, 9001, 2, 5000]), "top_p": 0.99, "num_samples": 2},
    "many": {"top_k": 6000, "typical_p": 0.9},
    "min_p, sums": {"min_p": 1e-5, "typical_p": 0.9, "eta": 0.002, "temperature": 5.0, "num_samples": 3},
    "top_k, sums": {"top_k": 300, "typical_p": 0.9, "eta": 0.002, "temperature": 5.0, "num_samples": 3},
    "masked, top_p": {"top_k": 40, "top_p": 0.9, "where": MASK},
    "masked, min_p": {"min_p": 0.01, "where": MASK[0]},
    "zero, top_k": {"top_k": 3, "temperature": torch.tensor([1.0, 0.0, 30.0, math.inf, 5.0])},
    "zero, min_p": {"min_p": 0.1, "temperature": torch.tensor([1.0, 0.0, 30.0, math.inf, 5.0])},
    "uniform, top_k": {"top_k": 3, "temperature": math.inf, "num_samples": 3},
    "stream, top_k": {"top_k": 3, "stream": torch.tensor([7, 7, 3, 9, 1 << 40])},
    "without replacement": {"replace": False, "num_samples": 2},
    "top_k, without replacement": {"top_k": 4, "replace": False, "num_samples": 2, "temperature": 3.0},
    "no draws": {"top_k": 4, "num_samples": 0},
}
"""Options for which rows are dealt out."""


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


def with_logprob(group: Any, options: dict[str, Any], dtype: str) -> None:
    z = rows(dtype)
    options = {key: x[:5] if isinstance(x, torch.Tensor) and x.ndim == 2 else x for key, x in options.items()}
    for kind in CUTS:
        bounds = cuts(kind, group.size())
        of_parts = {key: part(group, x, bounds) for key, x in options.items()}
        for seed in range(2):
            expected = softargmax.categorical_with_logprob(z, seed=seed, **options)
            found = parallel.categorical_with_logprob(part(group, z, bounds), seed=seed, group=group, **of_parts)
            for one, other in zip(found, expected, strict=True):
                same(one, other)
        tokens = parallel.categorical(part(group, z, bounds), seed=1, group=group, **of_parts)
        same(tokens, expected.index)


@pytest.mark.parametrize("options", [*FILTERED.values(), {}, {"num_samples": 2}], ids=[*FILTERED, "plain", "several"])
def test_filters_and_logprob(workers: Workers, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, with_logprob, options, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "all", "masked, top_p", "without replacement"])
def test_dtypes_of_filters_and_logprob(workers: Workers, name: str, dtype: str) -> None:
    workers.run(3, with_logprob, FILTERED[name], dtype)


def transposed(group: Any) -> None:
    z, rank = rows("float32").T.contiguous(), group.rank()
    bounds = cuts("ragged", group.size())
    found = parallel.categorical(z[bounds[rank] : bounds[rank + 1]], axis=0, seed=5, group=group)
    assert torch.equal(found, softargmax.categorical(z, axis=0, seed=5))


def test_the_first_axis(workers: Workers) -> None:
    workers.run(3, transposed)


def by_default_generator(group: Any, options: dict[str, Any]) -> None:
    z, found = rows("float32"), []
    bounds = cuts("even", group.size())
    for mine, of in ((part(group, z, bounds), {"group": group}), (z, {})):
        torch.manual_seed(3)
        found += [(parallel if of else softargmax).categorical(mine, **of, **options) for _ in range(2)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


@pytest.mark.parametrize("options", [{"num_samples": 9}, {"num_samples": 9, "top_k": 500}])
def test_the_seed_of_the_default_generator(workers: Workers, options: dict[str, Any]) -> None:
    workers.run(2, by_default_generator, options)


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
        (5, {"seed": 0, "top_k": 0.5}, "ValueError", "process 0: top_k: expected an integer"),
        (
            5,
            {"seed": 0, "replace": False, "num_samples": 9001},
            "ValueError",
            "process 0: num_samples: expected at",
        ),
        (5, [{"seed": 0}, {"seed": 0, "top_k": 3}], "ValueError", "top_k: expected the same in all processes, got"),
        (5, [{"seed": 0, "top_p": p} for p in (0.5, 0.2)], "ValueError", "top_p: expected the same in all processes"),
        (5, [{"seed": 0, "replace": x} for x in (True, False)], "ValueError", "replace: expected the same in all"),
        (5, [{"seed": 0, "num_samples": n} for n in (1, 2)], "ValueError", "num_samples: expected the same in all"),
        (5, [{"seed": 0, "order": x} for x in ("joint", "top_k_first")], "ValueError", "order: expected the same in"),
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


# --- random rows and options, and DTensors ----------------------------------------------------------------------------


def random_options(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """Some of the filters, with a number for all rows or one per row."""
    ranges = {"top_k": 8, "top_p": 1.0, "min_p": 0.3, "typical_p": 1.0, "epsilon": 0.1, "eta": 0.1}
    options: dict[str, Any] = {"order": str(random.choice(["top_k_first", "joint"]))}
    for name, most in ranges.items():
        if random.random() < 0.3:
            x = torch.from_numpy(random.random(rows) * most + 1e-9)
            x = x.ceil().long() if name == "top_k" else x
            options[name] = x if random.random() < 0.5 else x[0].item()
    if random.random() < 0.3:
        options["replace"] = False
    return {**options, "num_samples": int(random.integers(0, 4)), "temperature": float(random.choice([0, 0.5, 1, 3]))}


def result(function: Any, z: torch.Tensor, options: dict[str, Any]) -> Any:
    try:
        return function(z, **options)
    except ValueError as error:
        return str(error).removeprefix("process 0: ")


def random_calls(group: Any, count: int) -> int:
    """Rows with many equal scores, some of which cannot be drawn from. Return how many calls had an error."""
    random, errors = np.random.default_rng(group.size()), 0
    for seed in range(count):
        rows, columns = int(random.integers(1, 6)), int(random.choice([3, 100, 700]))
        z = torch.from_numpy(random.integers(-8, 8, (rows, columns)) / 2.0).to(torch.float32)
        if seed % 3 == 0:
            z[random.integers(rows), random.integers(columns)] = float(random.choice([math.inf, math.nan]))
        z[random.integers(rows), int(random.integers(columns)) :] = -math.inf
        bounds = cuts(str(random.choice(CUTS)), group.size(), columns)
        options = {**random_options(random, rows), "seed": seed}
        expected = result(softargmax.categorical_with_logprob, z, options)
        found = result(parallel.categorical_with_logprob, part(group, z, bounds), {**options, "group": group})
        if isinstance(expected, str):
            assert found == expected, (options, found)
            errors += 1
        else:
            for one, other in zip(found, expected, strict=True):
                same(one, other)
    return errors


def test_random_rows(workers: Workers) -> None:
    for world in WORLDS:
        for errors in workers.run(world, random_calls, 60):
            assert 5 < errors < 40


def on_mesh(group: Any, shape: tuple[int, ...], placements: tuple[str, ...], options: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    places = [Replicate() if one == "r" else Shard(int(one)) for one in placements]
    z = rows("float32")
    spread = distribute_tensor(z, init_device_mesh("cpu", shape), places)
    for name in ("categorical", "categorical_with_logprob"):
        expected, found = (getattr(softargmax, name)(x, seed=4, **options) for x in (z, spread))
        if name == "categorical":
            expected, found = (expected,), (found,)
        for one, other in zip(found, expected, strict=True):
            assert isinstance(one, DTensor)
            assert one.shape == other.shape
            same(one.full_tensor(), other)
    first = softargmax.categorical(spread.T, axis=0, seed=4, **options)
    same(first.full_tensor(), softargmax.categorical(z.T, axis=0, seed=4, **options))


ON_MESHES = ("plain", "several", "by row", "stream", "lists", "top_k by row", "all", "without replacement")
MESHES = [((4,), "1"), ((4,), "0"), ((4,), "r"), ((2, 2), "01"), ((2, 2), "1r")]


@pytest.mark.parametrize(("shape", "placements"), MESHES)
@pytest.mark.parametrize("name", ON_MESHES)
def test_dtensors(workers: Workers, name: str, shape: tuple[int, ...], placements: str) -> None:
    workers.run(4, on_mesh, shape, tuple(placements), {**OPTIONS, **FILTERED}[name])
