"""Draws have the distribution they should: chi-square on a million each, and the p-values of many seeds are uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.oracle.backends import BACKENDS, Backend
from tests.sample.truth import distribution, p_value

import softargmax

DRAWS = 1_000_000
RNG = np.random.default_rng(7)
Z = {k: RNG.standard_normal(k) * 2 for k in (3, 40, 1000)}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (40, {}),
    "of three": (3, {}),
    "of a thousand": (1000, {}),
    "temperature": (40, {"temperature": 2.5}),
    "top_k": (40, {"top_k": 7}),
    "top_k of a thousand": (1000, {"top_k": 200}),
    "top_p": (40, {"top_p": 0.8}),
    "top_p of a thousand": (1000, {"top_p": 0.9}),
    "min_p": (40, {"min_p": 0.1}),
    "all": (40, {"temperature": 1.7, "top_k": 20, "top_p": 0.85, "min_p": 0.03}),
    "all, jointly": (40, {"temperature": 1.7, "top_k": 20, "top_p": 0.85, "min_p": 0.03, "order": "joint"}),
    "top_k and top_p": (40, {"top_k": 9, "top_p": 0.7}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_chi_square(case: str, seed: int) -> None:
    """Half as many draws of one row, half as rows of a batch: both ways of counting (draws, streams)."""
    classes, options = CASES[case]
    z, p = Z[classes], distribution(Z[classes], **options)
    draws = softargmax.categorical(z, num_samples=DRAWS // 2, seed=seed, **options)
    rows = softargmax.categorical(np.broadcast_to(z, (DRAWS // 2, classes)), seed=seed + 100, **options)
    found = p_value(np.concatenate([draws, rows]), p)
    assert found > 1e-4, f"p = {found}"


def test_p_values_are_uniform() -> None:
    z = Z[40]
    draws = softargmax.categorical(np.broadcast_to(z, (300, 40)), num_samples=20_000, seed=5)
    p = distribution(z)
    assert stats.kstest([p_value(row, p) for row in draws], "uniform").pvalue > 1e-3


@pytest.mark.parametrize("wrong", ["a hundredth moved", "top_k one more", "temperature"])
def test_a_wrong_distribution_is_rejected(wrong: str) -> None:
    z = Z[40]
    p = distribution(z)
    if wrong == "a hundredth moved":
        first, second = np.argsort(-p)[:2]
        p[[first, second]] += [-0.01 * p[first], 0.01 * p[first]]
        draws = softargmax.categorical(z, num_samples=DRAWS, seed=1)
        assert p_value(draws, p) < 1e-4
    elif wrong == "temperature":
        draws = softargmax.categorical(z, num_samples=DRAWS, seed=1, temperature=1.01)
        assert p_value(draws, p) < 1e-4
    else:
        draws = softargmax.categorical(z, num_samples=DRAWS, seed=1, top_k=8)
        with pytest.raises(AssertionError, match="probability 0"):
            p_value(draws, distribution(z, top_k=7))


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.implementation == "reference"], ids=str)
def test_the_reference(backend: Backend) -> None:
    z = Z[40].astype("float32")
    with backend.using():
        draws = softargmax.categorical(
            backend.array(z), num_samples=20_000, seed=3, temperature=1.3, top_k=30, top_p=0.9, min_p=0.01
        )
    assert p_value(backend.back(draws), distribution(z, 1.3, top_k=30, top_p=0.9, min_p=0.01)) > 1e-4


def test_without_replacement() -> None:
    """Every ordered pair at the rate of drawing, leaving out, drawing again."""
    z = np.array([0.5, -1.0, 2.0, 0.0, -np.inf])
    p = distribution(z)
    draws = softargmax.categorical(np.broadcast_to(z, (400_000, 5)), num_samples=2, replace=False, seed=4)
    assert (draws[:, 0] != draws[:, 1]).all()
    assert (draws < 4).all(), "a class of probability 0"
    pairs = p[:, None] * p[None, :] / (1 - p[:, None])
    np.fill_diagonal(pairs, 0)
    pairs[4:], pairs[:, 4:] = 0, 0
    assert p_value(draws[:, 0] * 5 + draws[:, 1], pairs.reshape(-1)) > 1e-4


def test_rare_events_happen_at_their_rate() -> None:
    """One class of 2^-16 beside another: 2^22 rows; with 24-bit uniforms such tails are coarse or empty."""
    z = np.array([0.0, -16 * np.log(2.0)])
    rare = int((softargmax.categorical(np.broadcast_to(z, (1 << 22, 2)), seed=9) == 1).sum())
    assert abs(rare - 64) < 5 * 8


def test_uniforms_have_64_bits() -> None:
    """The rate of an event of 2^-40: the noise of a column is above 40 ln 2 where its word's top 40 bits are 0."""
    from softargmax import _native

    words = np.array([2**24 - 1, 2**24 + 1, 2**20, 0], np.uint64)
    g = np.empty(4)
    _native.gumbel_of_words(words, g)
    assert (g > 40 * np.log(2)).tolist() == [True, False, True, True]


def test_infinities_share() -> None:
    z = np.array([0.0, np.inf, 3.0, np.inf, np.inf])
    for options in ({}, {"top_p": 0.999}, {"temperature": np.inf}):
        draws = softargmax.categorical(z, num_samples=200_000, seed=2, **options)
        assert p_value(draws, np.array([0, 1, 0, 1, 1]) / 3) > 1e-4
    draws = softargmax.categorical(z, num_samples=200_000, seed=2, top_p=0.5)
    assert p_value(draws, np.array([0, 1, 0, 1, 0]) / 2) > 1e-4


def test_masks_and_limits() -> None:
    z = np.array([np.nan, 5.0, 1.0, -np.inf, 2.0])
    where = np.array([False, False, True, True, True])
    draws = softargmax.categorical(z, where=where, temperature=np.inf, num_samples=100_000, seed=1)
    assert p_value(draws, np.array([0, 0, 0.5, 0, 0.5])) > 1e-4
    assert (softargmax.categorical(z, where=where, temperature=0.0, num_samples=9, seed=1) == 4).all()
    huge = np.array([1e300, 1e300, -1e308, 1e300 * (1 - 2**-53)])
    assert p_value(softargmax.categorical(huge, num_samples=100_000, seed=1), np.array([0.5, 0.5, 0, 0])) > 1e-4
    with np.errstate(over="ignore"):
        flat = softargmax.categorical(huge, temperature=1e308, num_samples=100_000, seed=1)
    assert p_value(flat, distribution([1e-8, 1e-8, -1.0, 1e-8])) > 1e-4
