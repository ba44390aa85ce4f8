"""Time fits of softmax regression against scikit-learn's, with the same tolerance, and measure their memory.

The fit of a conditional logit is timed against statsmodels'.

    python -m bench.classify                all cases, about 6 minutes on 2 cores; writes bench/results/classify.json
    python -m bench.classify digits         only the cases whose names contain these words; writes nothing

Both sides minimise the mean loss plus a penalty, with C = 1. They stop after 2000 steps, or earlier if no derivative of
this objective is above tol, which is 1e-4 by default. On the digits with tol 1e-6, scikit-learn takes all 2000 steps.
On the sparse rows scikit-learn's fit ends at a fifth of tol. There our tol is 5e-5, so that we reach its objective.
For each fit, the JSON file has the objective in float64, the largest derivative, and the memory: the peak of a process
that fits once, minus the memory before the fit. The exit code is 1 if a target is missed, or if our objective is above
scikit-learn's by more than a relative 1e-6.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from bench.peak import measured
from bench.promises import Promise, main
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from statsmodels.discrete import conditional_models

from softargmax.classify import ConditionalLogit, SoftmaxRegression
from softargmax.loss import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 2000
SIDES = {"softargmax": SoftmaxRegression, "sklearn": LogisticRegression}
CASES: dict[str, tuple[tuple[int, int, int], str, float, dict[str, Any]]] = {
    "20000 x 784, 10 classes": ((20_000, 784, 10), "float32", 1.5, {}),
    "50000 x 64, 1000 classes": ((50_000, 64, 1000), "float32", 3.0, {}),
    "20000 x 784, 10 classes, float64": ((20_000, 784, 10), "float64", 0.0, {}),
    "10000 x 100000 sparse, 20 classes": ((10_000, 100_000, 20), "sparse", 1.05, {}),
    "digits": ((0, 0, 0), "float64", 0.0, {}),
    "digits, tol 1e-6": ((0, 0, 0), "float64", 0.0, {"tol": 1e-6}),
}
# Our options for a case, if they differ from scikit-learn's.
OURS: dict[str, dict[str, Any]] = {"10000 x 100000 sparse, 20 classes": {"tol": 5e-5}}


@cache
def data(case: str) -> tuple[Any, Any]:
    """Return rows and classes: the digits, or random rows with classes drawn from softmax of linear scores."""
    (n, features, classes), dtype, _, _ = CASES[case]
    if not n:
        return load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    if dtype == "sparse":  # like a corpus with 150 words per text
        words = sparse.random_array((n, features), density=150 / features, format="csr", rng=rng)
        z = words @ rng.standard_normal((features, classes))
        return words, (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    X = rng.standard_normal((n, features), dtype=np.float32)
    w = rng.standard_normal((features, classes), dtype=np.float32) * np.float32(2 / np.sqrt(features))
    y = np.concatenate([(z + rng.gumbel(size=z.shape)).argmax(axis=1) for z in (x @ w for x in np.split(X, 20))])
    return X.astype(dtype), y


def fit(side: str, case: str) -> Any:
    """Return the model of a side, fitted once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = CASES[case][3] | (OURS.get(case, {}) if side == "softargmax" else {})
        return SIDES[side](max_iter=STEPS, **options).fit(*data(case))


def promises() -> Iterator[Promise]:
    """Yield every case."""
    for case, (shape, _, target, _) in CASES.items():
        sides = {side: (lambda side=side, case=case: fit(side, case)) for side in SIDES}
        yield Promise(case, sides, {"sklearn": target} if target else {}, rounds=5 if shape[0] else 15)
        data.cache_clear()
    yield choices()


def choices() -> Promise:
    """Return the fit of a conditional logit: choices among 50 alternatives with 6 features."""
    choosers, alternatives = 2000, 50
    rng = np.random.default_rng(0)
    X = rng.standard_normal((choosers * alternatives, 6))
    utility = (X @ np.linspace(-1, 1, 6) + rng.gumbel(size=len(X))).reshape(choosers, alternatives)
    y = (utility == utility.max(axis=1, keepdims=True)).ravel()
    owner = np.repeat(np.arange(choosers), alternatives)
    sides = {
        "softargmax": lambda: ConditionalLogit().fit(X, y, owner),
        "statsmodels": lambda: conditional_models.ConditionalLogit(y.astype(float), X, groups=owner).fit(disp=0),
    }
    return Promise(f"conditional logit, {choosers} choosers x {alternatives}", sides, {"statsmodels": 10.0}, rounds=3)


def reached(side: str, case: str) -> dict[str, float]:
    """Fit once more, and return the objective, the largest derivative and the number of steps."""
    X, y = data(case)
    model = fit(side, case)
    w = model.coef_.astype(np.float64)
    loss, gradient = 0.0, np.zeros((w.shape[0], w.shape[1] + 1))
    for rows in np.array_split(np.arange(len(y)), 20):
        x = X[rows].astype(np.float64)
        z = x @ w.T + model.intercept_
        loss += float(cross_entropy(z, y[rows], reduction="sum"))
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), y[rows]] -= 1
        gradient[:, :-1] += (x.T @ p).T
        gradient[:, -1] += p.sum(axis=0)
    gradient[:, :-1] += w
    return {
        "objective": (loss + 0.5 * float(np.square(w).sum())) / len(y),
        "derivative": float(np.abs(gradient).max() / len(y)),
        "steps": int(model.n_iter_[0]),
    }


MEMORY = """
import sys
import joblib
from bench import classify
from bench.peak import peak_of
side, case, path = sys.argv[1:]
data = joblib.load(path)
classify.data = lambda case: data
before, peak, _ = peak_of(lambda: classify.fit(side, case))
print((peak - before) / 2**20)
"""


def memory(side: str, case: str) -> float:
    """Fit in a new process. Return how much memory the fit takes at its peak in addition to the loaded data, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/data"
        joblib.dump(data(case), path)
        return float(measured(MEMORY, side, case, path))


def more() -> tuple[dict[str, Any], bool]:
    """Return results and memory of both sides' fits, and True if none of our objectives is above scikit-learn's."""
    found: dict[str, Any] = {}
    kept = True
    for case in CASES:
        found[case] = {}
        for side in SIDES:
            found[case][side] = {**reached(side, case), "memory_mib": memory(side, case)}
        ours, theirs = found[case]["softargmax"], found[case]["sklearn"]
        kept = kept and ours["objective"] <= theirs["objective"] * (1 + 1e-6)
        print(case, found[case], flush=True)
        data.cache_clear()
    return {"reached": found}, kept


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "classify", more))
