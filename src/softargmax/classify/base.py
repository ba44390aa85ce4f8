"""The base class of the classifiers, which derives all predictions from one score per class."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_array,
    check_is_fitted,
    validate_data,
)

from softargmax.classify.rows import Training
from softargmax.classify.sparse_products import add_product
from softargmax.core import _native
from softargmax.core.arrays import is_lazy
from softargmax.normalize import log_softmax, softmax

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Array = NDArray[Any]
Method = TypeVar("Method", bound=Callable[..., Any])
KINDS = [np.float64, np.float32]
"""The dtypes of rows. Other rows are converted to the first one."""


class Sparse(Protocol):
    """A sparse matrix of SciPy."""

    def tocsr(self) -> Any: ...


class Estimator(Protocol):
    """A classifier with scikit-learn's interface."""

    def fit(self, X: Any, y: Any, /) -> Any: ...
    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


class Splitter(Protocol):
    """A splitter of rows, such as scikit-learn's `KFold`."""

    def split(self, X: Any, y: Any = None, /) -> Any: ...
    def get_n_splits(self, X: Any = None, y: Any = None, /) -> int: ...


Features: TypeAlias = "ArrayLike | Sparse"
"""The data of a model: a matrix with one row per sample."""


def rowwise(method: Method) -> Method:
    """Let a method of rows return a lazy array if its rows are a Dask array or dataframe: one task per chunk."""

    @wraps(method)
    def call(self: Any, X: Any) -> Any:
        if not is_lazy(X):
            return method(self, X)
        self._check_fitted()
        return _dask_rows().by_chunks(getattr(self, method.__name__), X, self)

    return cast("Method", call)


def _dask_rows() -> Any:
    """Return the module for Dask, which is imported only if an argument is a Dask collection."""
    from softargmax.classify import dask_rows

    return dask_rows


