"""The nested logit: choices among alternatives, some of which are alike."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from softargmax.classify.base import label
from softargmax.classify.choice_model import LOST, ChoiceModel, line_search
from softargmax.classify.choice_sets import ChoiceSets, likelihood
from softargmax.classify.nests import Tree, levels_of, log_probabilities, set_gradients, tree_of
from softargmax.core.signature import public

if TYPE_CHECKING:
    from softargmax.classify.base import Array
    from softargmax.classify.nests import Level, Nests

SMALLEST = 1e-3
"""The lower bound of the scales."""
STEP = 1e-3
"""Second derivatives are differences over this share of a standard error."""
NEWTON = 20
"""Maximum number of Newton steps after L-BFGS."""


class NestedLogit(ChoiceModel):
    r"""A softmax of softmaxes: the probability of a nest, times that of the alternative in the nest.

    .. math::
        p_{ij} = \frac{e^{z_{ij} / s_n}}{\sum_{k \in n} e^{z_{ik} / s_n}} \cdot
        \frac{e^{V_{in}}}{\sum_m e^{V_{im}}}, \qquad
        V_{in} = s_n \log \sum_{k \in n} e^{z_{ik} / s_n}

    n is the nest of j, and z are the scores of `ConditionalLogit`. Nests can be inside other nests. With all scales
    s = 1 the model is the conditional logit.

    Parameters
    ----------
    nests : dict
        The name of each nest, and a list of its alternatives, or a dict of nests inside it.
    fit_constants : bool
        If True, fit a constant for each alternative but the first one.
    tol : float
        The fit stops when a Newton step would raise the log-likelihood by at most this number.
    max_iter : int
        The maximum number of steps of L-BFGS. At most 20 Newton steps follow.

    Attributes
    ----------
    coef_ : ndarray
        The coefficients of the features, then the constants, then the scale of each nest.
    names_ : ndarray of str
        A name for each of them.
    scales_ : dict
        The scale of each nest with several children.
    alternatives_ : ndarray
        The labels of the alternatives, in order. Only with `fit_constants`.
    covariance_, robust_covariance_ : ndarray
        Estimates of the covariance: the inverse of minus the Hessian, and the sandwich estimate.
    log_likelihood_, null_log_likelihood_ : float
        The log-likelihood at the maximum, and that of coefficients of 0 and scales of 1.
    n_choosers_, n_iter_ : int
        The number of choosers, and of steps.

    Raises
    ------
    ValueError, TypeError
        If an argument has a wrong value or type.

    Notes
    -----
    The correlation of the random utilities in a nest is :math:`1 - s_n^2`. The model is one of maximal random utility
    if scales are above 0, at most 1, and never larger than those of the nest around them. The fit only bounds them from
    below, so that a larger estimate shows that the nests do not fit. A nest with a single child needs no scale.

    The log-likelihood is not concave. The fit starts from coefficients of 0 and scales of 1. A scale that ends at the
    lower bound, 0.001, has a standard error of NaN. The gradients of all choosers are stored, (choosers, coefficients).

    References
    ----------
    McFadden (1978), Modelling the choice of residential location, in: Spatial interaction theory and planning models.
    Train (2009), Discrete choice methods with simulation, chapter 4.

    See Also
    --------
    ConditionalLogit

    Examples
    --------
    Two buses that are alike, and a car:

    >>> import numpy as np
    >>> from softargmax.classify import NestedLogit
    >>> rng = np.random.default_rng(0)
    >>> chooser, label = np.repeat(np.arange(2000), 3), np.tile(["blue", "car", "red"], 2000)
    >>> price = rng.uniform(0, 2, (6000, 1))
    >>> alike = rng.gumbel(size=(2000, 1)) * [1, 0, 1] + rng.gumbel(size=(2000, 3)) * [0.2, 1, 0.2]
    >>> utility = (alike - price.reshape(-1, 3)).round(9)
    >>> y = (utility == utility.max(axis=1, keepdims=True)).ravel()
    >>> model = NestedLogit({"bus": ["blue", "red"], "road": ["car"]}).fit(price, y, chooser, alternatives=label)
    >>> bool(0.1 < model.scales_["bus"] < 0.5)
    True
    """

    @public
    def __init__(self, nests: Nests, *, fit_constants: bool = True, tol: float = 1e-10, max_iter: int = 1000) -> None:
        self.nests = nests
        self.fit_constants = fit_constants
        self.tol = tol
        self.max_iter = max_iter

    # --- parts --------------------------------------------------------------------------------------------------------

    _takes_ranks = False

    @property
    def _tree(self) -> Tree:
        return tree_of(self.nests)

    def _order(self) -> tuple[Any, ...]:
        return self._tree.alternatives

    def _log_probabilities(self, sets: ChoiceSets) -> Array:
        levels = levels_of(self._tree, sets.offsets, sets.position)
        scales = np.array(list(self.scales_.values()))
        return log_probabilities(levels, sets.scores(self.coef_[: len(self.coef_) - len(scales)]), scales)

    def _maximise(self, sets: ChoiceSets, tol: float, steps: int) -> None:
        """Use L-BFGS and then Newton's method, whose Hessian is a difference of gradients."""
        tree, features = self._tree, len(self.names_)
        self.names_ = np.array([*self.names_, *tree.names], dtype=str)
        choices = _Choices(sets, levels_of(tree, sets.offsets, sets.position), features)
        flat = likelihood(sets, np.zeros(features))
        self.null_log_likelihood_ = flat.value
        start = np.append(np.zeros(features), np.ones(len(tree.names)))
        coef, self.n_iter_ = _near_maximum(choices, start, np.diag(flat.information), steps)
        free = np.append(np.ones(features, bool), coef[features:] > 2 * SMALLEST)
        coef[~free] = SMALLEST
        if not free.all():
            name = label(self.names_[int(free.argmin())])
            message = f"nests: the scale of {name} is at its lower bound; treat its alternatives as one"
            warnings.warn(message, ConvergenceWarning, stacklevel=5)
        coef, value, each, decrement = self._newton(choices, coef, free, tol)
        if decrement > max(tol, LOST * abs(value)):
            message = f"the maximum was not found; a step raises the log-likelihood by {decrement:.1e}, tol is {tol:g}"
            warnings.warn(message, ConvergenceWarning, stacklevel=5)
        self.coef_, self.log_likelihood_ = coef, value
        self.scales_ = dict(zip(tree.names, coef[features:].tolist(), strict=True))
        self.covariance_ = self._covariance(choices.information(coef, each), free)
        known = np.where(free, self.covariance_, 0.0)
        self.robust_covariance_ = np.where(np.isnan(self.covariance_), np.nan, known @ (each.T @ each) @ known.T)

    def _newton(self, choices: _Choices, coef: Array, free: Array, tol: float) -> tuple[Array, float, Array, float]:
        """Return the coefficients, the log-likelihood, its gradients, and the rise that the last step promised."""
        decrement, (value, each) = math.inf, choices.slopes(coef)
        for _ in range(NEWTON):
            covariance = np.nan_to_num(self._covariance(choices.information(coef, each), free))
            direction = covariance @ each.sum(axis=0)
            decrement = 0.5 * float(each.sum(axis=0) @ direction)
            coef, (value, each) = line_search(choices.inside, coef, direction, (value, each))
            self.n_iter_ += 1
            if decrement <= max(tol, LOST * abs(value)):  # the step that was just taken leaves its square
                break
        return coef, value, each, decrement

    def _covariance(self, information: Array, free: Array) -> Array:
        """Return the inverse of the information about the free coefficients, and NaN for the others."""
        information = np.where(np.outer(free, free), information, np.diag(np.where(free, 0.0, 1.0)))
        found = self._inverse(information, np.zeros(len(free)))
        return np.where(np.outer(free, free), found, np.nan)

    def _without_information(self, number: int) -> str:
        if number < len(self.names_) - len(self._tree.names):
            return super()._without_information(number)
        return (
            "nests: expected nests whose alternatives somebody can choose between, got no information about the scale "
            f"of {label(self.names_[number])}"
        )


