"""Naive Bayes for counts and for binary features: given the class, features are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.preprocessing import binarize
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_non_negative

from softargmax.classify.base import Array, NaiveBayes, affine, log_priors, numbers, transposed_product
from softargmax.classify.sparse_products import add_product
from softargmax.core.check import flag
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from softargmax.classify.rows import Block, Sums, Training


class _CountingBayes(NaiveBayes):
    """Base class of both models, which count features per class and add a smoothing constant to every count."""

    _accept_sparse: ClassVar[str | bool] = "csr"
    _tables: ClassVar[int] = 1

    @public
    def __init__(
        self,
        *,
        alpha: float | Sequence[float] | NDArray[Any] = 1.0,
        fit_prior: bool = True,
        class_prior: ArrayLike | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior

    def _update(self, training: Training, *, first: bool) -> Self:
        """Add training data to the counts, and set what depends on the counts."""
        alpha, classes = self._smoothing(training.X.shape[1]), len(self.classes_)
        if first:
            self.class_count_ = np.zeros(classes)
            self._sums = tuple(np.zeros((self._tables, classes, training.X.shape[1])))
        self.class_count_ = self.class_count_ + training.per_class(classes)
        self._sums = training.usual_blocks().sum(self._add_counts, tuple(map(np.copy, self._sums)))
        self.feature_count_ = self._sums[0]
        shares = self.class_count_ if flag(self.fit_prior, "fit_prior") else np.ones(classes)
        self.class_log_prior_ = log_priors(self.class_prior, shares, "class_prior")
        with np.errstate(divide="ignore", invalid="ignore"):
            self._learn(alpha)
        return self

    def _features(self, X: Any) -> Any:
        raise NotImplementedError

    def _add_counts(self, into: Sums, block: Block) -> None:
        """Add the sum of every feature in every class."""
        self._add_features(into[0], block, _members(block, len(into[0])))

    def _add_features(self, total: Array, block: Block, members: Array) -> None:
        """Add the features of every class. `members` has a factor for each row in the column of the row's class."""
        if block.transposed is None:
            total += transposed_product(members, np.asarray(self._features(block.x), np.float64))
        else:
            add_product(self._features(block.transposed).astype(np.float64), members, total.T)

    def _checked_chunk(self, X: Any) -> Any:
        return self._features(super()._checked_chunk(X))

    def _learn(self, alpha: Any) -> None:
        """Set `feature_log_prob_` from the counts."""
        raise NotImplementedError

    def _smoothing(self, features: int) -> Any:
        alpha = numbers(self.alpha, "alpha")
        if alpha.shape not in ((), (features,)):
            raise ValueError(
                f"alpha: expected a number, or one per feature, shape ({features},), got shape {alpha.shape}"
            )
        if not ((alpha >= 0) & (alpha < np.inf)).all():
            raise ValueError(f"alpha: expected a finite number, 0 or above, got {self.alpha}")
        return alpha

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


