"""Discriminant analysis: classes are normal, with one covariance for all (linear) or one for each class (quadratic)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if

from softargmax.classify.base import Array, ScoreClassifier, affine, label, log_priors
from softargmax.classify.class_means import Means, scaled
from softargmax.classify.covariances import Moments, axes_of_factor, ledoit_wolf, whitening
from softargmax.classify.distances import square_sums
from softargmax.core.check import between
from softargmax.core.signature import public
from softargmax.normalize import log_softmax

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.classify.base import Features


def _joins_batches(model: Any) -> bool:
    """Raise ValueError, with the reason, if a model cannot be fitted to batches."""
    if _shrinkage_of(model.shrinkage) == "auto":
        raise ValueError("shrinkage: expected a number or None for partial_fit, because 'auto' needs all rows at once")
    if vars(model).get("_moments", ...) is None:  # scikit-learn's checks call any `partial_fit` that there is after fit
        raise ValueError("partial_fit: expected a model that fit has not fitted, because fit keeps no sums of its rows")
    return True


class _Discriminant(ScoreClassifier):
    """Base class of both models, which depend on the mean and the covariance of each class."""

    shrinkage: Any
    priors: Any
    tol: float
    _moments: Moments | None
    """The moments of all batches, or None if `fit` has fitted the model."""
    _too_few: str = ""
    """Why the rows of all batches are not enough, or an empty text."""

    def fit(self, X: Features, y: ArrayLike) -> Self:
        """Estimate the means and covariances of the classes.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).
        y : array_like
            The class of each row, shape (n,).

        Returns
        -------
        self
        """
        shrinkage = self._checked_parameters()
        self.__dict__.pop(
            "_moments", None
        )  # Batches are forgotten even if this fit fails, because it changes `classes_`.
        training = self._training(X, y)
        if shrinkage == "auto":
            means = Means.of(training, len(self.classes_))
            estimates = ledoit_wolf(training, means)
        else:
            moments = Moments.of(training, len(self.classes_))
            means, estimates = moments.means, moments.estimates(shrinkage)
        self._learn(means, _log_priors(self.priors, means.counts), estimates)
        self._moments, self._too_few = None, ""
        return self

    @available_if(_joins_batches)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Features, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add rows to those of earlier calls of `partial_fit`.

        Together the calls equal one `fit` to all rows, to rounding. A class without rows has probability 0. A batch may
        have any number of rows: until all rows so far are enough for `fit`, predictions raise an error that says what
        is missing, and the attributes are those of the last call after which there were enough.

        The model keeps D x D numbers for each class, which `fit` does not. So there is no `partial_fit` after `fit`,
        and none with `shrinkage="auto"`, which needs all rows at once.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).
        y : array_like
            The class of each row, shape (n,).
        classes : array_like, optional
            All classes, shape (K,). Required in the first call only.

        Returns
        -------
        self
        """
        shrinkage, before = self._checked_parameters(), getattr(self, "_moments", None)
        training = self._batch(X, y, classes, first=before is None)
        moments = Moments.of(training, len(self.classes_), before)
        if before is not None:
            moments = before.joined(moments)
        log_prior = _log_priors(self.priors, moments.means.counts)
        self._moments, self._too_few = moments, ""
        try:
            self._learn(moments.means, log_prior, moments.estimates(shrinkage))
        except ValueError as error:  # Parameters are checked above. So this is about the rows, and more may come.
            self._too_few = str(error)
        return self

    def _check_fitted(self) -> None:
        super()._check_fitted()
        if self._too_few:
            raise NotFittedError(f"partial_fit: expected more rows before predictions; {self._too_few}")

    def _checked_parameters(self) -> Any:
        """Check the parameters that do not depend on rows. Return the shrinkage."""
        between(self.tol, "tol", np.inf)
        return _shrinkage_of(self.shrinkage)

    def _learn(self, means: Means, log_prior: Array, estimates: list[Array]) -> None:
        """Set what the scores depend on, or raise ValueError if the rows are not enough.

        `estimates` has the shrunk covariance of each class or, without shrinkage, its triangular factor (`Moments`).
        """
        raise NotImplementedError


