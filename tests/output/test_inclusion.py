"""Inclusion probabilities agree with sums over all orders of draws, with recursions and with simulations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from softargmax.output import inclusion_probability
from softargmax.output.inclusion_probability import inclusion_probabilities
from softargmax.output.philox_stream import numbers
from softargmax.output.samplers import LogUniform, Uniform, Unigram


def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def by_sets(q: Any, n: int) -> Any:
    """Return the inclusion probabilities, computed from the probability of every set of n drawn classes."""
    classes = len(q)
    reached = {0: 1.0}
    for _ in range(n):
        after: dict[int, float] = {}
        for drawn, probability in reached.items():
            left = [k for k in range(classes) if not drawn >> k & 1]
            mass = math.fsum(q[k] for k in left)
            for k in left:
                after[drawn | 1 << k] = after.get(drawn | 1 << k, 0.0) + probability * q[k] / mass
        reached = after
    return np.array([math.fsum(p for drawn, p in reached.items() if drawn >> k & 1) for k in range(classes)])


def of_two_kinds(many: int, q_many: float, few: int, q_few: float, n: int) -> tuple[float, float]:
    """Return the inclusion probabilities of two kinds of classes, with different q, by recursion over the draws."""
    taken, law = np.arange(n + 1.0), np.zeros(n + 1)
    law[0] = 1.0
    for drawn in range(n):
        one = np.maximum(many - taken, 0.0) * q_many
        other = np.maximum(few - (drawn - taken), 0.0) * q_few
        total = np.where(one + other > 0, one + other, 1.0)
        law = law * other / total + np.concatenate([[0.0], (law * one / total)[:-1]])
    law /= law.sum()  # corrects the rounding errors of n steps
    return float(law @ taken) / many, float(law @ (n - taken)) / few


SMALL = {
    "equal": np.ones,
    "random": lambda k: rng().random(k),
    "Zipf": lambda k: np.log1p(1 / np.arange(1.0, k + 1)),
    "steep": lambda k: 2.0 ** -(np.arange(k) ** 1.5),
    "nearly all mass on one class": lambda k: np.array([1e6] + [1.0] * (k - 1)),
    "two kinds, far apart": lambda k: np.array([1.0] * (k // 2) + [1e-9] * (k - k // 2)),
    "over the range of float64": lambda k: np.logspace(-307, 0, k),
    "over 50 orders of magnitude": lambda k: np.exp(rng().standard_normal(k) * 20),
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("classes", [2, 3, 7, 10])
def test_against_all_orders(kind: str, classes: int) -> None:
    """For probabilities pi down to 1e-307, the measured errors are at most 3e-15 (absolute) and 1e-13 (relative)."""
    q = SMALL[kind](classes)
    q /= q.sum()
    for n in range(classes + 1):
        found, true = inclusion_probabilities(q, n), by_sets(q, n)
        np.testing.assert_allclose(found, true, rtol=0, atol=1e-14)
        np.testing.assert_allclose(found, true, rtol=1e-12)


def test_against_all_orders_of_twelve() -> None:
    q = np.append(SMALL["Zipf"](11) / SMALL["Zipf"](11).sum(), 0.0)
    for n in (2, 5, 10):
        np.testing.assert_allclose(inclusion_probabilities(q, n), by_sets(q, n), rtol=1e-13)
    assert inclusion_probabilities(q, 11).tolist() == [1.0] * 11 + [0.0]


KINDS = [
    (50_000, 50_003, 10.0, 1024),
    (50_000, 50_003, 3.0, 5000),
    (1000, 99_003, 1e4, 1024),
    (1000, 99_003, 1e9, 1000),
    (1000, 99_003, 1e9, 999),
    (10, 99_993, 1e12, 1024),
    (1, 99_999, 1e12, 3),
    (1000, 1000, 1e20, 1010),
    (1000, 1000, 1e20, 990),
    (5, 70_000, 1e100, 6),
]


@pytest.mark.parametrize(("many", "few", "ratio", "n"), KINDS)
def test_against_the_recursion_for_two_kinds_of_classes(many: int, few: int, ratio: float, n: int) -> None:
    """The measured errors are below the limits of this test.

    The absolute errors are at most 6e-15. The relative errors are at most 4e-11, and at most 2e-13 if pi > 1e-4. They
    include the rounding errors of the recursion.
    """
    q = np.repeat([ratio, 1.0], [many, few])
    q /= q.sum()
    found, true = inclusion_probabilities(q, n)[[0, -1]], of_two_kinds(many, q[0], few, q[-1], n)
    np.testing.assert_allclose(found, true, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found, true, rtol=1e-12 if min(true) > 1e-4 else 1e-10)


@pytest.mark.parametrize("n", [2, 20, 300, 2900])
def test_interpolation_agrees_with_one_node_per_class(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q = np.concatenate([LogUniform(2000).probabilities, 1e-6 * rng().random(1000) ** 2])
    q /= q.sum()
    quick = inclusion_probabilities(q, n)
    assert inclusion_probability._nodes_of(np.log(q)).log_q.size < 700, "few nodes represent the classes"
    monkeypatch.setattr(inclusion_probability, "_FEW", 10**9)
    assert inclusion_probability._nodes_of(np.log(q)).log_q.size == 3000
    np.testing.assert_allclose(quick, inclusion_probabilities(q, n), rtol=1e-12)


WORDS = np.maximum(1e7 / (np.arange(100_003) + 2.7) ** 1.1, 1.0).astype(int)  # few distinct counts, like word counts


@pytest.mark.parametrize("n", [2, 64, 1024, 50_000, 100_002])
@pytest.mark.parametrize("sampler", [LogUniform(100_003), Unigram(WORDS)], ids=repr)
def test_sum_is_the_number_of_draws(sampler: LogUniform | Unigram, n: int) -> None:
    pi = sampler.expected(np.arange(100_003), n, unique=True)
    q = sampler.probabilities
    assert abs(math.fsum(pi) / n - 1) < 1e-13
    assert np.all((pi > 0) & (pi <= 1) & (pi >= -np.expm1(n * np.log1p(-q)) * (1 - 1e-14)))
    assert np.all(np.diff(pi) <= 1e-14), "pi does not increase from a class to a rarer class"


def test_against_simulation() -> None:
    """In 40,000 simulations, a class is among the first n of 1000 exponential arrivals as often as pi predicts."""
    q, sets = LogUniform(1000).probabilities, 40_000
    for n in (10, 100):
        count, random = np.zeros(1000), rng()
        for _ in range(sets // 1000):
            times = random.standard_exponential((1000, 1000)) / q
            count += np.bincount(np.argpartition(times, n, axis=1)[:, :n].reshape(-1), minlength=1000)
        pi = inclusion_probabilities(q, n)
        z = (count - sets * pi) / np.sqrt(sets * pi * (1 - pi) + 1e-9)
        assert np.abs(z).max() < 5
        assert 0.8 < np.mean(z**2) < 1.2
        uniform = inclusion_probabilities(np.full(1000, 1e-3), n)
        assert np.abs((count - sets * uniform) / np.sqrt(sets * uniform)).max() > 20, "a wrong pi fails the test"


def test_equal_classes_and_one_draw() -> None:
    np.testing.assert_allclose(inclusion_probabilities(np.full(5003, 1 / 5003), 77), 77 / 5003, rtol=1e-13)
    assert np.all(Uniform(5003).expected(np.arange(5003), 77, unique=True) == 77 / 5003)
    q = LogUniform(300).probabilities
    assert np.array_equal(inclusion_probabilities(q, 1), q)
    nodes = inclusion_probability._nodes_of(np.log(q))
    np.testing.assert_allclose(
        nodes.interpolate(inclusion_probability._integral(nodes, 1)), q, rtol=1e-12
    )  # the integral also holds for n = 1


# Errors of TensorFlow's formula, 1 - (1 - q)^tries. For each batch, classes are drawn until n distinct classes are
# found. `tries` is the number of these draws, repeats included. The error of a batch is the largest relative error over
# all classes. For each sampler, the table has the median and the largest error of 100 batches (30 if K = 100003).
#     K        n       LogUniform        Unigram(WORDS[:K])   (ours: below 1e-12)
#     1000     10      0.086   0.37      0.025   0.17
#     1000     100     0.050   0.18      0.037   0.15
#     1000     500     0.030   0.092     0.023   0.079
#     100003   64      0.030   0.12      0.011   0.041
#     100003   1024    0.016   0.060     0.006   0.020
#     100003   8192    0.008   0.018     0.005   0.017
# Most of the error is due to the number of tries, which differs between batches. With the mean number of tries, the
# median error falls from 0.016 to 0.0015 (K = 100003, n = 1024) and from 0.086 to 0.014 (K = 1000, n = 10).
@pytest.mark.parametrize(("classes", "n", "least"), [(1000, 10, 0.03), (1000, 100, 0.02), (100_003, 1024, 0.005)])
def test_tensorflows_formula_has_larger_errors(classes: int, n: int, least: float) -> None:
    sampler = LogUniform(classes)
    pi, q = sampler.expected(np.arange(classes), n, unique=True), sampler.probabilities
    errors = []
    for seed in range(30):
        tries = sampler._choose(numbers(seed, 0, 0, 20 * n))
        first = np.sort(np.unique(tries, return_index=True)[1])
        errors.append(np.abs(-np.expm1((first[n - 1] + 1) * np.log1p(-q)) / pi - 1).max())
    print(f"K = {classes}, n = {n}: median {np.median(errors):.3f}, worst {max(errors):.3f}")
    assert np.median(errors) > least
