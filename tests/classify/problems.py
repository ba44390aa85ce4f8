"""Data sets for the tests of `classify`, and an independent implementation of the objective."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp
from sklearn import datasets

Array = NDArray[Any]


class Problem(NamedTuple):
    X: Any
    y: Array


def shipped(name: str) -> Problem:
    """Return a data set of scikit-learn (digits, iris, wine or breast_cancer) with unscaled features."""
    return Problem(*getattr(datasets, f"load_{name}")(return_X_y=True))


def synthetic(n: int, features: int, classes: int, seed: int = 0, dtype: Any = np.float32) -> Problem:
    """Return normally distributed features, and classes drawn from the softmax of linear scores."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, features), dtype=np.float32)
    z = X @ rng.standard_normal((features, classes), dtype=np.float32) * (2 / np.sqrt(features))
    return Problem(X.astype(dtype), (z + rng.gumbel(size=z.shape)).argmax(axis=1))


def words(n: int = 5000, features: int = 2000, classes: int = 50, seed: int = 0) -> Problem:
    """Return sparse counts, of which 1% are nonzero, and classes drawn from the softmax of linear scores."""
    rng = np.random.default_rng(seed)
    X = sparse.random_array(
        (n, features),
        density=0.01,
        format="csr",
        rng=rng,
        data_sampler=lambda size: rng.integers(1, 5, size).astype(float),
    )
    z = X @ rng.standard_normal((features, classes)) * 0.5
    return Problem(X, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


def separable() -> Problem:
    X = np.concatenate([np.random.default_rng(0).standard_normal((20, 3)) + shift for shift in (-9, 0, 9)])
    return Problem(X, np.repeat([0, 1, 2], 20))


def collinear() -> Problem:
    """Return the iris data with four more columns: a sum, a multiple and a copy of other columns, and zeros."""
    X, y = shipped("iris")
    return Problem(np.column_stack([X, X[:, 0] + X[:, 1], 1e3 * X[:, 2], X[:, 3], np.zeros(len(X))]), y)


def scores(n: int = 400, classes: int = 5, seed: int = 0, sharp: float = 3.0) -> Problem:
    """Return overconfident scores, and classes. The scores are `sharp` times those that the classes are drawn from."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, classes)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return Problem(z * sharp, y)


def objective(model: Any, problem: Problem, l1_ratio: float = 0.0, weight: Any = None) -> float:
    """Return the mean loss plus the penalty divided by C n, for n rows and any model with coef_ and intercept_."""
    X, y = problem
    C, w = float(model.C), model.coef_.astype(np.float64)
    z = np.asarray(X @ w.T, np.float64) + model.intercept_
    if len(w) == 1:
        z = np.concatenate([np.zeros_like(z), z], axis=1)
    losses = logsumexp(z, axis=1) - z[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    total = losses.sum() if weight is None else losses @ weight
    if np.isinf(C):
        return float(total / len(y))
    penalty = l1_ratio * np.abs(w).sum() + (1 - l1_ratio) / 2 * np.square(w).sum()
    return float(total / len(y) + penalty / (C * len(y)))
