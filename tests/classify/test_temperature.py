"""Temperature scaling: the minimum of the log-loss, scikit-learn's probabilities, array libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from tests.classify.problems import scores

import softargmax
from softargmax.classify import (
    BernoulliNaiveBayes,
    GaussianNaiveBayes,
    TemperatureScaling,
    calibration_report,
    fit_temperature,
)

CASES: list[tuple[Any, Any]] = [
    (load_digits, GaussianNB(var_smoothing=1e-3)),
    (load_digits, LinearSVC(max_iter=300)),
    (load_digits, RandomForestClassifier(20, random_state=0)),
    (load_iris, LogisticRegression(C=100, max_iter=1000)),
    (load_breast_cancer, make_pipeline(StandardScaler(), LinearSVC())),
    (load_breast_cancer, RandomForestClassifier(20, random_state=0)),
]


# --- the minimum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharp", [1e-3, 0.3, 1.0, 7.0, 1e3])
@pytest.mark.parametrize("weighed", [False, True])
def test_temperature_minimises_the_loss(sharp: float, weighed: bool) -> None:
    z, y = scores(sharp=sharp)
    w = np.random.default_rng(1).integers(0, 3, len(y)).astype(float) if weighed else None
    found = float(fit_temperature(z, y, weight=w))

    def loss(log_t: float) -> float:
        return float(np.average(softargmax.cross_entropy(z, y, temperature=np.exp(log_t), reduction="none"), weights=w))

    best = minimize_scalar(loss, bounds=(-10, 10), options={"xatol": 1e-12})
    assert loss(np.log(found)) <= best.fun * (1 + 1e-14)
    assert np.log(found) == pytest.approx(best.x, abs=1e-6)
    assert found == pytest.approx(sharp, rel=0.3)


def test_scores_without_a_minimum() -> None:
    z = np.array([[3.0, 0.0], [0.0, 2.0]])
    worthless = fit_temperature(z, [1, 0])  # always wrong
    np.testing.assert_allclose(softargmax.softmax(z, temperature=worthless), 0.5, atol=1e-6)
    right = fit_temperature(z, [0, 1])
    assert float(softargmax.cross_entropy(z, [0, 1], temperature=right)) < 1e-16
    assert float(fit_temperature(np.zeros((3, 2)), [0, 1, 1])) > 0
    masked = np.array([[3.0, -np.inf, 0.0], [0.0, 2.0, -np.inf], [1.0, 0.0, 0.0]])
    assert np.isfinite(fit_temperature(masked, [0, 1, 2]))


@pytest.mark.slow
def test_any_library() -> None:
    z, y = scores()
    expected = float(fit_temperature(z, y))
    torch, jax, strict = (pytest.importorskip(name) for name in ("torch", "jax.numpy", "array_api_strict"))
    for xp, wide in (
        (torch, "float64"),
        (strict, "float64"),
        (torch, "float32"),
        (jax, "float32"),
        (torch, "bfloat16"),
    ):
        array, target = xp.asarray(z, dtype=getattr(xp, wide)), xp.asarray(y)
        found = fit_temperature(array, target)
        assert type(found) is type(array)
        assert found.dtype == (xp.float32 if wide == "bfloat16" else array.dtype)
        assert float(found) == pytest.approx(expected, rel={"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2}[wide])
    half = fit_temperature(z.astype(np.float16), y)
    assert half.dtype == np.float32
    ignored = fit_temperature(np.concatenate([z, -z]), np.concatenate([y, np.full(len(y), -100)]))
    assert float(ignored) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cv", [None, 3])
@pytest.mark.parametrize(("load", "model"), CASES, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_same_as_scikit_learn(load: Any, model: Any, cv: int | None) -> None:
    X, y = load(return_X_y=True)
    options = {} if cv is None else {"cv": cv}
    ours = TemperatureScaling(model, **options).fit(X, y)
    theirs = CalibratedClassifierCV(model, method="temperature", ensemble=False, **options).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-5, atol=1e-7)
    frozen = FrozenEstimator(model.fit(X[::2], y[::2]))
    ours = TemperatureScaling(frozen).fit(X[1::2], y[1::2])
    theirs = CalibratedClassifierCV(frozen, method="temperature").fit(X[1::2], y[1::2])
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-5, atol=1e-7)
    assert (ours.predict(X) == model.predict(X)).mean() > 0.999  # classes may differ where probabilities are equal


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_the_loss_is_never_worse(method: str) -> None:
    X, y = load_digits(return_X_y=True)
    for seed, made in enumerate((GaussianNB(), GaussianNaiveBayes(var_smoothing=1e-3), GaussianNaiveBayes())):
        part = np.random.default_rng(seed).permutation(len(y))
        model = FrozenEstimator(made.fit(X[part[:500]], y[part[:500]]))
        new = part[500:900]
        before, own = (
            calibration_report(y[new], m.predict_proba(X[new]))
            for m in (model, TemperatureScaling(model).fit(X[new], y[new]))
        )
        assert own.log_loss <= before.log_loss
        after = calibration_report(
            y[new], TemperatureScaling(model, method=method).fit(X[new], y[new]).predict_proba(X[new])
        )
        assert after.log_loss <= own.log_loss * (1 + 1e-9)


def test_temperature_scales_with_the_scores() -> None:
    z, y = scores()
    for scale in (1e-30, 1e-3, 1e5, 1e30):
        assert float(fit_temperature(z * scale, y)) == pytest.approx(scale * float(fit_temperature(z, y)), rel=1e-6)


def test_nan_scores_and_ignored_rows() -> None:
    z, y = scores(20)
    wrong = z.copy()
    wrong[3, 1] = np.nan
    assert np.isnan(fit_temperature(wrong, y))
    y[3] = -100
    for nothing in (np.nan, np.inf, -np.inf, 1e300):
        wrong[3, 1] = nothing
        expected = float(fit_temperature(np.delete(z, 3, axis=0), np.delete(y, 3)))
        assert float(fit_temperature(wrong, y)) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(fit_temperature(z, np.full(20, -100)))
    assert np.isnan(fit_temperature(z, y, weight=np.zeros(20)))
    assert np.isnan(fit_temperature(z, y, weight=np.full(20, np.nan)))
    assert np.isnan(fit_temperature(np.zeros((0, 3)), np.zeros(0, int)))


def test_no_gradient_flows() -> None:
    torch = pytest.importorskip("torch")
    z, y = scores(20)
    assert not fit_temperature(torch.tensor(z, requires_grad=True), torch.from_numpy(y)).requires_grad


def test_classifiers_that_cannot_be_calibrated() -> None:
    X, y = load_digits(return_X_y=True)
    with pytest.raises(ValueError, match="estimator: expected scores of 4 classes, got 6 per row"):
        TemperatureScaling(SVC(decision_function_shape="ovo")).fit(X[y < 4][:200], y[y < 4][:200])
    with pytest.warns(UserWarning, match="Pipeline.fit accepts no weights"):
        TemperatureScaling(make_pipeline(StandardScaler(), GaussianNB())).fit(X, y, sample_weight=np.ones(len(y)))


def test_weights_are_repetitions() -> None:
    X, y = load_iris(return_X_y=True)
    times = np.random.default_rng(0).integers(0, 3, len(y))
    model = FrozenEstimator(LogisticRegression(C=100, max_iter=1000).fit(X, y))
    for method in ("temperature", "vector"):
        weighed = TemperatureScaling(model, method=method).fit(X, y, sample_weight=times)
        repeated = TemperatureScaling(model, method=method).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
        np.testing.assert_allclose(weighed.predict_proba(X), repeated.predict_proba(X), rtol=1e-4, atol=1e-6)


def test_weights_reach_the_classifier() -> None:
    """If the classifier is not fitted yet, rows of weight 0 change neither its parameters nor the temperature."""
    X, y = load_iris(return_X_y=True)
    counted = np.arange(len(y)) % 3 > 0
    cv = [(np.flatnonzero(i % 5 != k), np.flatnonzero(i % 5 == k)) for i in [np.arange(len(y))] for k in range(5)]
    place = np.cumsum(counted) - 1
    fewer = [(place[a[counted[a]]], place[b[counted[b]]]) for a, b in cv]
    weighed = TemperatureScaling(GaussianNB(), cv=cv).fit(X, y, sample_weight=counted.astype(float))
    alone = TemperatureScaling(GaussianNB(), cv=fewer).fit(X[counted], y[counted])
    # The temperatures are not exactly equal, because GaussianNB's var_smoothing ignores weights.
    assert weighed.temperature_ == pytest.approx(alone.temperature_, rel=1e-3)
    np.testing.assert_allclose(weighed.estimator_.theta_, alone.estimator_.theta_, rtol=1e-12)


def test_excluded_classes_stay_excluded() -> None:
    X = np.random.default_rng(0).integers(0, 2, (300, 4)).astype(float)
    y = (X[:, 0] + X[:, 1] + np.random.default_rng(1).integers(0, 2, 300)).astype(int)
    frozen = FrozenEstimator(BernoulliNaiveBayes(alpha=0.0).fit(X, y))
    excluded = np.isneginf(frozen.predict_log_proba(X))
    assert excluded.any()
    losses = []
    for method in ("temperature", "vector"):
        model = TemperatureScaling(frozen, method=method).fit(X, y)
        log_p = model.predict_log_proba(X)
        assert (np.isneginf(log_p) == excluded).all()
        assert not np.isnan(log_p).any()
        losses.append(-log_p[np.arange(len(y)), y].mean())
    assert losses[1] < losses[0] - 1e-3
    assert np.ptp(model.weight_) > 1e-3


def test_estimator_errors() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict(X)
    with pytest.raises(ValueError, match="method"):
        TemperatureScaling(method="isotonic").fit(X, y)
    with pytest.raises(ValueError, match="got one of class 2"):
        TemperatureScaling().fit(X[:101], y[:101])
    with pytest.raises(ValueError, match=r"y: expected one of \[0 1\], got 2"):
        TemperatureScaling(FrozenEstimator(GaussianNB().fit(X[:100], y[:100]))).fit(X, y)
    with pytest.raises(TypeError, match="StandardScaler"):
        TemperatureScaling(StandardScaler()).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        TemperatureScaling().fit(X, y).predict(X[:, :2])


@pytest.mark.parametrize(
    ("error", "name", "z", "target", "options"),
    [
        (ValueError, "z", [1.0, 2.0], [0], {}),
        (TypeError, "z", [["a"]], [0], {}),
        (IndexError, "target", [[1.0, 2.0]], [2], {}),
        (ValueError, "target", [[1.0, 2.0]], [0, 1], {}),
        (TypeError, "target", [[1.0, 2.0]], [[0.5, 0.5]], {}),
        (ValueError, "weight", [[1.0, 2.0]], [0], {"weight": [1.0, 2.0]}),
        (ValueError, "weight", [[1.0, 2.0]], [0], {"weight": [-1.0]}),
    ],
)
def test_wrong_arguments(error: type[Exception], name: str, z: Any, target: Any, options: Any) -> None:
    with pytest.raises(error, match=name):
        fit_temperature(z, target, **options)
