"""Discriminants and naive Bayes: scikit-learn's probabilities, and the right ones where it over- or underflows."""

from __future__ import annotations

import warnings
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import sparse
from sklearn import discriminant_analysis as theirs
from sklearn import naive_bayes
from sklearn.feature_extraction.text import CountVectorizer
from tests.classify import problems

from softargmax import classify

DATA = {name: problems.shipped(name) for name in ("iris", "wine", "breast_cancer", "digits")}
PRIORS = {"iris": [0.2, 0.5, 0.3], "wine": [0.1, 0.1, 0.8], "breast_cancer": [0.9, 0.1]}

PAIRS: list[tuple[Any, Any]] = [
    (classify.LinearDiscriminant(), theirs.LinearDiscriminantAnalysis()),
    *(
        (classify.LinearDiscriminant(shrinkage=s), theirs.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s))
        for s in ("auto", 0.0, 0.4, 1.0)
    ),
    (classify.QuadraticDiscriminant(), theirs.QuadraticDiscriminantAnalysis()),
    (classify.QuadraticDiscriminant(reg_param=0.3), theirs.QuadraticDiscriminantAnalysis(reg_param=0.3)),
    *(
        (classify.QuadraticDiscriminant(shrinkage=s), theirs.QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=s))
        for s in ("auto", 0.4)
    ),
    (classify.GaussianNaiveBayes(), naive_bayes.GaussianNB()),
    (classify.GaussianNaiveBayes(var_smoothing=1e-3), naive_bayes.GaussianNB(var_smoothing=1e-3)),
    (classify.MultinomialNaiveBayes(), naive_bayes.MultinomialNB()),
    (classify.MultinomialNaiveBayes(alpha=0.1, fit_prior=False), naive_bayes.MultinomialNB(alpha=0.1, fit_prior=False)),
    (classify.BernoulliNaiveBayes(binarize=3.0), naive_bayes.BernoulliNB(binarize=3.0)),
    (classify.BernoulliNaiveBayes(alpha=0.5, binarize=5.0), naive_bayes.BernoulliNB(alpha=0.5, binarize=5.0)),
]


def same(ours: Any, peer: Any, X: Any, y: Any, new: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            peer.fit(X, y, **options)
        except np.linalg.LinAlgError:
            with pytest.raises(np.linalg.LinAlgError, match="directions"):
                ours.fit(X, y, **options)
            return
        ours.fit(X, y, **options)
        p, log_p = peer.predict_proba(new), peer.predict_log_proba(new)
    found, log_found = ours.predict_proba(new), ours.predict_log_proba(new)
    np.testing.assert_allclose(found, p, rtol=1e-6, atol=1e-12)
    likely = p > 1e-12
    np.testing.assert_allclose(log_found[likely], log_p[likely], rtol=1e-6, atol=1e-12)
    assert (ours.predict(new) == peer.predict(new)).all()
    assert np.abs(found.sum(axis=1) - 1).max() < 1e-12


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("ours", "peer"), PAIRS, ids=lambda m: repr(m).split(".")[-1])
def test_same_probabilities(ours: Any, peer: Any, name: str) -> None:
    X, y = DATA[name]
    same(ours, peer, X[::2], y[::2], X)


@pytest.mark.parametrize("name", PRIORS)
def test_priors_that_are_given(name: str) -> None:
    X, y = DATA[name]
    prior = PRIORS[name]
    for ours, peer in (
        (classify.LinearDiscriminant(priors=prior), theirs.LinearDiscriminantAnalysis(priors=prior)),
        (
            classify.LinearDiscriminant(priors=prior, shrinkage=0.2),
            theirs.LinearDiscriminantAnalysis(priors=prior, shrinkage=0.2, solver="lsqr"),
        ),
        (classify.QuadraticDiscriminant(priors=prior), theirs.QuadraticDiscriminantAnalysis(priors=np.array(prior))),
        (classify.GaussianNaiveBayes(priors=prior), naive_bayes.GaussianNB(priors=prior)),
        (classify.MultinomialNaiveBayes(class_prior=prior), naive_bayes.MultinomialNB(class_prior=prior)),
        (
            classify.BernoulliNaiveBayes(class_prior=prior, binarize=2.0),
            naive_bayes.BernoulliNB(class_prior=prior, binarize=2.0),
        ),
    ):
        same(ours, peer, X, y, X)