class ScoreClassifier(ClassifierMixin, BaseEstimator):
    r"""A classifier that maps x to a score for every class.

    .. math:: p(y = k \mid x) = \frac{e^{z_k(x)}}{\sum_j e^{z_j(x)}}

    In some models a score is log prior plus log likelihood, up to a constant that all classes share. In other models
    the scores are affine in x. A subclass defines `fit` and `_scores`. This class derives all other methods from the
    scores.
    """

    _accept_sparse: ClassVar[str | bool] = False
    _least_classes: ClassVar[int] = 2
    _decides: ClassVar[bool] = True

    classes_: Array

    def _scores(self, X: Any) -> Array:
        """Return the scores z, shape (n, K), of checked rows."""
        raise NotImplementedError

    @available_if(lambda self: self._decides)  # type: ignore[untyped-decorator]
    @rowwise
    def decision_function(self, X: Features) -> Array:
        """Return the scores of rows.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            z, shape (n, K). For two classes, the score of the second class minus that of the first, shape (n,).
        """
        z = self._scores(self._fitted_rows(X))
        if z.shape[1] != 2:
            return z
        with np.errstate(invalid="ignore"):
            return np.where(np.isneginf(z).all(axis=1), 0.0, z[:, 1] - z[:, 0]).astype(z.dtype, copy=False)

    @rowwise
    def predict_log_proba(self, X: Features) -> Array:
        """Return log probabilities, which stay accurate if a class is almost certain.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            log p, shape (n, K); classes are in the order of `classes_`.
        """
        return np.asarray(log_softmax(self._scores(self._fitted_rows(X))))

    @rowwise
    def predict_proba(self, X: Features) -> Array:
        """Return probabilities.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            p, shape (n, K); classes are in the order of `classes_`. All probabilities of a row are 0 if the model
            excludes every class.
        """
        return np.asarray(softmax(self._scores(self._fitted_rows(X))))

    @rowwise
    def predict(self, X: Features) -> Array:
        """Return the most probable class of each row. If several classes are equally probable, return the first one.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).

        Returns
        -------
        ndarray
            Classes, shape (n,).
        """
        best = self._scores(self._fitted_rows(X)).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy: the share of rows whose class is predicted correctly.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D).
        y : array_like
            The class of each row, shape (n,).
        sample_weight : array_like, optional
            The weight of each row, shape (n,).

        Returns
        -------
        float
            The accuracy, from 0 to 1.
        """
        if any(map(is_lazy, (X, y, sample_weight))):
            return float(_dask_rows().accuracy(self, X, y, sample_weight))
        return float(super().score(X, y, sample_weight))

    def _training(
        self, X: Any, y: Any, sample_weight: Any = None, *, known: bool = False, reset: bool = True
    ) -> Training:
        """Check the arguments of `fit`, set `classes_` unless they are known, and return the training data."""
        if any(map(is_lazy, (X, y, sample_weight))):
            found = _dask_rows().examined(X, y, sample_weight, self._check_chunk)
            _check_feature_names(self, _dask_rows().without_rows(X), reset=reset)
            _check_n_features(self, found.X, reset=reset)
            if not known:
                self._set_classes(found.labels)
            return cast("Training", found.training(indices_of, self.classes_))
        X, y = self._checked(X, y, reset=reset)
        target = indices_of(y, self.classes_) if known else self._set_classes(y)
        if sample_weight is None:
            return Training(X, target, None)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.sum() > 0:
            raise ValueError("sample_weight: expected at least one weight above 0, got only zeros")
        return Training(X, target, weight)

    def _batch(self, X: Any, y: Any, classes: Any, sample_weight: Any = None, *, first: bool) -> Training:
        """Check the arguments of `partial_fit`, set `classes_` in the first call, and return the training data."""
        if first and classes is None:
            raise ValueError("classes: expected all classes in the first call of partial_fit, got None")
        found = self.classes_ if classes is None else np.unique(np.asarray(classes))
        if not first and not np.array_equal(found, self.classes_):
            raise ValueError(f"classes: expected those of the first call, {self.classes_}, got {found}")
        if len(found) < self._least_classes:
            raise ValueError(
                f"classes: expected {self._least_classes} or more for {type(self).__name__}, got {len(found)}"
            )
        self.classes_ = found
        return self._training(X, y, sample_weight, known=True, reset=first)

    def _set_classes(self, y: Array) -> NDArray[np.int64]:
        """Set `classes_` from labels, and return the index of each label."""
        check_one_kind(y)
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < self._least_classes:
            raise ValueError(
                f"y: expected two classes or more for {type(self).__name__}, got one class: {label(self.classes_[0])}"
            )
        return np.asarray(target)

    def _check_chunk(self, X: Any) -> None:
        """Check a chunk of rows of a Dask array. It returns nothing, because results come to the caller's process."""
        self._checked_chunk(X)

    def _checked_chunk(self, X: Any) -> Any:
        """Return the checked rows of a chunk of a Dask array."""
        return check_array(X, dtype=KINDS, input_name="X", ensure_min_samples=0)

    def _check_fitted(self) -> None:
        """Raise NotFittedError, which is a ValueError, if the model cannot predict."""
        check_is_fitted(self)

    def _fitted_rows(self, X: Any) -> Any:
        """Check that the model is fitted, and return the checked rows."""
        self._check_fitted()
        return self._checked(X, reset=False)

    def _checked(self, X: Any, *y: Any, **options: Any) -> Any:
        """Return rows, and classes if passed, as checked arrays. Errors name the invalid column of a data frame."""
        try:
            return validate_data(self, X, *y, accept_sparse=self._accept_sparse, dtype=KINDS, order="C", **options)
        except ValueError as error:
            for name in getattr(X, "columns", ()):
                try:
                    np.asarray(X[name], np.float64)
                except (ValueError, TypeError) as own:
                    raise ValueError(f"X: column {name!r}: {own}") from error
            raise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(self._accept_sparse)
        return tags


