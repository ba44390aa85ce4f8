"""A user's program with Dask arrays: results have the type of the arguments."""

from __future__ import annotations

from typing import assert_type

import dask.array as da

import softargmax as sa

z: da.Array = da.ones((2, 3))
positive: da.Array = z > 0.0

assert_type(sa.softmax(z), da.Array)
assert_type(sa.softmax(z, temperature=[1.0, 2.0], where=positive, dtype="float32"), da.Array)
assert_type(sa.logsumexp(z), da.Array)
assert_type(sa.cross_entropy(z, [0, 1]), da.Array)
assert_type(sa.cross_entropy_terms(z, [0, 1]).entropy, da.Array)
assert_type(sa.categorical(z, seed=0), da.Array)
