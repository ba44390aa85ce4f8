"""Torch operators by which compiled graphs draw from samplers.

A graph can contain only numbers and tensors, so a number represents a sampler. The draws depend on the sampler, the
seed and the step, which is a tensor. The draws of a sampler that learns also depend on the targets that it has
observed.
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softargmax.core.torch_operation import LIBRARY
from softargmax.output.sampler_base import SAMPLERS

ROWS = 1 << 32
"""The number of streams per step, if each row has its own `unique` draws: row r of step s has stream s * ROWS + r."""

_TAGS = (torch.Tag.pt2_compliant_tag,)
LIBRARY.define(
    "draw_classes(int sampler, int seed, Tensor step, SymInt n, bool unique, SymInt? total, Tensor? rows, "
    "ScalarType dtype) -> (Tensor, Tensor)",
    tags=_TAGS,
)
LIBRARY.define("expected_counts(int sampler, Tensor step, Tensor index, SymInt n, bool unique) -> Tensor", tags=_TAGS)
LIBRARY.define(
    "observe_classes(int[] samplers, Tensor(a!) step, Tensor index, Tensor counted, Tensor after) -> ()", tags=_TAGS
)
draw_classes: Any = torch.ops.softargmax.draw_classes.default
"""(sampler, seed, step, n, unique, total, rows, dtype) -> index, log_expected: the first n draws of a step.

If `total` is None, all rows share these draws. Otherwise each of `total` rows has its own draws, and `rows` selects the
rows whose draws are returned (None: all rows).
"""
expected_counts: Any = torch.ops.softargmax.expected_counts.default
"""(sampler, step, index, n, unique) -> expected counts of classes among n draws of this step, in float64."""
observe_classes: Any = torch.ops.softargmax.observe_classes.default
"""(samplers, step, index, counted, after): count the classes and advance the step.

`after` is the loss of this step. As an argument, it makes sure that the step advances after the loss is computed.
"""


def _draw(
    number: int, seed: int, step: Tensor, n: int, unique: bool, total: int | None, rows: Tensor | None, dtype: Any
) -> tuple[Tensor, Tensor]:
    sampler, stream = SAMPLERS[number], int(step)
    if total is None:
        index, log_expected = sampler.draw(n, seed=seed, stream=stream, unique=unique)
    elif unique:
        streams = [stream * ROWS + row for row in (range(total) if rows is None else rows.tolist())]
        each = [sampler.draw(n, seed=seed, stream=one, unique=True) for one in streams or [0]]
        index, log_expected = (np.stack(part)[: len(streams)] for part in zip(*each, strict=True))
    else:
        index, log_expected = (x.reshape(total, n) for x in sampler.draw(total * n, seed=seed, stream=stream))
        log_expected = log_expected - log(max(1, total))
        if rows is not None:
            index, log_expected = index[rows.numpy(force=True)], log_expected[rows.numpy(force=True)]
    return torch.as_tensor(index, device=step.device), torch.as_tensor(log_expected, dtype=dtype, device=step.device)


def _expected(number: int, _step: Tensor, index: Tensor, n: int, unique: bool) -> Tensor:
    found: Tensor = SAMPLERS[number].expected(index, n, unique=unique)
    return found


def _observe(numbers: list[int], step: Tensor, index: Tensor, counted: Tensor, after: Tensor) -> None:
    step += 1
    torch.autograd.graph.increment_version(step)
    for number in numbers:
        SAMPLERS[number].observe(index[counted])


def _shape_of_draw(
    _number: int, _seed: int, step: Tensor, n: int, _unique: bool, total: int | None, rows: Tensor | None, dtype: Any
) -> tuple[Tensor, Tensor]:
    shape = (n,) if total is None else (total if rows is None else len(rows), n)
    return step.new_empty(shape), step.new_empty(shape, dtype=dtype)


def _expected_of_batch(_info: Any, dims: Any, number: int, step: Tensor, index: Tensor, *how: Any) -> Any:
    return expected_counts(number, step, index, *how), dims[2]


for _name, _kernel, _fake in (
    ("draw_classes", _draw, _shape_of_draw),
    ("expected_counts", _expected, lambda _number, _step, index, *_: torch.empty_like(index, dtype=torch.float64)),
    ("observe_classes", _observe, lambda *_: None),
):
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"softargmax::{_name}", _fake, lib=LIBRARY)
torch.library.register_vmap("softargmax::expected_counts", _expected_of_batch, lib=LIBRARY)
