"""Tokens have the target's distribution for every draft. Boltzmann policies equal their formula."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend
from tests.sample.tracing import traced
from tests.sample.truth import distribution, p_value

import softargmax

RNG = np.random.default_rng(4)
CLASSES, LENGTH, COUNT = 6, 3, 200_000


def run(target: np.ndarray, draft: np.ndarray, seed: int, **options: Any) -> softargmax.SpeculativeSample:
    """Return the verified tokens of COUNT chains, with guesses drawn from the draft."""
    many = [np.broadcast_to(z, (COUNT, *z.shape)) for z in (target, draft)]
    guesses = softargmax.categorical(many[1], seed=seed, **options)
    return softargmax.speculative_sample(*many, guesses, seed=seed, **options)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6, "top_k": 4, "top_p": 0.9}], ids=["plain", "filtered"])
@pytest.mark.parametrize("apart", [0.0, 1.0, 5.0])
def test_each_token_has_the_targets_distribution(apart: float, options: dict[str, Any]) -> None:
    """At each position, the tokens of all chains that reach the position have the target's distribution."""
    target = RNG.standard_normal((LENGTH + 1, CLASSES)) * 1.5
    draft = target[:LENGTH] + apart * RNG.standard_normal((LENGTH, CLASSES))
    found = run(target, draft, 8, **options)
    for i in range(LENGTH + 1):
        reached = found.accepted >= i
        if reached.sum() > 1000:
            p = distribution(
                target[i], options.get("temperature", 1.0), **{k: v for k, v in options.items() if k != "temperature"}
            )
            assert p_value(found.tokens[reached, i], p) > 1e-4
        assert (found.tokens[~reached, i] == -1).all()
    if apart == 0.0:
        assert (found.accepted == LENGTH).all()


def test_pairs_of_tokens_are_independent() -> None:
    """The distribution of the second token does not depend on the first token."""
    target = RNG.standard_normal((2, 4))
    found = run(target, target[:1] + RNG.standard_normal((1, 4)), 3)
    both = found.accepted == 1
    p = distribution(target[1])
    for first in range(4):
        chosen = both & (found.tokens[:, 0] == first)
        if chosen.sum() > 500:
            assert p_value(found.tokens[chosen, 1], p) > 1e-4


def test_a_wrong_acceptance_would_be_detected() -> None:
    """The test of the distribution fails for guesses that were not verified."""
    target = np.array([[0.0, 1.0, 2.0]] * 2)
    guesses = softargmax.categorical(np.broadcast_to(target[:1, ::-1], (COUNT, 1, 3)), seed=1)
    assert p_value(guesses, distribution(target[0])) < 1e-4


def test_greedy(backend: Backend) -> None:
    target = backend.array([[0.0, 9.0, 1.0], [9.0, 0.0, 1.0], [0.0, 1.0, 9.0]], "float32")
    draft = backend.array([[0.0, 9.0, 1.0], [9.0, 0.0, 1.0]], "float32")
    verify = traced(backend, lambda *given: softargmax.speculative_sample(*given, temperature=0.0, seed=1))
    for guesses, tokens, accepted in (([1, 0], [1, 0, 2], 2), ([1, 2], [1, 0, -1], 1), ([0, 0], [1, -1, -1], 0)):
        found = verify(target, draft, backend.array(guesses, "int32"))
        assert backend.back(found.tokens).tolist() == tokens
        assert int(found.accepted) == accepted


def test_every_backend_gives_the_same(quick: Backend) -> None:
    z = RNG.standard_normal((7, 4, 5, 9))
    target, draft = z[:, 0], z[:, 1, :4]
    with softargmax.using("native"):
        guesses = softargmax.categorical(draft, seed=2)
        expected = softargmax.speculative_sample(target, draft, guesses, seed=3, top_p=[0.9] * 7)
    found = softargmax.speculative_sample(
        quick.array(target), quick.array(draft), quick.array(guesses), seed=3, top_p=quick.array([0.9] * 7)
    )
    assert np.array_equal(quick.back(found.tokens), expected.tokens)
    streams = np.arange(7)[::-1]
    turned = softargmax.speculative_sample(
        *(quick.array(np.ascontiguousarray(a[::-1])) for a in (target, draft, guesses)),
        seed=3, top_p=0.9, stream=quick.array(np.ascontiguousarray(streams)),
    )  # fmt: skip
    assert np.array_equal(quick.back(turned.tokens)[::-1], expected.tokens)


def test_no_guesses_and_no_rows() -> None:
    found = softargmax.speculative_sample(np.zeros((2, 1, 4)), np.zeros((2, 0, 4)), np.zeros((2, 0), int), seed=0)
    assert found.tokens.shape == (2, 1)
    assert (found.accepted == 0).all()
    empty = softargmax.speculative_sample(np.zeros((0, 3, 4)), np.zeros((0, 2, 4)), np.zeros((0, 2), int), seed=0)
    assert empty.tokens.shape == (0, 3)


