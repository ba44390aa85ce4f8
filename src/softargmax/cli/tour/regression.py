"""Softmax regression on the handwritten digits: SciPy's L-BFGS minimises cross_entropy_and_gradient."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax
from softargmax.cli import render
from softargmax.cli.tour.digit_scores import split_digits

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    Array = np.ndarray[Any, Any]

PENALTY = 0.5  # factor of |W|^2, equivalent to C = 1 in scikit-learn


def run(out: Console | None, _folder: Path) -> dict[str, Any]:
    """Fit on two thirds of the images, and compare with scikit-learn's LogisticRegression on the other images."""
    parts = split_digits(out)
    if parts is None:
        return {"ok": True, "skipped": "scikit-learn is not installed"}
    train, test, train_labels, test_labels = parts
    import sklearn.linear_model

    train, test = train / 16, test / 16
    began = time.perf_counter()
    w, b, steps = fit(train, train_labels)
    ours = {**quality(test @ w.T + b, test_labels), "seconds": time.perf_counter() - began, "steps": steps}
    began = time.perf_counter()
    model = sklearn.linear_model.LogisticRegression(C=1.0, tol=1e-6, max_iter=1000).fit(train, train_labels)
    theirs = {**quality(model.decision_function(test), test_labels), "seconds": time.perf_counter() - began}
    if out is not None:
        shown = render.table("trained by", "accuracy", "log-loss", "seconds")
        for name, found in (("cross_entropy_and_gradient, L-BFGS", ours), ("scikit-learn", theirs)):
            shown.add_row(name, f"{found['accuracy']:.1%}", f"{found['loss']:.4f}", f"{found['seconds']:.2f}")
        out.print(shown)
        out.print("[dim]Both maximise the same penalised likelihood, so the classifiers agree.[/]")
    same = abs(ours["loss"] - theirs["loss"]) < 1e-3 and abs(ours["accuracy"] - theirs["accuracy"]) < 0.005
    return {"ok": bool(same and ours["accuracy"] > 0.9), "ours": ours, "scikit-learn": theirs}


def fit(images: Array, labels: Array) -> tuple[Array, Array, int]:
    """Minimise the sum of the losses plus PENALTY |W|^2. Return W (classes, pixels), b, and the number of steps."""
    import scipy.optimize

    classes, size = int(labels.max()) + 1, images.shape[1]

    def objective(x: Array) -> tuple[float, Array]:
        w, b = x[: classes * size].reshape(classes, size), x[classes * size :]
        loss, dz = softargmax.cross_entropy_and_gradient(images @ w.T + b, labels, reduction="sum")
        dw = dz.T @ images + 2 * PENALTY * w
        return float(loss) + PENALTY * float(np.vdot(w, w)), np.concatenate([dw.ravel(), dz.sum(axis=0)])

    start = np.zeros(classes * (size + 1))
    found = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "gtol": 1e-4}
    )
    return found.x[: classes * size].reshape(classes, size), found.x[classes * size :], int(found.nit)


def quality(scores: Array, labels: Array) -> dict[str, float]:
    """Return accuracy and log-loss."""
    accuracy = np.mean(scores.argmax(axis=1) == labels)
    return {"accuracy": float(accuracy), "loss": float(softargmax.cross_entropy(scores, labels))}
