"""Tests of samplers: distribution, draws with and without replacement, expected counts, error messages."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.sample.truth import p_value

from softargmax.output import philox_stream
from softargmax.output.alias import alias_table
from softargmax.output.samplers import Learned, LogUniform, Sampler, Uniform, Unigram

stats = pytest.importorskip("scipy.stats")

DRAWS = 1_000_000
COUNTS = [500, 0, 3, 70, 1, 0, 0, 12, 9, 1000, 4, 0]
TARGETS = [0, 0, 5, 2, 5, 5, 1]


def learned() -> Learned:
    sampler = Learned(7, smoothing=0.5, power=0.75)
    sampler.observe(TARGETS)
    return sampler


# Samplers, each with its distribution Q computed from the definition.
CASES: dict[str, tuple[Callable[[], Sampler], list[float]]] = {
    "uniform": (lambda: Uniform(37), [1 / 37] * 37),
    "log-uniform": (lambda: LogUniform(1000), [math.log1p(1 / (k + 1)) / math.log(1001) for k in range(1000)]),
    "unigram": (lambda: Unigram(COUNTS), [c**0.75 / sum(c**0.75 for c in COUNTS) for c in COUNTS]),
    "unigram of power 1": (lambda: Unigram(COUNTS, power=1), [c / sum(COUNTS) for c in COUNTS]),
    "unigram of power -1": (
        lambda: Unigram(COUNTS, power=-1),
        [c and 1 / c / sum(1 / d for d in COUNTS if d) for c in COUNTS],
    ),
    "unigram of power 0": (lambda: Unigram(COUNTS, power=0), [(c > 0) / 8 for c in COUNTS]),
    "unigram of one": (lambda: Unigram([3.5]), [1.0]),
    "learned": (
        learned,
        [(TARGETS.count(k) + 0.5) ** 0.75 / sum((TARGETS.count(j) + 0.5) ** 0.75 for j in range(7)) for k in range(7)],
    ),
}
every = pytest.mark.parametrize("case", CASES)


@every
def test_probabilities_equal_the_definition(case: str) -> None:
    make, q = CASES[case]
    sampler, index = make(), np.arange(len(q))
    assert sampler.classes == len(q)
    assert sampler.probabilities.dtype == np.float64
    np.testing.assert_allclose(sampler.probabilities, q, rtol=1e-14)
    assert abs(sampler.probabilities.sum() - 1) < 1e-14
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(sampler.log_probabilities(index), np.log(q), rtol=1e-14, atol=1e-15)
    assert sampler.log_probabilities([[0], [0]]).shape == (2, 1)
    with pytest.raises(ValueError, match="read-only"):
        sampler.probabilities[0] = 1.0


@every
def test_draws_pass_a_chi_square_test(case: str) -> None:
    make, q = CASES[case]
    found = make().draw(DRAWS, seed=3)
    assert found.index.dtype == np.int64
    assert found.index.shape == found.log_expected.shape == (DRAWS,)
    assert set(np.flatnonzero(np.bincount(found.index, minlength=len(q)))) <= set(np.flatnonzero(q)), (
        "a class of probability 0 was drawn"
    )
    assert p_value(found.index, np.array(q)) > 1e-4
    if len(q) > 1:
        first, second = np.argsort(q)[-2:]
        wrong = np.array(q)
        wrong[[first, second]] += np.array([-0.1, 0.1]) * wrong[first]
        assert p_value(found.index, wrong) < 1e-9, "a wrong distribution fails the test"


@every
def test_sets_of_draws_have_the_expected_counts(case: str) -> None:
    """Each class is drawn as often as expected. Streams are independent, so their p-values are uniform."""
    make, q = CASES[case]
    sampler, index = make(), np.arange(len(q))
    n = DRAWS // 100
    np.testing.assert_allclose(sampler.expected(index, n), n * np.array(q), rtol=1e-14)
    sets = [sampler.draw(n, seed=11, stream=s) for s in range(100)]
    for draws in sets[:3]:
        np.testing.assert_array_equal(np.exp(draws.log_expected).round(9), sampler.expected(draws.index, n).round(9))
    counts = np.array([np.bincount(draws.index, minlength=len(q)) for draws in sets])
    mean, error = counts.mean(axis=0), np.sqrt(n * np.array(q) / 100)
    assert np.all(np.abs(mean - n * np.array(q)) <= 4.5 * error)
    if len(q) > 1:
        p = [p_value(draws.index, np.array(q)) for draws in sets]
        assert stats.kstest(p, "uniform").pvalue > 1e-3


@every
@pytest.mark.parametrize("unique", [False, True])
def test_draws_depend_only_on_seed_stream_and_position(case: str, unique: bool) -> None:
    sampler = CASES[case][0]()
    support = int(np.count_nonzero(sampler.probabilities))
    few, many = (support // 2, support) if unique else (10, 70_000)  # 70,000 draws need several chunks of numbers

    def draw(n: int, seed: int = 1, stream: int = 2) -> list[int]:
        return list(sampler.draw(n, seed=seed, stream=stream, unique=unique).index)

    assert draw(few) == draw(many)[:few] == draw(many - 1)[:few]
    assert draw(many) == list(pickle.loads(pickle.dumps(sampler)).draw(many, seed=1, stream=2, unique=unique).index)
    if support > 1:
        # With few classes, two seeds or streams can have equal draws. So of three pairs, at least one must differ.
        one = draw(many)
        assert any(one != draw(many, seed=s) for s in (0, 3, 2**64 - 1))
        assert any(one != draw(many, stream=s) for s in (0, -3, 2**62))
        assert any(draw(many, stream=s) != draw(many, stream=s + 2**32) for s in (0, 1, 2))


# --- distinct draws ---------------------------------------------------------------------------------------------------


@every
def test_distinct_draws_can_take_the_whole_support(case: str) -> None:
    sampler = CASES[case][0]()
    support = np.flatnonzero(sampler.probabilities)
    found = sampler.draw(support.size, seed=4, unique=True)
    assert sorted(found.index) == list(support)
    assert not found.log_expected.any()
    with pytest.raises(ValueError, match=rf"^n: expected at most {support.size}, .*, got {support.size + 1}$"):
        sampler.draw(support.size + 1, seed=4, unique=True)
    with pytest.raises(ValueError, match=r"^n: "):
        sampler.expected([0], support.size + 1, unique=True)


def test_distinct_draws_are_successive() -> None:
    """The first draw is from Q, the second from Q without the first class."""
    sampler = Unigram([5, 1, 3, 0, 2], power=1)
    q = sampler.probabilities
    pairs = [sampler.draw(2, seed=9, stream=s, unique=True).index for s in range(4000)]
    law = np.array([[0 if i == j else q[i] * q[j] / (1 - q[i]) for j in range(5)] for i in range(5)]).reshape(-1)
    found = np.array([5 * i + j for i, j in pairs])
    assert p_value(found, law) > 1e-4
    wrong = np.array([[0 if i == j else q[i] * q[j] for j in range(5)] for i in range(5)]).reshape(-1)
    assert p_value(found, wrong / wrong.sum()) < 1e-9, "a wrong distribution fails the test"


def test_rare_classes_are_drawn_by_arrival_times() -> None:
    """Classes that K + 1024 tries do not find are drawn by exponential arrival times, with the right distribution."""
    sampler = Unigram([1.0, 1e-30, 2e-30, 3e-30, 0.0], power=1)
    sets = np.array([sampler.draw(4, seed=2, stream=s, unique=True).index for s in range(700)])
    assert np.all(sets[:, 0] == 0)
    assert p_value(sets[:, 1] - 1, np.array([1, 2, 3]) / 6) > 1e-4
    assert p_value(sets[:, 1] - 1, np.array([1, 1, 1]) / 3) < 1e-9, "a wrong distribution fails the test"
    # For each of the three rare classes, the probability of being drawn last, after the other two in either order.
    last = np.array([2 / 6 * 3 / 4 + 3 / 6 * 2 / 3, 1 / 6 * 3 / 5 + 3 / 6 * 1 / 3, 1 / 6 * 2 / 5 + 2 / 6 * 1 / 4])
    assert p_value(sets[:, 3] - 1, last) > 1e-4


def test_inclusion_probabilities_equal_frequencies_of_draws() -> None:
    """In 2000 samples of 500 from 1000 classes, each class's frequency agrees with its inclusion probability."""
    sampler, index = LogUniform(1000), np.arange(1000)
    sets = [sampler.draw(500, seed=1, stream=s, unique=True) for s in range(2000)]
    pi = sampler.expected(index, 500, unique=True)
    for found in sets[:3]:
        assert np.unique(found.index).size == 500
        np.testing.assert_array_equal(found.log_expected, np.log(pi[found.index]))
    count = np.bincount(np.concatenate([found.index for found in sets]), minlength=1000)
    error = np.sqrt(2000 * pi * (1 - pi)) + 1e-9
    z = (count - 2000 * pi) / error
    assert np.abs(z).max() < 5
    assert 0.85 < np.mean(z[10:] ** 2) < 1.15
    naive = np.minimum(500 * sampler.probabilities, 1.0)
    assert np.abs((count - 2000 * naive) / error)[100:].max() > 10, "a wrong pi fails the test"


