"""``softargmax fit``: learn to tell the classes in a column of a CSV file from its other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from softargmax.cli import show
from softargmax.cli.classify import columns, models
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as

if TYPE_CHECKING:
    from numpy.typing import NDArray

Source = Annotated[str, typer.Argument(help="A CSV file with a head, or - for standard input.", metavar="DATA")]
Target = Annotated[str, typer.Option("--target", "-t", help="The column of classes.")]
Name = Annotated[str, typer.Option("--model", "-m", help=f"{', '.join(models.MODELS)}.")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Where the model is kept.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="A column to leave out (may be repeated).")]
Strength = Annotated[float | None, typer.Option("--C", help="softmax: what losses count beside the penalty (1).")]
Ratio = Annotated[
    float | None,
    typer.Option("--l1-ratio", min=0, max=1, help="softmax: how much of the penalty is on absolute values."),
]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Find a temperature on rows that were not learned from.")]
Folds = Annotated[int, typer.Option("--folds", min=2, help="Parts of the cross-validation.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the parts.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command(  # noqa: PLR0913 one for each option
    source: Source,
    *,
    target: Target,
    model: Name = "softmax",
    output: Output = None,
    drop: Drop = None,
    C: Strength = None,
    l1_ratio: Ratio = None,
    calibrate: Calibrate = False,
    folds: Folds = 5,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn to tell the classes in one column of a CSV file from its other columns."""
    if model not in models.MODELS:
        raise WrongUseError(f"--model {model}: it may be {', '.join(models.MODELS)}")
    if C is not None and not C > 0:
        raise WrongUseError(f"--C {C:g}: it may be above 0; inf: no penalty")
    if model != "softmax" and (C is not None or l1_ratio is not None):
        raise WrongUseError(f"--C, --l1-ratio: {model} has no penalty; they may be given with --model softmax")
    columns.ready()
    models.check_output(output, source)
    given = columns.Source(source)
    chosen, table = columns.learned(given, target, drop or [])
    y = classes_of(table, target, given.name, folds)
    X = chosen.matrix(table, given.name)
    options: dict[str, Any] = {"C": 1.0 if C is None else C, "l1_ratio": l1_ratio or 0.0}
    estimator = models.estimator_of(model, options, calibrate=calibrate)
    with refused_as(FailedRunError, f"{given.name}: "):
        report = validated(estimator, X, y, folds, seed)
        estimator.fit(X, y)
    if output is not None:
        models.save(output, models.Model(target, chosen, estimator))
    told = {
        "rows": len(y), "columns": len(chosen.names), "features": chosen.width, "classes": np.unique(y),
        "model": model, "folds": folds, **report, "output": output,
    }  # fmt: skip
    if json:
        print(show.as_json(told))
    else:
        printed(told)


def classes_of(table: Any, target: str, source: str, folds: int) -> NDArray[Any]:
    """Give the column of classes as words, some of each."""
    y = columns.words_of(table, target, source).astype(str)
    if all(map(columns.as_number, y)) and any(float(word) % 1 for word in y):
        raise FailedRunError(f"{source}: column {target!r} holds numbers with fractions; classes are words or integers")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise FailedRunError(
            f"{source}: column {target!r}: every row has class {str(classes[0])!r}; there may be two or more"
        )
    if counts.min() < folds:
        rare, few = str(classes[counts.argmin()]), counts.min()
        raise FailedRunError(
            f"{source}: column {target!r}: class {rare!r} has {few} of {len(y)} rows; it may have --folds, {folds}"
        )
    if target in models.heads(classes):
        raise FailedRunError(f"{source}: column {target!r} has the name of a class's probability; it may have another")
    return y


def validated(estimator: Any, X: NDArray[Any], y: NDArray[Any], folds: int, seed: int) -> dict[str, Any]:
    """Say how good the estimator is on rows that it has not seen, and how good the shares of the classes are."""
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    from softargmax.classify import calibration_report

    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    p = cross_val_predict(clone(estimator), X, y, cv=parts, method="predict_proba")
    found = calibration_report(y, p)
    _, counts = np.unique(y, return_counts=True)
    share = counts / len(y)
    return {
        "accuracy": found.accuracy,
        "accuracy_error": float(np.sqrt(found.accuracy * (1 - found.accuracy) / len(y))),
        "log_loss": found.log_loss,
        "calibration_error": found.ece,
        "calibration_interval": list(found.ece_interval),
        "shares": {"accuracy": float(share.max()), "log_loss": float(-(share * np.log(share)).sum())},
    }


def printed(told: dict[str, Any]) -> None:
    """Print what was learned, and how good it is."""
    out = show.console()
    out.print(
        f"{told['rows']:,} rows, {told['columns']} columns ({told['features']} features), "
        f"{len(told['classes'])} classes: {escape(', '.join(map(str, told['classes'][:8])))}"
        + (", .." if len(told["classes"]) > 8 else "")
    )
    low, high = told["calibration_interval"]
    title = f"of rows that were not learned from ({told['folds']} parts, each by the others)"
    shown = show.table("", "accuracy", "log-loss", "calibration error", title=title)
    shares = told["shares"]
    shown.add_row("shares of the classes", f"{shares['accuracy']:.1%}", f"{shares['log_loss']:.4f}", "")
    shown.add_row(
        told["model"],
        f"{told['accuracy']:.1%} ± {told['accuracy_error']:.1%}",
        f"{told['log_loss']:.4f}",
        f"{told['calibration_error']:.3f} ({low:.3f} to {high:.3f})",
    )
    out.print(shown)
    kept = f"kept in {escape(told['output'])}" if told["output"] else "not kept: -o MODEL keeps it"
    out.print(f"[dim]fitted to all rows, {kept}[/]")
