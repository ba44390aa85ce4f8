"""A user's program with Dask arrays: results have the type of the arguments."""

from __future__ import annotations

from typing import assert_type, cast

import dask.array as da
from dask.array.core import Array

import softargmax as sa


def program(z: Array, positive: Array) -> None:
    assert_type(sa.softmax(z), Array)
    assert_type(sa.softmax(z, temperature=[1.0, 2.0], where=positive, dtype="float32"), Array)
    assert_type(sa.logsumexp(z), Array)
    assert_type(sa.cross_entropy(z, [0, 1]), Array)
    assert_type(sa.cross_entropy_terms(z, [0, 1]).entropy, Array)
    assert_type(sa.categorical(z, seed=0), Array)


program(cast("Array", da.ones((2, 3))), cast("Array", da.ones((2, 3), dtype=bool)))
