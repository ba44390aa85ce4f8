"""Results and gradients of spread rows have the bits of one process: for all cuts, dtypes and options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle.edge_table import ROWS as EDGES
from tests.oracle.edge_table import Row
from tests.parallel.cases import COLUMNS, CUTS, compare, same, scores
from tests.parallel.loss_options import loss_options
from tests.parallel.workers import Workers

import softargmax

RNG = np.random.default_rng(3)
MASK = torch.from_numpy(RNG.random((6, COLUMNS)) < 0.7)
TARGET = torch.tensor([17, 4096, 8191, 0, COLUMNS - 1, -100])
WEIGHT = torch.from_numpy(RNG.random(COLUMNS).astype(np.float32))
MAPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "negative": {"temperature": -3.0},
    "hot": {"temperature": math.inf},
    "cold": {"temperature": 0.0},
    "base": {"base": 2.0},
    "masked": {"where": MASK},
    "row mask": {"where": MASK[:, :1]},
    "by row": {"temperature": torch.tensor([[1.0], [2.0], [0.5], [-1.0], [math.inf], [0.0]])},
}
LOSSES = loss_options(WEIGHT, MASK)
WORLDS = (1, 2, 3, 4)


def all_cuts(group: Any, name: str, dtype: str, options: dict[str, Any], spreads: bool, *more: Any) -> None:
    for kind in CUTS:
        compare(group, name, kind, [scores(dtype).requires_grad_(), *more], options, spreads=spreads)


@pytest.mark.parametrize("options", MAPS.values(), ids=MAPS.keys())
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "entropy"])
def test_maps_and_sums(workers: Workers, name: str, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, all_cuts, name, "float32", options, "softmax" in name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "entropy"])
def test_dtypes(workers: Workers, name: str, dtype: str) -> None:
    for world in WORLDS:
        workers.run(world, all_cuts, name, dtype, {}, "softmax" in name)


@pytest.mark.parametrize("options", [MAPS["plain"], MAPS["temperature"], MAPS["masked"]], ids=["plain", "T", "masked"])
def test_divergence(workers: Workers, options: dict[str, Any]) -> None:
    other = scores(spread=3.0).roll(1, 0).requires_grad_()
    workers.run(3, all_cuts, "kl_divergence", "float32", options, False, other)


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_losses(workers: Workers, options: dict[str, Any]) -> None:
    for world in WORLDS:
        workers.run(world, all_cuts, "cross_entropy", "float32", options, False, TARGET)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_of_losses(workers: Workers, dtype: str) -> None:
    for world in WORLDS:
        for options in (LOSSES["plain"], LOSSES["smooth"]):
            workers.run(world, all_cuts, "cross_entropy", dtype, options, False, TARGET)


def test_probabilities_as_targets(workers: Workers) -> None:
    target = torch.softmax(torch.from_numpy(RNG.standard_normal((6, COLUMNS)).astype(np.float32)), -1)
    for options in (LOSSES["plain"], LOSSES["all"]):
        workers.run(3, all_cuts, "cross_entropy", "float32", options, False, target)


def in_blocks(row: Row) -> tuple[torch.Tensor, list[int], dict[str, Any]]:
    """A row of the edge table, with each of its scores in a block of its own, the places of these scores, and options.
    All other scores are outside the mask.
    """
    columns = 4096 * max(len(row.z), 1) + 5
    places = [4096 * block + 37 * block % 4096 for block in range(len(row.z))]
    z = torch.full((1, columns), math.nan, dtype=torch.float64 if row.float64_only else torch.float32)
    mask = torch.zeros(1, columns, dtype=torch.bool)
    z[0, places] = torch.tensor(row.z, dtype=z.dtype)
    mask[0, places] = torch.tensor(row.options.get("where", [True] * len(row.z)), dtype=torch.bool)
    return z.requires_grad_(), places, {**row.options, "where": mask}


def edge_table(group: Any) -> None:
    for row in EDGES:
        z, places, options = in_blocks(row)
        p = softargmax.softmax(z, **options)[0, places]
        torch.testing.assert_close(p.double(), torch.tensor(row.p, dtype=torch.float64), equal_nan=True, msg=row.name)
        for kind in ("even", "ragged", "empty"):
            for name in ("softmax", "log_softmax", "logsumexp", "entropy"):
                compare(group, name, kind, [z], options, spreads="softmax" in name)
            if places and "base" not in options:
                compare(group, "cross_entropy", kind, [z, torch.tensor([places[-1]])], options, spreads=False)


def test_the_edge_table(workers: Workers) -> None:
    for world in (2, 3, 4):
        workers.run(world, edge_table)


def transposed(group: Any) -> None:
    """Rows along the first axis: each process has rows of the array."""
    from tests.parallel.cases import cuts

    z = scores().T.contiguous()
    bounds = cuts("ragged", group.size(), z.shape[0])
    rank = group.rank()
    mine = softargmax.parallel.softmax(z[bounds[rank] : bounds[rank + 1]], axis=0, group=group)
    same(mine, softargmax.softmax(z, axis=0)[bounds[rank] : bounds[rank + 1]])


def test_the_first_axis(workers: Workers) -> None:
    workers.run(3, transposed)


def single_row(group: Any) -> None:
    """One row without other axes, of which process 0 gets the only block."""
    z = torch.arange(5.0).requires_grad_()
    bounds, rank = [0, *[3] * (group.size() - 1), 5], group.rank()
    mine = z.detach()[bounds[rank] : bounds[rank + 1]].clone().requires_grad_()
    for name in ("softmax", "log_softmax"):
        whole = getattr(softargmax, name)(z)
        found = getattr(softargmax.parallel, name)(mine, group=group)
        same(found, whole[bounds[rank] : bounds[rank + 1]])
    whole, found = softargmax.logsumexp(z), softargmax.parallel.logsumexp(mine, group=group)
    same(found, whole)
    whole.backward()
    found.backward()
    assert z.grad is not None
    assert mine.grad is not None
    same(mine.grad, z.grad[bounds[rank] : bounds[rank + 1]])
    same(
        softargmax.parallel.cross_entropy(mine, torch.tensor(4), group=group),
        softargmax.cross_entropy(z, torch.tensor(4)),
    )


def test_a_single_row(workers: Workers) -> None:
    for world in (2, 3):
        workers.run(world, single_row)


def zeros_of_both_signs(group: Any) -> None:
    """Scores of -0.0 and 0.0, which are equal, and of which logsumexp and the soft-cap keep the sign."""
    from tests.parallel.cases import cuts, part

    z = torch.zeros(2, COLUMNS)
    z[:, ::3] = -0.0
    z[1] = -0.0
    for kind in CUTS:
        mine = part(group, z, cuts(kind, group.size()))
        for name in ("softmax", "log_softmax", "logsumexp", "entropy"):
            whole = getattr(softargmax, name)(z)
            same(
                getattr(softargmax.parallel, name)(mine, group=group),
                part(group, whole, cuts(kind, group.size())) if "softmax" in name else whole,
            )
    single = torch.full((1, 1), -0.0)
    last = group.rank() == group.size() - 1
    same(softargmax.parallel.logsumexp(single[:, : int(last)], group=group), softargmax.logsumexp(single))
    same(softargmax.parallel.entropy(single[:, : int(last)], group=group), softargmax.entropy(single))


def test_zeros_of_both_signs(workers: Workers) -> None:
    for world in WORLDS:
        workers.run(world, zeros_of_both_signs)


def no_rows(group: Any) -> None:
    """Arrays without rows: results have no rows either, means and their gradients are 0."""
    z, target = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    for name in ("softmax", "log_softmax", "logsumexp", "entropy"):
        found = getattr(softargmax.parallel, name)(z, group=group)
        assert found.shape == getattr(softargmax, name)(z).shape
        found.sum().backward()
    for name in ("cross_entropy", "cross_entropy_terms"):
        found = getattr(softargmax.parallel, name)(z, target, group=group)
        whole = getattr(softargmax, name)(z, target)
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, whole)), strict=True):
            same(one, other)
    assert softargmax.parallel.selected_log_softmax(z, target, group=group).shape == (0,)
    assert softargmax.parallel.categorical(z, seed=0, group=group).shape == (0,)


def test_no_rows(workers: Workers) -> None:
    for world in (1, 3):
        workers.run(world, no_rows)
