"""Scores of a real classifier: its probabilities, their quality, and the effect of temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

import softargmax
from softargmax.cli import plot, render
from softargmax.core.extras import install

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

SHOWN = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Train on two thirds of the images. Compute probabilities of the other images at several temperatures."""
    parts = split_digits(out)
    if parts is None:
        return {"ok": True, "skipped": "scikit-learn is not installed"}
    train, test, train_labels, test_labels = parts
    import sklearn.discriminant_analysis

    # Many pixels are always blank, so the sample covariance is singular without shrinkage.
    model = sklearn.discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    scores = model.fit(train, train_labels).decision_function(test)

    sweep = np.geomspace(0.125, 16, 57)
    loss = np.array([log_loss(scores, test_labels, T) for T in sweep])
    best = float(sweep[int(np.argmin(loss))])
    rows = [quality(scores, test_labels, T) for T in SHOWN]
    agrees = np.allclose(softargmax.softmax(scores), model.predict_proba(test), rtol=1e-12, atol=1e-15)
    same = len({row["accuracy"] for row in rows}) == 1
    sums = softargmax.softmax(scores.astype(np.float32)).sum(axis=1)
    picture = folder / "digits.png"
    draw(sweep, loss, best, str(picture))
    if out is not None:
        shown = render.table("T", "accuracy", "log-loss", "mean max p")
        for T, row in zip(SHOWN, rows, strict=True):
            shown.add_row(f"{T:g}", f"{row['accuracy']:.1%}", f"{row['loss']:.4f}", f"{row['confidence']:.1%}")
        out.print(f"{len(train) + len(test):,} images; trained on {len(train):,}, scored on {len(test):,}")
        out.print(shown)
        least = f"the log-loss is smallest at T = {best:.2f}"
        out.print(f"[dim]temperature never changes the arg max; {least}: {escape(str(picture))}[/]")
    ok = bool(agrees and same and rows[2]["accuracy"] > 0.9 and np.abs(sums - 1).max() < 1e-6)
    return {
        "ok": ok,
        "images": len(train) + len(test),
        "best_temperature": best,
        "sweep": dict(zip(SHOWN, rows, strict=True)),
    }


def split_digits(out: Console | None) -> list[Any] | None:
    """Return train and test images and labels. Without scikit-learn, print a message and return None."""
    try:
        import sklearn.datasets
        import sklearn.model_selection
    except ModuleNotFoundError:
        if out is not None:
            out.print(f"scikit-learn is not installed, so this stop is skipped: {escape(install('sklearn'))}")
        return None
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    parts: list[Any] = sklearn.model_selection.train_test_split(
        images, labels, test_size=1 / 3, random_state=0, stratify=labels
    )
    return parts


def log_loss(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], temperature: float) -> float:
    """Return the mean of -log p of the correct digit."""
    log_p = softargmax.log_softmax(scores, temperature=temperature)
    return -float(np.mean(log_p[np.arange(len(labels)), labels]))


def quality(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], temperature: float) -> dict[str, float]:
    """Return accuracy, log-loss and the mean of the largest probability."""
    p = softargmax.softmax(scores, temperature=temperature)
    return {
        "accuracy": float(np.mean(p.argmax(axis=1) == labels)),
        "loss": log_loss(scores, labels, temperature),
        "confidence": float(p.max(axis=1).mean()),
    }


def draw(sweep: np.ndarray[Any, Any], loss: np.ndarray[Any, Any], best: float, output: str) -> None:
    """Plot the log-loss against the temperature."""
    figure = plot.pyplot()(figsize=(6.4, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.plot(sweep, loss, color=plot.shades(3)[1], linewidth=2)
    panel.plot([best], [loss.min()], "o", color=plot.shades(3)[2])
    panel.annotate(f"T = {best:.2f}", (best, loss.min()), xytext=(0, 9), textcoords="offset points", ha="center")
    panel.set_xscale("log", base=2)
    panel.set_xticks([0.125, *SHOWN, 16], [f"{T:g}" for T in (0.125, *SHOWN, 16)])
    panel.set_xlabel("temperature T")
    panel.set_ylabel("log-loss")
    panel.set_title("Handwritten digits: linear discriminant scores", loc="left", fontsize=11)
    plot.tidy(panel)
    plot.save(figure, output)
