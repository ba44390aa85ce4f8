"""Softmax regression: minima compared with scikit-learn's for all penalties, and options."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from tests.classify import problems
from tests.classify.problems import Problem, objective

import softargmax
from softargmax import classify
from softargmax.classify import SoftmaxRegression
from softargmax.classify.objective import Objective
from softargmax.classify.sparse_products import add_product
from softargmax.sparse import entmax, entmax_loss

SMALL = {name: problems.shipped(name) for name in ("digits", "iris", "wine", "breast_cancer")}
SMALL |= {"separable": problems.separable(), "collinear": problems.collinear()}
STRENGTHS = (1e-6, 1e-2, 1.0, 1e2, 1e4, 1e6)
PRECISE = {"tol": 1e-13, "max_iter": 3000}


def peer(problem: Problem, **options: Any) -> Any:
    """Return scikit-learn's LogisticRegression, fitted with its most accurate solver for small problems."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rounding makes line searches fail with a warning
        return LogisticRegression(solver="newton-cholesky", tol=1e-13, max_iter=1000, **options).fit(*problem)


def fitted(problem: Problem, **options: Any) -> SoftmaxRegression:
    return SoftmaxRegression(**{**PRECISE, **options}).fit(*problem)


# --- the minimum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize("C", STRENGTHS)
@pytest.mark.parametrize("name", SMALL)
def test_minimum_equals_scikit_learns(name: str, C: float, solver: str) -> None:
    problem = SMALL[name]
    found, theirs = (objective(m, problem) for m in (fitted(problem, C=C, solver=solver), peer(problem, C=C)))
    assert found <= theirs * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore:the loss decreases no further in float64")  # due to nearly collinear columns
@pytest.mark.parametrize("name", ["iris", "collinear"])
def test_minimum_without_a_penalty(name: str) -> None:
    problem = SMALL[name]
    model = fitted(problem, C=np.inf)
    assert objective(model, problem) <= objective(peer(problem, C=np.inf), problem) * (1 + 1e-9)
    assert model.objective_ == pytest.approx(objective(model, problem), rel=1e-9)


def test_separable_rows_without_a_penalty() -> None:
    """If the objective has no minimum, the loss falls below 1e-9 and all coefficients stay finite."""
    problem = SMALL["separable"]
    model = fitted(problem, C=np.inf)
    assert np.isfinite(model.coef_).all()
    assert objective(model, problem) < 1e-9
    assert model.score(*problem) == 1