def test_smallest_numbers_of_classes_and_draws() -> None:
    for one in (Uniform(1), LogUniform(1), Unigram([2]), Learned(1)):
        assert one.probabilities == [1.0]
        assert list(one.draw(3, seed=0).index) == [0, 0, 0]
        assert one.draw(1, seed=0, unique=True).log_expected == [0.0]
    for two in (Uniform(2), Unigram([3, 3]), Learned(2)):
        assert list(two.expected([0, 1], 1, unique=True)) == [0.5, 0.5]
        assert sorted(two.draw(2, seed=0, unique=True).index) == [0, 1]
    for none in (Uniform(3).draw(0, seed=0), Unigram(COUNTS).draw(0, seed=0, unique=True)):
        assert none.index.shape == none.log_expected.shape == (0,)
        assert none.index.dtype == np.int64


# --- learned counts ---------------------------------------------------------------------------------------------------


def test_learned_counts_the_observed_targets() -> None:
    sampler = Learned(4, smoothing=2.0, decay=0.5)
    before = sampler.expected([3], 2, unique=True)
    sampler.observe([[3, 3], [0, 3]])
    sampler.observe(np.array([1], dtype=np.uint8))
    np.testing.assert_array_equal(sampler.counts, [0.5, 1.0, 0.0, 1.5])
    np.testing.assert_allclose(sampler.probabilities, np.array([2.5, 3.0, 2.0, 3.5]) / 11.0)
    assert sampler.expected([3], 2, unique=True) > before, "`observe` clears the cache"
    assert p_value(sampler.draw(100_000, seed=0).index, sampler.probabilities) > 1e-4
    sampler.observe([])
    np.testing.assert_array_equal(sampler.counts, [0.25, 0.5, 0.0, 0.75])
    counts = sampler.counts
    counts[0] = 100.0
    assert sampler.counts[0] == 0.25, "`counts` is a copy"


