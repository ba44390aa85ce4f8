"""Gaussian naive Bayes: given the class, features are normal and independent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from softargmax.classify.base import Array, NaiveBayes, log_priors
from softargmax.classify.class_means import LEAST, Means, scaled, variances
from softargmax.classify.distances import square_sums
from softargmax.core.check import between
from softargmax.core.signature import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.classify.rows import Training


class GaussianNaiveBayes(NaiveBayes):
    r"""Gaussian naive Bayes: every feature is normal, with its own mean and variance in every class.

    .. math:: z_k(x) = \log \pi_k - \frac{1}{2} \sum_j
        \left(\log \sigma_{kj}^2 + \frac{(x_j - \mu_{kj})^2}{\sigma_{kj}^2}\right)

    Parameters
    ----------
    priors : array_like, optional
        :math:`\pi`, shape (K,), with the sum 1; by default the shares of the classes in the training data.
    var_smoothing : float
        All variances are increased by this number times the variance of the feature that varies most.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    theta_, var_ : ndarray
        :math:`\mu` and :math:`\sigma^2`, shape (K, D), float64.
    class_prior_ : ndarray
        :math:`\pi`, shape (K,).
    class_count_ : ndarray
        The sum of the sample weights of each class, shape (K,).

    Raises
    ------
    ValueError
        If priors have a wrong shape or sum, or var_smoothing is negative.

    Notes
    -----
    The model is that of scikit-learn's GaussianNB, with one difference: the variance that var_smoothing multiplies is
    weighted by the sample weights. Features are first scaled by a power of two. So squares of features near 1e200 do
    not overflow. If all features are near 1e-200, their squares do not underflow.

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), The elements of statistical learning, section 6.6.3.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.classify import GaussianNaiveBayes
    >>> X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array(["a", "a", "b", "b"])
    >>> GaussianNaiveBayes().fit(X, y).predict_proba([[0.0], [3.0]]).round(6)
    array([[0.5, 0.5],
           [0. , 1. ]])
    """

    _scale: float
    _mean: Array
    _var: Array

    @public
    def __init__(self, *, priors: ArrayLike | None = None, var_smoothing: float = 1e-9) -> None:
        self.priors = priors
        self.var_smoothing = var_smoothing

    def _update(self, training: Training, *, first: bool) -> Self:
        """Join the means and variances of training data with those of earlier data, and set what depends on them."""
        smoothing = between(self.var_smoothing, "var_smoothing", np.inf)
        before = None if first else Means(self._scale, self.class_count_, self._mean)
        found = Means.of(training, len(self.classes_), before)
        var = variances(training, found)
        if before is not None:
            joined = before.joined(found)
            found, var = joined.together, joined.variances(self._var, var)
        self._scale, self.class_count_, self._mean = found
        self._var = var
        self._log_prior = log_priors(self.priors, self.class_count_)
        self.class_prior_, of_class = np.exp(self._log_prior), self.class_count_ / self.class_count_.sum()
        # The variance of all rows: within classes, and between them.
        spread = of_class @ (var + np.square(self._mean - of_class @ self._mean))
        smooth = var + smoothing * spread.max()
        self._deviation = np.sqrt(np.maximum(smooth, LEAST))
        with np.errstate(over="ignore", under="ignore"):
            self.theta_, self.var_ = self._mean * self._scale, smooth * self._scale * self._scale
        return self

    def _scores(self, X: Any) -> Array:
        x = scaled(X, self._scale)
        far = square_sums(lambda k, rows: (x[rows] - self._mean[k]) / self._deviation[k], len(x), len(self.classes_))
        return np.asarray(self._log_prior - np.log(self._deviation).sum(axis=1) - 0.5 * far)
