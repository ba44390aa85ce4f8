"""The cut-offs have the smallest cost, compared with all cut-offs for small K and with some cut-offs for large K."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from softargmax.output import StepCost, adaptive_cutoffs

MEASURED = StepCost()


def total(
    counts: Any, cuts: Sequence[int], dim: int, batch: int = 1024, div_value: float = 1.0, cost: StepCost = MEASURED
) -> float:
    """Return the cost of the cut-offs `cuts`, by the formulas in the docs of `adaptive_cutoffs` and `StepCost`."""

    def g(classes: int, rows: float, width: int) -> float:
        products = classes * rows * (width + cost.score) + classes * width * cost.parameter
        return max(cost.call + cost.least, cost.call + products)

    shares = np.sort(np.asarray(counts, np.float64))[::-1] / np.sum(counts)
    ends = [0, *cuts, len(shares)]
    found = g(ends[1], batch, dim)
    for i in range(1, len(ends) - 1):
        rows, width = batch * shares[ends[i] : ends[i + 1]].sum(), max(1, int(dim // div_value**i))
        found += g(ends[i + 1] - ends[i], rows, width) + (rows + cost.parameter) * dim * width
        found += batch * (dim + cost.score) + dim * cost.parameter
    return float(found)


COUNTS = {
    "zipf": 1000 / np.arange(1, 15),
    "random": np.random.default_rng(1).integers(0, 50, 14),
    "equal": np.ones(14),
    "one": np.eye(14)[3],
    "two": [5, 1],
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("constants", [(0, 0, 0, 0), (1e4, 0, 64, 9), (10, 3e4, 8, 100), (0, 1e3, 1, 0), ()])
@pytest.mark.parametrize(("dim", "batch", "div_value"), [(16, 64, 4.0), (7, 1000, 1.1), (1, 3, 2.0)])
def test_no_choice_is_cheaper(
    name: str, constants: Any, dim: int, batch: int, div_value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = COUNTS[name]
    options: Any = {"dim": dim, "batch": batch, "div_value": div_value, "cost": StepCost(*constants)}
    least = []
    for clusters in range(min(4, len(counts))):
        every = [total(counts, cuts, **options) for cuts in combinations(range(1, len(counts)), clusters)]
        found = adaptive_cutoffs(counts, clusters=clusters, **options)
        assert len(found) == clusters
        assert total(counts, found, **options) == pytest.approx(min(every), rel=1e-12)
        least.append(min(every))
    for most in range(len(least)):
        monkeypatch.setattr(sys.modules["softargmax.output.adaptive_cutoffs"], "MOST", most)
        found = adaptive_cutoffs(counts, **options)
        assert total(counts, found, **options) == pytest.approx(min(least[: most + 1]), rel=1e-12)


def test_many_classes_take_seconds() -> None:
    counts = 1e9 / np.arange(1.0, 100_004)
    began = time.perf_counter()
    found = adaptive_cutoffs(counts, dim=256, clusters=4)
    assert time.perf_counter() - began < 10, "an algorithm of time O(K^2) would take minutes"
    assert list(found) == sorted(set(found))
    assert 0 < found[0] < found[-1] < 100_003
    rng, least = np.random.default_rng(0), total(counts, found, 256)
    for _ in range(20):
        moved = sorted(int(cut * factor) for cut, factor in zip(found, rng.uniform(0.9, 1.1, 4), strict=True))
        assert total(counts, moved, 256) >= least * (1 - 1e-12)
    assert total(counts, adaptive_cutoffs(counts, dim=256), 256) <= total(
        counts, adaptive_cutoffs(counts, dim=256, clusters=3), 256
    )


def test_order_of_counts_does_not_matter() -> None:
    counts = 1e6 / np.arange(1.0, 500)
    wanted = adaptive_cutoffs(counts, dim=64, clusters=2)
    assert adaptive_cutoffs(np.random.default_rng(0).permutation(counts), dim=64, clusters=2) == wanted
    assert adaptive_cutoffs((counts * 3).tolist(), dim=64, clusters=2) == wanted
    assert adaptive_cutoffs([7], dim=64) == adaptive_cutoffs([7], dim=64, clusters=0) == ()


def test_few_classes_get_no_cluster() -> None:
    assert adaptive_cutoffs(np.ones(20), dim=64, batch=8) == ()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f: f([1, -1], dim=4), ValueError, "counts: expected a finite number, 0 or above, got -1 for class 1"),
        (lambda f: f([np.nan], dim=4), ValueError, "counts: expected a finite number, 0 or above, got nan for class 0"),
        (lambda f: f([0, 0], dim=4), ValueError, "counts: expected at least one above 0, got only zeros"),
        (
            lambda f: f([[1]], dim=4),
            ValueError,
            r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(1, 1\)",
        ),
        (lambda f: f([1, 1], dim=0), ValueError, "dim: expected 1 or more, got 0"),
        (lambda f: f([1, 1], dim=4, batch=0), ValueError, "batch: expected 1 or more, got 0"),
        (lambda f: f([1, 1], dim=4, clusters=-1), ValueError, "clusters: expected 0 or more, got -1"),
        (lambda f: f([1, 1], dim=4, clusters=2), ValueError, "clusters: expected at most 1 for 2 classes, got 2"),
        (lambda f: f([1, 1], dim=4, clusters=1.0), TypeError, "clusters: expected an integer, got 1.0"),
        (lambda f: f([1, 1], dim=4, div_value=-1), ValueError, "div_value: expected a finite number above 0, got -1"),
        (lambda f: f([1, 1], dim=4, cost=2.0), TypeError, "cost: expected a StepCost, got float"),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(adaptive_cutoffs)