class LinearDiscriminant(_Discriminant):
    r"""Linear discriminant analysis: all classes have normal distributions with the same covariance.

    The scores are affine in x.

    .. math:: z_k(x) = \log \pi_k - \frac{1}{2} (x - \mu_k)^T \Sigma^{-1} (x - \mu_k) + \ldots
        = \log \pi_k + \mu_k^T \Sigma^{-1} x - \frac{1}{2} \mu_k^T \Sigma^{-1} \mu_k

    Parameters
    ----------
    shrinkage : {"auto"} or float, optional
        Shrinkage towards a multiple of the identity: from 0 to 1, or "auto" for the estimate of Ledoit and Wolf on
        standardised features. The covariance of each class is shrunk, and :math:`\Sigma` is the mean of the shrunk
        covariances, weighted by the priors. By default there is no shrinkage, and :math:`\Sigma` is the covariance
        around the class means.
    priors : array_like, optional
        :math:`\pi`, shape (K,), with the sum 1; by default the shares of the classes in the training data.
    tol : float
        Used only without shrinkage. Features are first scaled to the standard deviation 1 within classes. Then a
        direction is dropped if its standard deviation within classes is at or below this number.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    coef_, intercept_ : ndarray
        Coefficients and intercepts of the scores, shapes (K, D) and (K,). For two classes, the coefficients and the
        intercept of the second score minus the first, shapes (1, D) and (1,).
    means_ : ndarray
        :math:`\mu`, shape (K, D).
    priors_ : ndarray
        :math:`\pi`, shape (K,).
    rank_ : int
        Rank of the covariance: the number of directions that are kept.

    Raises
    ------
    ValueError
        If there are not more rows than classes, or a parameter is out of range.

    Notes
    -----
    The model is that of scikit-learn's LinearDiscriminantAnalysis, with its solver "lsqr" if there is shrinkage, and
    "svd" otherwise. The covariance divides by the number of rows, as scikit-learn's does from version 1.9.1 on.
    (Without shrinkage, earlier versions divide by the number of rows minus the number of classes.) For two classes,
    probabilities near 1 and their logarithms stay accurate (scikit-learn computes 1 - p by subtraction). The mean of
    all classes, which may be large, is subtracted from rows before they are scored.

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), The elements of statistical learning, section 4.3.
    Ledoit & Wolf (2004), A well-conditioned estimator for large-dimensional covariance matrices. J. Multivar. Anal. 88.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.classify import LinearDiscriminant
    >>> X = np.array([[-2.0, 0.0], [-1.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
    >>> LinearDiscriminant(shrinkage=0.5).fit(X, [0, 0, 1, 1]).predict_proba([[0.0, 0.5], [0.1, 0.5]]).round(3)
    array([[0.5  , 0.5  ],
           [0.168, 0.832]])
    """

    @public
    def __init__(
        self, *, shrinkage: str | float | None = None, priors: ArrayLike | None = None, tol: float = 1e-4
    ) -> None:
        self.shrinkage = shrinkage
        self.priors = priors
        self.tol = tol

    def _learn(self, means: Means, log_prior: Array, estimates: list[Array]) -> None:
        tol = float(self.tol)
        classes, rows = len(self.classes_), means.counts.sum()
        if rows <= classes:
            raise ValueError(f"X: expected more than {classes} rows for {classes} classes, got {rows:.0f}")
        prior = np.exp(log_prior)
        centre = prior @ means.means
        apart = means.means - centre
        if self.shrinkage is None:
            whiten = whitening(estimates, rows, tol)
            coef, rank = apart @ whiten @ whiten.T, whiten.shape[1]
        else:
            covariance = np.sum([p * each for p, each in zip(prior, estimates, strict=True)], axis=0)
            coef, _, rank, _ = np.linalg.lstsq(covariance, apart.T)
            coef = coef.T
        self.rank_ = rank
        self._centre, self._coef = centre * means.scale, coef / means.scale
        self._offset = log_prior - 0.5 * np.einsum("kj,kj->k", apart, coef)
        self.means_, self.priors_ = means.means * means.scale, prior
        self.coef_, self.intercept_ = self._coef, self._offset - self._coef @ self._centre
        if classes == 2:
            self.coef_, self.intercept_ = np.diff(self.coef_, axis=0), np.diff(self.intercept_)

    def _scores(self, X: Any) -> Array:
        return affine(X - self._centre, self._coef, self._offset)