@pytest.mark.parametrize("l1_ratio", [0.3, 1.0])
@pytest.mark.parametrize("C", [0.05, 1.0])
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_minimum_with_an_l1_penalty(name: str, C: float, l1_ratio: float) -> None:
    X, y = SMALL[name]
    problem = Problem(StandardScaler().fit_transform(X), y)
    model = fitted(problem, C=C, l1_ratio=l1_ratio, tol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = LogisticRegression(C=C, l1_ratio=l1_ratio, solver="saga", tol=1e-7, max_iter=3000).fit(*problem)
    assert objective(model, problem, l1_ratio) <= objective(theirs, problem, l1_ratio) * (1 + 1e-9)
    assert (model.coef_ == 0).sum() >= (theirs.coef_ == 0).sum()
    assert (C, l1_ratio) != (0.05, 1.0) or (model.coef_ == 0).mean() > 0.3
    assert model.objective_ == pytest.approx(objective(model, problem, l1_ratio), rel=1e-9)


@pytest.mark.parametrize(("name", "C"), [("digits", 0.05), ("digits", 1.0), ("words", 1.0)])
def test_conditions_of_a_minimum_with_an_l1_penalty(name: str, C: float) -> None:
    """The subgradients at the minimum contain 0. These problems are too slow to compare: scikit-learn takes minutes."""
    X, y = problems.words() if name == "words" else SMALL[name]
    X = X if name == "words" else StandardScaler().fit_transform(X)
    model = fitted(Problem(X, y), C=C, l1_ratio=0.7, tol=1e-7)
    w = model.coef_
    p = softmax(X @ w.T + model.intercept_, axis=1)
    p[np.arange(len(y)), y] -= 1
    slope = C * (X.T @ p).T + 0.3 * w
    slack = np.where(w == 0, np.maximum(np.abs(slope) - 0.7, 0), np.abs(slope + 0.7 * np.sign(w)))
    assert slack.max() <= 1e-7 * C * len(y) * (1 + 1e-6)
    assert np.abs(p.sum(axis=0)).max() <= 1e-7 * len(y) * (1 + 1e-6)
    assert 0.1 < (w == 0).mean() < 1


@pytest.mark.slow
def test_minimum_of_sparse_rows() -> None:
    problem = problems.words()
    model = SoftmaxRegression(tol=1e-6, max_iter=500).fit(*problem)
    theirs = LogisticRegression(tol=1e-6, max_iter=2000).fit(*problem)
    assert objective(model, problem) <= objective(theirs, problem) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_minimum_of_many_rows(dtype: Any) -> None:
    problem = problems.synthetic(20_000, 784, 10, dtype=dtype)
    options: Any = {"tol": 1e-7 if dtype == np.float64 else 1e-6, "max_iter": 500}
    model, theirs = SoftmaxRegression(**options).fit(*problem), LogisticRegression(**options).fit(*problem)
    assert model.coef_.dtype == model.intercept_.dtype == model.predict_proba(problem.X[:3]).dtype == dtype
    assert objective(model, problem) <= objective(theirs, problem) * (1 + 1e-9)


def test_sparse_rows_are_dense_rows() -> None:
    X, y = problems.words(300, 40, 5)
    for kind in (sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array):
        for options in ({}, {"solver": "newton-cg"}, {"l1_ratio": 0.5}):
            found, dense = (
                SoftmaxRegression(tol=1e-9, max_iter=2000, **options).fit(x, y) for x in (kind(X), X.toarray())
            )
            np.testing.assert_allclose(found.coef_, dense.coef_, atol=1e-6)
            np.testing.assert_allclose(found.predict_proba(kind(X)), dense.predict_proba(X.toarray()), atol=1e-6)


def test_newton_cg_uses_the_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver newton-cg computes a Hessian in each step and takes less than half the steps of L-BFGS."""
    tables: list[Any] = []
    hessian_at = Objective.hessian_at
    monkeypatch.setattr(Objective, "hessian_at", lambda self, table: tables.append(table) or hessian_at(self, table))
    newton = fitted(SMALL["wine"], solver="newton-cg")
    assert len(tables) in (newton.n_iter_[0], newton.n_iter_[0] + 1)
    assert newton.n_iter_[0] < fitted(SMALL["wine"]).n_iter_[0] / 2


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block size does not change the coefficients.

    The solver is newton-cg, because the rounding of products would cost L-BFGS half of the digits.
    """
    problem = problems.synthetic(500, 20, 4, dtype=np.float64)
    whole = fitted(problem, solver="newton-cg")
    monkeypatch.setattr("softargmax.classify.objective.BLOCK", 500)
    np.testing.assert_allclose(fitted(problem, solver="newton-cg").coef_, whole.coef_, rtol=0, atol=1e-12)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("name", ["iris", "breast_cancer"])
def test_entmax_regression(name: str, alpha: float) -> None:
    """SciPy finds no smaller minimum of the mean `entmax_loss` plus penalty. Above order 1 some probabilities are 0."""
    from scipy.optimize import minimize

    X, y = StandardScaler().fit_transform(SMALL[name].X), SMALL[name].y
    model = fitted(Problem(X, y), alpha=alpha, tol=1e-8)
    p = model.predict_proba(X)
    assert (p == 0).any() == (alpha > 1)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert (model.predict(X) == model.classes_[p.argmax(axis=1)]).all()
    assert (np.isneginf(model.predict_log_proba(X)) == (p == 0)).all()
    free, bias = len(model.coef_), len(model.coef_)

    def f(table: Any) -> float:
        w, b = table[: free * X.shape[1]].reshape(free, -1), table[-bias:]
        z = X @ w.T + b
        z = z if free > 1 else np.column_stack([np.zeros(len(z)), z])
        return float(entmax_loss(z, y, alpha) + 0.5 * np.square(w).sum() / len(y))

    own = f(np.concatenate([model.coef_.ravel(), model.intercept_]))
    assert own == pytest.approx(model.objective_, rel=1e-9)
    near = minimize(f, np.concatenate([model.coef_.ravel(), model.intercept_]), method="L-BFGS-B")
    assert own <= near.fun * (1 + 1e-7)
    z = X @ model.coef_.T + model.intercept_
    if free > 1:
        np.testing.assert_allclose(p, entmax(z, alpha), rtol=1e-12)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize(
    "options",
    [{}, {"fit_intercept": False}, {"class_weight": "balanced"}, {"class_weight": {0: 3.0}}],
    ids=repr,
)
def test_options_mean_the_same_as_in_scikit_learn(options: dict[str, Any], solver: str) -> None:
    for name in ("iris", "breast_cancer"):
        X, y = SMALL[name]
        problem = Problem(StandardScaler().fit_transform(X)[20:], y[20:])
        model, theirs = fitted(problem, solver=solver, **options), peer(problem, **options)
        np.testing.assert_allclose(model.predict_proba(problem.X), theirs.predict_proba(problem.X), atol=1e-7)
        np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(model.intercept_, theirs.intercept_, atol=1e-6)
        np.testing.assert_allclose(model.decision_function(problem.X), theirs.decision_function(problem.X), atol=1e-5)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize("C", [1e4, np.inf])
def test_coefficients_of_all_classes_sum_to_0(C: float, solver: str) -> None:
    """Coefficients and intercepts sum to 0 over the classes, as in scikit-learn.

    The loss does not determine this sum, because adding a constant to the scores of all classes changes no loss.
    """
    problem = problems.synthetic(500, 6, 4, dtype=np.float64)
    model, theirs = fitted(problem, C=C, solver=solver, tol=1e-9), peer(problem, C=C)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, theirs.intercept_, atol=1e-6)
    lasso = fitted(problem, l1_ratio=1.0, tol=1e-9)
    for sums in (model.coef_.sum(axis=0), model.intercept_.sum(), lasso.intercept_.sum()):
        np.testing.assert_allclose(sums, 0, atol=1e-12)


