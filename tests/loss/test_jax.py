"""JAX: the losses trace under jit, grad and vmap; their own gradient keeps what JAX's would lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

RNG = np.random.default_rng(9)
Z = RNG.standard_normal((3, 4)).astype(np.float32) * 3
H, W = Z[:, :2], RNG.standard_normal((4, 2)).astype(np.float32)
Y = np.array([2, 0, -100], np.int32)
MASK = np.array([True, True, True, False])
CALLS: dict[str, Any] = {
    "cross_entropy": lambda z: s.cross_entropy(
        z, jnp.asarray(Y), label_smoothing=0.1, z_loss=0.1, softcap=9.0, temperature=2.0, weight=jnp.arange(1.0, 5.0)
    ),
    "masked": lambda z: s.cross_entropy_terms(z, jnp.asarray(Y), where=jnp.asarray(MASK), reduction="none").entropy,
    "linear": lambda z: s.linear_cross_entropy(z[:, :2], jnp.asarray(W), jnp.asarray(Y), bias=z[0], reduction="none"),
    "js": lambda z: s.distillation(z, jnp.asarray(Z[::-1].copy()), divergence="js", temperature=2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_jit_vmap_and_grad(name: str) -> None:
    """Traced it gives what NumPy gives, batched what a loop gives; its derivative is that of differences."""
    function = jax.jit(CALLS[name])
    value = np.asarray(function(jnp.asarray(Z)))
    batch = np.stack([Z, 2 * Z])
    looped = np.stack([np.asarray(function(jnp.asarray(z))) for z in batch])
    assert np.asarray(jax.jit(jax.vmap(CALLS[name]))(jnp.asarray(batch))) == pytest.approx(looped, rel=1e-5, abs=1e-6)
    f = jax.jit(lambda z: jnp.sum(CALLS[name](z) * jnp.cos(jnp.arange(value.size).reshape(value.shape))))
    gradient = np.asarray(jax.jit(jax.grad(f))(jnp.asarray(Z)))
    direction = np.sin(np.arange(Z.size, dtype=np.float32)).reshape(Z.shape)
    h = 1e-2
    slope = (float(f(jnp.asarray(Z + h * direction))) - float(f(jnp.asarray(Z - h * direction)))) / (2 * h)
    assert (gradient * direction).sum() == pytest.approx(slope, rel=2e-2, abs=2e-2)


def test_the_gradient_is_its_own_derivative() -> None:
    @jax.jit
    def both(z: Any) -> Any:
        options = {"label_smoothing": 0.1, "softcap": 9.0}
        return s.cross_entropy_and_gradient(z, jnp.asarray(Y), **options).gradient, jax.grad(
            lambda z: s.cross_entropy(z, jnp.asarray(Y), **options)
        )(z)

    ours, theirs = both(jnp.asarray(Z))
    assert np.asarray(ours) == pytest.approx(np.asarray(theirs), rel=1e-4, abs=1e-6)


def test_a_class_that_does_not_exist_makes_its_row_nan() -> None:
    rows = jax.jit(lambda y: s.cross_entropy(jnp.asarray(Z), y, reduction="none"))(jnp.asarray([0, 4, -1]))
    assert np.isnan(np.asarray(rows)).tolist() == [False, True, True]
