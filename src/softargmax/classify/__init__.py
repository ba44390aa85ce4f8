"""Classifiers that apply a softmax to one score per class, with scikit-learn's interface.

    p(y = k | x) = exp(z_k(x)) / sum_j exp(z_j(x))

Each model defines its scores, and `base.py` derives decisions and probabilities from them. The extra `sklearn` is
required.
"""

from softargmax.core.extras import install

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError(f"softargmax.classify needs scikit-learn: {install('sklearn')}") from missing

from softargmax.classify.base import ScoreClassifier
from softargmax.classify.calibration_report import CalibrationReport, calibration_report
from softargmax.classify.choice_results import CoefficientTable, Elasticities, HypothesisTest
from softargmax.classify.conditional_logit import ConditionalLogit
from softargmax.classify.discrete_naive_bayes import BernoulliNaiveBayes, MultinomialNaiveBayes
from softargmax.classify.discriminant import LinearDiscriminant, QuadraticDiscriminant
from softargmax.classify.gaussian_naive_bayes import GaussianNaiveBayes
from softargmax.classify.nested_logit import NestedLogit
from softargmax.classify.regression import SoftmaxRegression
from softargmax.classify.temperature import TemperatureScaling
from softargmax.classify.temperature_newton import fit_temperature

__all__ = [
    "BernoulliNaiveBayes",
    "CalibrationReport",
    "CoefficientTable",
    "ConditionalLogit",
    "Elasticities",
    "GaussianNaiveBayes",
    "HypothesisTest",
    "LinearDiscriminant",
    "MultinomialNaiveBayes",
    "NestedLogit",
    "QuadraticDiscriminant",
    "ScoreClassifier",
    "SoftmaxRegression",
    "TemperatureScaling",
    "calibration_report",
    "fit_temperature",
]
