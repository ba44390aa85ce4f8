"""Attention over many blocks of queries and keys, in which some panels of queries see nothing of a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import softargmax as s

pytestmark = pytest.mark.sanitize
WINDOWS = {"causal": {"causal": True}, "narrow": {"window": (20, 0)}, "both sides": {"window": (40, 3)}, "all": {}}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (8, 2)])
@pytest.mark.parametrize("window", WINDOWS)
def test_gradients_of_windows(window: str, heads: int, groups: int, dtype: str) -> None:
    """The gradients equal those of the definition, also after a call that leaves NaN in the kernel's memory."""
    queries, keys, width, values = 300, 600, 24, 40
    arrays = [draw(heads, queries, width), draw(groups, keys, width), draw(groups, keys, values)]
    g, options = draw(heads, queries, values, seed=1), WINDOWS[window]
    with s.using("reference"):
        wanted = s.attention_vjp(*arrays, g, **options)[:3]
    arrays, g = [x.astype(dtype) for x in arrays], g.astype(dtype)
    for threads in (1, 2):
        s.set_num_threads(threads)
        with np.errstate(all="ignore"):
            s.attention_vjp(*(np.full_like(x, np.nan) for x in arrays), g)
        for found, truth in zip(s.attention_vjp(*arrays, g, **options)[:3], wanted, strict=True):
            # A sum over n keys or queries has an error of sqrt(n) roundings of its terms.
            slack = 4 * np.finfo(dtype).eps * np.sqrt(keys)
            assert_allclose(found, truth, rtol=0, atol=slack * abs(truth).max())
    s.set_num_threads(0)


@pytest.mark.parametrize("bad", [False, True])
def test_the_blocks_of_several_heads_in_waves(bad: bool) -> None:
    """Few queries and wide values: several waves of blocks, of which one has blocks of two heads."""
    keys, width = 10_000, 512
    q, k, v = (draw(1, 2, n, width, seed=i).astype("f4") for i, n in enumerate((1, keys, keys)))
    if bad:
        v[0, 0, 7_000, 3] = np.nan
    lengths = np.array([[keys - 300, 0]]) if bad else None
    results: list[Any] = []
    for threads in (1, 2):
        s.set_num_threads(threads)
        results.append(s.attention_with_lse(q, k, v, key_lengths=None if lengths is None else lengths[:, 0]))
        results.append(s.attention_with_lse(q, k, v))
    s.set_num_threads(0)
    for one, other in zip(results[:2], results[2:], strict=True):
        assert_array_equal(one.output, other.output)
        assert_array_equal(one.lse, other.lse)
    assert np.isnan(results[1].output[0, 0]).any() == bad
    assert not np.isnan(results[1].output[0, 1]).any()
    exact = s.attention(*(x.astype("f8") for x in (q, k, v)))
    assert_allclose(results[1].output, exact, rtol=0, atol=1e-6)
