"""Discriminant analysis: classes are normal, with one covariance for all (linear) or one for each class (quadratic)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.covariance import shrunk_covariance
from threadpoolctl import threadpool_limits

from softargmax.classify.base import Array, ScoreClassifier, affine, label, log_priors
from softargmax.classify.distances import means as means_of
from softargmax.classify.distances import power_of_two, scaled, square_sums, variances
from softargmax.classify.rows import BLOCK
from softargmax.core.check import between
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from softargmax.classify.base import Features
    from softargmax.classify.rows import Block, Sums, Training


class LinearDiscriminant(ScoreClassifier):
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

    def fit(self, X: Features, y: ArrayLike) -> Self:
        """Estimate the class means and their common covariance.

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
        tol = between(self.tol, "tol", np.inf)
        shrinkage = _shrinkage_of(self.shrinkage)
        training = self._training(X, y)
        classes, rows = len(self.classes_), len(training.target)
        if rows <= classes:
            raise ValueError(f"X: expected more than {classes} rows for {classes} classes, got {rows}")
        counts = training.per_class(classes)
        log_prior = log_priors(self.priors, counts)
        prior = np.exp(log_prior)
        scale = power_of_two(training.largest())
        means = means_of(training, scale, counts)
        centre = prior @ means
        apart = means - centre
        if shrinkage is None:
            whiten = _whitening(training, scale, means, counts, tol)
            coef = apart @ whiten @ whiten.T
            self.rank_ = whiten.shape[1]
        else:
            own = covariances(training, scale, means, counts, shrinkage)
            covariance = np.sum([p * each for p, each in zip(prior, own, strict=True)], axis=0)
            coef, _, self.rank_, _ = np.linalg.lstsq(covariance, apart.T)
            coef = coef.T
        self._centre, self._coef = centre * scale, coef / scale
        self._offset = log_prior - 0.5 * np.einsum("kj,kj->k", apart, coef)
        self.means_, self.priors_ = means * scale, prior
        self.coef_, self.intercept_ = self._coef, self._offset - self._coef @ self._centre
        if classes == 2:
            self.coef_, self.intercept_ = np.diff(self.coef_, axis=0), np.diff(self.intercept_)
        return self

    def _scores(self, X: Any) -> Array:
        return affine(X - self._centre, self._coef, self._offset)


