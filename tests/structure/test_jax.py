"""Structures of JAX arrays, without 64-bit mode: results, jit, vmap and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.oracle.traced import enable_x64
from tests.structure.test_linear_chain import RESULTS, draw

import softargmax as s

jax = pytest.importorskip("jax")
pytest.importorskip("opt_einsum")
jnp = jax.numpy
E, T, LENGTHS = draw(3, 4, 5).astype("f4"), draw(5, 5, seed=1).astype("f4"), np.array([4, 2, 0])
TAGS, VALUES = np.array([[0, 4, 2, 1], [3, 3, 0, 0], [1, 0, 0, 0]]), np.array([[0, 4, 1], [3, 2, 0], [1, 0, 2]])
OF_GRAPHS: dict[str, Any] = {
    "log_z": lambda graph, _: graph.log_z,
    "marginals": lambda graph, _: graph.marginals()[1],
    "marginal": lambda graph, _: graph.marginal("ca"),
    "entropy": lambda graph, _: graph.entropy(),
    "log_prob": lambda graph, values: graph.log_prob(values),
    "best": lambda graph, _: graph.best().values,
    "sample": lambda graph, _: graph.sample(seed=1),
}


def chain(name: str, e: Any, t: Any, lengths: Any, tags: Any) -> Any:
    of = s.linear_chain(e, t, lengths=lengths)
    return of.sample(seed=1) if name == "sample" else RESULTS[name](of, tags)


def graph(name: str, e: Any, t: Any, values: Any) -> Any:
    return OF_GRAPHS[name](s.factor_graph("nab,bc->n", e, t[:, :3]), values)


@pytest.mark.parametrize(
    ("name", "jit"), [*((name, True) for name in RESULTS), ("log_prob", False), ("entropy", False)]
)
def test_chains(name: str, jit: bool) -> None:
    f = jax.jit(chain, static_argnums=0) if jit else chain
    found = f(name, *map(jnp.asarray, (E, T, LENGTHS.astype("i4"), TAGS.astype("i4"))))
    assert_allclose(found, chain(name, E, T, LENGTHS, TAGS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "jit"), [*((name, True) for name in OF_GRAPHS), ("log_prob", False), ("entropy", False)]
)
def test_graphs(name: str, jit: bool) -> None:
    f = jax.jit(graph, static_argnums=0) if jit else graph
    found = f(name, *map(jnp.asarray, (E, T, VALUES.astype("i4"))))
    assert_allclose(found, graph(name, E, T, VALUES), rtol=1e-5, atol=1e-6)


def test_transformations() -> None:
    e, t = jnp.asarray(E), jnp.asarray(T)
    gradient = jax.grad(lambda e: s.linear_chain(e, t).log_z.sum())(e)
    assert_allclose(gradient, s.linear_chain(E, T).marginals(), rtol=1e-5, atol=1e-7)
    each = jax.vmap(lambda e: s.linear_chain(e, t).log_z)(e)
    assert_allclose(each, s.linear_chain(E, T).log_z, rtol=1e-6)
    gradient = jax.grad(lambda e: s.log_einsum("nab,bc->n", e, t).sum())(e)
    assert_allclose(gradient, s.factor_graph("nab,bc->n", E, T).marginals()[0], rtol=1e-5, atol=1e-7)


E_OF_CALLS, T_OF_CALLS = draw(2, 3, 4, 5, seed=2).astype("f4"), draw(2, 3, 3, 5, 5, seed=3).astype("f4")
MAPPED: dict[str, Any] = {  # emissions, transitions, the axis of the latter in vmap; does one kernel run all calls?
    "one item": (E_OF_CALLS[:, 0], T, None, True, True),
    "one item, own transitions": (E_OF_CALLS[:, 0], T_OF_CALLS[:, 0, 0], 0, True, True),
    "shared by all": (E_OF_CALLS, T, None, True, False),
    "of each item": (E_OF_CALLS, T_OF_CALLS[0], None, True, True),
    "of each call and item": (E_OF_CALLS, T_OF_CALLS, 0, True, True),
    "of each call": (E_OF_CALLS, T_OF_CALLS[:, 0, 0], 0, False, False),
}


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_chains(name: str) -> None:
    """The items of all calls are items of one call, unless a sum over the items of one call would be over all calls."""
    e, t, axis, forward, backward = MAPPED[name]
    e, t = jnp.asarray(e), jnp.asarray(t)
    lengths = LENGTHS[: e.shape[1]] if e.ndim == 4 else 3

    def results(e: Any, t: Any) -> Any:
        of = s.linear_chain(e, t, lengths=lengths)
        return of.log_z, of.best(2).tags

    def derivatives(e: Any, t: Any) -> Any:
        marginals = s.linear_chain(e, t, lengths=lengths).marginals()
        return marginals, *jax.grad(lambda *x: s.linear_chain(*x, lengths=lengths).log_z.sum(), (0, 1))(e, t)

    for f, at_once in ((results, forward), (derivatives, backward)):
        mapped = jax.vmap(f, (0, axis))
        each = [f(e[k], t if axis is None else t[k]) for k in range(2)]
        for transformed in (mapped, jax.jit(mapped)):
            for found, *own in zip(transformed(e, t), *each, strict=True):
                assert_allclose(found, jnp.stack(own), rtol=1e-5, atol=1e-6)
        assert ("while" in jax.jit(mapped).lower(e, t).as_text()) != at_once


def test_mapped_starts() -> None:
    """Each call has its own start, so the calls run one after the other."""
    e, start = jnp.asarray(E), jnp.asarray(T[:2])
    found = jax.vmap(lambda start: s.linear_chain(e, T, start=start).log_z)(start)
    assert_allclose(found, jnp.stack([s.linear_chain(e, T, start=x).log_z for x in start]), rtol=1e-6)


def test_several_draws_need_64_bits() -> None:
    e, t = jnp.asarray(E), jnp.asarray(T)
    for of in (s.linear_chain(e, t), s.factor_graph("nab,bc->n", e, t)):
        with pytest.raises(ValueError, match="num_samples: expected 1 without 64-bit integers"):
            of.sample(2, seed=1)
    with enable_x64(True):
        found = s.linear_chain(jnp.asarray(E), jnp.asarray(T)).sample(2, seed=1)
        assert_allclose(found, s.linear_chain(E, T).sample(2, seed=1))