class _Choices(NamedTuple):
    """Choice sets, their levels, and the number of coefficients before the scales."""

    sets: ChoiceSets
    levels: list[Level]
    features: int

    def slopes(self, coef: Array) -> tuple[float, Array]:
        """Return the log-likelihood, and the gradient of each set."""
        log_p, each = set_gradients(self.sets, self.levels, coef[: self.features], coef[self.features :])
        return float(self.sets.weight @ log_p), self.sets.weight[:, None] * each

    def information(self, coef: Array, each: Array) -> Array:
        """Return minus the Hessian, from differences of gradients."""
        size = STEP / np.sqrt(np.maximum(np.square(each).sum(axis=0), 1e-300))
        size[self.features :] = np.minimum(size[self.features :], 0.1 * SMALLEST)
        size[: self.features] = np.minimum(size[: self.features], STEP / self.sets.largest().clip(min=STEP))
        steps = np.diag(size)
        found = [self.slopes(coef - h)[1].sum(axis=0) - self.slopes(coef + h)[1].sum(axis=0) for h in steps]
        half = np.array(found) / (4.0 * np.diag(steps)[:, None])
        return half + half.T

    def inside(self, coef: Array) -> tuple[float, Array]:
        """Return `slopes`, and a log-likelihood of -inf for scales below the bound."""
        return self.slopes(coef) if (coef[self.features :] >= SMALLEST).all() else (-math.inf, np.empty(0))


def _near_maximum(choices: _Choices, start: Array, information: Array, steps: int) -> tuple[Array, int]:
    """Use L-BFGS, in units of the standard errors at the start."""
    features = choices.features
    scales = np.full(len(start) - features, float(len(choices.sets.weight)))
    unit = np.sqrt(np.maximum(np.append(information, scales), 1e-300))

    def loss(x: Array) -> tuple[float, Array]:
        value, each = choices.slopes(x / unit)
        return -value, -each.sum(axis=0) / unit

    bounds = [(None, None)] * features + [(SMALLEST * one, None) for one in unit[features:]]
    found = minimize(loss, start * unit, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return np.asarray(found.x / unit), int(found.nit)