class QuadraticDiscriminant(_Discriminant):
    r"""Quadratic discriminant analysis: each class has a normal distribution with its own covariance.

    The scores are quadratic in x.

    .. math:: z_k(x) = \log \pi_k - \frac{1}{2} \log |\Sigma_k| - \frac{1}{2} (x - \mu_k)^T \Sigma_k^{-1} (x - \mu_k)

    Parameters
    ----------
    shrinkage : {"auto"} or float, optional
        Shrinkage of the covariances towards a multiple of the identity: from 0 to 1, or "auto" for the estimate of
        Ledoit and Wolf on standardised features.
    reg_param : float
        Shrinkage of the covariances towards the identity, from 0 to 1. If it is above 0, `shrinkage` must be None.
    priors : array_like, optional
        :math:`\pi`, shape (K,), with the sum 1; by default the shares of the classes in the training data.
    tol : float
        A covariance is singular if one of its eigenvalues is at or below this number.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    means_ : ndarray
        :math:`\mu`, shape (K, D).
    priors_ : ndarray
        :math:`\pi`, shape (K,).
    variances_, directions_ : list of ndarray
        For each class, the eigenvalues of its covariance, shape (D,), and the eigenvectors as columns, shape (D, D).

    Raises
    ------
    numpy.linalg.LinAlgError
        If a covariance is singular, which `reg_param` or `shrinkage` can prevent. (LinAlgError is a ValueError.)
    ValueError
        If a class has only one row, or a parameter is out of range.

    Notes
    -----
    The model is that of scikit-learn's QuadraticDiscriminantAnalysis, with its solver "eigen" if there is shrinkage,
    and "svd" otherwise. A covariance divides by the number of rows of the class, as scikit-learn's does from version
    1.9.1 on. (Without shrinkage, earlier versions divide by one less.) Rows are first scaled by a power of two, so that
    rows whose squares would overflow are still classified.

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), The elements of statistical learning, section 4.3.
    Friedman (1989), Regularized discriminant analysis. J. Am. Stat. Assoc. 84.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.classify import QuadraticDiscriminant
    >>> X = np.array([[-0.1], [0.1], [-3.0], [3.0]])
    >>> QuadraticDiscriminant().fit(X, ["near", "near", "far", "far"]).predict([[0.05], [-1.0], [8.0]])
    array(['near', 'far', 'far'], dtype='<U4')
    """

    @public
    def __init__(
        self,
        *,
        shrinkage: str | float | None = None,
        reg_param: float = 0.0,
        priors: ArrayLike | None = None,
        tol: float = 1e-4,
    ) -> None:
        self.shrinkage = shrinkage
        self.reg_param = reg_param
        self.priors = priors
        self.tol = tol

    def _checked_parameters(self) -> Any:
        towards, shrinkage = between(self.reg_param, "reg_param", 1.0), super()._checked_parameters()
        if shrinkage is not None and towards:
            raise ValueError("shrinkage, reg_param: expected at most one of them, got both")
        return shrinkage

    def _learn(self, means: Means, log_prior: Array, estimates: list[Array]) -> None:
        tol, counts, scale = float(self.tol), means.counts, means.scale
        if (single := np.flatnonzero(counts == 1)).size:
            raise ValueError(
                f"y: expected two rows or more of each class, got one of class {label(self.classes_[single[0]])}"
            )
        all_directions, spreads = [], []
        size, towards = means.means.shape[1], float(self.reg_param)
        for k, (estimate, n) in enumerate(zip(estimates, counts, strict=True)):
            lengths, directions = np.ones(size), np.eye(size)  # of a class without rows, which has no estimate
            if n:
                lengths, directions = (
                    axes_of_factor(estimate, n) if self.shrinkage is None else np.linalg.eigh(estimate)
                )
                lengths = (1 - towards) * lengths + towards / scale / scale
            enough = lengths > tol / scale / scale
            if n and not enough.all():
                instead = "" if self.shrinkage is None else "shrinkage=None and "
                raise np.linalg.LinAlgError(
                    f"X: expected a covariance of rank {len(enough)} in class {label(self.classes_[k])}, got rank "
                    f"{enough.sum()} from {n:.0f} rows; use {instead}a reg_param above {tol:g}"
                )
            spreads.append(np.sqrt(lengths))
            all_directions.append(directions)
        self._log_prior, self.priors_, self.directions_ = log_prior, np.exp(log_prior), all_directions
        self._scale, self._means, self._spreads, self._zeros = scale, means.means, spreads, np.zeros(len(spreads[0]))
        with np.errstate(over="ignore", under="ignore"):
            self.means_, self.variances_ = means.means * scale, [np.square(spread * scale) for spread in spreads]

    def _scores(self, X: Any) -> Array:
        x = scaled(X, self._scale)

        def deviations(k: int, rows: Any) -> Array:
            return affine(x[rows] - self._means[k], (self.directions_[k] / self._spreads[k]).T, self._zeros)

        far = square_sums(deviations, len(x), len(self.classes_))
        return np.asarray(self._log_prior - np.log(self._spreads).sum(axis=1) - 0.5 * far)


def _log_priors(priors: Any, counts: Array) -> Array:
    """Return the log priors of the classes. A class without rows, which a batch may lack, has the prior 0."""
    found = log_priors(priors, counts)
    if counts.all():
        return found
    return np.asarray(log_softmax(np.where(counts > 0, found, -np.inf)))


def _shrinkage_of(shrinkage: Any) -> str | float | None:
    if shrinkage is None or (isinstance(shrinkage, str) and shrinkage == "auto"):
        return shrinkage
    if isinstance(shrinkage, str):
        raise ValueError(  # noqa: TRY004 a string is a valid type, but only "auto" is a valid value
            f"shrinkage: expected 'auto', a number from 0 to 1, or None, got {shrinkage!r}"
        )
    return between(shrinkage, "shrinkage", 1.0)
