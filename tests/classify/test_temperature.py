"""Temperatures: the minimum of the log-loss, scikit-learn's probabilities, any array library; calibration reports."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
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

import softargmax
from softargmax.classify import GaussianNaiveBayes, TemperatureScaling, calibration_report, fit_temperature

CASES: list[tuple[Any, Any]] = [
    (load_digits, GaussianNB(var_smoothing=1e-3)),
    (load_digits, LinearSVC(max_iter=300)),
    (load_digits, RandomForestClassifier(20, random_state=0)),
    (load_iris, LogisticRegression(C=100, max_iter=1000)),
    (load_breast_cancer, make_pipeline(StandardScaler(), LinearSVC())),
    (load_breast_cancer, RandomForestClassifier(20, random_state=0)),
]


def scores(n: int = 400, classes: int = 5, seed: int = 0, sharp: float = 3.0) -> tuple[Any, Any]:
    """Scores that are too sure by a factor."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, classes)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return z * sharp, y


# --- the minimum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharp", [1e-3, 0.3, 1.0, 7.0, 1e3])
@pytest.mark.parametrize("weighed", [False, True])
def test_minimum(sharp: float, weighed: bool) -> None:
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
    worthless = fit_temperature(z, [1, 0])  # wrong always
    np.testing.assert_allclose(softargmax.softmax(z, temperature=worthless), 0.5, atol=1e-6)
    right = fit_temperature(z, [0, 1])
    assert float(softargmax.cross_entropy(z, [0, 1], temperature=right)) < 1e-16
    assert float(fit_temperature(np.zeros((3, 2)), [0, 1, 1])) > 0
    masked = np.array([[3.0, -np.inf, 0.0], [0.0, 2.0, -np.inf], [1.0, 0.0, 0.0]])
    assert np.isfinite(fit_temperature(masked, [0, 1, 2]))


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
    assert (ours.predict(X) == model.predict(X)).mean() > 0.999  # of equal scores the first


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


def test_scores_of_any_size() -> None:
    z, y = scores()
    for scale in (1e-30, 1e-3, 1e5, 1e30):
        assert float(fit_temperature(z * scale, y)) == pytest.approx(scale * float(fit_temperature(z, y)), rel=1e-6)


def test_scores_that_say_nothing() -> None:
    z, y = scores(20)
    wrong = z.copy()
    wrong[3, 1] = np.nan
    assert np.isnan(fit_temperature(wrong, y))
    y[3] = -100
    assert np.isfinite(fit_temperature(wrong, y))
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
    with pytest.raises(ValueError, match="6 scores a row"):
        TemperatureScaling(SVC(decision_function_shape="ovo")).fit(X[y < 4][:200], y[y < 4][:200])
    with pytest.warns(UserWarning, match="Pipeline takes none"):
        TemperatureScaling(make_pipeline(StandardScaler(), GaussianNB())).fit(X, y, sample_weight=np.ones(len(y)))


def test_weights_are_repetitions() -> None:
    X, y = load_iris(return_X_y=True)
    times = np.random.default_rng(0).integers(0, 3, len(y))
    model = FrozenEstimator(LogisticRegression(C=100, max_iter=1000).fit(X, y))
    for method in ("temperature", "vector"):
        weighed = TemperatureScaling(model, method=method).fit(X, y, sample_weight=times)
        repeated = TemperatureScaling(model, method=method).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
        np.testing.assert_allclose(weighed.predict_proba(X), repeated.predict_proba(X), rtol=1e-4, atol=1e-6)


def test_estimator_errors() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict(X)
    with pytest.raises(ValueError, match="method"):
        TemperatureScaling(method="isotonic").fit(X, y)
    with pytest.raises(ValueError, match="one row of class 2"):
        TemperatureScaling().fit(X[:101], y[:101])
    with pytest.raises(ValueError, match="2 is no class"):
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


# --- reports ----------------------------------------------------------------------------------------------------------


def test_report_by_loops() -> None:
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


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.2])
def test_the_interval_holds_the_error(gap: float) -> None:
    """Of 300 samples, at least 85% of the intervals of 95% hold the calibration error of the bins."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        sure = rng.uniform(0.5, 1.0, 1500)
        y = (rng.random(1500) < sure - gap).astype(int)
        low, high = calibration_report(y, sure, bins=10, confidence=0.95).ece_interval
        held += low <= gap <= high
    assert held >= 255


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
def test_wrong_reports(error: type[Exception], name: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=name):
        calibration_report(**{"y": [0], "p": [[0.4, 0.6]], **change})
