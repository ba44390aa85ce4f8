"""Post-hoc calibration of a classifier: temperature scaling and vector scaling."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_predict
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    has_fit_parameter,
    indexable,
)

from softargmax.classify.base import Array, ScoreClassifier, both, check_one_kind, indices_of, label
from softargmax.classify.regression import SoftmaxRegression
from softargmax.classify.rows import Training
from softargmax.classify.temperature_newton import temperature_of
from softargmax.core.arrays import is_lazy
from softargmax.core.check import one_of
from softargmax.core.signature import public
from softargmax.loss import cross_entropy, cross_entropy_and_gradient

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.classify.base import Estimator, Features, Splitter
    from softargmax.classify.rows import Block, Sums


METHODS = ("temperature", "vector")
FOLDS = 5
LEAST = 1e-12  # added to probabilities before the logarithm, as in scikit-learn
RESPONSES = ("decision_function", "predict_proba")


class TemperatureScaling(MetaEstimatorMixin, ScoreClassifier):
    r"""Calibrates a classifier by the temperature of its scores.

    .. math:: p = \mathrm{softmax}(z / T), \qquad T = \arg\min_T \sum_i w_i\, \ell(z_i / T, y_i)

    Parameters
    ----------
    estimator : estimator, optional
        A classifier with `decision_function` or `predict_proba`; by default a `SoftmaxRegression`. To keep a fitted
        classifier, wrap it in `sklearn.frozen.FrozenEstimator`. Then call `fit` with rows that were not used to fit the
        classifier.
    method : {"temperature", "vector"}
        "vector" fits :math:`w \circ z + b`, a weight and a bias per class, in place of z / T.
    cv : int or splitter, optional
        The cross-validation splits of the rows, used if the classifier is not frozen. T is fitted to cross-validated
        scores, and the classifier to all rows. The default is 5 folds, or fewer if a class has fewer rows.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    estimator_ : estimator
        The fitted classifier.
    temperature_ : float
        T, which is also the starting point of the method "vector".
    weight_, bias_ : ndarray
        w and b, shape (K,). The method "temperature" has w = 1 / T and b = 0.

    Raises
    ------
    ValueError
        If method is unknown, or if the classifier is not frozen and a class has only one row.
    TypeError
        If the classifier has neither `decision_function` nor `predict_proba`.

    Notes
    -----
    The probabilities equal those of scikit-learn's CalibratedClassifierCV with method "temperature" and
    ensemble=False. T is found by Newton's method (`fit_temperature`) and does not change the most probable class.
    If the classifier has no `decision_function`, its probabilities p are converted into the scores log(p + 1e-12).

    For scores without a classifier, in any array library, use `fit_temperature` and softmax(z, temperature=T).

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), On calibration of modern neural networks, section 4.2. ICML. arXiv:1706.04599.

    See Also
    --------
    calibration_report, fit_temperature

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.frozen import FrozenEstimator
    >>> from softargmax.classify import GaussianNaiveBayes, TemperatureScaling, calibration_report
    >>> X, y = load_digits(return_X_y=True)
    >>> model = GaussianNaiveBayes(var_smoothing=1e-3).fit(X[:800], y[:800])
    >>> calibrated = TemperatureScaling(FrozenEstimator(model)).fit(X[800:1200], y[800:1200])
    >>> bool(calibrated.temperature_ > 5)  # naive Bayes is overconfident
    True
    >>> before, after = (calibration_report(y[1200:], m.predict_proba(X[1200:])) for m in (model, calibrated))
    >>> bool(after.log_loss < before.log_loss)
    True
    """

    @public
    def __init__(
        self, estimator: Estimator | None = None, *, method: str = "temperature", cv: int | Splitter | None = None
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the temperature, and the classifier unless it is frozen.

        Parameters
        ----------
        X : array_like
            n rows, in any form that the classifier accepts.
        y : array_like
            The class of each row, shape (n,).
        sample_weight : array_like, optional
            The weight of each row, shape (n,).

        Returns
        -------
        self
        """
        method = one_of(self.method, "method", METHODS)
        if any(map(is_lazy, (X, y, sample_weight))):
            return self._fit_lazy(X, y, sample_weight, method)
        X, target = indexable(X, y)
        target = _check_y(target, estimator=self)
        if not len(target):
            raise ValueError("X: expected two rows or more of each class, got 0 rows")
        check_one_kind(target)
        check_classification_targets(target)
        weight = (
            None if sample_weight is None else _check_sample_weight(sample_weight, target, ensure_non_negative=True)
        )
        estimator = SoftmaxRegression() if self.estimator is None else self.estimator
        if isinstance(estimator, FrozenEstimator):
            self.estimator_, z = estimator, _scores_of(estimator, X)
        else:
            z = self._unseen_scores(estimator, X, target, weight)
            self.estimator_ = clone(estimator).fit(X, target, **_fit_options(estimator, weight))
        self._take_names()
        self._calibrate(Training(z, indices_of(target, self.classes_), weight), method)
        return self

    def _fit_lazy(self, X: Any, y: Any, sample_weight: Any, method: str) -> Self:
        """Fit the temperature to Dask arrays or dataframes."""
        if not isinstance(self.estimator, FrozenEstimator):
            raise TypeError(
                "estimator: expected a FrozenEstimator for Dask arrays, because cross-validation needs rows in memory, "
                f"got {self.estimator!r}"
            )
        from softargmax.classify import dask_rows

        self.estimator_ = self.estimator
        z = dask_rows.by_chunks(partial(_scores_of, self.estimator), X, self.estimator, lengths=True)
        found = dask_rows.examined(z, y, sample_weight)
        check_one_kind(found.labels)
        check_classification_targets(found.labels)
        self._take_names()
        self._calibrate(found.training(indices_of, self.classes_), method)
        return self

    def _take_names(self) -> None:
        """Take the classes and the names of features from the classifier."""
        self.classes_ = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))

    def _unseen_scores(self, estimator: Any, X: Any, y: Array, weight: Array | None) -> Array:
        """Return cross-validated scores: each row is scored by a classifier that was fitted to other rows."""
        cv: Any = self.cv
        if isinstance(cv, str) and cv == "prefit":
            may = "a number of folds or a splitter"
            raise ValueError(f"cv: expected {may}, got {cv!r}; wrap a fitted classifier as FrozenEstimator(estimator)")
        if cv is None:
            classes, counts = np.unique(y, return_counts=True)
            if len(classes) < 2:
                raise ValueError(f"y: expected two classes or more, got one class: {label(classes[0])}")
            if counts.min() < 2:
                raise ValueError(
                    f"y: expected two rows or more of each class, got one of class {label(classes[counts.argmin()])}"
                )
            cv = min(FOLDS, int(counts.min()))
        options = _fit_options(estimator, weight)
        found = cross_val_predict(clone(estimator), X, y, cv=cv, method=_response(estimator), params=options)
        return _as_scores(found, _response(estimator))

    def _calibrate(self, training: Training, method: str) -> None:
        """Fit the temperature, and the vectors, to scores."""
        classes = training.X.shape[1]
        if classes != len(self.classes_):
            raise ValueError(f"estimator: expected scores of {len(self.classes_)} classes, got {classes} per row")
        temperature = temperature_of(training)
        if not np.isfinite(temperature):
            raise ValueError(
                "estimator: expected finite scores and a row with a weight above 0, got NaN scores or no such row"
            )
        losses = training.usual_blocks().sum(_add_losses, (np.zeros(2),), np.array([1.0, temperature]))[0]
        if losses[1] > losses[0]:  # possible only by rounding
            temperature = 1.0
        self.temperature_ = temperature
        self.weight_, self.bias_ = np.full(classes, 1.0 / temperature), np.zeros(classes)
        if method == "vector":
            self.weight_, self.bias_ = _fit_vector(training, temperature)

    def _fitted_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return X

    def _scores(self, X: Any) -> Array:
        return _weighed(_scores_of(self.estimator_, X), self.weight_, self.bias_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(
            SoftmaxRegression() if self.estimator is None else self.estimator
        ).input_tags.sparse
        return tags


def _fit_options(estimator: Any, weight: Array | None) -> dict[str, Any]:
    """Return the keyword arguments of the classifier's `fit`: the sample weights, if `fit` accepts them."""
    if weight is None:
        return {}
    if has_fit_parameter(estimator, "sample_weight"):
        return {"sample_weight": weight}
    name = type(estimator).__name__
    message = f"sample_weight: {name}.fit accepts no weights; the weights are used for the temperature only"
    warnings.warn(message, UserWarning, stacklevel=3)
    return {}


def _response(estimator: Any) -> str:
    for name in RESPONSES:
        if hasattr(estimator, name):
            return name
    raise TypeError(f"estimator: expected a classifier with {' or '.join(RESPONSES)}, got {type(estimator).__name__}")


def _scores_of(estimator: Any, X: Any) -> Array:
    response = _response(estimator)
    return _as_scores(getattr(estimator, response)(X), response)


def _as_scores(found: Any, response: str) -> Array:
    """Return a classifier's response as scores (n, K) in float64."""
    z = np.asarray(found)
    if response == "predict_proba":
        return np.log(z.astype(np.float64) + LEAST)
    z = z.astype(np.float64)
    return z if z.ndim == 2 and z.shape[1] > 1 else both(z)


def _add_losses(into: Sums, block: Block, temperatures: Array) -> None:
    """Add the loss of the scores at each temperature."""
    for i, temperature in enumerate(temperatures):
        rows = cross_entropy(block.x / temperature, block.target, reduction="none")
        into[0][i] += (rows if block.weight is None else rows * block.weight).sum()


def _weighed(z: Array, w: Array, b: Array) -> Array:
    """Return w z + b, and -inf for scores of -inf."""
    with np.errstate(invalid="ignore"):  # 0 times -inf
        return np.where(np.isneginf(z), z, z * w + b)


def _fit_vector(training: Training, temperature: float) -> tuple[Array, Array]:
    """Return the w and b that minimise the log-loss of w z + b. The search starts at w = 1 / temperature and b = 0."""
    blocks, classes = training.usual_blocks(), training.X.shape[1]
    total = training.per_class(classes).sum()

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        into = np.zeros(()), np.zeros((2, classes))
        value, gradient = blocks.sum(_add_vector_loss, into, x.reshape(2, -1), temperature)
        return float(value / total), gradient.reshape(-1) / total

    start = np.concatenate([np.ones(classes), np.zeros(classes)])
    options = {"maxiter": 10_000, "maxfun": 100_000, "gtol": 1e-9, "ftol": 0.0, "maxcor": 20}
    w, b = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x.reshape(2, -1)
    return w / temperature, b


def _add_vector_loss(into: Sums, block: Block, vectors: Array, temperature: float) -> None:
    """Add the losses of w z / T + b and their gradient. With the division by T, w is near 1 for scores of any scale."""
    value, gradient = into
    z = block.x / temperature
    rows, dz = cross_entropy_and_gradient(_weighed(z, *vectors), block.target, reduction="none")
    if block.weight is not None:
        rows, dz = rows * block.weight, dz * block.weight[:, None]
    value += rows.sum()
    gradient[0] += (dz * np.where(np.isneginf(z), 0.0, z)).sum(axis=0)
    gradient[1] += dz.sum(axis=0)
