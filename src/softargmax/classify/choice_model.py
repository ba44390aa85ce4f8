"""The base class of models of choices: the table, and inference from a maximum of the log-likelihood."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from scipy import linalg, stats
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from softargmax.classify.base import Array, indices_of, label, numbers
from softargmax.classify.choice_results import CoefficientTable, HypothesisTest
from softargmax.classify.choice_sets import (
    ChoiceSets,
    Layout,
    check_ranks,
    choices,
    column,
    finite,
    labels_of,
    layout_of,
    ranks_of,
    weights_of,
)
from softargmax.core.check import between, flag, integer
from softargmax.core.signature import public

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

LOST = 64.0 * float(np.finfo(np.float64).eps)
"""Relative changes of the log-likelihood by less than this cannot be measured."""
SINGULAR = 1e-12
"""A pivot of the scaled information matrix below this counts as 0."""
SEPARATED = 1e-8
"""Coefficients whose information falls to this share of that at the start tend to infinity."""


R = TypeVar("R", bound="tuple[Any, ...]")


class ChoiceModel(BaseEstimator):
    """A model of choices among alternatives. A subclass defines the log-likelihood, and how to maximise it."""

    fit_constants: bool
    tol: float
    max_iter: int
    coef_: Array
    names_: Array
    covariance_: Array
    robust_covariance_: Array
    log_likelihood_: float
    null_log_likelihood_: float
    n_choosers_: int
    _takes_ranks = True

    @public
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        choosers: ArrayLike,
        *,
        alternatives: ArrayLike | None = None,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit the coefficients by maximum likelihood.

        Parameters
        ----------
        X : array_like
            Features, shape (n, D): a row for each alternative of each chooser, in any order.
        y : array_like
            True for the chosen row of each chooser, shape (n,). Or ranks: 1 for the first choice, 2 for the second one,
            and so on, and 0 for alternatives without a rank.
        choosers : array_like
            The chooser of each row, shape (n,).
        alternatives : array_like, optional
            The label of each row's alternative, shape (n,).
        available : array_like, optional
            False for alternatives that the chooser did not have, shape (n,).
        offset : array_like, optional
            o, a known part of each score, shape (n,). If the alternatives of a chooser are a sample, pass -log q for
            every row, also for the chosen one: q is the probability with which the alternative is sampled if it is not
            the chosen one (McFadden's correction).
        sample_weight : array_like, optional
            The weight of the row's chooser, shape (n,).

        Returns
        -------
        self
        """
        tol, steps = between(self.tol, "tol", math.inf), integer(self.max_iter, "max_iter")
        if steps < 1:
            raise ValueError(f"max_iter: expected 1 or more, got {steps}")
        table, labels = self._table(X, alternatives, reset=True)
        if flag(self.fit_constants, "fit_constants") and labels is not None:
            self.alternatives_ = np.unique(labels)
        elif hasattr(self, "alternatives_"):
            del self.alternatives_
        sets = self._chosen(table, y, choosers, labels, available, offset, sample_weight)
        self._check_constants(sets)
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])
        constants = [str(one) for one in getattr(self, "alternatives_", [])[1:]]
        self.names_ = np.array([*names, *constants], dtype=str)
        self._maximise(sets, tol, steps)
        self.n_choosers_ = len(sets.weight)
        return self

    @public
    def predict_proba(
        self,
        X: ArrayLike,
        choosers: ArrayLike,
        *,
        alternatives: ArrayLike | None = None,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Return the probability of each row, shape (n,). Arguments are those of `fit`. It is 0 if not available."""
        n, own, layout = self._predicted(X, choosers, alternatives, available, offset)
        p = np.zeros(n)
        p[layout.rows] = own
        return p

    @public
    def predict(
        self,
        X: ArrayLike,
        choosers: ArrayLike,
        *,
        alternatives: ArrayLike | None = None,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Return True for the most probable row of each chooser, shape (n,): of equal ones, the first.

        Arguments are those of `fit`. ``labels[model.predict(...)]`` are the predicted alternatives, in the order of the
        table's rows.
        """
        n, p, layout = self._predicted(X, choosers, alternatives, available, offset)
        chooser = np.repeat(np.arange(len(layout.choosers)), np.diff(layout.offsets))
        best = np.zeros(n, bool)
        best[layout.rows[np.lexsort((layout.rows, -p, chooser))[layout.offsets[:-1]]]] = True
        return best

    @public
    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        choosers: ArrayLike,
        *,
        alternatives: ArrayLike | None = None,
        available: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the weighted mean over choosers of the log-likelihood of their choices or rankings, at most 0.

        Arguments are those of `fit`. On the table of the fit, the score is ``log_likelihood_`` divided by the sum of
        the weights of the choosers.
        """
        check_is_fitted(self)
        table, labels = self._table(X, alternatives, reset=False)
        sets = self._chosen(table, y, choosers, labels, available, offset, sample_weight)
        total = 0.0
        for begin, end in sets.blocks():
            for choice, _ in choices(sets.part(begin, end)):
                total += float(choice.weight @ self._log_probabilities(choice)[choice.rank > 0])
        return total / float(sets.weight.sum())

    @public
    def summary(self, *, robust: bool = False, confidence: float = 0.95) -> CoefficientTable:
        """Return the coefficients with standard errors, tests against 0, and confidence intervals (normal theory)."""
        check_is_fitted(self)
        covariance = self.robust_covariance_ if flag(robust, "robust") else self.covariance_
        width = float(stats.norm.ppf(0.5 + 0.5 * between(confidence, "confidence", 1.0, below=True)))
        error = np.sqrt(np.diag(covariance))
        z = self.coef_ / error
        low, high = self.coef_ - width * error, self.coef_ + width * error
        return CoefficientTable(self.names_, self.coef_, error, z, 2.0 * stats.norm.sf(abs(z)), low, high)

    @public
    def likelihood_ratio_test(self, restricted: ChoiceModel | None = None) -> HypothesisTest:
        """Test this model against one with fewer coefficients, fitted to the same choices.

        The hypothesis is that the smaller model is right. Without a model, it is that all coefficients are 0, and all
        scales of nests 1.
        """
        check_is_fitted(self)
        value, size = self.null_log_likelihood_, 0
        if restricted is not None:
            if not isinstance(restricted, ChoiceModel):
                raise TypeError(f"restricted: expected a fitted model of choices, got {type(restricted).__name__}")
            check_is_fitted(restricted)
            if restricted.n_choosers_ != self.n_choosers_:
                own, other = self.n_choosers_, restricted.n_choosers_
                raise ValueError(f"restricted: expected a model of the same {own} choosers, got one of {other}")
            value, size = restricted.log_likelihood_, len(restricted.coef_)
        freedom = len(self.coef_) - size
        if freedom < 1:
            raise ValueError(f"restricted: expected fewer than {len(self.coef_)} coefficients, got {size}")
        statistic = 2.0 * (self.log_likelihood_ - value)
        return HypothesisTest(statistic, freedom, float(stats.chi2.sf(statistic, freedom)))

    # --- what a model defines -----------------------------------------------------------------------------------------

    def _order(self) -> tuple[Any, ...] | None:
        """Return the alternatives in the order that the rows of a chooser must have, or None for any order."""
        return None

    def _maximise(self, sets: ChoiceSets, tol: float, steps: int) -> None:
        """Maximise the log-likelihood, and set the attributes. `names_` has the names of features and constants."""
        raise NotImplementedError

    def _log_probabilities(self, sets: ChoiceSets) -> Array:
        """Return log p of each row."""
        raise NotImplementedError

    # --- parts --------------------------------------------------------------------------------------------------------

    def _table(self, X: ArrayLike, alternatives: Any, *, reset: bool) -> tuple[Array, Array | None]:
        """Return the features and the labels. `_sets` checks that the features of available rows are finite."""
        table = np.asarray(validate_data(self, X, dtype=np.float64, order="C", reset=reset, ensure_all_finite=False))
        return table, None if alternatives is None else labels_of(alternatives, len(table), "alternatives")

    def _positions(self, labels: Array | None) -> Array | None:
        """Return the position of each row's alternative in `_order`."""
        order = self._order()
        if order is None:
            return None
        if labels is None:
            raise ValueError("alternatives: expected a label for each row, got None")
        names, number = np.unique(labels, return_inverse=True)
        place = {one: i for i, one in enumerate(order)}
        unknown = [one for one in names.tolist() if one not in place]
        if unknown:
            raise ValueError(f"alternatives: expected one of {', '.join(map(label, order))}, got {label(unknown[0])}")
        return np.array([place[one] for one in names.tolist()], np.int64)[number]

    def _sets(
        self,
        X: Array,
        choosers: Any,
        labels: Array | None,
        available: Any,
        offset: Any,
        rank: Array,
        sample_weight: Any,
    ) -> tuple[ChoiceSets, Layout]:
        """Return choice sets and their layout. Rows that are not available may have NaN."""
        position, number, constants = self._positions(labels), None, 0
        if hasattr(self, "alternatives_"):
            if labels is None:
                raise ValueError("alternatives: expected a label for each row, as in fit, got None")
            number, constants = indices_of(labels, self.alternatives_, "alternatives"), len(self.alternatives_) - 1
        layout = layout_of(choosers, available, len(X), position)
        if offset is not None:
            offset = column(numbers(offset, "offset"), len(X), "offset")
            finite(offset, layout.rows, "offset")
        finite(X, layout.rows, "X")
        weight = weights_of(sample_weight, layout, len(X))
        sets = ChoiceSets(X, layout.offsets, rank, offset, weight, number, constants, position)
        return sets if layout.is_identity(len(X)) else sets.taken(layout.rows, layout.offsets, weight), layout

    def _chosen(
        self, X: Array, y: Any, choosers: Any, labels: Array | None, available: Any, offset: Any, sample_weight: Any
    ) -> ChoiceSets:
        """Return choice sets with a choice or a ranking in each."""
        rank = ranks_of(y, available, len(X))
        sets, layout = self._sets(X, choosers, labels, available, offset, rank, sample_weight)
        check_ranks(sets.rank, layout)
        if sets.rank.max() > 1 and not self._takes_ranks:
            raise ValueError("y: expected one choice for each chooser, got ranks; use ConditionalLogit for ranks")
        return sets

    def _predicted(
        self, X: ArrayLike, choosers: Any, alternatives: Any, available: Any, offset: Any
    ) -> tuple[int, Array, Layout]:
        """Return the number of rows, the probabilities of the available ones, and their layout."""
        check_is_fitted(self)
        table, labels = self._table(X, alternatives, reset=False)
        no_choice = np.zeros(len(table), np.int64)
        sets, layout = self._sets(table, choosers, labels, available, offset, no_choice, None)
        return len(table), np.exp(self._log_probabilities(sets)), layout

    def _check_constants(self, sets: ChoiceSets) -> None:
        """Raise ValueError if nobody chose one of the alternatives: its constant would be -inf."""
        if not sets.constants:
            return
        chosen = np.bincount(sets.label[sets.rank > 0], minlength=sets.constants + 1)
        if not chosen.all():
            name = label(self.alternatives_[chosen.argmin()])
            raise ValueError(
                f"alternatives: expected somebody to choose each alternative, got nobody for {name}; leave out its "
                "rows, or set fit_constants=False"
            )

    def _inverse(self, information: Array, noise: Array) -> Array:
        """Return the inverse of the information matrix, scaled so that units of features do not matter.

        A diagonal entry of at most `noise` is the rounding error of a feature that does not differ in any choice set.
        """
        diagonal = np.diag(information)
        scale = np.where(diagonal > noise, np.sqrt(np.maximum(diagonal, 0.0)), math.inf)
        factor, pivots, rank, _ = linalg.lapack.dpstrf(information / np.outer(scale, scale), tol=SINGULAR, lower=1)
        if rank < len(scale):
            raise ValueError(self._without_information(int(pivots[rank]) - 1))
        inverse = linalg.cho_solve((factor, True), np.eye(len(scale)))
        order = np.argsort(pivots)
        return np.asarray(inverse[np.ix_(order, order)] / np.outer(scale, scale))

    def _without_information(self, number: int) -> str:
        """Return the message for a coefficient that the choices do not determine."""
        return (
            "X: expected features that differ among a chooser's alternatives, are not collinear, and do not separate "
            f"the choices, got no information about {label(self.names_[number])}"
        )

    def _warn_if_separated(self, information: Array, start: Array) -> None:
        """Warn if the choices determine a coefficient much less than they did at the start."""
        lost = np.diag(information) < SEPARATED * np.diag(start)
        if lost.any():
            name = label(self.names_[int(lost.argmax())])
            message = f"X: expected choices that no feature separates; {name} does, so its coefficient is not finite"
            warnings.warn(message, ConvergenceWarning, stacklevel=5)


def line_search(at: Callable[[Array], R], coef: Array, direction: Array, before: R) -> tuple[Array, R]:
    """Halve the step until the log-likelihood, the first result of `at`, does not fall."""
    for _ in range(60):
        found = at(coef + direction)
        if found[0] >= before[0] - LOST * abs(before[0]):
            return coef + direction, found
        direction = 0.5 * direction
    return coef, before
