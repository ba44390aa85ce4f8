"""Rows, cuts and options, and the comparison of a spread call with the call of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import softargmax
from softargmax import parallel

COLUMNS = 9001  # two whole blocks of 4096, and a part


def cuts(kind: str, world: int, columns: int = COLUMNS) -> list[int]:
    """The bounds of the parts of all processes."""
    if kind == "blocks":
        blocks = -(-columns // 4096)
        return [min(blocks * rank // world * 4096, columns) for rank in range(world)] + [columns]
    if kind == "even":
        return [columns * rank // world for rank in range(world + 1)]
    if kind == "ragged":  # several cuts in one block, one of them after its first score
        inner = np.random.default_rng(world).integers(1, min(4097, columns), world - 1)
        return [0, *sorted(inner.tolist()), columns]
    assert kind == "empty"
    return [0, *[columns] * world]


CUTS = ("blocks", "even", "ragged", "empty")


def scores(dtype: str = "float32", rows: int = 6, columns: int = COLUMNS, spread: float = 10.0) -> Tensor:
    """Scores of several rows, of which some have NaN, infinities, or nothing in the support."""
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, columns)) * spread)
    z[1, columns // 3] = torch.nan
    z[2] = -torch.inf
    z[3, [0, columns - 1]] = torch.inf
    z[4, ::2] = -torch.inf
    return z.to(getattr(torch, dtype))


def part(group: Any, x: Any, bounds: Sequence[int], axis: int = -1) -> Any:
    """This process's part of an array. Options, and arrays of another size along the axis, are returned whole."""
    if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[axis] != bounds[-1]:
        return x
    rank = group.rank()
    return (
        x.detach().narrow(axis, bounds[rank], bounds[rank + 1] - bounds[rank]).clone().requires_grad_(x.requires_grad)
    )


def compare(
    group: Any, name: str, kind: str, arrays: Sequence[Tensor], options: dict[str, Any], *, spreads: bool
) -> None:
    """Call a function on whole rows, and on parts of them. Results and gradients must have the same bits.

    `spreads` is True if the result is laid out like the scores.
    """
    bounds = cuts(kind, group.size(), arrays[0].shape[-1])
    whole = getattr(softargmax, name)(*arrays, **options)
    mine_arrays = [part(group, x, bounds) for x in arrays]
    mine = getattr(parallel, name)(*mine_arrays, group=group, **{k: part(group, x, bounds) for k, x in options.items()})
    same(mine, part(group, whole, bounds) if spreads else whole)
    if not whole.requires_grad:
        return
    g = torch.from_numpy(np.random.default_rng(7).standard_normal(whole.shape)).to(whole.dtype)
    wanted = [x for x in arrays if x.requires_grad]
    expected = torch.autograd.grad(whole, wanted, g)
    found = torch.autograd.grad(
        mine,
        [x for x in mine_arrays if isinstance(x, Tensor) and x.requires_grad],
        part(group, g, bounds) if spreads else g,
    )
    for one, other in zip(found, expected, strict=True):
        same(one, part(group, other, bounds))


def same(found: Tensor, expected: Tensor) -> None:
    """Assert that two tensors have the same bits. All NaN are the same."""
    assert found.dtype == expected.dtype
    one, other = (x.detach().to(torch.float64).numpy() for x in (found, expected))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.signbit(one) & ~np.isnan(one), np.signbit(other) & ~np.isnan(other))
