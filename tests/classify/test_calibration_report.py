"""Calibration reports: metrics compared with plain loops, coverage of intervals, labels, figure and errors."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from tests.classify.problems import scores

import softargmax
from softargmax.classify import calibration_report


def test_report_equals_loops() -> None:
    z, y = scores(300, 4)
    p = softargmax.softmax(z)
    report = calibration_report(y, p, bins=7)
    sure, right = p.max(axis=1), p.argmax(axis=1) == y
    ece = 0.0
    for b in range(7):
        rows = (sure > b / 7) & (sure <= (b + 1) / 7)
        assert report.counts[b] == rows.sum()
        if rows.any():
            ece += rows.sum() / 300 * abs(right[rows].mean() - sure[rows].mean())
            assert report.bin_accuracy[b] == pytest.approx(right[rows].mean())
            assert report.bin_confidence[b] == pytest.approx(sure[rows].mean())
        else:
            assert np.isnan(report.bin_accuracy[b])
    assert report.ece == pytest.approx(ece, rel=1e-12)
    assert report.log_loss == pytest.approx(float(softargmax.cross_entropy(z, y)), rel=1e-9)
    assert report.brier == pytest.approx(np.square(p - np.eye(4)[y]).sum(axis=1).mean(), rel=1e-12)
    assert report.accuracy == right.mean()
    equal = calibration_report(y, p, bins=6, strategy="quantile")
    assert np.ptp(equal.counts) <= 1


def coverage(rows: int, least: float, most: float, gap: float, confidence: float = 0.95) -> float:
    """Draw 300 samples of an overconfident classifier, whose calibration error is `gap`.

    Return the fraction of samples whose interval contains this error.
    """
    rng, count = np.random.default_rng(0), 0
    for _ in range(300):
        sure = rng.uniform(least, most, rows)
        y = (rng.random(rows) < sure - gap).astype(int)
        report = calibration_report(y, sure, classes=[0, 1], bins=10, confidence=confidence)
        low, high = report.ece_interval
        count += low <= gap <= high
    return count / 300


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, 0.05, 0.2])
def test_interval_contains_the_error(gap: float) -> None:
    assert coverage(1500, 0.5, 1.0, gap) >= 0.85
    assert coverage(1500, 0.5, 1.0, gap, confidence=0.5) < 0.85


@pytest.mark.parametrize("sure", [1.0, 1 - 1e-5, 1 - 1e-4, 0.999])
@pytest.mark.parametrize("gap", [0.01, 0.02, 0.05])
def test_interval_of_an_almost_certain_classifier(sure: float, gap: float) -> None:
    """At least 84% of the intervals from 100 rows contain the true error, although many samples have no wrong row."""
    assert coverage(100, sure, sure, gap) >= 0.84


def test_interval_depends_on_the_seed() -> None:
    z, y = scores(300, 4)
    p = softargmax.softmax(z)
    one, again, other = (calibration_report(y, p, seed=seed).ece_interval for seed in (0, 0, 1))
    assert one == again != other


def test_labels_and_columns() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    plain = calibration_report([0, 1], p)
    assert plain.accuracy == calibration_report(["a", "b"], p, classes=["a", "b", "c"]).accuracy == 1
    assert calibration_report(["b", "a"], p, classes=["b", "a", "c"]).accuracy == 1
    assert calibration_report([1, 0], [0.9, 0.2]).accuracy == 1
    low, high = calibration_report([1] * 20, np.ones(20), classes=[0, 1]).ece_interval
    assert low == 0 < high < 0.3
    assert calibration_report([0] * 5, np.full(5, 0.9), classes=[0, 1]).ece_interval[1] <= 1
    with np.errstate(divide="raise"):
        assert calibration_report([1, 0], [0.0, 0.2]).log_loss == np.inf
    assert not np.signbit(calibration_report([1, 0], [1.0, 0.0]).log_loss)


def test_figure() -> None:
    z, y = scores(300, 4)
    figure = calibration_report(y, softargmax.softmax(z)).figure(title="a title")
    assert isinstance(figure, mpl.figure.Figure)
    assert "a title" in figure.axes[0].get_title(loc="left")
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("error", "name", "change"),
    [
        (ValueError, "p:", {"p": [[0.5, 0.6]]}),
        (ValueError, "p:", {"p": [[1.5, -0.5]]}),
        (ValueError, "p:", {"p": [[np.nan, 0.5]]}),
        (ValueError, "p:", {"p": np.zeros((0, 2))}),
        (ValueError, "y:", {"y": [0, 1]}),
        (ValueError, "classes", {"classes": ["a"]}),
        (ValueError, "bins", {"bins": 0}),
        (ValueError, "strategy", {"strategy": "even"}),
        (ValueError, "confidence", {"confidence": 2.0}),
        (ValueError, "y:", {"y": [5], "classes": [0, 1]}),
        (ValueError, "classes", {"y": [5]}),
        (ValueError, "classes", {"y": [1]}),
        (ValueError, "classes", {"classes": [0, 0]}),
        (ValueError, "bins", {"bins": 10**7}),
        (ValueError, "seed", {"seed": -1}),
    ],
)
def test_errors(error: type[Exception], name: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=name):
        calibration_report(**{"y": [0], "p": [[0.4, 0.6]], **change})
