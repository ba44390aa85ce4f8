"""JAX: draws work under jit and vmap. Relaxed draws have gradients, which are straight-through if `hard` is True."""

from __future__ import annotations

import numpy as np
import pytest

import softargmax as s
from softargmax.core import _native, philox
from softargmax.sample import reference
from softargmax.sample.check_options import parameter

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Z = np.random.default_rng(9).standard_normal((6, 40)).astype(np.float32) * 3


@pytest.mark.slow
def test_traced_draws_are_those_of_numpy() -> None:
    def run(z):
        every = {}, {"top_k": 5, "top_p": 0.8, "min_p": 0.01, "temperature": 0.7}
        return [s.categorical_with_logprob(z, seed=1, num_samples=3, **options) for options in every]

    for found, expected in zip(jax.jit(run)(jnp.asarray(Z)), run(Z), strict=True):
        for a, b in zip(found, expected, strict=True):
            assert np.allclose(a, b, rtol=1e-5)


@pytest.mark.slow
def test_counters_of_32_bits_are_those_of_64() -> None:
    """JAX's 32-bit counters give the core's random words for the largest seed and for the extreme streams and draws."""
    streams, draws = [0, 1, -1, 2**31 - 1, -(2**31)], [0, 1, 2**31 - 1]
    for dtype, ids in ((jnp.int32, streams), (jnp.uint32, [0, 2**31, 2**32 - 1])):

        @jax.jit
        def run(ids):
            return philox.words(jnp.zeros(1), 2**64 - 1, ids, jnp.asarray(draws, jnp.uint32), 9)

        high, low = (np.asarray(part, np.uint64) for part in run(jnp.asarray(ids, dtype)))
        for i, stream in enumerate(ids):
            for j, draw in enumerate(draws):
                out = np.empty(9, np.uint64)
                _native.random_words(out, 2**64 - 1, stream, draw, 0)
                assert np.array_equal(out, high[i, j] << np.uint64(32) | low[i, j])


def test_traced_rows_that_cannot_be_drawn_from() -> None:
    """Under tracing, a row that cannot be drawn from has index -1, logprob NaN and support_size 0."""
    z = jnp.asarray([[0.0, 1.0], [np.nan, 1.0], [-np.inf, -np.inf]])
    drawn = jax.jit(lambda z: s.categorical_with_logprob(z, seed=0))(z)
    assert drawn.index[1:].tolist() == [-1, -1]
    assert np.isnan(np.asarray(drawn.logprob[1:])).all()
    assert drawn.support_size.tolist() == [2, 0, 0]


PARAMETERS = {
    "temperature": [0.5, -1.0, np.nan],
    "top_k": [2.0, -2.0, 2.5],
    "top_p": [0.5, 0.0, np.nan],
    "min_p": [0.5, -0.1, 1.1],
    "typical_p": [0.5, 0.0, 1.1],
    "epsilon": [0.1, -0.1, np.nan],
    "eta": [0.1, 1.1, np.nan],
}


@pytest.mark.slow
def test_traced_parameters_out_of_range() -> None:
    """Under tracing, a row with a parameter out of range has a result of NaN, or the index -1."""
    z = jnp.asarray(Z[:3, :5])

    @jax.jit
    def run(z, parameters):
        t, epsilon = parameters["temperature"], parameters["epsilon"]
        each = {name: s.filter_scores(z, **{name: value}) for name, value in parameters.items()}
        policies = {
            "hard": s.gumbel_softmax(z, temperature=t, seed=0, hard=True),
            "greedy": s.boltzmann_policy(z, temperature=t),
            "uniform": s.boltzmann_policy(z, temperature=1.0, epsilon=epsilon),
        }
        drawn = [s.categorical(z, seed=0, **{name: parameters[name]}) for name in ("temperature", "top_k")]
        return {**each, **policies}, drawn

    rows, drawn = run(z, {name: jnp.asarray(values) for name, values in PARAMETERS.items()})
    for name, found in rows.items():
        assert np.isnan(found).all(axis=1).tolist() == [False, True, True], name
        assert not np.isnan(found[0]).any(), name
    assert [(np.asarray(found) < 0).tolist() for found in drawn] == [[False, True, True]] * 2