def test_weights() -> None:
    X, y = DATA["wine"]
    weight = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    for ours, peer in (
        (classify.GaussianNaiveBayes(var_smoothing=0.0), naive_bayes.GaussianNB(var_smoothing=0.0)),
        (classify.MultinomialNaiveBayes(), naive_bayes.MultinomialNB()),
        (classify.BernoulliNaiveBayes(binarize=2.0), naive_bayes.BernoulliNB(binarize=2.0)),
    ):
        same(ours, peer, X, y, X, sample_weight=weight)


def test_words() -> None:
    """Naive Bayes on sparse counts of real text: which of three modules a line of source is from."""
    import argparse
    import inspect
    import statistics
    import textwrap

    lines, y = [], []
    for k, module in enumerate((argparse, statistics, textwrap)):
        found = [line for line in inspect.getsource(module).splitlines() if line.strip()]
        lines += found
        y += [k] * len(found)
    X = CountVectorizer().fit_transform(lines)
    target = np.array(y)
    for ours, peer in (
        (classify.MultinomialNaiveBayes(alpha=0.01), naive_bayes.MultinomialNB(alpha=0.01)),
        (classify.BernoulliNaiveBayes(), naive_bayes.BernoulliNB()),
    ):
        same(ours, peer, X, target, X)
        dense = type(ours)(**ours.get_params()).fit(X.toarray(), target)
        np.testing.assert_allclose(dense.predict_proba(X.toarray()), ours.predict_proba(sparse.csr_array(X)), rtol=1e-9)


# --- where scikit-learn over- or underflows ---------------------------------------------------------------------------


def test_two_linear_classes_keep_both_probabilities() -> None:
    """There p of the first is 1 - p of the second: 0 from a difference of 37 on."""
    X, y = np.array([[-1.1], [-0.9], [0.9], [1.1]]), [0, 0, 1, 1]
    model = classify.LinearDiscriminant().fit(X, y)
    new = np.array([[2.0]])
    with mpmath.workdps(60):
        z = [mpmath.mpf(0), 2 * mpmath.mpf(2.0) / mpmath.mpf("0.01")]  # mu = -1, 1; variance 0.01
        p = 1 / (1 + mpmath.exp(z[1]))
    assert model.predict_proba(new)[0, 0] == pytest.approx(float(p), rel=1e-10)
    assert model.predict_log_proba(new)[0, 1] == pytest.approx(-float(p), rel=1e-10)
    assert theirs.LinearDiscriminantAnalysis().fit(X, y).predict_proba(new)[0, 0] == 0


def test_quadratic_logarithms_stay_finite() -> None:
    X, y = np.array([[-1.0], [1.0], [9.0], [11.0]]), [0, 0, 1, 1]
    model = classify.QuadraticDiscriminant().fit(X, y)
    new = np.array([[200.0]])
    assert model.predict_log_proba(new)[0, 0] == pytest.approx(-0.5 * (200.0**2 - 190.0**2), rel=1e-12)
    assert model.predict_proba(new).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1.0, 1e150, 1e200, 1e300])
@pytest.mark.parametrize(
    "model",
    [classify.GaussianNaiveBayes(), classify.QuadraticDiscriminant(tol=0.0), classify.LinearDiscriminant()],
    ids=repr,
)
def test_units_do_not_matter(model: Any, scale: float) -> None:
    """Squares of 1e200 overflow, those of 1e-200 are 0: powers of two are taken out first."""
    X, y = DATA["iris"]
    unit = 2.0 ** np.round(np.log2(scale))
    one, other = (type(model)(**model.get_params()).fit(X * u, y).predict_proba(X * u) for u in (1.0, unit))
    np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("model", [classify.GaussianNaiveBayes(), classify.QuadraticDiscriminant()], ids=repr)