def test_learned_state_dict_can_be_saved_by_torch(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    sampler, fresh = learned(), Learned(7, smoothing=0.5, power=0.75)
    state = {name: torch.from_numpy(array) for name, array in sampler.state_dict().items()}
    torch.save(state, tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt"))
    np.testing.assert_array_equal(fresh.draw(50, seed=6).index, sampler.draw(50, seed=6).index)
    fresh.observe(torch.tensor([6, 6]))
    assert fresh.counts[6] == 2
    assert sampler.counts[6] == 0


# --- alias tables and random numbers ----------------------------------------------------------------------------------


def test_alias_table_has_the_masses_of_its_distribution() -> None:
    """The largest relative error over 50,021 classes is 1e-12. With cumulative sums in float64, it would be 1e-9."""
    rng = np.random.default_rng(5)
    for weights in (rng.zipf(1.2, 50_021).clip(0, 10**7) ** 0.75, rng.integers(0, 3, 50), np.ones(9), np.array([0, 7])):
        q = weights / weights.sum()
        table = alias_table(q)
        mass = table.threshold.astype(np.longdouble)
        np.add.at(mass, table.alias, 1 - table.threshold.astype(np.longdouble))
        np.testing.assert_allclose((mass / q.size).astype(float), q, rtol=1e-11)
        assert np.all((table.threshold >= 0) & (table.threshold <= 1))


def test_random_numbers_are_exact_functions_of_their_bits() -> None:
    words = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x12345678])
    for high in words:
        for low in words:
            whole, a, b = (int(high) << 32) + int(low), np.array([high]), np.array([low])
            for n in (1, 2, 100_003, 2**31 - 1):
                assert philox_stream.below(n, a, b)[0] == n * whole >> 64
            assert philox_stream.unit(a, b)[0] == (whole >> 11) / 2**53 < 1
            v = Fraction(2 * whole + 1, 2**65)
            true = -math.log1p(-float(v)) if v < Fraction(1, 2) else -math.log(float(1 - v))
            assert abs(philox_stream.exponential(a, b)[0] / true - 1) < 1e-15