def test_top_k_beyond_the_digits_of_float32() -> None:
    """An integer top_k above 2^24 is not rounded to float32."""
    k, most = 2**24 + 1, 2**24 + 3
    rows = jnp.zeros((2, most), jnp.bfloat16)
    each = parameter(jnp.asarray([k, k + 1]), rows, "top_k")
    assert each.tolist() == [[k], [k + 1]]
    assert parameter(np.uint32(k), rows, "top_k") == parameter(k, rows, "top_k") == k
    for given in (k, float(k)):
        rank = jnp.asarray([0, k - 1, k, k + 1])
        assert reference.below(rank, parameter(given, rows, "top_k")).tolist() == [True, True, False, False]
    assert reference.below(rank, each).tolist() == [[True, True, False, False], [True, True, True, False]]


def test_traced_integers_as_top_k_out_of_range() -> None:
    found = jax.jit(lambda z, k: s.filter_scores(z, top_k=k))(jnp.asarray(Z[:4, :5]), jnp.asarray([2, 0, 6, -2]))
    assert np.isnan(found).all(axis=1).tolist() == [False, False, False, True]
    assert (np.asarray(found[:3]) > -np.inf).sum(axis=1).tolist() == [2, 5, 5]


@pytest.mark.slow
def test_traced_guesses_that_are_no_classes() -> None:
    target, guesses = jnp.zeros((4, 3, 5)), jnp.asarray([[1, 4], [1, 5], [-1, 2], [2**31 - 1, 0]])
    found = jax.jit(lambda t, g: s.speculative_sample(t, t[:, :2], g, seed=0))(target, guesses)
    assert found.accepted.tolist() == [2, 0, 0, 0]
    assert found.tokens[0, :2].tolist() == [1, 4]
    assert (found.tokens[1:] == -1).all()


@pytest.mark.slow
def test_mapped_draws_are_those_of_each_call_alone() -> None:
    """With one seed all mapped calls have the same noise, unless each call has its own streams."""
    z, streams = Z[:4].reshape(2, 2, 40), np.array([[5, 6], [7, 8]], np.int32)

    @jax.jit
    def run(z, streams):
        apart = jax.vmap(lambda z, i: s.categorical(z, seed=1, stream=i))(z, streams)
        return jax.vmap(lambda z: s.categorical(z, seed=1))(z), apart

    same, apart = run(jnp.asarray(z), jnp.asarray(streams))
    assert np.array_equal(same, [s.categorical(x, seed=1) for x in z])
    assert np.array_equal(apart, s.categorical(z, seed=1, stream=streams))


@pytest.mark.slow
def test_straight_through() -> None:
    @jax.jit
    def run(z, g):
        found = []
        for hard in (True, False):

            def sample(z, hard=hard):
                return s.gumbel_softmax(z, temperature=0.8, seed=3, hard=hard)

            y, back = jax.vjp(sample, z)
            found.append((y, back(g)[0], jax.jvp(sample, (z,), (g,))[1]))
        return found

    hard, soft = run(jnp.asarray(Z), jnp.asarray(Z[::-1].copy()))
    assert set(np.asarray(hard[0]).reshape(-1).tolist()) == {0.0, 1.0}
    assert np.array_equal(hard[0].argmax(-1), soft[0].argmax(-1))
    for of_hard, of_soft in zip(hard[1:], soft[1:], strict=True):
        assert np.array_equal(of_hard, of_soft)
        assert float(jnp.abs(of_hard).max()) > 0


@pytest.mark.slow
def test_excluded_entries_put_no_nan_in_gradients() -> None:
    z = jnp.asarray([[1.0, -np.inf, 2.0], [np.inf, 1.0, np.inf], [-np.inf] * 3])
    gradient = jax.jit(jax.grad(lambda z: (s.gumbel_softmax(z, seed=0, hard=True) * jnp.arange(3.0)).sum()))(z)
    assert np.isfinite(np.asarray(gradient)).all()
    assert float(jnp.abs(gradient[0]).max()) > 0
    kept = jax.jit(jax.grad(lambda z: jnp.where(jnp.isfinite(f := s.filter_scores(z, top_k=1)), f, 0.0).sum()))(z[:1])
    assert kept.tolist() == [[0, 0, 1]]
