"""Discriminants and naive Bayes where scikit-learn overflows or underflows, and for very few rows or counts."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import sparse
from sklearn import discriminant_analysis as theirs
from tests.classify import problems

from softargmax import classify


def test_both_probabilities_of_two_linear_classes_are_accurate() -> None:
    """Both probabilities are accurate. scikit-learn computes one as 1 - p, which is 0 if scores differ by over 37."""
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
def test_scale_of_the_data_does_not_matter(model: Any, scale: float) -> None:
    """Data near 1e200 and 1e-200 give the same probabilities, although their squares overflow and underflow."""
    X, y = problems.shipped("iris")
    unit = 2.0 ** np.round(np.log2(scale))
    one, other = (type(model)(**model.get_params()).fit(X * u, y).predict_proba(X * u) for u in (1.0, unit))
    np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("model", [classify.GaussianNaiveBayes(), classify.QuadraticDiscriminant()], ids=repr)
def test_rows_that_are_far_away(model: Any) -> None:
    """The wider class is predicted far from both means, although all likelihoods underflow to 0."""
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
    """If no row of a class has a feature, the class gets probability 0 in rows with the feature.

    In BernoulliNaiveBayes, if all rows of a class have a feature, the class also gets 0 in rows without the feature.
    Other rows are not affected.
    """
    X, y = kind([[3.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 2.0, 2.0]]), ["a", "a", "b"]
    model = classify.MultinomialNaiveBayes(alpha=0.0).fit(X, y)
    p = model.predict_proba(kind([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert p[[0, 2]].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    expected = np.array([2 / 3 * 1 / 3, 1 / 3 * 1 / 2])  # for each class: prior times theta of the third feature
    np.testing.assert_allclose(p[1], expected / expected.sum(), rtol=1e-12)
    assert p[3].tolist() == [0.0, 0.0]  # all classes are excluded
    model = classify.BernoulliNaiveBayes(alpha=0.0).fit(X, y)
    p = model.predict_proba(kind([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]))
    assert p.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert model.decision_function(kind([[0.0, 0.0, 1.0]])) == 0
    with pytest.raises(ValueError, match="X: expected only 0 and 1 if binarize is None, got other numbers"):
        classify.BernoulliNaiveBayes(binarize=None).fit(X, y)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_sums_of_weights_are_rounded(kind: Any) -> None:
    """If all rows of a class have a feature, the class gets probability 0 in rows without it, for any weights."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        X, y, weight = rng.integers(0, 2, (1000, 2)).astype(float), np.arange(1000) % 2, rng.random(1000)
        X[y == 0, 0] = 1.0
        model = classify.BernoulliNaiveBayes(alpha=0.0).fit(kind(X), y, sample_weight=weight)
        assert model.predict_proba(kind([[0.0, 1.0]])).tolist() == [[0.0, 1.0]]
        X[2, 0] = 0.0  # a row with a tiny weight must not give NaN
        weight[2] = 1e-30
        p = classify.BernoulliNaiveBayes(alpha=0.0).fit(kind(X), y, sample_weight=weight).predict_proba(kind(X))
        assert np.abs(p.sum(axis=1) - 1).max() < 1e-12


def normal(x: Any, mean: Any, covariance: Any) -> Any:
    """Return the log density of a normal distribution up to a constant, computed by mpmath."""
    apart = mpmath.matrix([mpmath.mpf(float(a)) - b for a, b in zip(x, mean, strict=True)])
    return -(mpmath.log(mpmath.det(covariance)) + (apart.T * mpmath.inverse(covariance) * apart)[0]) / 2


def moments(rows: Any, divisor: int, *, between: bool) -> tuple[Any, Any]:
    """Return the mean and the covariance of rows, computed by mpmath. Without `between`, compute only the diagonal."""
    rows = [[mpmath.mpf(float(a)) for a in row] for row in rows]
    size = len(rows[0])
    mean = [mpmath.fsum(row[j] for row in rows) / len(rows) for j in range(size)]
    covariance = mpmath.matrix(size, size)
    for i in range(size):
        for j in range(size):
            if between or i == j:
                covariance[i, j] = mpmath.fsum((r[i] - mean[i]) * (r[j] - mean[j]) for r in rows) / divisor
    return mean, covariance


