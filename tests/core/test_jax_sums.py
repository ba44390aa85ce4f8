"""Sums in programs of JAX are right to many more digits than float32 has, whatever XLA simplifies."""

from __future__ import annotations

import math

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

from softargmax.core import jax_sums  # noqa: E402


@pytest.mark.parametrize("bound", [None, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 32768, 70000])
def test_digits(n: int, bound: float | None) -> None:
    """The sum as a pair has an error below 2^-32 of it."""
    x = np.exp(-np.random.default_rng(n).exponential(3.0, (2, n))).astype("f4")
    x[:, 0] = 1.0
    high, low = (np.asarray(part)[:, 0] for part in jax.jit(lambda x: jax_sums.total(x, bound))(jnp.asarray(x)))
    for k, row in enumerate(x):
        found = float(high[k]) + float(low[k])
        assert found == pytest.approx(math.fsum(row.tolist()), rel=2.0**-32, abs=0)


@pytest.mark.parametrize("bound", [None, 1.0])
@pytest.mark.parametrize("place", [0, 4])
def test_rows_with_nan(place: int, bound: float | None) -> None:
    x = np.ones((2, 9), "f4")
    x[0, place] = np.nan
    high, low = jax.jit(lambda x: jax_sums.total(x, bound))(jnp.asarray(x))
    assert np.isnan(high[0, 0])
    assert (high[1, 0], low[1, 0]) == (9.0, 0.0)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38])
def test_infinite_sums(value: float) -> None:
    x = np.ones((2, 9), "f4")
    x[0, 4:6] = value
    high, low = jax.jit(jax_sums.total)(jnp.asarray(x))
    assert high[:, 0].tolist() == [math.copysign(math.inf, value), 9.0]
    assert low[:, 0].tolist() == [0.0, 0.0]


def test_definitions_are_short() -> None:
    """Their programs have at most twice as many loops as those of jax.nn."""
    for ours, theirs in ((s.softmax, jax.nn.softmax), (s.logsumexp, lambda z: jax.nn.logsumexp(z, axis=-1))):
        with s.using("reference"):
            own = jax.jit(lambda z, f=ours: f(z)).lower(jnp.ones((512, 1000))).compile().as_text()
        peer = jax.jit(theirs).lower(jnp.ones((512, 1000))).compile().as_text()
        assert own.count(" fusion(") <= 2 * peer.count(" fusion(")
