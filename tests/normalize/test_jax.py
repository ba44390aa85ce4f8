"""Functions of JAX arrays by kernels and by definitions, under jit, grad and vmap, and their derivatives at edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle import traced

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Z = np.random.default_rng(9).standard_normal((3, 4)).astype(np.float32) * 3
MASK = np.array([True, True, False, True])
RISING, SIGNED = np.arange(4, dtype=np.float32), np.array([1, -1, 2, -2], np.float32)
CUTS = np.array([0, 1, 1, 3])
# `to` converts the other arguments to the library of the scores.
CALLS: dict[str, Any] = {
    "softmax": lambda z, _: s.softmax(z, temperature=3.7),
    "log_softmax": lambda z, _: s.log_softmax(z, base=2.0),
    "softmin": lambda z, _: s.softmin(z, axis=0),
    "masked": lambda z, to: s.softmax(z, where=to(MASK)),
    "with_lse": lambda z, _: s.softmax_with_lse(z).lse,
    "hardmax": lambda z, _: s.hardmax(z),
    "logsumexp": lambda z, to: s.logsumexp(z, weights=to(RISING)),
    "signed": lambda z, to: s.signed_logsumexp(z, to(SIGNED)).log_abs,
    "logcumsumexp": lambda z, to: s.logcumsumexp(z, temperature=-2.0, where=to(MASK)),
    "entropy": lambda z, _: s.entropy(z),
    "renyi_entropy": lambda z, _: s.renyi_entropy(z, 1.3),
    "renyi_entropy, orders": lambda z, to: s.renyi_entropy(
        z, to(np.array([0.4, 1.0, 3.0], np.float32)), where=to(MASK)
    ),
    "kl_divergence": lambda z, _: s.kl_divergence(z, z[::-1]),
    "jacobian": lambda z, _: s.softmax_jacobian(z),
    "boltzmann": lambda z, to: s.boltzmann(z, 2.0, weights=to(RISING)).heat_capacity,
    "soft_argmax": lambda z, _: s.soft_argmax(z),
    "segments": lambda z, to: s.segment_softmax(z, to(CUTS)),
    "segment_logsumexp": lambda z, to: s.segment_logsumexp(z, to(CUTS), temperature=2.0),
    "complex": lambda z, _: abs(s.logsumexp(z + 1j * z)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_jit_vmap_and_grad(name: str) -> None:
    # vmap would split the first axis, but segments run along it.
    traced.check(CALLS[name], Z, mapped="segment" not in name)


@pytest.mark.slow
def test_second_derivatives_at_ties() -> None:
    tied = jnp.asarray([1.0, 1.0, 0.0])
    hessian = np.asarray(jax.jit(jax.hessian(s.logsumexp))(tied))
    assert hessian == pytest.approx(s.softmax_jacobian(np.asarray(tied)), abs=1e-6)
    assert np.asarray(jax.jit(jax.jacobian(s.softmax))(tied)) == pytest.approx(hessian, abs=1e-6)
    assert np.asarray(jax.jit(jax.jacrev(s.logcumsumexp))(tied))[-1] == pytest.approx(
        s.softmax(np.asarray(tied)), abs=1e-6
    )


@pytest.mark.slow
def test_gradients_reach_temperature_and_weights() -> None:
    z = jnp.asarray(Z[0])
    slope = jax.jit(jax.grad(lambda t: s.softmax(z, temperature=t)[2]))
    h = 1e-2
    expected = (s.softmax(Z[0], temperature=2.0 + h)[2] - s.softmax(Z[0], temperature=2.0 - h)[2]) / (2 * h)
    assert float(slope(2.0)) == pytest.approx(float(expected), rel=1e-2)
    assert math.isfinite(float(slope(math.inf)))
    gradient = np.asarray(jax.jit(jax.grad(lambda w: s.logsumexp(z, weights=w)))(jnp.asarray([1.0, 2, 0, 1])))
    with np.errstate(divide="ignore"):
        p = s.softmax(Z[0] + np.log(np.array([1, 2, 0, 1], np.float32)))
    assert gradient == pytest.approx(p / np.array([1.0, 2, 1, 1]), rel=1e-5)


@pytest.mark.slow
def test_wrong_values_in_a_traced_function_give_nan() -> None:
    z = jnp.asarray(Z[:, 0])
    for offsets in ([0, 5], [1, 3], [0, 2, 1, 3]):
        assert np.isnan(np.asarray(jax.jit(s.segment_softmax)(z, jnp.asarray(offsets)))).all()
        assert np.isnan(np.asarray(jax.jit(s.segment_logsumexp)(z, jnp.asarray(offsets)))).all()
    assert np.isnan(np.asarray(jax.jit(lambda t: s.softmax(z, temperature=t))(math.nan))).all()
    assert np.isnan(np.asarray(jax.jit(lambda w: s.logsumexp(z, weights=w))(jnp.asarray([1.0, -1, 1]))))
