"""scikit-learn's estimator checks for every estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from softargmax.classify import (
    BernoulliNaiveBayes,
    GaussianNaiveBayes,
    LinearDiscriminant,
    MultinomialNaiveBayes,
    QuadraticDiscriminant,
    SoftmaxRegression,
    TemperatureScaling,
)

ESTIMATORS = [
    SoftmaxRegression(),
    SoftmaxRegression(solver="newton-cg"),
    SoftmaxRegression(l1_ratio=0.5),
    SoftmaxRegression(alpha=1.5),
    LinearDiscriminant(),
    LinearDiscriminant(shrinkage="auto"),
    QuadraticDiscriminant(),
    QuadraticDiscriminant(shrinkage=0.1),
    GaussianNaiveBayes(),
    MultinomialNaiveBayes(),
    BernoulliNaiveBayes(),
    TemperatureScaling(),
    TemperatureScaling(method="vector"),
]


@pytest.mark.filterwarnings("ignore")  # the checks fit random data in too few steps to converge, which gives warnings
@parametrize_with_checks(ESTIMATORS)
def test_checks(estimator: Any, check: Any) -> None:
    check(estimator)
