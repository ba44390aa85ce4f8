"""A NaN or inf in a query, key or value changes no bit of the results of queries that do not see it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.attend.test_values import OPTIONS
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan
NATIVE = [Backend("numpy", "native"), Backend("torch", "native")]
PAIRS = [(), *((x,) for x in OPTIONS), *itertools.combinations(OPTIONS, 2)]
KEYS, LENGTH = 7, 5
HIDDEN = 2
"""The key that the mask of `test_every_pair_of_options` hides from every second query."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def results(backend: Backend, arrays: list[np.ndarray], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the output and the gradients with respect to q, k and v. For order 1, also return lse."""
    q, k, v, g = map(backend.array, arrays)
    own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    with backend.using():
        if "alpha" in own:
            leaves = [x.requires_grad_() for x in (q, k, v)] if backend.library == "torch" else []
            found = {"output": s.attention(q, k, v, **own)}
            if leaves:
                found["output"].backward(g)
                found = {"output": found["output"].detach()} | {
                    name: x.grad for name, x in zip(("dq", "dk", "dv"), leaves, strict=True)
                }
        else:
            found = {**s.attention_with_lse(q, k, v, **own)._asdict()}
            found |= {
                f"d{name}": x for name, x in s.attention_vjp(q, k, v, g, **own)._asdict().items() if name in "qkv"
            }
    return {name: backend.back(x) for name, x in found.items()}


def same(x: np.ndarray, y: np.ndarray, kept: np.ndarray, name: str) -> None:
    """Check that the bits of the kept rows are equal."""
    assert x[kept].tobytes() == y[kept].tobytes(), name


@pytest.mark.parametrize(("backend", "bad", "pairs"), [(NATIVE[0], NAN, PAIRS), (NATIVE[1], INF, PAIRS[:11])], ids=str)
def test_every_pair_of_options(backend: Backend, bad: float, pairs: list[tuple[str, ...]]) -> None:
    """A NaN or inf in one query, incoming gradient, key or value changes no bit of the rows that do not see it.

    A mask hides the changed key from every second query.
    """
    shapes = ((2, 4, LENGTH, 6), (2, 2, KEYS, 6), (2, 2, KEYS, 3), (2, 4, LENGTH, 3))
    clean = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    mask = np.ones((2, 1, LENGTH, KEYS), bool)
    mask[..., ::2, HIDDEN] = False
    sees = np.zeros((2, 4, LENGTH), bool)  # True for rows that see the changed entry
    x: dict[str, np.ndarray] = {}
    for names, changed in itertools.product(pairs, "qkvg"):
        options = {key: value for name in names for key, value in OPTIONS[name].items()}
        options["mask"] = mask & options.get("mask", True)
        arrays = [x.copy() for x in clean]
        sees[...] = False
        if changed in "qg":
            arrays["qkvg".index(changed)][0, 1, 2] = bad
            sees[0, 1, 2] = True
        else:
            arrays["qkvg".index(changed)][0, 1, HIDDEN, 1] = bad
            sees[0, 2:, 1::2] = True
        x = results(backend, clean, options) if changed == "q" else x
        y = results(backend, arrays, options)
        label = f"{'+'.join(names)}, {changed}"
        for name in x.keys() & {"output", "lse", "dq"}:
            same(x[name], y[name], ~sees, f"{name} of {label}")
        for name in x.keys() & {"dk", "dv"}:
            unseen = np.ones((2, 2, KEYS), bool)  # False for keys whose gradient the changed entry may affect
            unseen[0, 0 if changed in "qg" else 1] = changed in "qg" and ~options["mask"][0, 0, 2]
            same(x[name], y[name], unseen, f"{name} of {label}")