@pytest.mark.parametrize(
    ("model", "between"),
    [(classify.GaussianNaiveBayes(var_smoothing=0.0), False), (classify.QuadraticDiscriminant(), True)],
    ids=["independent", "correlated"],
)
def test_likelihoods_that_underflow(model: Any, between: bool) -> None:
    """Log-probabilities and log ratios equal mpmath's, near the means and where all densities underflow."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)) * [1.0, 5.0, 0.2], np.repeat([0, 1], 20)
    X[20:] += [4.0, 1.0, 0.5]
    model.fit(X, y)
    new = np.array([[1.0, 1.0, 0.0], [30.0, -60.0, 8.0], [1e4, 1e3, -1e4], [-1e7, 1e7, 1e7]])
    with mpmath.workdps(50):
        parts = [moments(X[y == k], 20, between=between) for k in (0, 1)]
        apart = [normal(x, *parts[1]) - normal(x, *parts[0]) for x in new]
        p = [(-mpmath.log1p(mpmath.exp(d)), -mpmath.log1p(mpmath.exp(-d))) for d in apart]
    np.testing.assert_allclose(model.predict_log_proba(new), np.array(p, np.float64), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(model.decision_function(new), np.array(apart, np.float64), rtol=1e-9)


def test_counts_that_underflow() -> None:
    X, y = np.array([[3, 1, 0], [1, 1, 1], [0, 2, 5]]), [0, 0, 1]
    new = np.array([[10**6, 3 * 10**6, 10**5]])
    found = classify.MultinomialNaiveBayes().fit(X, y).predict_log_proba(new)
    with mpmath.workdps(50):
        theta = [[mpmath.mpf(a) / 10 for a in (5, 3, 2)], [mpmath.mpf(a) / 10 for a in (1, 3, 6)]]
        z = [
            mpmath.log(prior) + sum(int(x) * mpmath.log(t) for x, t in zip(new[0], row, strict=True))
            for prior, row in zip((mpmath.mpf(2) / 3, mpmath.mpf(1) / 3), theta, strict=True)
        ]
    assert found[0, 0] == 0.0
    assert found[0, 1] == pytest.approx(float(z[1] - z[0]), rel=1e-12)


def test_tol_and_small_variances() -> None:
    """LinearDiscriminant drops a direction with too little variance for `tol`. QuadraticDiscriminant raises."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), np.repeat([0, 1], 30)
    X = np.column_stack([X, X[:, 0] + 1e-3 * rng.standard_normal(60)])
    assert classify.LinearDiscriminant().fit(X, y).rank_ == 3
    assert classify.LinearDiscriminant(tol=0.01).fit(X, y).rank_ == 2
    classify.QuadraticDiscriminant(tol=1e-8).fit(X, y)
    with pytest.raises(
        np.linalg.LinAlgError, match=r"rank 3 in class .* got rank 2 from .* use a reg_param above 0\.0001"
    ):
        classify.QuadraticDiscriminant().fit(X, y)


def test_fewer_rows_than_features() -> None:
    """QuadraticDiscriminant works with fewer rows than features, because reg_param makes covariances invertible."""
    rng = np.random.default_rng(0)
    X, y, share = rng.standard_normal((8, 6)) + np.repeat([[0.0], [1.0]], 4, axis=0), np.repeat([0, 1], 4), 0.3
    new, z = rng.standard_normal((5, 6)), []
    for k in (0, 1):
        own = X[y == k] - X[y == k].mean(axis=0)
        covariance = (1 - share) * own.T @ own / 4 + share * np.eye(6)
        apart = new - X[y == k].mean(axis=0)
        far = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart)
        z.append(-0.5 * (np.linalg.slogdet(covariance)[1] + far))
    found = classify.QuadraticDiscriminant(reg_param=share).fit(X, y).decision_function(new)
    np.testing.assert_allclose(found, z[1] - z[0], rtol=1e-10)
