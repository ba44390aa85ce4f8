"""Error messages of the classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softargmax import classify
from softargmax.classify import SoftmaxRegression


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (classify.LinearDiscriminant(shrinkage=2.0), "shrinkage"),
        (classify.LinearDiscriminant(shrinkage="much"), "shrinkage"),
        (classify.LinearDiscriminant(priors=[0.5, 0.2]), "priors"),
        (classify.LinearDiscriminant(priors=[1.5, -0.5]), "priors"),
        (classify.LinearDiscriminant(priors=[1.0]), "priors"),
        (classify.LinearDiscriminant(tol=-1.0), "tol"),
        (classify.QuadraticDiscriminant(reg_param=1.5), "reg_param"),
        (classify.QuadraticDiscriminant(reg_param=0.5, shrinkage=0.5), "reg_param"),
        (classify.GaussianNaiveBayes(var_smoothing=-1.0), "var_smoothing"),
        (classify.GaussianNaiveBayes(priors=[0.5, 0.5, 0.0]), "priors"),
        (classify.MultinomialNaiveBayes(alpha=-1.0), "alpha"),
        (classify.MultinomialNaiveBayes(alpha=[1.0, 1.0]), "alpha"),
        (classify.BernoulliNaiveBayes(class_prior=[1.0]), "class_prior"),
    ],
)
def test_wrong_parameters(model: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        model.fit([[1.0, 2.0, 0.0], [2.0, 1.0, 1.0], [0.0, 1.0, 3.0], [1.0, 3.0, 1.0]], [0, 0, 1, 1])


def test_parameters_of_wrong_type() -> None:
    for model, name in (
        (classify.LinearDiscriminant(priors="x"), "priors"),
        (classify.MultinomialNaiveBayes(alpha="x"), "alpha"),
        (classify.BernoulliNaiveBayes(fit_prior="no"), "fit_prior"),
    ):
        with pytest.raises(TypeError, match=name):
            model.fit([[1.0], [2.0], [3.0]], [0, 0, 1])


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="rows"):
        classify.LinearDiscriminant().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="got one of class 1"):
        classify.QuadraticDiscriminant().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
    with pytest.raises(ValueError, match="Negative"):
        classify.MultinomialNaiveBayes().fit([[-1.0], [1.0]], [0, 1])


@pytest.mark.parametrize(
    ("error", "name", "options"),
    [
        (TypeError, "fit_intercept", {"fit_intercept": "no"}),
        (TypeError, "warm_start", {"warm_start": "no"}),
        (ValueError, "C", {"C": 0.0}),
        (ValueError, "C", {"C": float("nan")}),
        (TypeError, "C", {"C": "much"}),
        (ValueError, "l1_ratio", {"l1_ratio": 1.5}),
        (ValueError, "alpha", {"alpha": 0.0}),
        (ValueError, "alpha", {"alpha": float("inf")}),
        (ValueError, "tol", {"tol": -1.0}),
        (TypeError, "alpha", {"alpha": "x"}),
        (ValueError, "class_weight", {"class_weight": {0: float("nan")}}),
        (ValueError, "class_weight", {"class_weight": {0: -1.0}}),
        (ValueError, "class_weight", {"class_weight": {0: 0.0, 1: 0.0}}),
        (ValueError, "max_iter", {"max_iter": 0}),
        (TypeError, "max_iter", {"max_iter": 2.5}),
        (ValueError, "solver", {"solver": "saga"}),
        (ValueError, "class_weight", {"class_weight": "even"}),
    ],
)
def test_softmax_regression_options(error: type[Exception], name: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=name):
        SoftmaxRegression(**options).fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def test_wrong_rows() -> None:
    model = classify.SoftmaxRegression()
    for X, y, name in (
        ([[0.0], [1.0]], [0, 0], "one class"),
        ([[0.0], [np.nan]], [0, 1], "NaN"),
        ([[0.0], [1.0]], [0.5, 1.5], "Unknown label type"),
        ([[0.0], [1.0]], [0, 1, 1], "inconsistent"),
    ):
        with pytest.raises(ValueError, match=name):
            model.fit(X, y)
    for weight, name in (([-1.0, 1.0], "Negative"), ([0.0, 0.0], "sample_weight|Sample weights")):
        with pytest.raises(ValueError, match=name):
            model.fit([[0.0], [1.0]], [0, 1], sample_weight=weight)


X, Y = np.random.default_rng(0).normal(size=(40, 2)), np.repeat([0, 1], 20)
MIXED = np.array(["a", 1] * 20, object)


@pytest.mark.parametrize(
    ("error", "message", "fitted"),
    [
        (ValueError, "C: expected a number above 0, or inf, got -1", lambda: SoftmaxRegression(C=-1).fit(X, Y)),
        (
            ValueError,
            r"cv: expected .*, got 'prefit'; .* FrozenEstimator\(estimator\)",
            lambda: classify.TemperatureScaling(SoftmaxRegression(), cv="prefit").fit(X, Y),
        ),
        (
            TypeError,
            "y: expected classes of one type, got the string 'a' at index 0 and 1 at index 1",
            lambda: SoftmaxRegression().fit(X, MIXED),
        ),
        (
            TypeError,
            "y: expected classes of one type, got the string 'a' at index 0 and 1 at index 1",
            lambda: classify.TemperatureScaling().fit(X, MIXED),
        ),
        (TypeError, r"SoftmaxRegression\(\) has no argument alpah; use alpha", lambda: SoftmaxRegression(alpah=2)),
        # No argument is similar enough to random_state to be suggested.
        (TypeError, r"no argument random_state; it takes C, l1_ratio", lambda: SoftmaxRegression(random_state=0)),
        (TypeError, r"^MultinomialNaiveBayes\(\) has no argument q", lambda: classify.MultinomialNaiveBayes(q=2)),
        (TypeError, r"^LinearDiscriminant\(\) takes none by position", lambda: classify.LinearDiscriminant(2)),
    ],
)
def test_common_mistakes(error: type[Exception], message: str, fitted: Any) -> None:
    with pytest.raises(error, match=message):
        fitted()


def test_errors_name_the_data_frames_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": X[:, 0], "kind": ["u", "v"] * 20})
    with pytest.raises(ValueError, match="X: column 'kind': could not convert string to float: 'u'"):
        SoftmaxRegression().fit(frame, Y)
    model = SoftmaxRegression().fit(frame[["x"]].assign(kind=0.0), Y)
    with pytest.raises(ValueError, match="X: column 'kind': could not convert string to float: 'u'"):
        model.predict(frame)
    # The model was fitted without this column.
    with pytest.raises(ValueError, match="X: column 'note': could not convert string to float: 'u'"):
        model.predict(frame.assign(kind=0.0, note="u"))
    with pytest.raises(ValueError, match=r"^Input X contains NaN"):
        SoftmaxRegression().fit(frame[["x"]].assign(kind=np.nan), Y)
