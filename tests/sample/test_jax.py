"""JAX: draws trace under jit and vmap; relaxed draws differentiate, straight through where they are hard."""

from __future__ import annotations

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Z = np.random.default_rng(9).standard_normal((6, 40)).astype(np.float32) * 3


def test_traced_draws_are_those_of_eager_code() -> None:
    z = jnp.asarray(Z)
    for options in ({}, {"top_k": 5, "top_p": 0.8, "min_p": 0.01, "temperature": 0.7}):

        def f(z, o=options):
            return s.categorical_with_logprob(z, seed=1, num_samples=3, **o)

        for a, b in zip(jax.jit(f)(z), f(z), strict=True):
            assert np.allclose(a, b, rtol=1e-5)


def test_traced_rows_that_cannot_be_drawn_from() -> None:
    """Nobody looks: the index is -1."""
    z = jnp.asarray([[0.0, 1.0], [np.nan, 1.0], [-np.inf, -np.inf]])
    drawn = jax.jit(lambda z: s.categorical_with_logprob(z, seed=0))(z)
    assert drawn.index[1:].tolist() == [-1, -1]
    assert np.isnan(np.asarray(drawn.logprob[1:])).all()
    assert drawn.support_size.tolist() == [2, 0, 0]
    found = jax.jit(lambda z, k, t: s.categorical(z, seed=0, top_k=k, temperature=t))
    args = jnp.zeros((4, 3)), jnp.asarray([1, 0, 4, 3]), jnp.asarray([1.0, 1.0, 1.0, -1.0])
    assert found(*args).tolist() == [0, -1, -1, -1]


def test_straight_through() -> None:
    z, g = jnp.asarray(Z), jnp.asarray(Z[::-1].copy())

    def sample(z, hard):
        return s.gumbel_softmax(z, temperature=0.8, seed=3, hard=hard)

    hard, soft = (jax.vjp(lambda z, h=h: sample(z, h), z) for h in (True, False))
    assert set(np.asarray(hard[0]).reshape(-1).tolist()) == {0.0, 1.0}
    assert np.array_equal(hard[0].argmax(-1), soft[0].argmax(-1))
    assert np.array_equal(hard[1](g)[0], soft[1](g)[0])
    assert float(jnp.abs(soft[1](g)[0]).max()) > 0
    tangents = [jax.jvp(lambda z, h=h: sample(z, h), (z,), (g,))[1] for h in (True, False)]
    assert np.array_equal(*tangents)


def test_gradients_have_no_nan_from_what_is_left_out() -> None:
    z = jnp.asarray([[1.0, -np.inf, 2.0], [np.inf, 1.0, np.inf], [-np.inf] * 3])
    gradient = jax.grad(lambda z: (s.gumbel_softmax(z, seed=0, hard=True) * jnp.arange(3.0)).sum())(z)
    assert np.isfinite(np.asarray(gradient)).all()
    assert float(jnp.abs(gradient[0]).max()) > 0
    kept = jax.grad(lambda z: jnp.where(jnp.isfinite(f := s.filter_scores(z, top_k=1)), f, 0.0).sum())(z[:1])
    assert kept.tolist() == [[0, 0, 1]]
