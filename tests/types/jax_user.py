"""A user's program with arrays of JAX: results have the type of the arguments."""

from __future__ import annotations

from typing import assert_type

import jax
import jax.numpy as jnp

import softargmax as sa

z = jnp.ones((2, 3))

assert_type(sa.softmax(z), jax.Array)
assert_type(sa.softmax(z, temperature=jnp.ones((2, 1)), where=[True, True, False], dtype=jnp.float32), jax.Array)
assert_type(sa.logsumexp(z), jax.Array)
assert_type(sa.softmax_with_lse(z).p, jax.Array)
assert_type(sa.cross_entropy(z, jnp.array([0, 1])), jax.Array)
assert_type(sa.sparsemax(z), jax.Array)
assert_type(sa.categorical(z, seed=0), jax.Array)
assert_type(sa.gumbel(3, like=z, seed=0), jax.Array)
assert_type(sa.attention(z[None], z[None], z[None]), jax.Array)
