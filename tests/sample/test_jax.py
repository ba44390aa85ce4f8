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


PARAMETERS = {
    "temperature": [0.5, -1.0, np.nan],
    "top_k": [2.0, 0.0, 2.5],
    "top_p": [0.5, 0.0, np.nan],
    "min_p": [0.5, -0.1, 1.1],
    "typical_p": [0.5, 0.0, 1.1],
    "epsilon": [0.1, -0.1, np.nan],
    "eta": [0.1, 1.1, np.nan],
}


def test_traced_parameters_out_of_range() -> None:
    """Nobody looks: that row's result is NaN, or the index -1."""
    z = jnp.asarray(Z[:3, :5])

    @jax.jit
    def run(z, parameters):
        t, epsilon = parameters["temperature"], parameters["epsilon"]
        each = {name: s.filter_scores(z, **{name: value}) for name, value in parameters.items()}
        relaxed = {f"relaxed {hard}": s.gumbel_softmax(z, temperature=t, seed=0, hard=hard) for hard in (False, True)}
        policies = {
            "greedy": s.boltzmann_policy(z, temperature=t),
            "T": s.boltzmann_policy(z, temperature=1.0, epsilon=epsilon),
        }
        drawn = [
            s.categorical(z, seed=0, **{name: parameters[name]}) for name in ("temperature", "top_k", "top_p", "min_p")
        ]
        return {**each, **relaxed, **policies}, drawn

    rows, drawn = run(z, {name: jnp.asarray(values) for name, values in PARAMETERS.items()})
    for name, found in rows.items():
        assert np.isnan(found).all(axis=1).tolist() == [False, True, True], name
        assert not np.isnan(found[0]).any(), name
    assert [np.asarray(found)[1:].tolist() for found in drawn] == [[-1, -1]] * 4
    assert all(found[0] >= 0 for found in drawn)


def test_traced_guesses_that_are_no_classes() -> None:
    target, guesses = jnp.zeros((4, 3, 5)), jnp.asarray([[1, 4], [1, 5], [-1, 2], [2**31 - 1, 0]])
    found = jax.jit(lambda t, g: s.speculative_sample(t, t[:, :2], g, seed=0))(target, guesses)
    assert found.accepted.tolist() == [2, 0, 0, 0]
    assert found.tokens[0, :2].tolist() == [1, 4]
    assert (found.tokens[1:] == -1).all()


def test_mapped_draws_are_those_of_each_call_alone() -> None:
    z, streams = jnp.asarray(Z[:4].reshape(2, 2, 40)), jnp.asarray([[5, 6], [7, 8]])
    same = jax.vmap(lambda z: s.categorical(z, seed=1))(z)
    assert np.array_equal(same, [s.categorical(x, seed=1) for x in z])
    apart = jax.vmap(lambda z, i: s.categorical(z, seed=1, stream=i))(z, streams)
    assert np.array_equal(apart.reshape(-1), s.categorical(z.reshape(4, 40), seed=1, stream=streams.reshape(-1)))


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
