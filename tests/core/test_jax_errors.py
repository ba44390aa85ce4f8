"""Errors of calls with JAX arrays: versions that are missing or too old, traced options, float0 tangents, dtypes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

from softargmax.core.extras import install  # noqa: E402

Z = jnp.asarray(np.random.default_rng(3).standard_normal((4, 6)), "float32")
Y = jnp.array([0, 5, 2, 1])
TRACED = r"got a value that JAX traces; pass a Python value \(jax.jit: static_argnames\)"


def last_line(program: str) -> str:
    """Run a program that fails, and return the last line of its error."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("missing", ["jax", "jaxlib"])
def test_a_missing_package(missing: str) -> None:
    found = last_line(f"import sys; sys.modules[{missing!r}] = None; import softargmax.jax")
    assert found == f"ImportError: softargmax.jax needs JAX: {install('jax')}"


def test_too_old_versions() -> None:
    """JAX itself checks that jaxlib is as new as it needs."""
    old = "import jax; jax.__version__, jax.__version_info__ = '0.4.33', (0, 4, 33); "
    wanted = f"ImportError: jax: expected version 0.4.34 or later, got 0.4.33: {install('jax')}"
    assert last_line(old + "import softargmax.jax") == wanted
    assert last_line(old + "import softargmax; softargmax.softmax(jax.numpy.ones(3))") == wanted
    found = last_line("import jaxlib.version as v; v.__version__ = '0.4.1'; import softargmax.jax")
    assert "jaxlib" in found
    assert "0.4.1" in found


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: s.softmax(Z, axis=x), "axis: expected an integer, a tuple of integers or None"),
        (lambda x: s.logsumexp(Z, axis=(0, x)), "axis: expected an integer, a tuple of integers or None"),
        (lambda x: s.cross_entropy(Z, Y, axis=x), "axis: expected an integer, a tuple of integers or None"),
        (lambda x: s.cross_entropy(Z, Y, reduction=x), "reduction: expected one of 'none', 'mean', 'sum'"),
        (lambda x: s.cross_entropy(Z, Y, ignore_index=x), "ignore_index: expected an integer"),
        (lambda x: s.cross_entropy(Z, Y, label_smoothing=x * 0.1), "label_smoothing: expected a number from 0 to 1"),
        (lambda x: s.cross_entropy(Z, Y, softcap=x * 1.0), "softcap: expected a number above 0"),
        (lambda x: s.attention(Z[None], Z[None], Z[None], causal=x > 0), "causal: expected True or False"),
        (lambda x: s.attention(Z[None], Z[None], Z[None], window=x), "window: .* or None \\(no limit\\)"),
        (lambda x: s.attention(Z[None], Z[None], Z[None], window=(x, 1)), "window: expected an integer"),
        (lambda x: s.categorical(Z, seed=1, num_samples=x), "num_samples: expected an integer, 0 or above"),
        (lambda x: s.gumbel((2, x), seed=1, like=Z), "shape: expected an integer or a tuple of integers"),
        (lambda x: s.gumbel(x, seed=1, like=Z), "shape: expected an integer or a tuple of integers"),
        (lambda x: s.softmax(Z, dtype=x), "dtype: expected .* or its name"),
        (lambda x: s.segment_softmax(Z[:, 0], index=Y, num_segments=x), "num_segments: expected an integer"),
        (lambda x: s.categorical(Z, seed=x), "seed: expected an integer from 0 to 2\\^64 - 1"),
    ],
)
@pytest.mark.parametrize("transformed", [jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])], ids=["jit", "vmap"])
def test_a_traced_option(call: Any, argument: str, transformed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{argument}, {TRACED}"):
        transformed(call)(jnp.array(1))


def test_float0_tangents() -> None:
    """Integers have them. An array of float0, such as the gradient with respect to integers, is no array of scores."""
    none = np.zeros(Y.shape, jax.dtypes.float0)
    _, tangent = jax.jvp(s.cross_entropy, (Z, Y), (Z, none))
    np.testing.assert_allclose(tangent, (jax.grad(s.cross_entropy)(Z, Y) * Z).sum(), rtol=1e-5)
    with pytest.raises(TypeError, match="tangent"):
        jax.jvp(s.softmax, (Z,), (np.zeros(Z.shape, jax.dtypes.float0),))
    gradient = jax.grad(s.cross_entropy, argnums=1, allow_int=True)(Z, Y)
    with pytest.raises(TypeError, match=r"^z: expected dtype float16, .*, got .*float0"):
        s.softmax(gradient)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int4", "complex64"])
def test_unsupported_dtypes(dtype: str) -> None:
    z = jnp.ones((2, 3), dtype)
    for f in (s.softmax, s.entropy, s.sparsemax, lambda z: s.cross_entropy(z, jnp.zeros(2, int))):
        for transformed in (lambda f: f, jax.jit):
            with pytest.raises(TypeError, match=f"^z: expected dtype float16, .* or bool, got {dtype}"):
                transformed(f)(z)
    with pytest.raises(TypeError, match=r"^z: expected dtype float16, .*, got key<"):
        s.softmax(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(TypeError, match=r"^dtype: expected .*, got 'float8_e4m3fn'"):
        s.softmax(jnp.ones(3), dtype="float8_e4m3fn")
