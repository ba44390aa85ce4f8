"""Masked entries, whatever they are, have derivatives of 0 of both orders, and put no NaN into those of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

X = np.array(
    [[1, np.nan, 2, -1], [0.5, np.inf, 2, 0], [1, -np.inf, 2, -1], [-np.inf, np.nan, 3, 1], [1, np.nan, 1e30, 0]], "f4"
)
"""The entries of column 1 are masked. Products take the first three rows, whose other entries are small."""
WHERE, Y = np.array([True, False, True, True]), np.array([0, 2, 0, 3, 2])
H = jnp.asarray(np.random.default_rng(0).standard_normal((5, 5)), "f4")


def first_keys(x: Any) -> Any:
    """Return four keys, the last of which is masked."""
    return jnp.concatenate([x[:3, :1], x[:3, 2:], x[:3, 1:2]], axis=1).T[None, None]


CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: s.softmax(x, where=WHERE),
    "softmax, temperature below 0": lambda x: s.softmax(x, where=WHERE, temperature=-2.0),
    "softmax, temperatures": lambda x: s.softmax(x[:4], where=WHERE, temperature=2.0 + jnp.cos(x[:4, 2])),
    "log_softmax": lambda x: s.log_softmax(x, where=WHERE),
    "softmax_with_lse": lambda x: s.softmax_with_lse(x, where=WHERE),
    "logsumexp": lambda x: s.logsumexp(x, where=WHERE),
    "logcumsumexp": lambda x: s.logcumsumexp(x, where=WHERE),
    "entropy": lambda x: s.entropy(x, where=WHERE),
    "renyi_entropy": lambda x: s.renyi_entropy(x, 2.0, where=WHERE),
    "kl_divergence": lambda x: s.kl_divergence(x, x * 0.5, where=WHERE),
    "soft_argmax": lambda x: s.soft_argmax(x, where=WHERE),
    "sparsemax": lambda x: s.sparsemax(x * 0.25, where=WHERE),
    "entmax": lambda x: s.entmax(x, 1.5, where=WHERE),
    "entmax_loss": lambda x: s.entmax_loss(x, Y, 1.5, where=WHERE),
    "cross_entropy": lambda x: s.cross_entropy(x, Y, where=WHERE, label_smoothing=0.1),
    "cross_entropy, rows": lambda x: s.cross_entropy(x, Y, where=WHERE, reduction="none"),
    "cross_entropy_terms": lambda x: s.cross_entropy_terms(x, Y, where=WHERE, z_loss=0.1),
    "selected_log_softmax": lambda x: s.selected_log_softmax(x, Y, where=WHERE),
    "distillation": lambda x: s.distillation(x[:3], x[2::-1] * 0.5, where=WHERE),
    "linear_cross_entropy": lambda x: s.linear_cross_entropy(H[:, :3], x[:3].T, Y, where=WHERE),
    "attention": lambda x: s.attention(H[None, :, :3], x[:3].T[None], x[:3].T[None], mask=WHERE),
    "attention, lengths": lambda x: s.attention(H[None, None, :, :3], first_keys(x), first_keys(x), key_lengths=[3]),
    "log_matmul": lambda x: s.log_matmul(x, H[:4], where_a=WHERE),
    "linear_chain": lambda x: s.linear_chain(first_keys(x)[0, 0], H[:3, :3], lengths=3).log_z,
    "gumbel_softmax": lambda x: s.gumbel_softmax(x, where=WHERE, seed=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("name", CALLS)
def test_masked_entries(name: str, implementation: str) -> None:
    def total(x: Any) -> Any:
        found = [y.reshape(-1) for y in jax.tree.leaves(CALLS[name](x))]
        return sum(jnp.where(jnp.isfinite(y), y, 0.0) @ jnp.cos(jnp.arange(y.size)) for y in found)

    with s.using(implementation):
        first, second = jax.jit(lambda x: (jax.grad(total)(x), jax.jacfwd(jax.grad(total))(x)))(jnp.asarray(X))
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()
    assert np.abs(first).max() > 0
    assert (first[:, 1] == 0).all()
    assert (second[:, 1] == 0).all()
    assert (second[..., 1] == 0).all()
