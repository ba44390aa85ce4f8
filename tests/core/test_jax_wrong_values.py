"""Programs of JAX with values that kernels refuse: the kernels compute the other rows, with the bits of NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.core.test_jax_operation import CLASSES, SQUARE, WRONG, Z

import softargmax as s
from softargmax.core.operation import Operation
from softargmax.loss.operations import cross_entropy

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

from softargmax.core.jax_operation import JaxOperation  # noqa: E402 it imports jax

RIGHT = np.where((CLASSES < 0) | (CLASSES > 5), 0, CLASSES)
GOOD, BAD = [0, 2], [1, 3]
LOSSES = ["cross_entropy", "selected_log_softmax", "linear_cross_entropy", "entmax_loss", "sparsemax_loss"]


@pytest.fixture
def _only_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any, *_: Any, **__: Any) -> None:
        raise AssertionError(f"the definition of {self.name} ran")

    monkeypatch.setattr(Operation, "define", refused)


@pytest.mark.usefixtures("_only_kernels")
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    call, _ = WRONG[name]
    wanted = call(Z, RIGHT)
    for f in (call, jax.jit(call)):
        found = f(jnp.asarray(Z), jnp.asarray(CLASSES))
        assert_array_equal(found[jnp.array(GOOD)], wanted[GOOD])
        assert np.isnan(found[jnp.array(BAD)]).all()


@pytest.mark.usefixtures("_only_kernels")
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_each_row(name: str) -> None:
    call, _ = WRONG[name]
    gradient = jax.grad(lambda z, y: call(z, y)[jnp.array(GOOD)].sum())
    wanted = gradient(jnp.asarray(Z), jnp.asarray(RIGHT))
    for f in (gradient, jax.jit(gradient)):
        found = f(jnp.asarray(Z), jnp.asarray(CLASSES))
        assert_array_equal(found[jnp.array(GOOD)], wanted[jnp.array(GOOD)])
        assert np.isnan(found[jnp.array(BAD)]).all()


@pytest.mark.parametrize("weight", [None, np.arange(1, 7, dtype="f4")], ids=["", "weight"])
def test_means(weight: Any) -> None:
    """The loss is NaN, and so are dW and db. The other rows have their gradients."""
    options = {} if weight is None else {"weight": jnp.asarray(weight)}
    y = jnp.asarray(CLASSES)
    with s.using("reference"):
        wanted = np.asarray(s.cross_entropy_and_gradient(jnp.asarray(Z), y, **options).gradient)
        layer = jnp.asarray(Z), jnp.asarray(SQUARE)
        wanted_h = np.asarray(s.linear_cross_entropy_and_gradient(*layer, y, bias=jnp.zeros(6), **options).dh)
    assert np.isnan(wanted[BAD]).all()
    assert np.isnan(wanted_h[BAD]).all()
    of_scores = jax.value_and_grad(lambda z: s.cross_entropy(z, y, **options))
    of_layer = jax.value_and_grad(lambda h, w, b: s.linear_cross_entropy(h, w, y, bias=b, **options), argnums=(0, 1, 2))
    for transformed in (lambda f: f, jax.jit):
        loss, found = transformed(of_scores)(jnp.asarray(Z))
        assert np.isnan(loss)
        assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
        loss, (dh, dw, db) = transformed(of_layer)(*layer, jnp.zeros(6))
        assert np.isnan(loss)
        assert_allclose(dh, wanted_h, rtol=1e-5, atol=1e-7)
        assert np.isnan(dw).all()
        assert np.isnan(db).all()


@pytest.mark.usefixtures("_only_kernels")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_calls_of_vmap_and_other_axes(dtype: str) -> None:
    z, y = jnp.asarray([Z, Z], dtype), jnp.array([[0, 1, 2, 3], [0, 1, 9, 3]])
    sums = jax.jit(jax.vmap(lambda z, y: s.cross_entropy(z, y, reduction="sum")))(z, y)
    assert sums[0] == s.cross_entropy(z[0], y[0], reduction="sum")
    assert np.isnan(sums[1])
    moved = jnp.moveaxis(z, -1, 1)
    loss, gradient = jax.jit(partial(s.cross_entropy_and_gradient, axis=1, reduction="none"))(moved, y)
    assert np.isnan(loss).tolist() == [[False] * 4, [False, False, True, False]]
    assert (np.isnan(gradient).all(axis=1) == np.isnan(loss)).all()


def test_the_definition_computes_a_call_whose_kernel_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> None:
        raise ValueError("a value that the kernel does not take")

    y = np.full((4, 6), 1 / 6, "f4")
    with s.using("reference"):
        wanted = s.cross_entropy(Z, y)
    monkeypatch.setattr(cross_entropy.jax, "_at_once", raises)
    assert_array_equal(s.cross_entropy(jnp.asarray(Z), jnp.asarray(y)), wanted)


def test_the_nearest_class_is_ignored_or_does_not_exist() -> None:
    """The definition computes these calls."""
    f = jax.jit(partial(s.cross_entropy, reduction="none", ignore_index=0))
    assert np.isnan(f(jnp.asarray(Z), jnp.array([0, -5, 2, 1]))).tolist() == [False, True, False, False]
    empty = jax.jit(partial(s.cross_entropy, reduction="none"))(jnp.zeros((2, 0)), jnp.array([0, -100]))
    assert np.isnan(empty).tolist() == [True, False]


@pytest.mark.usefixtures("_only_kernels")
@pytest.mark.parametrize("draws", [None, 2])
def test_draws(draws: int | None) -> None:
    z = Z.copy()
    z[1], z[3, 2] = -np.inf, np.nan
    f = partial(s.categorical_with_logprob, seed=1, num_samples=draws)
    wanted = f(Z)
    for call in (f, jax.jit(f)):
        for name, own in wanted._asdict().items():
            found = getattr(call(jnp.asarray(z)), name)
            assert_array_equal(found[jnp.array(GOOD)], own[GOOD].astype(found.dtype))
            none = {"index": -1, "logprob": np.nan, "support_size": 0}[name]
            assert_array_equal(found[jnp.array(BAD)], np.full_like(found[jnp.array(BAD)], none))
        assert_array_equal(s.categorical(jnp.asarray(z), seed=1)[jnp.array(GOOD)], s.categorical(Z, seed=1)[GOOD])


def test_draws_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: Any) -> None:
        raise AssertionError("the kernel ran again")

    monkeypatch.setattr(JaxOperation, "_run_anyway", again)
    z = jnp.asarray(Z).at[1].set(-np.inf)
    for f in (partial(s.categorical_with_logprob, seed=1), partial(s.categorical, seed=1)):
        for call in (f, jax.jit(f)):
            found = call(z)
            index = found.index if isinstance(found, tuple) else found
            assert (index < 0).tolist() == [False, True, False, False]


@pytest.mark.usefixtures("_only_kernels")
def test_more_draws_than_classes() -> None:
    z = Z.copy()
    z[BAD, 2:] = -np.inf
    f = partial(s.categorical, seed=1, num_samples=3, replace=False)
    wanted = f(Z)
    for call in (f, jax.jit(f)):
        found = call(jnp.asarray(z))
        assert_array_equal(found[jnp.array(GOOD)], wanted[GOOD])
        assert (found[jnp.array(BAD)] == -1).all()


@pytest.mark.usefixtures("_only_kernels")
@pytest.mark.parametrize("name", ["top_p", "temperature"])
def test_draws_with_wrong_parameters(name: str) -> None:
    right, wrong = np.full(4, 0.9, "f4"), np.array([0.9, np.nan, 0.9, -1.0], "f4")
    wanted = s.categorical(Z, seed=1, **{name: right})
    for transformed in (lambda f: f, jax.jit):
        f = transformed(lambda z, x: s.categorical(z, seed=1, **{name: x}))
        found = f(jnp.asarray(Z), jnp.asarray(wrong))
        assert_array_equal(found[jnp.array(GOOD)], wanted[GOOD])
        assert_array_equal(found[jnp.array(BAD)], [-1, -1])
