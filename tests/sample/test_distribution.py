"""Draws have the right distribution: chi-square tests of a million draws, and p-values that are uniform over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import BACKENDS, Backend
from tests.sample.tracing import traced
from tests.sample.truth import distribution, p_value

import softargmax
from softargmax.core import _native

stats = pytest.importorskip("scipy.stats")

DRAWS = 1_000_000
RNG = np.random.default_rng(7)
Z = {k: RNG.standard_normal(k) * 2 for k in (3, 40, 1000)}
ALL = {"temperature": 1.7, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9, "epsilon": 0.015, "eta": 0.2}
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
    "typical_p": (40, {"typical_p": 0.5}),
    "epsilon": (40, {"epsilon": 0.02}),
    "eta": (40, {"eta": 0.3}),
    "top_k and top_p": (40, {"top_k": 9, "top_p": 0.7}),
    "top_p and typical_p": (40, {"top_p": 0.95, "typical_p": 0.5}),
    "typical_p and epsilon, jointly": (40, {"typical_p": 0.8, "epsilon": 0.03, "order": "joint"}),
    "min_p and eta": (40, {"min_p": 0.02, "eta": 0.3, "temperature": 2.0}),
    "all": (40, ALL),
    "all, jointly": (40, {**ALL, "order": "joint"}),
}


def draw(z: Any, options: dict[str, Any], shape: tuple[int, int], seed: int) -> Any:
    """Return `shape[1]` draws from each of `shape[0]` copies of z.

    If typical_p, epsilon or eta is set, `filter_scores` applies all filters before the draw.
    """
    if options.keys() & {"typical_p", "epsilon", "eta"}:
        z, options = softargmax.filter_scores(z, **options), {"temperature": options.get("temperature", 1.0)}
    return softargmax.categorical(np.broadcast_to(z, (shape[0], z.size)), num_samples=shape[1], seed=seed, **options)


@pytest.mark.parametrize("case", CASES)
def test_chi_square(case: str) -> None:
    """Draws fit the distribution, for many rows of one draw and for few rows of many draws.

    The two cases run different code.
    """
    classes, options = CASES[case]
    z, p = Z[classes], distribution(Z[classes], **options)
    rows, seeds = (2000, 1) if classes == 1000 else (50_000, 3)
    found = []
    for seed in range(seeds):
        draws = [draw(z, options, shape, seed) for shape in ((rows, 1), (100, (DRAWS - rows) // 100))]
        found.append(p_value(np.concatenate([d.reshape(-1) for d in draws]), p))
    assert min(found) > 1e-4, f"p = {found}"
    first, second = np.argsort(-p)[:2]
    p[[first, second]] += np.array([-0.1, 0.1]) * p[second]
    assert p_value(draws[1], p) < 1e-9, "the test accepts a wrong distribution"


def test_p_values_are_uniform() -> None:
    z = Z[40]
    draws = softargmax.categorical(np.broadcast_to(z, (200, 40)), num_samples=10_000, seed=5)
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.implementation == "reference"], ids=str)
def test_the_reference(backend: Backend) -> None:
    z, filters = Z[40].astype("float32"), {"top_k": 30, "top_p": 0.9, "min_p": 0.01}
    with backend.using():
        draw = traced(
            backend, lambda z: softargmax.categorical(z, num_samples=20_000, seed=3, temperature=1.3, **filters)
        )
        draws = draw(backend.array(z))
    assert p_value(backend.back(draws), distribution(z, 1.3, **filters)) > 1e-4


def test_without_replacement() -> None:
    """Ordered pairs have the right frequencies. The second class is drawn from the classes other than the first."""
    z = np.array([0.5, -1.0, 2.0, 0.0, -np.inf])
    p = distribution(z)
    draws = softargmax.categorical(np.broadcast_to(z, (400_000, 5)), num_samples=2, replace=False, seed=4)
    assert (draws[:, 0] != draws[:, 1]).all()
    assert (draws < 4).all(), "a class of probability 0 was drawn"
    pairs = p[:, None] * p[None, :] / (1 - p[:, None])
    np.fill_diagonal(pairs, 0)
    pairs[4:], pairs[:, 4:] = 0, 0
    assert p_value(draws[:, 0] * 5 + draws[:, 1], pairs.reshape(-1)) > 1e-4


def test_rare_events_happen_at_their_rate() -> None:
    """A class of probability 2^-16 is drawn about 64 times in 2^22 rows. Uniforms of 24 bits would be too coarse."""
    z = np.array([0.0, -16 * np.log(2.0)])
    rare = int((softargmax.categorical(np.broadcast_to(z, (1 << 22, 2)), seed=9) == 1).sum())
    assert abs(rare - 64) < 5 * 8


def test_an_event_of_2_to_the_minus_40_has_its_rate() -> None:
    """The noise of one class exceeds that of another by more than 40 ln 2 with probability 2^-40.

    So, on average over the noise of the other class, 2^24 of the 2^64 random words give the first class such noise.
    """
    u = (np.arange(4096) + 0.5) / 4096
    wanted = -np.log(-np.log(u)) + 40 * np.log(2)
    many, g = np.zeros(u.size, np.uint64), np.empty(u.size)
    for bit in range(63, -1, -1):  # larger words have smaller noise
        more = many + np.uint64(1 << bit)
        _native.gumbel_of_words(more - np.uint64(1), g)
        many = np.where(g > wanted, more, many)
    assert many.astype(float).mean() * 2.0**-24 == pytest.approx(1, abs=1e-3)
    assert p_value_of_smallest_words() > 1e-3


def p_value_of_smallest_words() -> float:
    """Draw 2^22 random words. Return the p-value of a test that the words below 2^52 are uniform."""
    words = np.empty(1 << 22, np.uint64)
    _native.random_words(words, 3, 0, 0, 0)
    low = words[words < np.uint64(1 << 52)].astype(float) * 2.0**-52
    assert 800 < low.size < 1250
    return float(stats.kstest(low, "uniform").pvalue)


def test_the_rarest_draws_are_not_missed() -> None:
    """A rare class is drawn if and only if its score plus noise is above that of the other class."""
    g = softargmax.gumbel(1 << 22, seed=5)
    rare = int(g.argmax())
    assert g[rare] > 14
    other = rare - 7
    for gap, expected in ((g[rare] - g[other]) * (1 - 1e-12), rare), ((g[rare] - g[other]) * (1 + 1e-12), other):
        z = np.full(g.size, -np.inf)
        z[rare], z[other] = -gap, 0.0
        for options in ({}, {"top_p": 1.0}, {"top_k": 5}):
            assert softargmax.categorical(z, seed=5, **options) == expected


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
