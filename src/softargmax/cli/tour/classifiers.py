"""Six softmax classifiers and scikit-learn's LogisticRegression on the digits, before and after temperature scaling."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from softargmax.cli import plot, render
from softargmax.cli.tour.digit_scores import split_digits

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

PEER = "(LogisticRegression)"
DRAWN = "BernoulliNaiveBayes"


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Fit the classifiers on a third of the images, fit temperatures on another third, evaluate on the last third."""
    parts = split_digits(out)
    if parts is None:
        return {"ok": True, "skipped": "scikit-learn is not installed"}
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import train_test_split

    from softargmax.classify import TemperatureScaling, calibration_report

    known, test, known_labels, test_labels = parts
    known, test = known / 16, test / 16
    train, rest, train_labels, rest_labels = train_test_split(
        known, known_labels, test_size=0.5, random_state=0, stratify=known_labels
    )
    records: list[dict[str, Any]] = []
    drawn = None
    for name, model in models().items():
        began = time.perf_counter()
        model.fit(train, train_labels)
        seconds = time.perf_counter() - began
        calibrated = TemperatureScaling(FrozenEstimator(model)).fit(rest, rest_labels)
        before, after = (calibration_report(test_labels, m.predict_proba(test)) for m in (model, calibrated))
        drawn = before if name == DRAWN else drawn
        records.append({
            "name": name, "accuracy": before.accuracy, "log_loss": before.log_loss, "log_loss_after": after.log_loss,
            "error": before.ece, "error_after": after.ece, "temperature": calibrated.temperature_, "seconds": seconds,
        })  # fmt: skip
    picture = folder / "reliability.png"
    if drawn is not None:
        plot.save(drawn.figure(title=DRAWN), str(picture))
    if out is not None:
        printed(out, records, picture)
    ours, peer = records[0], records[-1]
    same = abs(ours["log_loss"] - peer["log_loss"]) < 1e-3 and ours["accuracy"] > 0.9
    better = sum(record["log_loss_after"] < record["log_loss"] for record in records) > len(records) // 2
    return {"ok": bool(same and better), "models": records, "picture": str(picture)}


def models() -> dict[str, Any]:
    """Return the six classifiers and scikit-learn's LogisticRegression, by name."""
    from sklearn.linear_model import LogisticRegression

    from softargmax import classify

    made = [
        classify.SoftmaxRegression(tol=1e-5, max_iter=500),
        classify.LinearDiscriminant(shrinkage="auto"),
        classify.QuadraticDiscriminant(shrinkage=0.1),
        classify.GaussianNaiveBayes(var_smoothing=1e-2),
        classify.MultinomialNaiveBayes(),
        classify.BernoulliNaiveBayes(binarize=0.5),
    ]
    return {type(model).__name__: model for model in made} | {PEER: LogisticRegression(tol=1e-5, max_iter=3000)}


def printed(out: Console, records: list[dict[str, Any]], picture: Path) -> None:
    """Print one line per classifier."""
    shown = render.table("", "accuracy", "log-loss", "at T", "error", "at T", "T", "s")
    for record in records:
        numbers = (f"{record[key]:.3f}" for key in ("log_loss", "log_loss_after", "error", "error_after"))
        shown.add_row(
            record["name"],
            f"{record['accuracy']:.1%}",
            *numbers,
            f"{record['temperature']:.1f}",
            f"{record['seconds']:.2f}",
        )
    out.print(shown)
    out.print(
        "[dim]error: calibration error. at T: after temperature scaling on other rows. In brackets: scikit-learn. "
        f"Reliability of naive Bayes: {escape(str(picture))}. For your own data: softargmax fit data.csv --target "
        "NAME[/]"
    )
