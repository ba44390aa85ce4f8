"""JAX: the reference traces under jit, grad and vmap, and masked entries never bring a NaN into a derivative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Z = np.random.default_rng(9).standard_normal((3, 4)).astype(np.float32) * 3
MASK = np.array([True, True, False, True])
CALLS: dict[str, Any] = {
    "softmax": lambda z: s.softmax(z, temperature=3.7),
    "log_softmax": lambda z: s.log_softmax(z, base=2.0),
    "softmin": lambda z: s.softmin(z, axis=0),
    "masked": lambda z: s.softmax(z, where=jnp.asarray(MASK)),
    "with_lse": lambda z: s.softmax_with_lse(z).lse,
    "hardmax": s.hardmax,
    "logsumexp": lambda z: s.logsumexp(z, weights=jnp.arange(4.0)),
    "signed": lambda z: s.signed_logsumexp(z, jnp.asarray([1.0, -1, 2, -2])).log_abs,
    "logcumsumexp": s.logcumsumexp,
    "entropy": s.entropy,
    "kl_divergence": lambda z: s.kl_divergence(z, z[::-1]),
    "jacobian": s.softmax_jacobian,
    "boltzmann": lambda z: s.boltzmann(z, 2.0, weights=jnp.arange(4.0)).heat_capacity,
    "soft_argmax": s.soft_argmax,
    "segments": lambda z: s.segment_softmax(z, jnp.asarray([0, 1, 1, 3])),
    "segment_logsumexp": lambda z: s.segment_logsumexp(z, jnp.asarray([0, 1, 1, 3]), temperature=2.0),
    "complex": lambda z: jnp.abs(s.logsumexp(z + 1j * z)),
}


@pytest.mark.parametrize("name", CALLS)
def test_jit_vmap_and_grad(name: str) -> None:
    """Traced it gives what NumPy gives, batched what a loop gives; its derivative is that of differences."""
    function = jax.jit(CALLS[name])
    value = np.asarray(function(jnp.asarray(Z)))
    with s.using("reference"):
        assert value == pytest.approx(np.asarray(CALLS[name](jnp.asarray(Z))), rel=1e-5, abs=1e-6)

    batch = np.stack([Z, 2 * Z])
    if "segment" not in name:  # their rows are along the first axis
        looped = np.stack([np.asarray(function(jnp.asarray(z))) for z in batch])
        batched = np.asarray(jax.jit(jax.vmap(CALLS[name]))(jnp.asarray(batch)))
        assert batched == pytest.approx(looped, rel=1e-5, abs=1e-6)

    weights = np.cos(np.arange(value.size, dtype=np.float32)).reshape(value.shape)

    @jax.jit
    def f(z: Any) -> Any:
        out = CALLS[name](z)
        return jnp.sum(jnp.where(jnp.isfinite(out), out, 0.0) * weights)

    gradient = np.asarray(jax.jit(jax.grad(f))(jnp.asarray(Z)))
    direction = np.sin(np.arange(Z.size, dtype=np.float32)).reshape(Z.shape)
    h = 1e-2
    slope = (float(f(jnp.asarray(Z + h * direction))) - float(f(jnp.asarray(Z - h * direction)))) / (2 * h)
    assert (gradient * direction).sum() == pytest.approx(slope, rel=2e-2, abs=2e-2)


def test_masked_entries_bring_no_nan_into_any_derivative() -> None:
    rows = jnp.asarray([[1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [-math.inf, math.nan, 3.0], [1.0, math.nan, 1e30]])
    where = jnp.asarray([True, False, True])
    for function in (s.softmax, s.log_softmax, s.entropy, s.logsumexp, s.soft_argmax):

        def f(z: Any, function: Any = function) -> Any:
            out = function(z, where=where)
            return jnp.sum(jnp.where(jnp.isfinite(out), out, 0.0) ** 2)

        gradient = np.asarray(jax.jit(jax.grad(f))(rows))
        assert np.isfinite(gradient).all(), (function.__name__, gradient)
        assert (gradient[:, 1] == 0).all()
        second = np.asarray(jax.jit(jax.jacfwd(jax.grad(f)))(rows))
        assert np.isfinite(second).all(), function.__name__


def test_second_derivatives_at_ties() -> None:
    tied = jnp.asarray([1.0, 1.0, 0.0])
    hessian = np.asarray(jax.jit(jax.hessian(s.logsumexp))(tied))
    assert hessian == pytest.approx(np.asarray(s.softmax_jacobian(tied)), abs=1e-6)
    assert np.asarray(jax.jit(jax.jacobian(s.softmax))(tied)) == pytest.approx(hessian, abs=1e-6)
    assert np.asarray(jax.jit(jax.jacrev(s.logcumsumexp))(tied))[-1] == pytest.approx(
        np.asarray(s.softmax(tied)), abs=1e-6
    )


def test_gradients_reach_temperature_and_weights() -> None:
    z = jnp.asarray(Z[0])
    slope = jax.jit(jax.grad(lambda t: s.softmax(z, temperature=t)[2]))
    h = 1e-2
    expected = (s.softmax(z, temperature=2.0 + h)[2] - s.softmax(z, temperature=2.0 - h)[2]) / (2 * h)
    assert float(slope(2.0)) == pytest.approx(float(expected), rel=1e-2)
    assert math.isfinite(float(slope(math.inf)))
    gradient = np.asarray(jax.jit(jax.grad(lambda w: s.logsumexp(z, weights=w)))(jnp.asarray([1.0, 2, 0, 1])))
    p = np.asarray(s.softmax(z + jnp.log(jnp.asarray([1.0, 2, 0, 1]))))
    assert gradient == pytest.approx(p / np.array([1.0, 2, 1, 1]), rel=1e-5)


def test_wrong_values_in_a_traced_function_make_nan() -> None:
    z = jnp.asarray(Z[:, 0])
    for offsets in ([0, 5], [1, 3], [0, 2, 1, 3]):
        assert np.isnan(np.asarray(jax.jit(s.segment_softmax)(z, jnp.asarray(offsets)))).all()
        assert np.isnan(np.asarray(jax.jit(s.segment_logsumexp)(z, jnp.asarray(offsets)))).all()
    assert np.isnan(np.asarray(jax.jit(lambda t: s.softmax(z, temperature=t))(math.nan))).all()
    assert np.isnan(np.asarray(jax.jit(lambda w: s.logsumexp(z, weights=w))(jnp.asarray([1.0, -1, 1]))))