# --- errors -----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Uniform(0), ValueError, r"classes: expected an integer from 1 to 2\^31 - 1, got 0"),
    (lambda: LogUniform(-3), ValueError, r"classes: expected an integer from 1 to 2\^31 - 1, got -3"),
    (lambda: Learned(2.0), TypeError, "classes: expected an integer, got 2.0"),  # type: ignore[arg-type]
    (lambda: Uniform(2**31), ValueError, r"classes: expected an integer from 1 to 2\^31 - 1, got 2147483648"),
    (lambda: Unigram([1, -2]), ValueError, "counts: expected a finite number, 0 or above, got -2 for class 1"),
    (lambda: Unigram([1, math.nan]), ValueError, "counts: expected a finite number, 0 or above, got nan for class 1"),
    (lambda: Unigram([math.inf, 1]), ValueError, "counts: expected a finite number, 0 or above, got inf for class 0"),
    (lambda: Unigram([0, 0]), ValueError, "counts: expected at least one above 0, got only zeros"),
    (
        lambda: Unigram([[1, 2]]),
        ValueError,
        r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(1, 2\)",
    ),
    (lambda: Unigram(3), ValueError, r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(\)"),
    (
        lambda: Unigram([]),
        ValueError,
        r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(0,\)",
    ),
    (lambda: Unigram(["a"]), TypeError, "counts: expected integers or floats, got dtype <U1"),
    (lambda: Unigram([1], power=math.inf), ValueError, "power: expected a finite number, got inf"),
    (lambda: Unigram([1], power=math.nan), ValueError, "power: expected a finite number, got nan"),
    (lambda: Unigram([1], power="1"), TypeError, "power: expected a finite number, got '1'"),  # type: ignore[arg-type]
    (lambda: Learned(2, power=math.inf), ValueError, "power: expected a finite number, got inf"),
    (lambda: Learned(2, smoothing=0.0), ValueError, "smoothing: expected a finite number above 0, got 0.0"),
    (lambda: Learned(2, decay=1.5), ValueError, "decay: expected a number from 0 to 1, got 1.5"),
    (lambda: Learned(2, decay=None), TypeError, "decay: expected a number from 0 to 1, got None"),  # type: ignore[arg-type]
    (lambda: Uniform(2).draw(-1, seed=0), ValueError, "n: expected .*, got -1"),
    (lambda: Uniform(2).draw(1.0, seed=0), TypeError, "n: expected an integer, got 1.0"),  # type: ignore[arg-type]
    (lambda: Uniform(2).draw(True, seed=0), TypeError, "n: expected an integer, got True"),
    (lambda: Uniform(2).draw(1, seed=None), TypeError, r"seed: expected an integer from 0 to 2\^64 - 1, got None"),  # type: ignore[arg-type]
    (
        lambda: Uniform(2).draw(1, seed=-1),
        ValueError,
        r"seed: expected an integer from 0 to 2\^64 - 1, got a negative number",
    ),
    (lambda: Uniform(2).draw(1, seed=0, stream=0.5), TypeError, "stream: expected an integer, got 0.5"),  # type: ignore[arg-type]
    (lambda: Uniform(2).expected([0], -1), ValueError, r"n: expected an integer from 0 to 2\^31 - 1, got -1"),
    (lambda: Uniform(2).expected([0, 2], 1), IndexError, r"index: expected classes from 0 to 1, got 2 at \(1,\)"),
    (
        lambda: Uniform(2).log_probabilities([[-1]]),
        IndexError,
        r"index: expected classes from 0 to 1, got -1 at \(0, 0\)",
    ),
    (lambda: Uniform(2).log_probabilities(0.5), TypeError, "index: expected integers, got dtype float64"),
    (lambda: learned().observe([7]), IndexError, r"targets: expected classes from 0 to 6, got 7 at \(0,\)"),
    (lambda: learned().observe([0.0]), TypeError, "targets: expected integers, got dtype float64"),
    (lambda: Learned(3).load_state_dict({"counts": [1, 2]}), ValueError, "state.'counts'.: expected 3 classes, got 2"),
    (
        lambda: Learned(2).load_state_dict({"counts": [1, -2]}),
        ValueError,
        r"state\['counts'\]: expected a finite number, 0 or above, got -2 for class 1",
    ),
    (
        lambda: Learned(2).load_state_dict({"count": [1, 2]}),
        ValueError,
        r"state: expected only the key 'counts', got \['count'\]",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_errors_name_the_argument(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"^{words}"):
        call()