class NaiveBayes(ScoreClassifier):
    """Base class of the naive Bayes models, which add up what the rows of each class have."""

    _least_classes: ClassVar[int] = 1
    class_count_: Array

    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Estimate the distribution of each feature in each class.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D). Models of counts also take a sparse matrix.
        y : array_like
            The class of each row, shape (n,).
        sample_weight : array_like, optional
            The weight of each row, shape (n,).

        Returns
        -------
        self
        """
        return self._update(self._training(X, y, sample_weight), first=True)

    def partial_fit(
        self, X: Features, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Add rows to those of earlier calls.

        Parameters
        ----------
        X : array_like
            Rows, shape (n, D). Models of counts also take a sparse matrix.
        y : array_like
            The class of each row, shape (n,).
        classes : array_like, optional
            All classes, shape (K,). Required in the first call only.
        sample_weight : array_like, optional
            The weight of each row, shape (n,).

        Returns
        -------
        self
        """
        first = not hasattr(self, "class_count_")
        return self._update(self._batch(X, y, classes, sample_weight, first=first), first=first)

    def _update(self, training: Training, *, first: bool) -> Self:
        """Add training data to what the model has counted, and set what depends on it."""
        raise NotImplementedError


def numbers(value: Any, name: str) -> NDArray[np.float64]:
    """Return a parameter as a float64 array."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a number, or an array of numbers, got {value!r}") from error


def log_priors(priors: Any, counts: NDArray[np.float64], name: str = "priors") -> NDArray[np.float64]:
    """Return the log priors of the classes, from `priors` (with the sum 1), or from `counts` if `priors` is None."""
    if priors is None:
        found = counts / counts.sum()
    else:
        found = numbers(priors, name)
        if found.shape != counts.shape:
            raise ValueError(f"{name}: expected one number per class, shape {counts.shape}, got {found.shape}")
        if not (found >= 0).all():
            raise ValueError(f"{name}: expected numbers of 0 or above, got {found}")
        if abs(found.sum() - 1) > 1e-8:
            raise ValueError(f"{name}: expected numbers with the sum 1, got the sum {found.sum():.6g}")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(found))


def label(name: Any) -> str:
    """Return a class label as text for error messages."""
    return repr(name.item() if isinstance(name, np.generic) else name)


def check_one_kind(y: Array, name: str = "y") -> None:
    """Raise TypeError if labels mix strings with other types, because such a mixture cannot be sorted."""
    strings = [isinstance(name, str) for name in y.ravel()] if y.dtype == object else []
    if any(strings) and not all(strings):
        one, other = strings.index(True), strings.index(False)
        mixed = f"the string {y[one]!r} at index {one} and {y[other]!r} at index {other}"
        what = "classes" if name == "y" else "labels"
        raise TypeError(f"{name}: expected {what} of one type, got {mixed}")


def indices_of(y: Any, classes: Array, name: str = "y") -> NDArray[np.int64]:
    """Return the index of each label in the sorted classes."""
    found = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    unknown = classes[found] != y
    if unknown.any():
        raise ValueError(f"{name}: expected one of {classes}, got {label(y[unknown][0])}")
    return np.asarray(found)


def both(z: Array) -> Array:
    """Return the scores of two classes, shape (n, 2): 0 for the first class, and z for the second class."""
    z = z.reshape(-1, 1)
    return np.concatenate([np.zeros_like(z), z], axis=1)


def affine(X: Any, w: Array, bias: Array) -> Array:
    """Return X W^T + b. The bits of a result row do not depend on other rows of X."""
    kind = np.float64 if np.float64 in (X.dtype, w.dtype) else np.float32
    found = np.empty((X.shape[0], len(w)), kind)
    if sparse.issparse(X):
        found[...] = bias
        add_product(X, w.T, found)
        return found
    _native.product(X, w.T, found, np.ascontiguousarray(bias, kind))
    return found


def transposed_product(a: Any, b: Any) -> Array:
    """Return a^T b as a dense array, from two dense or two sparse matrices. The bits do not depend on threads."""
    if sparse.issparse(b):
        return np.asarray((a.T @ b).todense())
    found = np.empty((a.shape[1], b.shape[1]), a.dtype)
    _native.product(a.T, b, found)
    return found
