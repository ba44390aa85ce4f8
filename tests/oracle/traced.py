"""Check that a function of JAX arrays works under jit, vmap and grad."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import softargmax

Call = Callable[[Any, Callable[[Any], Any]], Any]
"""A function that returns an array. Its arguments are the scores, and a function that converts NumPy arrays to the
library of the scores."""


def enable_x64(mode: bool) -> Any:
    """Return JAX's context manager of this name. Before JAX 0.6 it was in jax.experimental."""
    jax = pytest.importorskip("jax")
    return (jax if hasattr(jax, "typeof") else importlib.import_module("jax.experimental")).enable_x64(mode)


def check(call: Call, z: np.ndarray, *, mapped: bool = True) -> None:
    """Check that jit agrees with NumPy, vmap with a loop (if `mapped`), and grad with finite differences.

    On CPUs the kernels serve JAX, and on other devices the definitions, so both are checked.
    """
    for chosen in (nullcontext(), softargmax.using("reference")):
        with chosen:
            _check(call, z, mapped=mapped)


def _check(call: Call, z: np.ndarray, *, mapped: bool) -> None:
    """One traced function returns value and derivative. Compiling the value separately would take 50% more time."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    wanted = np.asarray(call(z, np.asarray))
    weights = np.cos(np.arange(math.prod(wanted.shape), dtype=np.float32)).reshape(wanted.shape)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def f(z: Any) -> Any:
        out = call(z, jnp.asarray)
        return jnp.sum(jnp.where(jnp.isfinite(out), out, 0.0) * weights), out

    def of(z: np.ndarray) -> tuple[float, np.ndarray]:
        (total, out), _ = f(jnp.asarray(z))
        return float(total), np.asarray(out)

    assert of(z)[1] == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    if mapped:
        batch = np.stack([z, 2 * z])
        found = np.asarray(jax.jit(jax.vmap(lambda z: call(z, jnp.asarray)))(jnp.asarray(batch)))
        assert found == pytest.approx(np.stack([of(one)[1] for one in batch]), rel=1e-5, abs=1e-6)
    gradient = np.asarray(f(jnp.asarray(z))[1])
    direction, h = np.sin(np.arange(z.size, dtype=np.float32)).reshape(z.shape), 1e-2
    slope = (of(z + h * direction)[0] - of(z - h * direction)[0]) / (2 * h)
    assert (gradient * direction).sum() == pytest.approx(slope, rel=2e-2, abs=2e-2)
