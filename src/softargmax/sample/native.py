"""The primitives of this room on NumPy arrays, by the compiled core."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import _native
from softargmax.core import check
from softargmax.core.native import beta_of, fresh, view
from softargmax.sample.options import refuse
from softargmax.sample.reference import Drawn

if TYPE_CHECKING:
    from softargmax.core.seeds import Source
    from softargmax.sample.options import Asked, Filters

Array = np.ndarray[Any, Any]


def gumbel(_like: Array, shape: tuple[int, ...], dtype: Any, source: Source) -> Array:
    """Noise of this shape, a stream to each row along the last axis."""
    out = fresh(shape, dtype)
    _native.gumbel(view(out if shape else out.reshape(1)), source.seed, source.stream)
    return out


def keep(z: Array, asked: Asked) -> Array:
    """Where the filters leave a score."""
    out = np.empty(z.shape, np.bool_)
    beside = *beta_of(asked.scale), asked.where, parameters(asked.filters), asked.joint
    refuse(*_native.keep(view(z), out, *beside), z.shape[:-1])
    return out


def draw(z: Array, asked: Asked, source: Source, n: int, *, replace: bool, counts: bool) -> Drawn:
    """n draws of each row."""
    rows = z.shape[:-1]
    size = math.prod(rows)
    index = np.empty(size * n, np.int64)
    logprob, support = (np.empty(size * n), np.empty(size, np.int64)) if counts else (None, None)
    beside = source.stream, *beta_of(asked.scale), asked.where, parameters(asked.filters), asked.joint
    refuse(*_native.categorical(view(z), index, source.seed, *beside, n, replace, logprob, support), rows, n)
    index = index.reshape(*rows, n)
    if logprob is None or support is None:
        return Drawn(index, None, None)
    return Drawn(index, logprob.astype(check.row_dtype(None, z)).reshape(index.shape), support.reshape(rows))


def parameters(filters: Filters) -> tuple[Any, ...]:
    """The filters as the compiled core takes them."""
    return tuple(x if x is None or isinstance(x, float) else np.asarray(x, np.float64) for x in filters)
