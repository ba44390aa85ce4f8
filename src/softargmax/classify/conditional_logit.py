"""The conditional logit: choices among alternatives with features of their own."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from softargmax.classify.base import Array, indices_of
from softargmax.classify.choice_model import LOST, ChoiceModel, line_search
from softargmax.classify.choice_results import Elasticities, HypothesisTest
from softargmax.classify.choice_sets import ChoiceSets, column, labels_of, likelihood
from softargmax.core.check import integer
from softargmax.core.signature import public
from softargmax.normalize import segment_log_softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike


class ConditionalLogit(ChoiceModel):
    r"""McFadden's conditional logit: a softmax over the alternatives of each chooser, whose scores are affine.

    .. math::
        p_{ij} = \frac{e^{z_{ij}}}{\sum_{k \in C_i} e^{z_{ik}}}, \qquad
        z_{ij} = \beta^T x_{ij} + \gamma_{a(j)} + o_{ij}

    :math:`C_i` are the alternatives of chooser i. The score is the utility of an alternative without its random part,
    which has a Gumbel distribution. :math:`\gamma` are constants of the alternatives, if they have labels.

    Parameters
    ----------
    fit_constants : bool
        If True, and `fit` gets labels of alternatives, fit a constant for each label but the first one.
    tol : float
        The fit stops after a Newton step that was expected to raise the log-likelihood by at most this number.
    max_iter : int
        The maximum number of Newton steps.

    Attributes
    ----------
    coef_ : ndarray
        :math:`\beta`, shape (D,), and then the constants :math:`\gamma`.
    names_ : ndarray of str
        A name for each coefficient: the columns of a data frame or x0, x1, .., and the labels of the constants.
    alternatives_ : ndarray
        The labels of the alternatives, in order. Only if `fit` got them.
    covariance_, robust_covariance_ : ndarray
        Estimates of the covariance of the coefficients: the inverse of the information matrix, and the sandwich
        estimate with a cluster for each chooser.
    log_likelihood_, null_log_likelihood_ : float
        The log-likelihood at the maximum, and that of coefficients of 0.
    n_choosers_, n_iter_ : int
        The number of choosers, and of Newton steps.

    Raises
    ------
    ValueError, TypeError
        If an argument has a wrong value or type.

    Notes
    -----
    The log-likelihood is concave. Newton's method uses its exact Hessian,
    :math:`-\sum_i w_i \sum_j p_{ij} (x_{ij} - m_i)(x_{ij} - m_i)^T` with :math:`m_i = \sum_j p_{ij} x_{ij}`, which is
    computed by blocks of choice sets. All numbers are float64.

    A feature that is the same for all alternatives of a chooser has no effect on p. To use it, multiply it by an
    indicator of an alternative.

    References
    ----------
    McFadden (1974), Conditional logit analysis of qualitative choice behavior, in: Frontiers in econometrics.
    Luce (1959), Individual choice behavior, section 1.C.
    Plackett (1975), The analysis of permutations. Applied Statistics 24.
    Train (2009), Discrete choice methods with simulation, chapter 3.

    See Also
    --------
    softargmax.segment_softmax : the softmax of choice sets.
    SoftmaxRegression : one set of coefficients per class, and the same features for all classes.

    Examples
    --------
    Three choosers, each with two or three alternatives, which have a price:

    >>> import numpy as np
    >>> from softargmax.classify import ConditionalLogit
    >>> price = np.array([[1.0], [2.0], [2.0], [3.0], [1.5], [2.0], [1.0]])
    >>> choosers = [0, 0, 1, 1, 1, 2, 2]
    >>> chosen = [True, False, False, False, True, True, False]
    >>> model = ConditionalLogit().fit(price, chosen, choosers)
    >>> model.coef_.round(2)
    array([-0.9])
    >>> model.predict_proba(price, choosers).round(2)
    array([0.7 , 0.3 , 0.34, 0.15, 0.51, 0.3 , 0.7 ])
    """

    @public
    def __init__(self, *, fit_constants: bool = True, tol: float = 1e-10, max_iter: int = 100) -> None:
        self.fit_constants = fit_constants
        self.tol = tol
        self.max_iter = max_iter

    @public
    def elasticities(
        self,
        X: ArrayLike,
        choosers: ArrayLike,
        feature: int | str,
        *,
        alternatives: ArrayLike | None = None,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Elasticities:
        r"""Return the elasticities of the probabilities with respect to one feature.

        .. math::
            \frac{\partial \log p_{ij}}{\partial \log x_{ij}} = \beta x_{ij} (1 - p_{ij}), \qquad
            \frac{\partial \log p_{ik}}{\partial \log x_{ij}} = -\beta x_{ij} p_{ij}

        `feature` is the number or the name of a column of X. The other arguments are those of `fit`. Alternatives that
        are not available have elasticities of 0.
        """
        p = self.predict_proba(X, choosers, alternatives=alternatives, available=available, offset=offset)
        number = self._feature(feature)
        values = np.where(p > 0.0, np.asarray(X, np.float64)[:, number] * self.coef_[number], 0.0)
        return Elasticities(values * (1.0 - p), -values * p)

    @public
    def independence_test(
        self,
        X: ArrayLike,
        y: ArrayLike,
        choosers: ArrayLike,
        drop: Sequence[Any],
        *,
        alternatives: ArrayLike,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> HypothesisTest:
        r"""Test the independence of irrelevant alternatives (Hausman and McFadden).

        .. math:: (b_r - b)^T (V_r - V)^{-} (b_r - b)

        If the model is right, the coefficients b are those of the choices among fewer alternatives, too. :math:`b_r`
        are the coefficients of the choosers that chose none of `drop`, without these alternatives, and V are the
        covariances. Constants are only compared if their reference, the first label, is not dropped. The arguments are
        those of `fit`. The statistic can be negative in small samples, where the difference of the covariances is not
        definite; the hypothesis is then not rejected.

        References
        ----------
        Hausman & McFadden (1984), Specification tests for the multinomial logit model. Econometrica 52.
        """
        check_is_fitted(self)
        table, _ = self._table(X, None, reset=False)
        labels = labels_of(alternatives, len(table), "alternatives")
        names = np.unique(labels)
        if isinstance(drop, str) or not len(drop):
            raise ValueError(f"drop: expected a list of at least one alternative, got {drop!r}")
        gone = np.isin(labels, names[indices_of(np.asarray(list(drop)), names, "drop")])
        owners, chosen = labels_of(choosers, len(table), "choosers"), column(y, len(table), "y")
        left = ~gone & ~np.isin(owners, owners[gone & (chosen != 0)])
        parts = {"available": available, "offset": offset, "sample_weight": sample_weight}
        options = {name: column(x, len(left), name)[left] for name, x in parts.items() if x is not None}
        fewer = clone(self).fit(table[left], chosen[left], owners[left], alternatives=labels[left], **options)
        both = [(i, i) for i in range(self.n_features_in_)]
        own, theirs = list(getattr(self, "alternatives_", [])), list(getattr(fewer, "alternatives_", []))
        if own[:1] == theirs[:1]:
            both += [
                (self.n_features_in_ - 1 + own.index(x), self.n_features_in_ - 1 + i) for i, x in enumerate(theirs) if i
            ]
        mine, others = map(list, zip(*both, strict=True))
        difference = fewer.coef_[others] - self.coef_[mine]
        covariance = fewer.covariance_[np.ix_(others, others)] - self.covariance_[np.ix_(mine, mine)]
        statistic = float(difference @ linalg.pinvh(covariance) @ difference)
        freedom = int(np.linalg.matrix_rank(covariance, hermitian=True))
        return HypothesisTest(statistic, freedom, float(stats.chi2.sf(statistic, freedom)))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _log_probabilities(self, sets: ChoiceSets) -> Array:
        return np.asarray(segment_log_softmax(sets.scores(self.coef_), sets.offsets))

    def _maximise(self, sets: ChoiceSets, tol: float, steps: int) -> None:
        """Use Newton's method."""
        coef = np.zeros(len(self.names_))
        found = likelihood(sets, coef)
        noise = sets.weight.sum() * np.square(LOST * sets.largest())
        start, self.null_log_likelihood_ = found.information, found.value
        decrement = math.inf
        for step in range(1, steps + 1):
            direction = self._inverse(found.information, noise) @ found.gradient
            decrement = 0.5 * float(found.gradient @ direction)
            coef, found = line_search(partial(likelihood, sets), coef, direction, found)
            self.n_iter_ = step
            if decrement <= max(tol, LOST * abs(found.value)):  # the step that was just taken leaves its square
                break
        else:
            message = (
                f"max_iter, {steps}, was reached; a step raises the log-likelihood by {decrement:.1e}, tol is {tol:g}"
            )
            warnings.warn(message, ConvergenceWarning, stacklevel=5)
        self.coef_, self.log_likelihood_ = coef, found.value
        self._warn_if_separated(found.information, start)
        self.covariance_ = self._inverse(found.information, noise)
        self.robust_covariance_ = self.covariance_ @ found.outer @ self.covariance_

    def _feature(self, feature: int | str) -> int:
        """Return the number of a column of X."""
        names = list(self.names_[: self.n_features_in_])
        if isinstance(feature, str):
            if feature not in names:
                raise ValueError(f"feature: expected one of {', '.join(names)}, got {feature!r}")
            return names.index(feature)
        number = integer(feature, "feature")
        if not 0 <= number < len(names):
            raise ValueError(f"feature: expected 0 to {len(names) - 1}, got {number}")
        return number
