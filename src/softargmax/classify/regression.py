"""Softmax regression: multinomial logistic regression, and its variants with sparse probabilities."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_class_weight
from threadpoolctl import threadpool_limits

from softargmax.classify import solvers
from softargmax.classify.base import Array, ScoreClassifier, affine, both, rowwise
from softargmax.classify.objective import Objective
from softargmax.core.check import between, flag, integer, one_of, positive
from softargmax.core.signature import public
from softargmax.sparse import entmax

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from softargmax.classify.base import Features
    from softargmax.classify.rows import Training


SOLVERS = {"lbfgs": solvers.lbfgs, "newton-cg": solvers.newton}


class SoftmaxRegression(ScoreClassifier):
    r"""Affine scores and a softmax, fitted by penalised maximum likelihood.

    .. math:: \min_{W, b}\ C \sum_i w_i\, \ell(W x_i + b, y_i) + \rho \lVert W \rVert_1
        + \frac{1 - \rho}{2} \lVert W \rVert_2^2, \qquad \ell(z, y) = \log \sum_k e^{z_k} - z_y

    For two classes, the first class has scores of 0 and no coefficients, as in logistic regression. For :math:`\alpha`
    other than 1, the loss is the Fenchel-Young loss of `softargmax.entmax`, and the probabilities are sparse for
    :math:`\alpha > 1`. :math:`\alpha = 2` is sparsemax regression.

    Parameters
    ----------
    C : float
        Weight of the losses relative to the penalty. With inf there is no penalty.
    l1_ratio : float
        :math:`\rho`, the share of the l1 penalty, from 0 to 1.
    alpha : float
        The order of the map from scores to probabilities, above 0.
    tol : float
        The fit stops when all derivatives of the mean penalised loss have absolute values of at most this number, or
        when a step lowers the loss by less than the rounding error.
    max_iter : int
        The maximum number of steps.
    fit_intercept : bool
        If True, fit b, which is not penalised. If False, b is 0.
    class_weight : dict or "balanced", optional
        Weight of the rows of each class. With "balanced", all classes have the same total weight.
    solver : {"lbfgs", "newton-cg"}
        The solver without an l1 penalty. With an l1 penalty, the solver is always L-BFGS-B.
    warm_start : bool
        If True, `fit` starts from the previous result.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in order.
    coef_, intercept_ : ndarray
        W, shape (K, D), and b, shape (K,), in the dtype of X. For two classes the shapes are (1, D) and (1,).
    n_iter_ : ndarray
        Number of steps, shape (1,).
    objective_ : float
        The final mean penalised loss, float64.

    Raises
    ------
    ValueError
        If a parameter is out of range, or there is only one class.
    TypeError
        If a parameter has the wrong type.

    Notes
    -----
    Parameters have the same meaning as in scikit-learn's LogisticRegression, and the minimum is the same. Rows in
    float32 stay float32, but the objective and sums of gradients are float64. SciPy minimises in coordinates in which
    the problem is well conditioned at the start. So scales and correlations of features hardly change the number of
    steps. With an l1 penalty or more than 2048 features, this holds for the scales only.

    The Hessian of a row's loss is :math:`x x^T \otimes (\mathrm{diag}(p) - p p^T)`. The solver "newton-cg" uses
    products of the Hessian with vectors.

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), The elements of statistical learning, section 4.4.
    Boehning (1992), Multinomial logistic regression algorithm. Ann. Inst. Stat. Math. 44.
    Blondel, Martins & Niculae (2020), Learning with Fenchel-Young losses, section 5. JMLR 21.

    See Also
    --------
    softargmax.linear_cross_entropy

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from softargmax.classify import SoftmaxRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SoftmaxRegression().fit(X, y)
    >>> model.predict_proba(X[[0, 70]]).round(2)
    array([[0.98, 0.02, 0.  ],
           [0.  , 0.44, 0.56]])
    >>> SoftmaxRegression(alpha=2).fit(X, y).predict_proba(X[[0, 70]]).round(2)
    array([[1. , 0. , 0. ],
           [0. , 0.4, 0.6]])
    """

    _accept_sparse: ClassVar[str | bool] = "csr"

    @public
    def __init__(
        self,
        C: float = 1.0,
        *,
        l1_ratio: float = 0.0,
        alpha: float = 1.0,
        tol: float = 1e-4,
        max_iter: int = 100,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        solver: str = "lbfgs",
        warm_start: bool = False,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.alpha = alpha
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.solver = solver
        self.warm_start = warm_start

    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit W and b.

        Parameters
        ----------
        X : array_like or sparse matrix
            Rows, shape (n, D), float32 or float64.
        y : array_like
            The class of each row, shape (n,).
        sample_weight : array_like, optional
            w, the weight of every row, shape (n,).

        Returns
        -------
        self
        """
        strength = 1.0 / positive(self.C, "C", infinite=True)
        ratio, tol = between(self.l1_ratio, "l1_ratio", 1.0), between(self.tol, "tol", math.inf)
        alpha, steps = positive(self.alpha, "alpha"), integer(self.max_iter, "max_iter")
        if steps < 1:
            raise ValueError(f"max_iter: expected 1 or more, got {steps}")
        solver = one_of(self.solver, "solver", tuple(SOLVERS))
        training = self._weighed(self._training(X, y, sample_weight))
        strength /= float(training.per_class(len(self.classes_)).sum())
        options: dict[str, Any] = {"alpha": alpha, "intercept": flag(self.fit_intercept, "fit_intercept")}
        objective = Objective(training, len(self.classes_), l2=(1 - ratio) * strength, **options)
        start = np.zeros(objective.shape)
        if flag(self.warm_start, "warm_start"):
            self._load_previous(start)
        # Use one BLAS thread. Several would spin after every product, on the cores that our own threads need. A pass
        # over the data takes 40 ms with several BLAS threads, and 16 ms with one.
        with threadpool_limits(1, user_api="blas"):
            if ratio * strength > 0:
                found = solvers.lasso(objective, start, l1=ratio * strength, tol=tol, steps=steps)
            else:
                found = SOLVERS[solver](objective, start, tol=tol, steps=steps)
        if not np.isfinite(found.value):
            raise ValueError(
                f"X: expected features whose scores are within the range of {training.X.dtype}, got larger scores; "
                "put a StandardScaler before the model"
            )
        if not found.converged:
            dtype = training.X.dtype
            stuck = f"the loss decreases no further in {dtype}"
            why = f"max_iter, {steps}, was reached" if found.steps >= steps else stuck
            message = f"{why}; expected derivatives of at most tol, {tol:g}, got {found.largest:.1e}"
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        table = self._centred(found.table, penalised=ratio * strength > 0).astype(training.X.dtype)
        self.coef_, self.intercept_ = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
        self.n_iter_, self.objective_ = np.array([found.steps], np.int32), found.value
        return self

    @rowwise
    def predict_proba(self, X: Features) -> Array:
        """Return probabilities. If alpha is above 1, some probabilities may be exactly 0.

        Parameters
        ----------
        X : array_like or sparse matrix
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            p, shape (n, K); classes are in the order of `classes_`.
        """
        if self.alpha == 1:
            return super().predict_proba(X)
        return np.asarray(entmax(self._scores(self._fitted_rows(X)), self.alpha))

    @rowwise
    def predict_log_proba(self, X: Features) -> Array:
        """Return log probabilities. They are -inf where a probability is exactly 0.

        Parameters
        ----------
        X : array_like or sparse matrix
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            log p, shape (n, K); classes are in the order of `classes_`.
        """
        if self.alpha == 1:
            return super().predict_log_proba(X)
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _scores(self, X: Any) -> Array:
        z = affine(X, self.coef_, self.intercept_)
        return both(z) if len(self.classes_) == 2 else z

    def _weighed(self, training: Training) -> Training:
        """Return the training data, with the weight of each row times the weight of its class."""
        if self.class_weight is None:
            return training
        counts = training.per_class(len(self.classes_))
        each = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_, sample_weight=counts)
        if not ((each[counts > 0] >= 0).all() and 0 < counts @ each < np.inf):
            raise ValueError(
                f"class_weight: expected finite numbers of 0 or above, and some above 0, got {self.class_weight}"
            )
        return training.weighed(each)

    def _centred(self, table: Array, *, penalised: bool) -> Array:
        """Subtract the mean over classes from W and b. This leaves the loss unchanged and minimises |W|_2.

        With an l1 penalty (`penalised`), only the mean of b is subtracted, because centring W could increase |W|_1.
        """
        if len(self.classes_) == 2:
            return table
        shift = table.mean(axis=0)
        if penalised:
            shift[:-1] = 0.0
        return np.asarray(table - shift)

    def _load_previous(self, table: Array) -> None:
        """Copy the coefficients of the last fit into the table, if the shapes agree."""
        if getattr(self, "coef_", np.empty(0)).shape == table[:, :-1].shape:
            table[:, :-1], table[:, -1] = self.coef_, self.intercept_ if self.fit_intercept else 0.0
