"""Operations of draws, filters and noise, which have no derivatives. The definitions are in reference.py.

    draw = arg max (beta z + g)        g = -log(-log(1 - V))

The noise g of a row depends only on the seed and the stream of the row. The default stream is the index of the row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, kept_shape, namespace
from softargmax.core.operation import Operation
from softargmax.core.record import ROWWISE, Array, Axes, DType, Result, Seed, like, per_row
from softargmax.core.vmap_rows import Batched
from softargmax.sample import reference
from softargmax.sample.arguments import Distribution
from softargmax.sample.undrawable_rows import refuse


class FilterMask(NamedTuple):
    """Scores, and the options of the distribution. Rows run along `axes`, which contains only the last axis."""

    z: Array
    distribution: Distribution
    axes: Axes


class Kept(NamedTuple):
    """Mask of the scores that the filters keep."""

    kept: Any


filter_mask: Operation[FilterMask, Kept] = Operation(
    "filter_mask",
    FilterMask,
    Kept(like("z", "bool")),
    definition=reference.filter_mask,
    kernels={"cpu": _native.filter_mask, "cuda": "softargmax.sample.triton_kernels:filter_mask"},
    differentiable=False,
    refuse=lambda i, problem: refuse(problem, i.z.shape[:-1]),
)
FILTERS = tuple(leaf.name for leaf in filter_mask.leaves if leaf.kind is ROWWISE)
"""The names of all filters, in the order in which they apply."""


# --- draws and noise ------------------------------------------------------------------------------------------------


class Categorical(NamedTuple):
    """The fields of FilterMask, the seed, the streams, and the number of draws per row.

    `stream` has z's shape, but size 1 along `axes`.
    """

    z: Array
    distribution: Distribution
    seed: Seed
    stream: Array | None
    axes: Axes
    draws: int
    replace: bool


class Draws(NamedTuple):
    """The drawn classes, of shape (..., draws)."""

    index: Any


class DrawsWithLogprob(NamedTuple):
    """Drawn classes and their log-probabilities (..., draws), and the number of remaining classes (..., 1)."""

    index: Any
    logprob: Any
    support_size: Any


class Noise(NamedTuple):
    """The arguments of an operation that returns noise. The noise has z's shape and the dtype `dtype`."""

    z: Array
    seed: Seed
    stream: Array | None
    axes: Axes
    dtype: DType


class Gumbel(NamedTuple):
    """Gumbel noise g = -log(-log(1 - V))."""

    g: Any


def _refuse_draws(i: Categorical, problem: tuple[int, int]) -> None:
    refuse(problem, i.z.shape[:-1], i.draws)


def _mend(_i: Categorical, written: Any, _run: Any) -> Any:
    """Take what the kernel has written: the draws from the other rows, and -1 in rows that cannot be drawn from."""
    if getattr(written, "logprob", None) is not None:
        written.logprob[written.index < 0] = math.nan
    return written


def _per_draw(i: Categorical) -> tuple[int, ...]:
    return (*i.z.shape[:-1], i.draws)


def _with_own_streams(i: Any, dims: Any, _size: int) -> Batched:
    """The vmap rule: give every mapped call the streams that it would have without vmap."""
    if i.stream is not None:
        return Batched(i, axis=None)
    xp, sizes = namespace(i.z), list(i.z.shape)
    if dims.z is not None:
        del sizes[dims.z]
    rows = kept_shape(sizes, i.axes)
    streams = xp.reshape(xp.arange(math.prod(rows), device=device_of(i.z)), rows)
    return Batched(i._replace(stream=streams), axis=None)


_INDEX = Result("z", "int64", _per_draw)
_PARTS = {"z": -1, "where": -1}

categorical: Operation[Categorical, Draws] = Operation(
    "categorical",
    Categorical,
    Draws(_INDEX),
    definition=reference.categorical,
    kernels={"cpu": _native.categorical, "cuda": "softargmax.sample.triton_kernels:categorical"},
    batch=_with_own_streams,
    differentiable=False,
    spreads=_PARTS,
    refuse=_refuse_draws,
    mend=_mend,
)

categorical_with_logprob: Operation[Categorical, DrawsWithLogprob] = Operation(
    "categorical_with_logprob",
    Categorical,
    DrawsWithLogprob(_INDEX, Result("z", "", _per_draw, wide=True), per_row("z", "int64")),
    definition=reference.categorical_with_logprob,
    kernels={
        "cpu": _native.categorical_with_logprob,
        "cuda": "softargmax.sample.triton_kernels:categorical_with_logprob",
    },
    batch=_with_own_streams,
    differentiable=False,
    spreads=_PARTS,
    refuse=_refuse_draws,
    mend=_mend,
)

gumbel: Operation[Noise, Gumbel] = Operation(
    "gumbel",
    Noise,
    Gumbel(like("z", "dtype")),
    definition=reference.gumbel,
    kernels={"cpu": _native.gumbel, "cuda": "softargmax.sample.triton_kernels:gumbel"},
    batch=_with_own_streams,
    differentiable=False,
)
