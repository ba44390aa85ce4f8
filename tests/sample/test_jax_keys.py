"""Keys of `jax.random` as seeds: the same draws eager, traced, mapped and from NumPy; wrong keys are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.traced import enable_x64

import softargmax as sa

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Z = np.random.default_rng(3).standard_normal((6, 40)).astype(np.float32) * 3
EMISSIONS, TRANSITIONS = Z[:, :5], Z[:5, 5:10]
DRAWS: dict[str, Any] = {
    "categorical": lambda z, key: sa.categorical(z, seed=key, num_samples=4),
    "filtered": lambda z, key: sa.categorical(z, seed=key, top_k=5, temperature=0.5),
    "without replacement": lambda z, key: sa.categorical(z, seed=key, num_samples=3, replace=False),
    "logprob": lambda z, key: sa.categorical_with_logprob(z, seed=key),
    "gumbel": lambda z, key: sa.gumbel(z.shape, like=z, seed=key),
    "gumbel_softmax": lambda z, key: sa.gumbel_softmax(z, seed=key, axis=0),
    "speculative": lambda z, key: sa.speculative_sample(z * 0.1, z[:-1] * 0.2, np.arange(len(z) - 1), seed=key),
    "dropout": lambda z, key: sa.attention(*[z[None]] * 3, dropout=0.5, seed=key),
}


def seed_of(key: Any) -> int:
    low, high = jax.random.bits(key, (2,), "uint32").tolist()
    return low | high << 32


def same(a: Any, b: Any) -> bool:
    """True if all arrays agree: integers exactly, floats to the rounding of two programs."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return all(np.array_equal(x, y) if x.dtype.kind == "i" else np.allclose(x, y, rtol=1e-5, atol=1e-6)
               for x, y in pairs)  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("kind", ["key", "PRNGKey"])
def test_a_key_is_a_seed(name: str, kind: str) -> None:
    draw, z, key = DRAWS[name], jnp.asarray(Z), getattr(jax.random, kind)(5)
    expected = draw(z, seed_of(key))
    assert same(draw(z, key), expected)
    assert same(jax.jit(draw)(z, key), expected)
    assert same(draw(Z, key), expected)
    others = jax.random.split(key, 10)
    assert not all(same(draw(z, other), expected) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["native", "reference"])
@pytest.mark.parametrize("name", DRAWS)
def test_mapped_keys(name: str, how: str) -> None:
    """Each mapped call has the draws that it would have alone, also in two levels of vmap."""
    draw = DRAWS[name]
    z, keys = jnp.asarray(Z).reshape(2, 3, 40), jax.random.split(jax.random.key(1), (2, 2))

    def mapped(z: Any, keys: Any) -> Any:
        with sa.using(how):
            each = jax.vmap(draw, (None, 0))
            return jax.vmap(each)(z, keys), jax.vmap(draw)(z, keys[0]), jax.vmap(draw, (None, 0))(z[0], keys[1])

    twice, once, of_one = jax.jit(mapped)(z, keys)
    for i in range(2):
        assert same([x[i] for x in jax.tree.leaves(once)], jax.tree.leaves(draw(z[i], keys[0, i])))
        assert same([x[i] for x in jax.tree.leaves(of_one)], jax.tree.leaves(draw(z[0], keys[1, i])))
        for j in range(2):
            assert same([x[i, j] for x in jax.tree.leaves(twice)], jax.tree.leaves(draw(z[i], keys[i, j])))


def test_gradients_with_a_key() -> None:
    def total(z: Any, key: Any) -> Any:
        return (sa.gumbel_softmax(z, seed=key) * jnp.arange(40.0)).sum()

    key = jax.random.key(2)
    expected = jax.grad(total)(jnp.asarray(Z), seed_of(key))
    assert same(jax.grad(total)(jnp.asarray(Z), key), expected)
    assert same(jax.jit(jax.grad(total))(jnp.asarray(Z), key), expected)


def test_paths_drawn_with_a_key() -> None:
    def paths(key: Any) -> Any:
        return sa.linear_chain(jnp.asarray(EMISSIONS), jnp.asarray(TRANSITIONS)).sample(seed=key)

    key = jax.random.key(3)
    assert same(paths(key), jax.jit(paths)(key))
    drawn = np.stack([paths(k) for k in jax.random.split(key, 40)])
    assert drawn.shape == (40, 6)
    assert (drawn != drawn[0]).any()
    assert same(jax.vmap(paths)(jax.random.split(key, 40)), drawn)


def test_draws_over_keys_follow_the_probabilities() -> None:
    """The first class of 4000 keys, against its binomial distribution at 5 standard deviations."""
    z, n = jnp.asarray([1.0, 0.0, -1.0]), 4000
    drawn = jax.vmap(lambda key: sa.categorical(z, seed=key))(jax.random.split(jax.random.key(4), n))
    p = np.asarray(sa.softmax(np.asarray(z, np.float64)))
    counts = np.bincount(np.asarray(drawn), minlength=3)
    assert (np.abs(counts - n * p) < 5 * np.sqrt(n * p * (1 - p))).all()


def test_wrong_keys() -> None:
    with pytest.raises(ValueError, match=r"seed: expected one key, got keys of shape \(3,\); use jax.vmap"):
        sa.categorical(jnp.asarray(Z), seed=jax.random.split(jax.random.key(0), 3))
    with pytest.raises(ValueError, match=r"seed: expected one key, got keys of shape \(3, 2\); use jax.vmap"):
        sa.categorical(jnp.asarray(Z), seed=jax.random.split(jax.random.PRNGKey(0), 3))
    with pytest.raises(
        TypeError, match="seed: expected a key whose value is known, to draw from ndarray, got a traced key"
    ):
        jax.jit(lambda key: sa.categorical(Z, seed=key))(jax.random.key(0))
    with pytest.raises(TypeError, match="seed: expected an integer"):
        sa.categorical(jnp.asarray(Z), seed=jnp.zeros(2))
    with pytest.raises(TypeError, match="seed: expected an integer"):
        sa.categorical(jnp.asarray(Z), seed=jnp.array([3]))


def test_keys_of_other_generators() -> None:
    key = jax.random.key(5, impl="rbg")
    expected = sa.categorical(Z, seed=seed_of(key))
    assert same(sa.categorical(jnp.asarray(Z), seed=key), expected)
    assert same(jax.jit(lambda: sa.categorical(Z, seed=key))(), expected)  # known, though it is inside of jit


def test_keys_with_streams_and_64_bits() -> None:
    key, streams = jax.random.key(6), jnp.arange(6) * 7
    expected = sa.categorical(Z, seed=seed_of(key), stream=np.asarray(streams))
    assert same(sa.categorical(jnp.asarray(Z), seed=key, stream=streams), expected)
    with enable_x64(True):
        for how in ("native", "reference"):
            with sa.using(how):
                assert same(sa.categorical(jnp.asarray(Z), seed=key, stream=streams), expected)


def test_tensors_take_keys() -> None:
    torch = pytest.importorskip("torch")
    key = jax.random.key(7)
    assert same(sa.categorical(torch.from_numpy(Z), seed=key), sa.categorical(Z, seed=seed_of(key)))


def test_output_layers_draw_by_keys() -> None:
    torch = pytest.importorskip("torch")
    layer, h, key = sa.nn.FullSoftmax(3, 50), torch.ones(20, 3), jax.random.key(3)
    assert torch.equal(layer.sample(h, seed=key), layer.sample(h, seed=seed_of(key)))
    assert not torch.equal(layer.sample(h, seed=key), layer.sample(h, seed=jax.random.key(4)))