def test_weights_are_repetitions() -> None:
    X, y = SMALL["iris"]
    times = np.random.default_rng(0).integers(0, 4, len(y))
    weighed = SoftmaxRegression(**PRECISE).fit(X, y, sample_weight=times)
    repeated = SoftmaxRegression(**PRECISE).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighed.coef_, repeated.coef_, rtol=1e-6, atol=1e-8)


def test_missing_class_in_the_training_rows() -> None:
    X, y = SMALL["iris"]
    model = fitted(Problem(X[y != 1], y[y != 1]))
    assert model.classes_.tolist() == [0, 2]
    assert model.predict_proba(X).shape == (150, 2)
    scores = [SoftmaxRegression().fit(X[a], y[a]).score(X[b], y[b]) for a, b in StratifiedKFold(5).split(X, y)]
    assert min(scores) > 0.9


def test_warm_start_continues() -> None:
    X, y = SMALL["digits"]
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = SoftmaxRegression(warm_start=True, max_iter=5, tol=1e-6).fit(X, y)
    first = model.objective_
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X, y)
    assert model.objective_ < first
    model.set_params(max_iter=500).fit(X, y)
    assert model.fit(X, y).n_iter_[0] <= 1
    assert model.fit(X[y < 7], y[y < 7]).coef_.shape == (7, 64)


def test_fits_have_the_same_bits() -> None:
    problem = problems.synthetic(3000, 50, 6)
    models = [SoftmaxRegression().fit(*problem) for _ in range(2)]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    for model in (
        models[0],
        classify.LinearDiscriminant().fit(*problem),
        classify.QuadraticDiscriminant().fit(*problem),
    ):
        whole = model.predict_proba(problem.X)
        for part in (slice(7), slice(100, 101), slice(5, 900, 3)):
            assert np.array_equal(whole[part], model.predict_proba(problem.X[part]))


