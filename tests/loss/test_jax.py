"""JAX: the losses can be traced by jit, grad and vmap, and cross_entropy_and_gradient equals jax.grad."""

from __future__ import annotations

from functools import partial
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


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_confident_rows(reduction: str, dtype: str, implementation: str) -> None:
    """They are about -2 exp(-40). A difference p - 1 would be 0 in float32."""
    z = np.array([[40.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    y = np.array([0, 1])
    wanted = s.cross_entropy_and_gradient(z, y, reduction=reduction).gradient
    assert -1e-16 < wanted[0, 0] < 0

    def loss(z: Any) -> Any:
        return s.cross_entropy(z, jnp.asarray(y), reduction=reduction).sum()

    with s.using(implementation):
        _, tangent = jax.jvp(loss, (jnp.asarray(z, dtype),), (jnp.asarray([[1, 0, 0], [0, 0, 0]], dtype),))
        for f in (jax.grad(loss), jax.jit(jax.grad(loss))):
            found = f(jnp.asarray(z, dtype))
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype("float32"), wanted, rtol=8 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(tangent, wanted[0, 0], rtol=8 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_gradients_in_half_precision_do_not_underflow_before_they_are_scaled(implementation: str) -> None:
    """The scale of a loss is to keep small gradients. -2 exp(-20) is 0 in float16, and 2^12 times as much is not."""
    z, y = np.array([[20.0, 0.0, 0.0]]), np.array([0])
    wanted = 4096 * s.cross_entropy_and_gradient(z, y).gradient
    assert np.float16(wanted[0, 0] / 4096) == 0
    with s.using(implementation):
        gradient = jax.grad(lambda z: 4096.0 * s.cross_entropy(z, jnp.asarray(y)))
        for f in (gradient, jax.jit(gradient)):
            np.testing.assert_allclose(f(jnp.asarray(z, "float16")), wanted, rtol=2.0**-10, atol=2.0**-24)


MIXED: dict[str, Any] = {
    "layer": lambda h, w, how: s.linear_cross_entropy(h, w, jnp.asarray([1, 0, 3]), reduction=how),
    "probabilities": lambda z, p, how: s.cross_entropy(z, p, reduction=how),
    "weight": lambda z, p, how: s.cross_entropy(z, jnp.asarray([1, 0, 3]), weight=p[0], reduction=how),
}


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("name", MIXED)
def test_second_derivatives_in_two_arguments(name: str, implementation: str) -> None:
    """The inner derivative is one in the first argument, the outer one in the second.

    Derivatives of a sum come from the pass that computes it. Those of the losses of rows follow other rules.
    """
    one, other = (jnp.asarray(x) for x in ((H, W) if name == "layer" else (Z, np.abs(Z[::-1]))))

    def gradient(how: str) -> Any:
        inner = jax.grad(lambda one, other: MIXED[name](one, other, how).sum())
        return jax.grad(lambda other: (inner(one, other) ** 2).sum())

    with s.using(implementation):
        wanted = gradient("none")(other)
        for f in (gradient("sum"), jax.jit(gradient("sum"))):
            np.testing.assert_allclose(f(other), wanted, rtol=1e-4, atol=1e-5)


def test_a_class_out_of_range_makes_its_row_nan() -> None:
    rows = jax.jit(lambda y: s.cross_entropy(jnp.asarray(Z), y, reduction="none"))(jnp.asarray([0, 4, -1]))
    assert np.isnan(np.asarray(rows)).tolist() == [False, True, True]


def test_mapped_last_layers_store_no_scores() -> None:
    """Calls of linear_cross_entropy under vmap have the bits of calls alone, and XLA plans no memory for scores."""
    calls, rows, width, k = 4, 64, 8, 5000
    h = jnp.asarray(RNG.standard_normal((calls, rows, width)), "float32")
    w, y = jnp.asarray(RNG.standard_normal((k, width)), "float32"), jnp.asarray(RNG.integers(0, k, (calls, rows)))

    def gradients(h: Any, w: Any, y: Any) -> Any:
        return jax.value_and_grad(s.linear_cross_entropy, (0, 1))(h, w, y)

    compiled = jax.jit(jax.vmap(gradients, (0, None, 0))).lower(h, w, y).compile()
    alone = [jax.jit(gradients)(h[c], w, y[c]) for c in range(calls)]
    jax.tree.map(np.testing.assert_array_equal, compiled(h, w, y), jax.tree.map(lambda *x: jnp.stack(x), *alone))
    assert compiled.memory_analysis().temp_size_in_bytes < rows * k * 4 / 2
    eager = jax.vmap(lambda h, y: s.linear_cross_entropy(h, w, y))(h, y)
    np.testing.assert_array_equal(eager, jnp.stack([loss for loss, _ in alone]))

    def mean(w: Any) -> Any:
        return jax.vmap(lambda h, y: s.linear_cross_entropy(h, w, y))(h, y).mean()

    of_mean = jax.jit(jax.grad(mean)).lower(w).compile()
    np.testing.assert_allclose(of_mean(w), np.mean([g[1][1] for g in alone], 0), rtol=1e-5, atol=1e-8)
    assert of_mean.memory_analysis().temp_size_in_bytes < rows * k * 4 / 2


LAYERS: dict[str, Any] = {
    "linear_cross_entropy": lambda h, w, b, y: s.linear_cross_entropy(h, w, y, bias=b, label_smoothing=0.1, z_loss=0.1),
    "linear_cross_entropy_terms": lambda h, w, b, y: sum(
        jnp.cos(k + jnp.arange(len(h))) @ x
        for k, x in enumerate(s.linear_cross_entropy_terms(h, w, y, bias=b, reduction="none"))
    ),
    "linear_selected_log_softmax": lambda h, w, b, y: (s.linear_selected_log_softmax(h, w, y, bias=b) ** 2).sum(),
    "linear_distillation": lambda h, w, b, _: s.linear_distillation(h, w, h[::-1], w / 2, bias_student=b),
}


@pytest.mark.parametrize(
    "name", [next(iter(LAYERS)), *(pytest.param(x, marks=pytest.mark.slow) for x in [*LAYERS][1:])]
)
def test_definitions_of_last_layers_store_the_scores_of_a_part(name: str) -> None:
    """The last of 178 parts repeats 5 rows of the part before. They count once."""
    rows, width, k = 1597, 4, 2048
    h, w, b = (jnp.asarray(RNG.standard_normal(shape), "float32") for shape in ((rows, width), (k, width), (k,)))
    y = jnp.asarray(RNG.integers(0, k, rows))

    def gradients(*x: Any) -> Any:
        return jax.value_and_grad(LAYERS[name], (0, 1, 2))(*x, y)

    wanted = jax.jit(gradients)(h, w, b)
    with s.using("reference"):
        compiled = jax.jit(partial(gradients)).lower(h, w, b).compile()
    for found, own in zip(*map(jax.tree.leaves, (compiled(h, w, b), wanted)), strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=2e-6 * float(jnp.abs(own).max()))
    layers = 2 if name == "linear_distillation" else 1
    assert compiled.memory_analysis().temp_size_in_bytes < layers * rows * k * 4 / 8


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("g", [np.inf, -np.inf, np.nan])
def test_incoming_gradients_that_are_not_finite_are_ignored_where_the_slope_is_0(g: float, implementation: str) -> None:
    """So are those of a loss that is one number. The other gradients are infinite or NaN."""
    z, y, where = jnp.asarray(Z), jnp.asarray([0, 1, 3]), jnp.asarray([True, True, False, True])
    h, w = jnp.asarray(H).at[:, 1].set(0.0), jnp.asarray(W)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda z: s.cross_entropy(z, y, where=where), (z,)),
        (lambda z: s.cross_entropy(z, y, where=where, reduction="none"), (z,)),
        (lambda h, w: s.linear_cross_entropy(h, w, y, where=where), (h, w)),
    ]
    for f, arrays in calls:

        def pulled(g: Any, f: Any = f, arrays: Any = arrays) -> Any:
            loss, pull = jax.vjp(f, *arrays)
            return pull(jnp.full(loss.shape, g))

        with s.using(implementation):
            slopes = pulled(1.0)
            assert any((slope == 0).any() for slope in slopes)
            for transformed in (pulled, jax.jit(lambda g, f=pulled: f(g))):
                for slope, found in zip(slopes, transformed(g), strict=True):
                    assert (found[slope == 0] == 0).all()
                    assert not np.isfinite(found[slope != 0]).any()


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_second_derivatives_where_the_first_is_0(implementation: str) -> None:
    """The target is the softmax, and some of the last layer's inputs are 0. All orders of the two modes agree."""
    z, p, y = jnp.zeros((2, 4)), jnp.full((2, 4), 0.25), jnp.asarray([1])
    h, w = jnp.asarray([[0.0, 1.0]]), jnp.asarray(W)
    with s.using(implementation):
        f = jax.jacfwd(jax.grad(lambda z: s.cross_entropy(z, p)))(z)
        np.testing.assert_allclose(f[0, :, 0], s.softmax_jacobian(np.zeros(4)) / 2, rtol=1e-6)
        for outer in (jax.jacfwd, jax.jacrev):
            for inner in (jax.jacfwd, jax.jacrev):
                found = outer(inner(lambda z: s.cross_entropy(z, p)))(z)
                np.testing.assert_allclose(found, f, rtol=1e-6)
        of_layer = partial(s.linear_cross_entropy, target=y)
        wanted = jax.jacrev(jax.grad(of_layer, 1))(h, w)
        assert np.abs(wanted[:, 0, 0, 0]).min() > 0
        for outer in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(outer(jax.jacfwd(of_layer, 1))(h, w), wanted, rtol=1e-5, atol=1e-7)