def test_rows_that_are_far_away(model: Any) -> None:
    """All likelihoods are 0: the class that is wider is far more likely all the same."""
    rng = np.random.default_rng(0)
    X, y = np.concatenate([rng.standard_normal((30, 2)), 3 * rng.standard_normal((30, 2))]), np.repeat([0, 1], 30)
    model.fit(X, y)
    for far in (1e3, 1e100, 1e155, 1e250, 1e308):
        assert model.predict_proba([[far, -far]]).tolist() == [[0.0, 1.0]]


def test_a_feature_that_does_not_vary() -> None:
    X, y = np.array([[1.0, 5.0], [2.0, 5.0], [8.0, 5.0], [9.0, 5.0]]), [0, 0, 1, 1]
    for model in (
        classify.GaussianNaiveBayes(),
        classify.GaussianNaiveBayes(var_smoothing=0.0),
        classify.LinearDiscriminant(),
    ):
        assert model.fit(X, y).predict(X).tolist() == [0, 0, 1, 1]
        assert np.isfinite(model.predict_proba(X)).all()
    nothing = classify.GaussianNaiveBayes().fit(np.ones((4, 2)), y).predict_proba(np.ones((1, 2)))
    assert nothing.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_counts_of_zero_without_smoothing(kind: Any) -> None:
    """A feature that a class never had excludes it, where the row has the feature; where not, it says nothing."""
    X, y = kind([[3.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 2.0, 2.0]]), ["a", "a", "b"]
    model = classify.MultinomialNaiveBayes(alpha=0.0).fit(X, y)
    p = model.predict_proba(kind([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert p[[0, 2]].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    expected = np.array([2 / 3 * 1 / 3, 1 / 3 * 1 / 2])  # priors times theta of the third feature
    np.testing.assert_allclose(p[1], expected / expected.sum(), rtol=1e-12)
    assert p[3].tolist() == [0.0, 0.0]  # no class can have made this row
    model = classify.BernoulliNaiveBayes(alpha=0.0).fit(X, y)
    p = model.predict_proba(kind([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]))
    assert p.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert model.decision_function(kind([[0.0, 0.0, 1.0]])) == 0
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        classify.BernoulliNaiveBayes(binarize=None).fit(X, y)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (classify.LinearDiscriminant(shrinkage=2.0), "shrinkage"),
        (classify.LinearDiscriminant(shrinkage="much"), "shrinkage"),
        (classify.LinearDiscriminant(priors=[0.5, 0.2]), "priors"),
        (classify.LinearDiscriminant(priors=[1.5, -0.5]), "priors"),
        (classify.LinearDiscriminant(priors=[1.0]), "priors"),
        (classify.LinearDiscriminant(tol=-1.0), "tol"),
        (classify.QuadraticDiscriminant(reg_param=1.5), "reg_param"),
        (classify.QuadraticDiscriminant(reg_param=0.5, shrinkage=0.5), "reg_param"),
        (classify.GaussianNaiveBayes(var_smoothing=-1.0), "var_smoothing"),
        (classify.GaussianNaiveBayes(priors=[0.5, 0.5, 0.0]), "priors"),
        (classify.MultinomialNaiveBayes(alpha=-1.0), "alpha"),
        (classify.MultinomialNaiveBayes(alpha=[1.0, 1.0]), "alpha"),
        (classify.BernoulliNaiveBayes(class_prior=[1.0]), "priors"),
    ],
)
def test_wrong_parameters(model: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        model.fit([[1.0, 2.0, 0.0], [2.0, 1.0, 1.0], [0.0, 1.0, 3.0], [1.0, 3.0, 1.0]], [0, 0, 1, 1])


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="rows"):
        classify.LinearDiscriminant().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="one row of class 1"):
        classify.QuadraticDiscriminant().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
    with pytest.raises(ValueError, match="Negative"):
        classify.MultinomialNaiveBayes().fit([[-1.0], [1.0]], [0, 1])