def test_errors() -> None:
    target, draft = np.zeros((3, 4)), np.zeros((2, 4))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ((target, draft, [0, 4]), IndexError, "tokens: expected classes from 0 to 3, got a class out of range"),
        ((target, draft, [0, -1]), IndexError, "tokens"),
        ((target, draft, [0.0, 1.0]), TypeError, "tokens: expected integers, got dtype float64"),
        (
            (target, draft, [0]),
            ValueError,
            r"tokens: expected the draft's shape without the class axis, \(2,\), got \(1,\)",
        ),
        ((target[:2], draft, [0, 1]), ValueError, r"target: expected shape \(3, 4\) for this draft, got \(2, 4\)"),
        ((target + np.nan, draft, [0, 1]), ValueError, "target, draft: expected scores without NaN, got NaN"),
        ((target, draft + np.nan, [0, 1]), ValueError, "target, draft: expected scores without NaN, got NaN"),
        ((1.0, draft, [0, 1]), ValueError, "target: expected at least one axis, for the classes, got a 0-d array"),
        ((target, 1.0, [0, 1]), ValueError, "draft: expected at least one axis, for the classes, got a 0-d array"),
        (
            (target[0], draft[0], 0),
            ValueError,
            r"draft: expected shape \(..., L, K\), one row of scores per guess, got \(4,\)",
        ),
    ]
    for arguments, error, message in wrong:
        with pytest.raises(error, match=message):
            softargmax.speculative_sample(*arguments, seed=0)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_parameters_per_sequence(name: str) -> None:
    """Each sequence uses its own parameter. Errors name the wrong shape."""
    z, guesses = RNG.standard_normal((3, 5, 9)), np.zeros((3, 4), int)
    values = {"temperature": [0.0, 1.0, 2.0], "top_k": [1, 3, 9]}.get(name, [0.01, 0.5, 1.0])
    found = softargmax.speculative_sample(z, z[:, :4], guesses, seed=0, **{name: values})
    for i, value in enumerate(values):
        alone = softargmax.speculative_sample(z[i], z[i, :4], guesses[i], seed=0, stream=i, **{name: value})
        assert np.array_equal(alone.tokens, found.tokens[i])
    for shape in ((2,), (3, 1), (3, 4)):
        with pytest.raises(
            ValueError, match=f"{name}: expected .* with the sequences, .3,.*, got shape {re.escape(str(shape))}"
        ):
            softargmax.speculative_sample(z, z[:, :4], guesses, seed=0, **{name: np.ones(shape)})
    for value, error in (("a", TypeError), (10**400, ValueError)):
        with pytest.raises(error, match=f"{name}: "):
            softargmax.speculative_sample(z, z[:, :4], guesses, seed=0, **{name: value})


# --- policies ---------------------------------------------------------------------------------------------------------


def test_policies(backend: Backend) -> None:
    q = np.array([[1.0, 2.0, 8.0], [2.0, 2.0, -np.inf], [-np.inf] * 3, [np.nan, 0.0, 1.0]], np.float32)
    for epsilon in (0.0, 0.3, [0.0, 0.5, 1.0, 0.2]):
        given = backend.array(epsilon, "float32") if isinstance(epsilon, list) else epsilon
        policy = traced(backend, lambda q, e=given: softargmax.boltzmann_policy(q, temperature=2.0, epsilon=e))
        found = backend.back(policy(backend.array(q)))
        e = np.broadcast_to(epsilon, 4)
        expected = (1 - e[0]) * np.exp(q[0] / 2) / np.exp(q[0] / 2).sum() + e[0] / 3
        assert found[0] == pytest.approx(expected, rel=1e-6)
        assert found[1] == pytest.approx([0.5, 0.5, 0.0], rel=1e-6)
        assert (found[2] == 0).all()
        assert np.isnan(found[3]).all()
    for dtype in backend.dtypes:
        if dtype.endswith("16"):  # a half-precision policy is the float32 policy, rounded once
            half = backend.array(RNG.standard_normal((50, 7)), dtype)
            wide = backend.array(backend.back(half).astype("float32"))
            found, once = (
                softargmax.boltzmann_policy(v, temperature=0.7, epsilon=backend.array([0.1], "float32"))
                for v in (half, wide)
            )
            assert found.dtype == half.dtype
            assert np.array_equal(backend.back(found), backend.back(backend.array(backend.back(once), dtype)))
    masked = softargmax.boltzmann_policy(
        backend.array(q[0]), temperature=0.0, epsilon=0.5, where=backend.array([True, True, False])
    )
    assert backend.back(masked).tolist() == [0.25, 0.75, 0.0]
