"""Fits to batches of rows: equal to one fit to rounding, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from tests.classify.fits import (
    ALL,
    BATCHES,
    BAYES,
    DISCRIMINANTS,
    ESTIMATORS,
    NAMES,
    WEIGHT,
    N,
    X,
    fitted,
    in_batches,
    same,
)

from softargmax.classify import GaussianNaiveBayes, LinearDiscriminant, MultinomialNaiveBayes, QuadraticDiscriminant

pytestmark = pytest.mark.usefixtures("small_blocks")
every_discriminant = pytest.mark.parametrize("name", DISCRIMINANTS)


def agree(one: Any, other: Any, x: Any) -> None:
    """Assert that the parameters and the probabilities of two models are equal to rounding."""
    for name in ("means_", "priors_", "coef_", "intercept_"):
        if hasattr(other, name):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, err_msg=name)
    for found, expected in zip(getattr(one, "variances_", ()), getattr(other, "variances_", ()), strict=True):
        np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-9)
    np.testing.assert_allclose(one.predict_log_proba(x), other.predict_log_proba(x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", BAYES)
def test_naive_bayes(name: str) -> None:
    found, whole = clone(ESTIMATORS[name]), fitted(name, X, NAMES, WEIGHT)
    for batch in BATCHES:
        found.partial_fit(X[batch], NAMES[batch], ALL, WEIGHT[batch])
    np.testing.assert_allclose(found.class_count_, whole.class_count_, rtol=1e-14)
    np.testing.assert_allclose(found.predict_log_proba(X), whole.predict_log_proba(X), rtol=1e-9)


@every_discriminant
def test_discriminants(name: str) -> None:
    agree(in_batches(DISCRIMINANTS[name], X, NAMES, *BATCHES), clone(DISCRIMINANTS[name]).fit(X, NAMES), X)


@every_discriminant
def test_the_first_batch_alone_is_a_fit(name: str) -> None:
    agree(
        in_batches(DISCRIMINANTS[name], X, NAMES, BATCHES[1]),
        clone(DISCRIMINANTS[name]).fit(X[100:700], NAMES[100:700]),
        X,
    )


@every_discriminant
def test_any_order_of_batches(name: str) -> None:
    model = DISCRIMINANTS[name]
    for order in ((2, 0, 1), (1, 2, 0)):
        agree(in_batches(model, X, NAMES, *(BATCHES[k] for k in order)), clone(model).fit(X, NAMES), X)


@every_discriminant
def test_classes_that_the_first_batches_lack(name: str) -> None:
    """They have probability 0 until they have rows. The others have the probabilities of a fit to their rows."""
    model, order = DISCRIMINANTS[name], np.argsort(NAMES, kind="stable")
    x, y = X[order], NAMES[order]
    two, three = (np.searchsorted(y, name) for name in ("cicada", "dragonfly"))
    found = in_batches(model, x, y, slice(0, two))
    assert (found.predict_proba(X)[:, 2:] == 0).all()
    if model.priors is None:
        few = clone(model).fit(x[:two], y[:two])
        np.testing.assert_allclose(found.predict_proba(X)[:, :2], few.predict_proba(X), rtol=1e-9, atol=1e-300)
    else:
        np.testing.assert_allclose(found.priors_, [1 / 3, 2 / 3, 0, 0], rtol=1e-14)
    found.partial_fit(x[two:three], y[two:three])
    found.partial_fit(x[three:], y[three:])
    agree(found, clone(model).fit(X, NAMES), X)


@every_discriminant
@pytest.mark.parametrize("factor", [1e-150, 1e3, 1e150])
def test_batches_of_other_scales(name: str, factor: float) -> None:
    """Means and squares are those of all rows, though each batch is scaled by its largest number."""
    x = X * np.where(np.arange(N) < 500, 1.0, factor)[:, None]
    model = clone(DISCRIMINANTS[name]).set_params(tol=0.0)
    for order in ((slice(0, 500), slice(500, N)), (slice(500, N), slice(0, 500))):
        found, expected = in_batches(model, x, NAMES, *order), clone(model).fit(x, NAMES)
        np.testing.assert_allclose(found.means_, expected.means_, rtol=1e-12)
        np.testing.assert_allclose(found.predict_proba(x), expected.predict_proba(x), rtol=1e-6, atol=1e-12)


@every_discriminant
def test_batches_far_from_zero_lose_no_digits(name: str) -> None:
    """Deviations from the means are merged, not squares of the rows."""
    model, x = DISCRIMINANTS[name], np.random.default_rng(0).standard_normal((N, 3)) + 1e7
    x[NAMES == "ant"] += 1.0
    found, expected = in_batches(model, x, NAMES, *BATCHES), clone(model).fit(x, NAMES)
    np.testing.assert_allclose(found.predict_log_proba(x), expected.predict_log_proba(x), rtol=1e-6)


@every_discriminant
def test_batches_of_few_rows(name: str) -> None:
    """A batch may have one row of a class, and fewer rows than features and classes, also if it is the first one."""
    batches = [slice(0, 1), slice(1, 3), *(slice(k, k + 7) for k in range(3, N, 7))]
    agree(in_batches(DISCRIMINANTS[name], X, NAMES, *batches), clone(DISCRIMINANTS[name]).fit(X, NAMES), X)


def test_two_classes() -> None:
    y = np.where(NAMES == "ant", "ant", "other")
    model = LinearDiscriminant().partial_fit(X[:300], y[:300], ["ant", "other"]).partial_fit(X[300:], y[300:])
    agree(model, LinearDiscriminant().fit(X, y), X)


def test_names_of_columns() -> None:
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    found = in_batches(DISCRIMINANTS["linear"], frame, NAMES, *BATCHES)
    with pytest.raises(ValueError, match="feature names should match"):
        found.partial_fit(frame[frame.columns[::-1]], NAMES)


@every_discriminant
def test_a_fit_forgets_batches(name: str) -> None:
    model = in_batches(DISCRIMINANTS[name], X, NAMES, BATCHES[0])
    same(model.fit(X, NAMES), clone(DISCRIMINANTS[name]).fit(X, NAMES))
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as missing:
        model.partial_fit(X, NAMES)
    assert str(missing.value.__cause__) == (
        "partial_fit: expected a model that fit has not fitted, because fit keeps no sums of its rows"
    )


@every_discriminant
def test_a_fit_that_fails_forgets_batches(name: str) -> None:
    """The next batch is the first one, and may have other classes."""
    model, others = in_batches(DISCRIMINANTS[name], X, NAMES, BATCHES[0]), np.where(NAMES == "ant", "ant", "other")
    with pytest.raises(ValueError, match="got one class: 'ant'"):
        model.fit(X, np.full(N, "ant"))
    with pytest.raises(ValueError, match="classes: expected all classes in the first call"):
        model.partial_fit(X, others)
    model.set_params(priors=None).partial_fit(X, others, ["ant", "other"])
    agree(model, clone(model).fit(X, others), X)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", [GaussianNaiveBayes(), MultinomialNaiveBayes(), LinearDiscriminant(), QuadraticDiscriminant(tol=0.0)]
)
def test_errors_of_arguments(model: Any) -> None:
    with pytest.raises(ValueError, match="classes: expected all classes in the first call of partial_fit, got None"):
        model.partial_fit(X, NAMES)
    model.partial_fit(X, NAMES, ALL)
    with pytest.raises(ValueError, match=r"classes: expected those of the first call, \['ant'"):
        model.partial_fit(X, NAMES, ["ant", "bee"])
    with pytest.raises(ValueError, match="y: expected one of"):
        model.partial_fit(X[:1], ["wasp"])
    with pytest.raises(ValueError, match="expecting 7 features"):
        model.partial_fit(X[:, :6], NAMES)


def test_errors_of_discriminants() -> None:
    with pytest.raises(ValueError, match="classes: expected 2 or more for LinearDiscriminant, got 1"):
        LinearDiscriminant().partial_fit(X, NAMES, ["ant"])
    for of in (LinearDiscriminant, QuadraticDiscriminant):
        with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as missing:
            _ = of(shrinkage="auto").partial_fit
        assert str(missing.value.__cause__) == (
            "shrinkage: expected a number or None for partial_fit, because 'auto' needs all rows at once"
        )


def test_predictions_from_too_few_rows() -> None:
    """They raise an error until there are enough rows."""
    more = "partial_fit: expected more rows before predictions; "
    linear = LinearDiscriminant().partial_fit(X[:3], NAMES[:3], ALL)
    for predict in (linear.predict, linear.predict_proba, linear.predict_log_proba, linear.decision_function):
        with pytest.raises(NotFittedError, match=f"{more}X: expected more than 4 rows for 4 classes, got 3"):
            predict(X)
    agree(linear.partial_fit(X[3:], NAMES[3:]), LinearDiscriminant().fit(X, NAMES), X)

    bees, rest = np.flatnonzero(NAMES == "bee"), np.flatnonzero(NAMES != "bee")
    model = QuadraticDiscriminant(tol=0.0).partial_fit(X[rest], NAMES[rest], ALL)
    assert (model.predict_proba(X)[:, 1] == 0).all()
    model.partial_fit(X[bees[:1]], NAMES[bees[:1]])
    with pytest.raises(
        NotFittedError, match=f"{more}y: expected two rows or more of each class, got one of class 'bee'"
    ):
        model.predict(X)
    model.partial_fit(X[bees[1:3]], NAMES[bees[1:3]])
    with pytest.raises(
        NotFittedError, match=rf"{more}X: expected a covariance of rank 7 in class 'bee', got rank \d from 3 rows"
    ):
        model.predict(X)
    agree(model.partial_fit(X[bees[3:]], NAMES[bees[3:]]), QuadraticDiscriminant(tol=0.0).fit(X, NAMES), X)


@every_discriminant
def test_rows_of_a_call_that_fails_are_not_added(name: str) -> None:
    """The model stays as it was, and its next batches are added to the earlier ones."""
    model = in_batches(DISCRIMINANTS[name], X, NAMES, BATCHES[0])
    before, priors = model.predict_proba(X), model.priors
    with pytest.raises(ValueError, match="priors: expected numbers with the sum 1"):
        model.set_params(priors=[0.1, 0.1, 0.1, 0.1]).partial_fit(X[BATCHES[1]], NAMES[BATCHES[1]])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.set_params(priors=priors)
    for batch in BATCHES[1:]:
        model.partial_fit(X[batch], NAMES[batch])
    agree(model, clone(model).fit(X, NAMES), X)