class QuadraticDiscriminant(ScoreClassifier):
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

    def fit(self, X: Features, y: ArrayLike) -> Self:
        """Estimate the mean and covariance of each class.

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
        tol, towards = between(self.tol, "tol", np.inf), between(self.reg_param, "reg_param", 1.0)
        shrinkage = _shrinkage_of(self.shrinkage)
        if shrinkage is not None and towards:
            raise ValueError("shrinkage, reg_param: expected at most one of them, got both")
        training = self._training(X, y)
        counts = training.per_class(len(self.classes_))
        self._log_prior = log_priors(self.priors, counts)
        self.priors_ = np.exp(self._log_prior)
        if counts.min() < 2:
            raise ValueError(
                f"y: expected two rows or more of each class, got one of class {label(self.classes_[counts.argmin()])}"
            )
        scale = power_of_two(training.largest())
        means, spreads, self.directions_ = means_of(training, scale, counts), [], []
        for k, (lengths, directions) in enumerate(_axes(training, scale, means, counts, shrinkage, towards)):
            enough = lengths > tol / scale / scale
            if not enough.all():
                instead = "" if shrinkage is None else "shrinkage=None and "
                raise np.linalg.LinAlgError(
                    f"X: expected a covariance of rank {len(enough)} in class {label(self.classes_[k])}, got rank "
                    f"{enough.sum()} from {counts[k]:.0f} rows; use {instead}a reg_param above {tol:g}"
                )
            spreads.append(np.sqrt(lengths))
            self.directions_.append(directions)
        self._scale, self._means, self._spreads, self._zeros = scale, means, spreads, np.zeros(means.shape[1])
        with np.errstate(over="ignore", under="ignore"):
            self.means_, self.variances_ = means * scale, [np.square(spread * scale) for spread in spreads]
        return self

    def _scores(self, X: Any) -> Array:
        x = scaled(X, self._scale)

        def deviations(k: int, rows: Any) -> Array:
            return affine(x[rows] - self._means[k], (self.directions_[k] / self._spreads[k]).T, self._zeros)

        far = square_sums(deviations, len(x), len(self.classes_))
        return np.asarray(self._log_prior - np.log(self._spreads).sum(axis=1) - 0.5 * far)


def covariances(training: Training, scale: float, means: Array, counts: Array, shrinkage: str | float) -> list[Array]:
    """Return the shrunk covariance of the scaled rows of each class.

    With "auto", a constant feature gets the standard deviation that scales to 1.
    """
    if shrinkage != "auto":
        factors = triangles(training, scale, means)
        return [np.asarray(shrunk_covariance(r.T @ r / n, shrinkage)) for r, n in zip(factors, counts, strict=True)]
    spreads = np.sqrt(variances(training, scale, counts, means))
    spreads[spreads == 0] = 1 / scale
    factors = triangles(training, scale, means, spreads)
    fourths = training.usual_blocks().sum(_add_fourth_powers, (np.zeros(len(counts)),), scale, means, spreads)[0]
    found = map(_ledoit_wolf, factors, fourths, counts)
    return [covariance * spread[:, None] * spread for covariance, spread in zip(found, spreads, strict=True)]


def _ledoit_wolf(r: Array, fourth: float, n: float) -> Array:
    """Return the estimate of Ledoit and Wolf (2004) from n rows x, from R with R^T R = sum x x^T, and sum |x|^4."""
    covariance, size = r.T @ r / n, r.shape[1]
    squares = np.square(covariance).sum()
    distance = squares / size - (np.trace(covariance) / size) ** 2  # from the multiple of the identity
    noise = (fourth / n - squares) / (size * n)
    share = min(max(noise / distance, 0.0), 1.0) if distance > 0 else 0.0
    return np.asarray(shrunk_covariance(covariance, share))


def _add_fourth_powers(into: Sums, block: Block, scale: float, centres: Array, divisors: Array) -> None:
    x = scaled(block.x, scale)
    for k, (centre, divisor) in enumerate(zip(centres, divisors, strict=True)):
        into[0][k] += np.square(np.square((x[block.target == k] - centre) / divisor).sum(axis=1)).sum()


def triangles(training: Training, scale: float, centres: Array, divisor: Array | float = 1.0) -> list[Array]:
    """Return for each class the triangular factor R of (x - centre) / divisor = Q R, where x has the scaled rows.

    `divisor` has one number for each feature, or each class and feature.

    R is the factor of the factors of all blocks, one below the other. So R^T R is not rounded to zero where directions
    differ much in length, unlike a sum of products. LAPACK's bits depend on its threads, so there is only one.
    """
    size = centres.shape[1]
    # A factor has up to D rows, so longer blocks are a quarter of the work.
    blocks = training.blocks(max(BLOCK // max(size, 1), 4 * size, 1))
    empty = [np.empty((0, size))] * len(centres)
    return list(blocks.fold(_triangles_of_block, _joined_triangles, empty, scale, centres, divisor))


def _triangles_of_block(block: Block, scale: float, centres: Array, divisor: Array | float) -> list[Array]:
    x = scaled(block.x, scale)
    with threadpool_limits(1, user_api="blas"):  # here, because the block may be in another process
        pairs = zip(centres, np.broadcast_to(divisor, centres.shape), strict=True)
        own = ((x[block.target == k] - centre) / each for k, (centre, each) in enumerate(pairs))
        return [np.asarray(np.linalg.qr(rows, mode="r")) for rows in own]


def _joined_triangles(one: list[Array], other: list[Array]) -> list[Array]:
    with threadpool_limits(1, user_api="blas"):
        return [np.asarray(np.linalg.qr(np.concatenate(pair), mode="r")) for pair in zip(one, other, strict=True)]


def _whitening(training: Training, scale: float, means: Array, counts: Array, tol: float) -> Array:
    """Return A, shape (D, rank), with A^T C A = I, where C is the covariance of scaled rows around the class means.

    Directions in which the scaled features have a standard deviation of at most tol are dropped.
    """
    spread = np.sqrt(counts @ variances(training, scale, counts, means) / counts.sum())
    spread[spread == 0] = 1.0
    r = np.concatenate(triangles(training, scale, means, spread * np.sqrt(counts.sum())))
    with threadpool_limits(1, user_api="blas"):
        _, s, vt = np.linalg.svd(r, full_matrices=False)
    kept = s > tol
    return np.asarray((vt[kept] / spread).T / s[kept])


def _axes(
    training: Training, scale: float, means: Array, counts: Array, shrinkage: str | float | None, towards: float
) -> Iterator[tuple[Array, Array]]:
    """Yield the eigenvalues and eigenvectors (columns) of the covariance of each class's scaled rows."""
    if shrinkage is not None:
        for covariance in covariances(training, scale, means, counts, shrinkage):
            values, vectors = np.linalg.eigh(covariance)
            yield values, vectors
        return
    size = means.shape[1]
    for r, n in zip(triangles(training, scale, means), counts, strict=True):
        _, s, vt = np.linalg.svd(r, full_matrices=len(r) < size)  # D directions, even from fewer rows than D
        found = np.zeros(size)
        found[: len(s)] = np.square(s) / n
        yield (1 - towards) * found + towards / scale / scale, vt.T


def _shrinkage_of(shrinkage: Any) -> str | float | None:
    if shrinkage is None or (isinstance(shrinkage, str) and shrinkage == "auto"):
        return shrinkage
    if isinstance(shrinkage, str):
        raise ValueError(  # noqa: TRY004 a string is a valid type, but only "auto" is a valid value
            f"shrinkage: expected 'auto', a number from 0 to 1, or None, got {shrinkage!r}"
        )
    return between(shrinkage, "shrinkage", 1.0)