class MultinomialNaiveBayes(_CountingBayes):
    r"""Naive Bayes for counts: each class has a multinomial distribution over the features.

    .. math:: z_k(x) = \log \pi_k + \sum_j x_j \log \theta_{kj}, \qquad
        \theta_{kj} = \frac{N_{kj} + \alpha_j}{\sum_i N_{ki} + \alpha_i}

    where :math:`N_{kj}` is the sum of feature j over the rows of class k.

    Parameters
    ----------
    alpha : float or array_like
        :math:`\alpha`, the number added to every count, at least 0: one for all features, or one per feature, shape
        (D,).
    fit_prior : bool
        If True, :math:`\pi_k` is the share of class k in the training data. If False, all :math:`\pi_k` are equal.
    class_prior : array_like, optional
        :math:`\pi`, shape (K,), with the sum 1.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    feature_log_prob_ : ndarray
        :math:`\log \theta`, shape (K, D).
    class_log_prior_ : ndarray
        :math:`\log \pi`, shape (K,).
    feature_count_, class_count_ : ndarray
        N, shape (K, D), and the sum of the sample weights of each class, shape (K,).

    Raises
    ------
    ValueError
        If a feature or alpha is negative, or priors have a wrong shape or sum.

    Notes
    -----
    The model is that of scikit-learn's MultinomialNB. Like MultinomialNB, it has no `decision_function`. Rows can be
    dense or sparse. With alpha = 0, a class has probability 0 in rows with a feature that never occurs in the class.
    Other rows are not affected. (scikit-learn gives these other rows NaN if they are dense.)

    References
    ----------
    Manning, Raghavan & Schuetze (2008), Introduction to information retrieval, section 13.2.

    Examples
    --------
    >>> from softargmax.classify import MultinomialNaiveBayes
    >>> X, y = [[3, 0, 1], [2, 1, 0], [0, 4, 1]], ["spam", "spam", "mail"]
    >>> MultinomialNaiveBayes().fit(X, y).predict_proba([[2, 0, 0]]).round(3)
    array([[0.03, 0.97]])
    """

    # No `decision_function`: scikit-learn's checks pass negative numbers to every estimator that has one.
    _decides: ClassVar[bool] = False

    def _features(self, X: Any) -> Any:
        check_non_negative(X, "MultinomialNaiveBayes (input X)")
        return X

    def _learn(self, alpha: Any) -> None:
        counts = self.feature_count_ + alpha
        self.feature_log_prob_ = _log_ratio(counts, counts.sum(axis=1, keepdims=True))

    def _scores(self, X: Any) -> Array:
        return self.class_log_prior_ + _weighed(X, self.feature_log_prob_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags


class BernoulliNaiveBayes(_CountingBayes):
    r"""Naive Bayes for binary features: each feature has its own probability in every class.

    .. math:: z_k(x) = \log \pi_k + \sum_j \left(x_j \log \theta_{kj} + (1 - x_j) \log (1 - \theta_{kj})\right), \qquad
        \theta_{kj} = \frac{N_{kj} + \alpha_j}{N_k + 2 \alpha_j}

    where :math:`N_k` is the number of rows of class k, and :math:`N_{kj}` the number of these rows with feature j.

    Parameters
    ----------
    alpha : float or array_like
        :math:`\alpha`, the number added to every count, at least 0: one for all features, or one per feature, shape
        (D,).
    binarize : float, optional
        A feature is present if it is above this number. With None, rows must contain only 0 and 1.
    fit_prior : bool
        If True, :math:`\pi_k` is the share of class k in the training data. If False, all :math:`\pi_k` are equal.
    class_prior : array_like, optional
        :math:`\pi`, shape (K,), with the sum 1.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    feature_log_prob_ : ndarray
        :math:`\log \theta`, shape (K, D).
    class_log_prior_ : ndarray
        :math:`\log \pi`, shape (K,).
    feature_count_, class_count_ : ndarray
        :math:`N_{kj}`, shape (K, D), and the sum of the sample weights of each class, shape (K,).

    Raises
    ------
    ValueError
        If alpha is negative, or priors have a wrong shape or sum.

    Notes
    -----
    The model is that of scikit-learn's BernoulliNB. Rows can be dense or sparse. :math:`1 - \theta` is computed from
    the count of rows without the feature, not from :math:`\theta`. With alpha = 0, a class has probability 0 in two
    kinds of rows: rows without a feature that all training rows of the class have, and rows with a feature that no
    training row of the class has.

    References
    ----------
    Manning, Raghavan & Schuetze (2008), Introduction to information retrieval, section 13.3.

    Examples
    --------
    >>> from softargmax.classify import BernoulliNaiveBayes
    >>> X, y = [[1, 0, 1], [1, 1, 0], [0, 1, 1]], ["spam", "spam", "mail"]
    >>> BernoulliNaiveBayes().fit(X, y).predict_proba([[1, 0, 0]]).round(3)
    array([[0.1, 0.9]])
    """

    _tables: ClassVar[int] = 2

    @public
    def __init__(
        self,
        *,
        alpha: float | Sequence[float] | NDArray[Any] = 1.0,
        binarize: float | None = 0.0,
        fit_prior: bool = True,
        class_prior: ArrayLike | None = None,
    ) -> None:
        super().__init__(alpha=alpha, fit_prior=fit_prior, class_prior=class_prior)
        self.binarize = binarize

    def _features(self, X: Any) -> Any:
        if self.binarize is not None:
            return binarize(X, threshold=self.binarize)
        values = X.data if sparse.issparse(X) else X
        if not ((values == 0) | (values == 1)).all():
            raise ValueError("X: expected only 0 and 1 if binarize is None, got other numbers")
        return X

    def _add_counts(self, into: Sums, block: Block) -> None:
        super()._add_counts(into, block)
        # Sums of weights are rounded. Row counts are exact, so they decide whether any row lacks a feature.
        lacking, rows = into[1], (_members(block, len(into[0])) > 0).astype(np.float64)
        lacking += rows.sum(axis=0)[:, None]
        self._add_features(lacking, block, -rows)

    def _learn(self, alpha: Any) -> None:
        weight = np.maximum(self.class_count_[:, None] - self.feature_count_, np.finfo(np.float64).tiny)
        self._absent_count = np.where(self._sums[1] > 0, weight, 0.0)
        total = self.class_count_[:, None] + 2 * alpha
        self.feature_log_prob_ = _log_ratio(self.feature_count_ + alpha, total)
        self._absent_log_prob = _log_ratio(self._absent_count + alpha, total)

    def _scores(self, X: Any) -> Array:
        x = self._features(X)
        never_absent = np.isneginf(self._absent_log_prob)
        absent = np.where(never_absent, 0.0, self._absent_log_prob)
        z: Array = self.class_log_prior_ + absent.sum(axis=1) + _weighed(x, self.feature_log_prob_ - absent)
        if never_absent.any():
            z[never_absent.sum(axis=1) > safe_sparse_dot(x, never_absent.T.astype(np.float64))] = -np.inf
        return z


def _members(block: Block, classes: int) -> Array:
    """Return a table of zeros, but the weight of each row in the column of the row's class."""
    found = np.zeros((len(block.target), classes))
    found[np.arange(len(found)), block.target] = 1.0 if block.weight is None else block.weight
    return found


def _log_ratio(counts: Array, total: Array) -> Array:
    """Return log(counts / total), or 0 where the total is 0."""
    return np.where(total > 0, np.log(counts) - np.log(total), 0.0)


def _weighed(X: Any, logs: Array) -> Array:
    """Return the sum of x_j logs_kj over the features j, shape (n, K), where 0 times -inf is 0."""
    never = np.isneginf(logs)
    z = affine(X.astype(np.float64), np.where(never, 0.0, logs), np.zeros(len(logs)))
    if never.any():
        z[safe_sparse_dot(X, never.T.astype(np.float64)) > 0] = -np.inf
    return z
