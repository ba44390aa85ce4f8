"""vmap over each argument alone, and over all together: the results are those of separate calls."""

# ruff: noqa: PLW0108 the functions take some of these arguments by position only
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import softargmax as s

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

RNG = np.random.default_rng(7)
ROWS, K, WIDTH = 3, 5, 4
CUTS = [0, 1, ROWS]
SIZE = 2
"""The number of mapped calls."""


def scores(*shape: int) -> Any:
    return jnp.asarray(2 * RNG.standard_normal((SIZE, *shape)), "float32")


def positive(*shape: int) -> Any:
    return jnp.exp(scores(*shape) / 2)


def masks(*shape: int) -> Any:
    return jnp.asarray(RNG.random((SIZE, *shape)) < 0.7).at[..., 0].set(True)


def integers(least: int, beyond: int, *shape: int) -> Any:
    return jnp.asarray(RNG.integers(least, beyond, (SIZE, *shape)))


Z, WHERE, T, Y = scores(ROWS, K), masks(ROWS, K), positive(ROWS), integers(0, K, ROWS)
OF_ROWS = {"z": Z, "temperature": T, "where": WHERE}
OF_LOSSES = {**OF_ROWS, "target": Y, "weight": positive(K)}
OF_LAYERS = {"h": scores(ROWS, WIDTH), "w": scores(K, WIDTH), "bias": scores(K), "temperature": T, "where": WHERE}
HEADS = {name: scores(2, ROWS, WIDTH) for name in ("q", "k", "v")}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "softmax": (lambda z, **x: s.softmax(z, **x), OF_ROWS),
    "log_softmax": (lambda z, **x: s.log_softmax(z, axis=0, **x), {"z": Z, "where": WHERE}),
    "softmax_with_lse": (lambda z, **x: s.softmax_with_lse(z, **x), OF_ROWS),
    "logsumexp": (lambda z, **x: s.logsumexp(z, **x), {**OF_ROWS, "weights": positive(ROWS, K)}),
    "signed_logsumexp": (lambda z, w: s.signed_logsumexp(z, w), {"z": Z, "w": scores(ROWS, K)}),
    "logcumsumexp": (lambda z, **x: s.logcumsumexp(z, **x), OF_ROWS),
    "entropy": (lambda z, **x: s.entropy(z, **x), OF_ROWS),
    "renyi_entropy": (lambda z, order, **x: s.renyi_entropy(z, order, **x), {**OF_ROWS, "order": positive(ROWS)}),
    "kl_divergence": (lambda p, q, **x: s.kl_divergence(p, q, **x), {"p": Z, "q": scores(ROWS, K), "where": WHERE}),
    "soft_argmax": (lambda z, values, **x: s.soft_argmax(z, values, **x), {**OF_ROWS, "values": scores(K)}),
    "segment_softmax": (lambda z, **x: s.segment_softmax(z, CUTS, **x), {"z": Z, "temperature": positive(2, K)}),
    "sparsemax": (lambda z, **x: s.sparsemax(z, **x), OF_ROWS),
    "entmax": (lambda z, alpha, **x: s.entmax(z, alpha, **x), {**OF_ROWS, "alpha": 1 + positive(ROWS)}),
    "entmax_loss": (
        lambda z, target, alpha, **x: s.entmax_loss(z, target, alpha, reduction="none", **x),
        {**OF_LOSSES, "alpha": 1 + positive(ROWS)},
    ),
    "cross_entropy": (lambda z, target, **x: s.cross_entropy(z, target, **x), OF_LOSSES),
    "cross_entropy, probabilities": (
        lambda z, t: s.cross_entropy(z, t, label_smoothing=0.1), {"z": Z, "t": s.softmax(scores(ROWS, K))}
    ),
    "cross_entropy_and_gradient": (
        lambda z, target, **x: s.cross_entropy_and_gradient(z, target, reduction="sum", **x), OF_LOSSES
    ),
    "selected_log_softmax": (lambda z, index, **x: s.selected_log_softmax(z, index, **x), {**OF_ROWS, "index": Y}),
    "distillation": (lambda z, teacher, **x: s.distillation(z, teacher, **x), {**OF_ROWS, "teacher": scores(ROWS, K)}),
    "linear_cross_entropy": (
        lambda h, w, target, **x: s.linear_cross_entropy(h, w, target, **x),
        {**OF_LAYERS, "target": Y, "weight": positive(K)},
    ),
    "attention": (
        lambda q, k, v, **x: s.attention(q, k, v, **x),
        {**HEADS, "bias": scores(2, ROWS, ROWS), "mask": masks(2, ROWS, ROWS), "sink": scores(2)},
    ),
    "attention, slopes": (lambda q, k, v, x: s.attention(q, k, v, slopes=x), {**HEADS, "x": positive(2)}),
    "log_matmul": (
        lambda a, b, **x: s.log_matmul(a, b, **x),
        {"a": scores(ROWS, K), "b": scores(K, 2), "where_a": masks(ROWS, K)},
    ),
    "linear_chain": (
        lambda e, t, **x: s.linear_chain(e, t, **x).log_z,
        {"e": Z, "t": scores(K, K), "start": scores(K), "end": scores(K), "lengths": integers(1, ROWS + 1)},
    ),
    "categorical": (
        lambda z, **x: s.categorical(z, seed=1, **x),
        {"z": Z, "top_k": integers(1, K, ROWS), "stream": integers(0, 9, ROWS)},
    ),
    "categorical, key": (
        lambda z, key: s.categorical(z, seed=key), {"z": Z, "key": jax.random.split(jax.random.key(0), SIZE)}
    ),
}  # fmt: skip
CASES = [(name, argument) for name, (_, arguments) in CALLS.items() for argument in (*arguments, "all")]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_vmap(name: str, argument: str) -> None:
    call, arguments = CALLS[name]
    chosen = list(arguments) if argument == "all" else [argument]
    fixed = {key: x[0] for key, x in arguments.items() if key not in chosen}

    def f(*given: Any) -> Any:
        return call(**fixed, **dict(zip(chosen, given, strict=True)))

    mapped = [arguments[key] for key in chosen]
    each = [jax.tree.leaves(f(*(x[k] for x in mapped))) for k in range(SIZE)]
    for transformed in (jax.vmap(f), jax.jit(jax.vmap(f))) if argument == "all" else (jax.vmap(f),):
        for found, *own in zip(jax.tree.leaves(transformed(*mapped)), *each, strict=True):
            np.testing.assert_allclose(found, jnp.stack(own), rtol=2e-6, atol=2e-6)


def test_segments_are_not_mapped() -> None:
    with pytest.raises(NotImplementedError, match=r"^offsets: expected an array that vmap does not map"):
        jax.vmap(lambda offsets: s.segment_softmax(Z[0], offsets))(jnp.array([[0, 1, ROWS], [0, 2, ROWS]]))
