"""JAX: the losses can be traced by jit, grad and vmap, and cross_entropy_and_gradient equals jax.grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle import traced

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

RNG = np.random.default_rng(9)
Z = RNG.standard_normal((3, 4)).astype(np.float32) * 3
H, W = Z[:, :2], RNG.standard_normal((4, 2)).astype(np.float32)
Y = np.array([2, 0, -100], np.int32)
MASK = np.array([True, True, True, False])
WEIGHT, TEACHER = np.arange(1, 5, dtype=np.float32), Z[::-1].copy()
# `to` converts the other arguments to the library of the scores.
CALLS: dict[str, Any] = {
    "cross_entropy": lambda z, to: s.cross_entropy(
        z, to(Y), label_smoothing=0.1, z_loss=0.1, softcap=9.0, temperature=2.0, weight=to(WEIGHT)
    ),
    "masked": lambda z, to: s.cross_entropy_terms(z, to(Y), where=to(MASK), reduction="none").entropy,
    "linear": lambda z, to: s.linear_cross_entropy(z[:, :2], to(W), to(Y), bias=z[0], reduction="none"),
    "js": lambda z, to: s.distillation(z, to(TEACHER), divergence="js", temperature=2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_jit_vmap_and_grad(name: str) -> None:
    traced.check(CALLS[name], Z)


def test_the_gradient_function_equals_jax_grad() -> None:
    @jax.jit
    def both(z: Any) -> Any:
        options = {"label_smoothing": 0.1, "softcap": 9.0}
        return s.cross_entropy_and_gradient(z, jnp.asarray(Y), **options).gradient, jax.grad(
            lambda z: s.cross_entropy(z, jnp.asarray(Y), **options)
        )(z)

    ours, theirs = both(jnp.asarray(Z))
    assert np.asarray(ours) == pytest.approx(np.asarray(theirs), rel=1e-4, abs=1e-6)


def test_a_class_out_of_range_makes_its_row_nan() -> None:
    rows = jax.jit(lambda y: s.cross_entropy(jnp.asarray(Z), y, reduction="none"))(jnp.asarray([0, 4, -1]))
    assert np.isnan(np.asarray(rows)).tolist() == [False, True, True]