@pytest.mark.parametrize("backend", NATIVE, ids=str)
@pytest.mark.parametrize("changed", ["q", "k", "v", "g", "large", "overflown"])
def test_more_than_one_block_and_part(backend: Backend, changed: str) -> None:
    """Rows that do not see a changed entry keep their bits. 130 queries and 600 keys are more than one block of each.

    With one head, threads share the head's queries or keys. With 8 heads, each thread processes whole heads.
    """
    for heads in (1, 8):
        shapes = ((heads, 130, 8), (heads, 600, 8), (heads, 600, 5), (heads, 130, 5))
        clean = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
        arrays = [x.copy() for x in clean]
        mask = np.ones((130, 600), bool)
        mask[::3, 550] = mask[40:, 300] = mask[101, 17] = False
        options: dict[str, Any] = {"mask": mask, "softcap": 30.0, "scale": 0.4}
        queries, keys = np.arange(130), np.arange(600)
        if changed in ("q", "g", "large"):
            arrays["qkvg".index("q" if changed == "large" else changed)][0, 101] = 1e9 if changed == "large" else NAN
            options.pop("softcap")
            unseen, free = queries != 101, keys == 17
        else:
            if changed == "overflown":  # a third of the scores of key 550 overflow float32
                arrays[1][0, 550, 0], arrays[0][0, 1::3, 0], clean[0][0, 1::3, 0] = -3e38, 1e3, 1e3
            else:
                arrays["qkv".index(changed)][0, 550] = NAN
            unseen, free = queries % 3 == 0, keys < 0
            if changed == "overflown":
                unseen = queries % 3 != 1
                mask[2::3, 550] = False
        x, y = (results(backend, given, options) for given in (clean, arrays))
        for name in x:
            kept = np.ones(x[name].shape[:2], bool)
            kept[0] = free if name in ("dk", "dv") else unseen
            same(x[name], y[name], kept, f"{name}, {heads} heads")


@pytest.mark.parametrize("backend", NATIVE, ids=str)
def test_the_definition_adds_queries_left_out(backend: Backend) -> None:
    """Gradients agree with the definition if the kernel leaves out queries that are NaN or too large.

    The definition then adds the gradients of these queries. The test covers the gradients of all learned arguments.
    """
    q, k, v, g = draw(2, 4, 9, 6), draw(2, 2, 11, 6, seed=1), draw(2, 2, 11, 3, seed=2), draw(2, 4, 9, 3, seed=3)
    q[0, 1, 3:5], q[1, 3, 8] = 1e8, NAN
    k[1, 0, 10] = INF
    learned = {
        "scale": np.full((4, 9), 0.3),
        "bias": draw(9, 11, seed=5),
        "slopes": np.linspace(0, 1, 4),
        "sink": draw(4, seed=6),
    }
    given = [backend.array(x) for x in (q, k, v, g)]
    options = {name: backend.array(x) for name, x in learned.items()} | {"causal": True}
    with backend.using():
        found = s.attention_vjp(*given, **options)
    with s.using("reference"):
        wanted = s.attention_vjp(*given, **options)
    compare(found._fields, map(backend.back, found), map(backend.back, wanted))


@pytest.mark.parametrize("alpha", [0.7, 1.5])
def test_queries_left_out_for_other_orders(alpha: float) -> None:
    """At orders other than 1, gradients are NaN where they depend on a NaN query. Others agree with the definition."""
    torch = pytest.importorskip("torch")
    arrays = [draw(4, 9, 6), draw(2, 11, 6, seed=1), draw(2, 11, 3, seed=2)]
    arrays[0][1, 3:5] = NAN  # the window below lets these queries see keys 1 to 8
    learned = {"scale": np.full((4, 9), 0.3), "bias": draw(9, 11, seed=5), "sink": draw(4, seed=6)}
    learned |= {"slopes": np.linspace(0, 1, 4)}
    g, gradients = torch.from_numpy(draw(4, 9, 3, seed=7)), []
    for implementation in ("native", "reference"):
        leaves = [torch.tensor(x, requires_grad=True) for x in (*arrays, *learned.values())]
        with s.using(implementation):
            options = dict(zip(learned, leaves[3:], strict=True))
            found = s.attention(*leaves[:3], **options, window=(4, 2), alpha=alpha)
            gradients.append([x.numpy() for x in torch.autograd.grad(found, leaves, g)])
    native, wanted = (dict(zip(("q", "k", "v", *learned), x, strict=True)) for x in gradients)
    changed = {
        "q": np.s_[1, 3:5],
        "k": np.s_[0, 1:9],
        "v": np.s_[0, 1:9],
        "scale": np.s_[1, 3:5],
        "sink": 1,
        "slopes": 1,
    }
    for name, at in changed.items():
        assert np.isnan(native[name][at]).all(), name
        native[name][at] = wanted[name][at] = 0.0
    native["bias"][3:5] = wanted["bias"][3:5] = 0.0
    compare(native, native.values(), wanted.values())


def compare(names: Any, found: Any, wanted: Any) -> None:
    for name, x, y in zip(names, found, wanted, strict=True):
        size = np.abs(y[np.isfinite(y)]).max()
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6 * size, err_msg=name)
