"""A problem, and every estimator that fits to Dask arrays. This file needs no Dask."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from tests.classify import problems

from softargmax.classify import (
    BernoulliNaiveBayes,
    GaussianNaiveBayes,
    LinearDiscriminant,
    MultinomialNaiveBayes,
    QuadraticDiscriminant,
    SoftmaxRegression,
    TemperatureScaling,
)

N, FEATURES, CLASSES = 1000, 7, 4
X, Y = problems.synthetic(N, FEATURES, CLASSES, dtype=np.float64)
X = np.abs(X) * np.array([1e-3, 1, 1, 7, 1, 1e4, 1])  # the counting models need numbers above 0
NAMES = np.array(["ant", "bee", "cicada", "dragonfly"])[Y]
WEIGHT = np.random.default_rng(1).uniform(0.0, 2.0, N)
ESTIMATORS = {
    "regression": SoftmaxRegression(tol=1e-9, max_iter=9),
    "newton": SoftmaxRegression(solver="newton-cg", C=3.0, class_weight="balanced", max_iter=2),
    "l1": SoftmaxRegression(l1_ratio=0.5, C=0.1, max_iter=5, class_weight={"ant": 2.0}),
    "entmax": SoftmaxRegression(alpha=1.5, fit_intercept=False, max_iter=5),
    "gaussian": GaussianNaiveBayes(),
    "multinomial": MultinomialNaiveBayes(alpha=0.5),
    "bernoulli": BernoulliNaiveBayes(binarize=1.0),
    "linear": LinearDiscriminant(),
    "shrunk linear": LinearDiscriminant(shrinkage=0.2),
    "auto linear": LinearDiscriminant(shrinkage="auto"),
    "quadratic": QuadraticDiscriminant(tol=0.0),
    "shrunk quadratic": QuadraticDiscriminant(shrinkage=0.2),
    "auto quadratic": QuadraticDiscriminant(shrinkage="auto", tol=0.0),
    "temperature": TemperatureScaling(FrozenEstimator(GaussianNaiveBayes(var_smoothing=0.1).fit(X[::3], NAMES[::3]))),
    "vector": TemperatureScaling(FrozenEstimator(LinearDiscriminant().fit(X[::9], NAMES[::9])), method="vector"),
}
BAYES = ("gaussian", "multinomial", "bernoulli")
DISCRIMINANTS = {
    "linear": LinearDiscriminant(),
    "shrunk linear": LinearDiscriminant(shrinkage=0.2),
    "linear, priors": LinearDiscriminant(shrinkage=0.2, priors=[0.1, 0.2, 0.3, 0.4]),
    "quadratic": QuadraticDiscriminant(tol=0.0),
    "shrunk quadratic": QuadraticDiscriminant(shrinkage=0.2),
    "regularised quadratic": QuadraticDiscriminant(reg_param=0.3),
}
ALL = np.unique(NAMES)
BATCHES = (slice(0, 100), slice(100, 700), slice(700, N))


def learned(model: Any) -> dict[str, Any]:
    """Return what a model has learned, private attributes included."""
    return {name: value for name, value in vars(model).items() if name not in model.get_params()}


def same(one: Any, other: Any) -> None:
    """Assert that two models have learned the same, to the last bit."""
    one, other = learned(one), learned(other)
    assert one.keys() == other.keys()
    for name in one:
        if name != "estimator_":
            np.testing.assert_equal(one[name], other[name], err_msg=name)


def fitted(name: str, *data: Any) -> Any:
    data = data[: 2 if "linear" in name or "quadratic" in name else 3]  # discriminants have no weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(ESTIMATORS[name]).fit(*data)


def in_batches(model: Any, x: Any, y: Any, *batches: Any) -> Any:
    """Fit a model to some batches of rows, one after the other."""
    model = clone(model)
    for batch in batches:
        model.partial_fit(x[batch], y[batch], ALL)
    return model
