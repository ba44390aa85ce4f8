"""softargmax.jax against the functions of jax.nn and optax whose signatures it has."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax", "0.2.5")  # has `where`
from jax import numpy as jnp  # noqa: E402 after the check for jax

import softargmax.jax as sj  # noqa: E402 after the check for jax

RNG = np.random.default_rng(5)
Z = jnp.asarray(2 * RNG.standard_normal((3, 4, 5)), "float32")
MASK = jnp.asarray(RNG.random((3, 4, 5)) < 0.8).at[..., 0].set(True)
SIGNED = jnp.asarray(RNG.standard_normal((3, 4, 5)), "float32")
Y = jnp.asarray(RNG.integers(0, 5, (3, 4)))


def close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), found, wanted)


@pytest.mark.parametrize("how", [{}, {"axis": 0}, {"axis": (0, 2)}, {"where": MASK}], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_rows(name: str, how: dict[str, Any]) -> None:
    for transformed in (lambda f: f, jax.jit):
        close(transformed(lambda z: getattr(sj, name)(z, **how))(Z), getattr(jax.nn, name)(Z, **how))


@pytest.mark.parametrize("how", [{}, {"return_sign": True}, {"axis": 1, "keepdims": True}], ids=str)
def test_logsumexp_with_weights(how: dict[str, Any]) -> None:
    close(sj.logsumexp(Z, b=SIGNED, **how), jax.nn.logsumexp(Z, b=SIGNED, **how))
    close(sj.logsumexp(Z, **how), jax.nn.logsumexp(Z, **how))


def test_dtypes_and_shapes_that_differ() -> None:
    whole, row, wide = jnp.array([1, 2]), jnp.array([1.0, 2.0, 3.0]), jnp.arange(6.0).reshape(2, 3)
    halves = jnp.array([0.5, 0.25])
    close(sj.logsumexp(whole, b=halves), jax.nn.logsumexp(whole, b=halves))
    close(sj.logsumexp(row, b=wide, axis=-1), jax.nn.logsumexp(row, b=wide, axis=-1))
    close(sj.softmax_cross_entropy(jnp.array([1, 2, 3]), wide), optax.softmax_cross_entropy(row, wide))


def test_losses() -> None:
    of_classes = sj.softmax_cross_entropy_with_integer_labels
    close(of_classes(Z, Y), optax.softmax_cross_entropy_with_integer_labels(Z, Y))
    moved = jnp.moveaxis(Z, -1, 0)
    close(of_classes(moved, Y, axis=0), optax.softmax_cross_entropy_with_integer_labels(moved, Y, axis=0))
    t = jax.nn.softmax(SIGNED)
    close(sj.softmax_cross_entropy(Z, t), optax.softmax_cross_entropy(Z, t))
    close(sj.softmax_cross_entropy(moved, jnp.moveaxis(t, -1, 0), axis=0), optax.softmax_cross_entropy(Z, t))
    g = jax.grad(lambda f, z: f(z, Y).sum(), 1)
    close(g(of_classes, Z), g(optax.softmax_cross_entropy_with_integer_labels, Z))


def vectors(batch: int, length: int, heads: int, width: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal((batch, length, heads, width)), "float32")


@pytest.mark.parametrize("queries", [6, 9])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"is_causal": True},
        {"local_window_size": 2},
        {"local_window_size": (1, 3), "scale": 0.3},
        {"is_causal": True, "local_window_size": (2, 2)},
        {"key_value_seq_lengths": jnp.array([9, 4]), "query_seq_lengths": jnp.array([6, 2])},
        {"key_value_seq_lengths": jnp.array([9, 4]), "is_causal": True},
        {"key_value_seq_lengths": jnp.array([7, 9]), "local_window_size": (3, 1)},
    ],
    ids=str,
)
def test_attention(queries: int, how: dict[str, Any]) -> None:
    q, k, v = vectors(2, queries, 4, 8, 1), vectors(2, 9, 2, 8, 2), vectors(2, 9, 2, 8, 3)
    every = jnp.ones((1, 1, queries, 9), bool)  # without a mask, JAX 0.4.34 ignores a window
    wanted = jax.nn.dot_product_attention(q, k, v, mask=every, **how)
    close(sj.dot_product_attention(q, k, v, **how), wanted)
    masked = jnp.asarray(RNG.random((2, 1, queries, 9)) < 0.7).at[..., :2].set(True)
    bias = jnp.asarray(RNG.standard_normal((2, 4, queries, 9)), "float32")
    if not how:
        wanted = jax.nn.dot_product_attention(q, k, v, bias, masked)
        close(sj.dot_product_attention(q, k, v, bias, masked), wanted)


@pytest.mark.parametrize("name", sj.__all__)
def test_signatures(name: str) -> None:
    """The parameters are the peer's, in order. Only those without a meaning here are missing.

    `initial` is a parameter of `jax.nn` in old versions, which ignored it.
    """
    own = inspect.signature(getattr(sj, name)).parameters
    peer = inspect.signature(getattr(jax.nn if hasattr(jax.nn, name) else optax, name)).parameters
    assert [*own] == [x for x in peer if x not in ("implementation", "return_residual", "initial")]
    assert [(x.default, x.kind) for x in own.values()] == [(peer[x].default, peer[x].kind) for x in own]


VECTORS = jnp.ones((2, 3, 4, 8))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: sj.softmax("no"), "TypeError: x: expected an array, got 'no'"),
        (lambda: sj.softmax(Z.astype("complex64")), "TypeError: x: expected dtype float16, .*, got complex64"),
        (lambda: sj.log_softmax(Z, axis=3), "AxisError: axis: expected from -3 to 2, got 3"),
        (lambda: sj.softmax(Z, where=MASK[:2]), r"ValueError: where: expected a shape .*, got \(2, 4, 5\)"),
        (lambda: sj.logsumexp(Z.astype("float8_e5m2")), "TypeError: a: expected dtype float16"),
        (lambda: sj.logsumexp(Z, b=jnp.ones(3)), r"ValueError: b: expected a shape .* \(3, 4, 5\), got \(3,\)"),
        (lambda: sj.softmax_cross_entropy_with_integer_labels(Z, Y[0]), r"ValueError: labels: expected .* got \(4,\)"),
        (lambda: sj.softmax_cross_entropy_with_integer_labels(Z, Y * 1.0), "TypeError: labels: expected integers"),
        (lambda: sj.softmax_cross_entropy(Z, SIGNED[:2]), r"ValueError: labels: expected a shape .*, got \(2, 4, 5\)"),
        (lambda: sj.softmax_cross_entropy({}, SIGNED), "TypeError: logits: expected an array, got {}"),
        (lambda: attend(key=VECTORS[..., :7]), r"ValueError: key: expected shape .* 4 heads, .* got \(2, 3, 4, 7\)"),
        (lambda: attend(key=VECTORS[..., :3, :]), r"ValueError: key: expected shape .* 4 heads, .* got \(2, 3, 3, 8\)"),
        (lambda: attend(value=VECTORS[:, :2]), r"ValueError: value: expected shape \(..., 3, 4, width\), got"),
        (lambda: attend(query=VECTORS[0, 0]), r"ValueError: query: expected shape \(..., length, .*, got \(4, 8\)"),
        (lambda: attend(mask=VECTORS[..., 0, :3] > 0), r"ValueError: mask: expected a shape .*, got \(2, 3, 3\)"),
        (lambda: attend(bias=jnp.ones(7)), r"ValueError: bias: expected a shape .*, got \(7,\)"),
        (lambda: attend(scale="no"), "TypeError: scale: expected a number, .* got 'no'"),
        (lambda: attend(is_causal=1), "TypeError: is_causal: expected True or False, got 1"),
        (lambda: attend(local_window_size=1.5), "TypeError: local_window_size: expected an integer, got 1.5"),
        (lambda: attend(local_window_size=(1, -2)), r"ValueError: local_window_size: expected 0 or .*, got \(1, -2\)"),
        (lambda: attend(local_window_size=(1, 2, 3)), "ValueError: local_window_size: expected an integer or two"),
        (lambda: attend(key_value_seq_lengths=[1.0, 2.0]), "TypeError: key_value_seq_lengths: expected integers"),
        (lambda: attend(query_seq_lengths=[1, 2, 3]), r"ValueError: query_seq_lengths: .* shape \(2,\), got .*\(3,\)"),
    ],
)
def test_errors_name_the_arguments(call: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert re.match(error, f"{type(raised.value).__name__}: {raised.value}"), raised.value


def attend(**changed: Any) -> Any:
    vectors = {"query": VECTORS, "key": VECTORS, "value": VECTORS}
    return sj.dot_product_attention(**vectors | changed)
