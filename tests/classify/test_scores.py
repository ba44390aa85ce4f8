"""Probabilities of the discriminants and of naive Bayes equal those of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import sklearn
from packaging.version import Version
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
    if Version(sklearn.__version__) < Version("1.9.1") and getattr(peer, "solver", None) == "svd":
        pytest.skip("scikit-learn before 1.9.1 divides covariances by n - K or n - 1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            peer.fit(X, y, **options)
        except np.linalg.LinAlgError:
            with pytest.raises(np.linalg.LinAlgError, match="rank"):
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
def test_priors_argument(name: str) -> None:
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


def test_naive_bayes_classifies_source_lines() -> None:
    """Naive Bayes on the word counts of source lines equals scikit-learn's, for sparse and dense counts."""
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