def test_sparse_fits_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads do not change a fit to sparse rows. The prediction of a row does not depend on the other rows."""
    monkeypatch.setattr("softargmax.classify.sparse_products.SMALL", 0)
    X, y = problems.words(300, 3000, 5)
    whole = SoftmaxRegression().fit(X, y)
    try:
        for threads in (1, 2, 5):
            softargmax.set_num_threads(threads)
            assert np.array_equal(SoftmaxRegression().fit(X, y).coef_, whole.coef_)
            assert np.array_equal(whole.predict_proba(X[5:90:3]), whole.predict_proba(X)[5:90:3])
    finally:
        softargmax.set_num_threads(0)


def test_products_of_sparse_rows_are_those_of_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are equal also for rows without entries, one row with most of the entries, and more parts than rows."""
    monkeypatch.setattr("softargmax.classify.sparse_products.SMALL", 0)
    rng = np.random.default_rng(0)
    dense = (rng.random((50, 40)) < 0.1) * rng.standard_normal((50, 40))
    dense[[0, 7, 8, 49]] = 0
    dense[20] = 1
    table = rng.standard_normal((40, 3))
    for x in (dense, dense[:3], dense[20:21], dense[:0], np.zeros((5, 40))):
        rows, found = sparse.csr_array(x), np.ones((len(x), 3))
        add_product(rows, table.copy(order="F"), found)
        assert np.array_equal(found, 1 + rows @ table)


@pytest.mark.slow
def test_scores_beyond_the_dtype_raise() -> None:
    X, y = SMALL["iris"]
    for kind, scale in ((np.float64, 1e160), (np.float32, 1e30)):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="within the range of float"):
            SoftmaxRegression().fit((X * scale).astype(kind), y)
    whole = fitted(SMALL["iris"]).coef_
    weighed = SoftmaxRegression(C=1e60, **PRECISE).fit(X, y, sample_weight=np.full(len(y), 1e-60))
    np.testing.assert_allclose(weighed.coef_, whole, rtol=1e-6)
    narrow = SoftmaxRegression(C=1e-39, tol=1e-6).fit(X.astype(np.float32), y, sample_weight=np.full(len(y), 1e39))
    np.testing.assert_allclose(narrow.coef_, whole, rtol=1e-2, atol=1e-2)


def test_stalled_fit_warns() -> None:
    """A descent that stalls far above tol warns.

    On float32 rows far from 0 with an l1 penalty, some descents stall. The last bits of NumPy's sums decide
    which descents stall. These bits differ between instruction sets.
    """
    X, y = SMALL["breast_cancer"]
    far, ratios, options = X + 1000, (0.1, 0.3, 0.5, 0.7, 0.9), {"max_iter": 5000, "tol": 1e-8}
    with pytest.warns(ConvergenceWarning, match="the loss decreases no further in float32"):
        fits = {r: SoftmaxRegression(l1_ratio=r, **options).fit(far.astype(np.float32), y) for r in ratios}
    for r, model in fits.items():
        assert model.objective_ == pytest.approx(objective(model, Problem(far, y), r), rel=1e-3)


def test_newton_works_with_many_features() -> None:
    X = sparse.random_array((60, 30_000), density=0.001, format="csr", rng=np.random.default_rng(0))
    models = [
        SoftmaxRegression(solver=s, tol=1e-8, max_iter=500).fit(X, np.arange(60) % 3) for s in ("newton-cg", "lbfgs")
    ]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-5)


def test_confident_rows_stay_accurate() -> None:
    model = SoftmaxRegression(C=1e4, tol=1e-8, max_iter=1000).fit([[-1.0], [1.0]], [0, 1])
    score = model.decision_function([[50.0]])[0]
    assert score > 100
    assert model.predict_log_proba([[50.0]])[0, 1] == pytest.approx(-np.exp(-score), rel=1e-12)
    assert model.predict_proba([[50.0]])[0, 0] == pytest.approx(np.exp(-score), rel=1e-12)
