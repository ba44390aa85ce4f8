"""``softargmax fit``: train a classifier that predicts one column of a CSV file from the others, or a choice model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from softargmax.cli import render
from softargmax.cli.classify import choices, columns, cross_validation, csv_file, decimals, models
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as
from softargmax.cli.options import Header

if TYPE_CHECKING:
    from numpy.typing import NDArray

Data = Annotated[str, typer.Argument(help="A CSV file, or - for standard input.", metavar="DATA")]
Target = Annotated[str, typer.Option("--target", help="The column to predict, by name or number.")]
Name = Annotated[str, typer.Option("--model", "-m", help=f"{', '.join(models.MODELS)}.")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write the model to this file.")]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", help="A column to leave out, by name or number (may be repeated).")
]
Strength = Annotated[float | None, typer.Option("--C", help="softmax: weight of the losses against the penalty (1).")]
Ratio = Annotated[
    float | None,
    typer.Option("--l1-ratio", min=0, max=1, help="softmax: share of the L1 penalty, from 0 to 1."),
]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Fit a temperature that calibrates the probabilities.")]
Folds = Annotated[int, typer.Option("--folds", min=2, help="Number of cross-validation folds.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the folds.")]
Choosers = Annotated[
    str | None,
    typer.Option(
        "--choices",
        metavar="COLUMN",
        help="Fit a model of choices: a row per alternative of a chooser, who is named in this column. The target is 1 "
        "for the chosen row, or a rank.",
    ),
]
Alternatives = Annotated[
    str | None, typer.Option("--alternatives", metavar="COLUMN", help="With --choices: the label of the alternative.")
]
Offset = Annotated[
    str | None, typer.Option("--offset", metavar="COLUMN", help="With --choices: a known part of the row's score.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command(  # noqa: PLR0913 one argument per option
    data: Data,
    *,
    target: Target,
    model: Name = "softmax",
    output: Output = None,
    drop: Drop = None,
    header: Header = None,
    C: Strength = None,
    l1_ratio: Ratio = None,
    calibrate: Calibrate = False,
    folds: Folds = 5,
    seed: Seed = 0,
    choices_of: Choosers = None,
    alternatives: Alternatives = None,
    offset: Offset = None,
    json: Json = False,
) -> None:
    """Train a classifier that predicts one column of a CSV file from the others, or a model of choices (--choices)."""
    if model not in models.MODELS:
        raise WrongUseError(f"--model {model}: expected one of {', '.join(models.MODELS)}")
    if C is not None and not C > 0:
        raise WrongUseError(f"--C {C:g}: expected a number above 0 (inf: no penalty)")
    if model != "softmax" and (C is not None or l1_ratio is not None):
        raise WrongUseError(f"--C, --l1-ratio: expected with --model softmax only, got --model {model}")
    if choices_of is None and (alternatives, offset) != (None, None):
        raise WrongUseError("--alternatives, --offset: expected with --choices only")
    others = (
        model != "softmax" or output or calibrate or C is not None or l1_ratio is not None or (folds, seed) != (5, 0)
    )
    if choices_of is not None and others:
        raise WrongUseError(
            "--choices cannot be combined with --model, --output, --calibrate, --C, --l1-ratio, --folds or --seed"
        )
    csv_file.ready()
    models.check_output(output, data)
    rows_file = csv_file.Source(data, header=header, known=[target])
    if choices_of is not None:
        choices.command(rows_file, choices.Roles(target, choices_of, alternatives, offset), drop or [], json=json)
        return
    chosen, table, target = columns.learned(rows_file, target, drop or [])
    y = classes_of(table, target, rows_file, folds)
    X = chosen.matrix(table, rows_file.name)
    options: dict[str, Any] = {"C": 1.0 if C is None else C, "l1_ratio": l1_ratio or 0.0}
    estimator = models.estimator_of(model, options, calibrate=calibrate)
    running = columns.running(chosen, table)
    with refused_as(FailedRunError, f"{rows_file.name}: "), cross_validation.collected_warnings() as warned:
        report = cross_validation.fitted(estimator, X, y, cross_validation.parts_of(folds, seed), chosen)
    if output is not None:
        models.save(output, models.Model(target, chosen, estimator))
    report = {
        "rows": len(y), "columns": len(chosen.names), "features": chosen.width, "classes": np.unique(y),
        "model": model, "folds": folds, **report, "warnings": [*running, *warned], "output": output,
    }  # fmt: skip
    if json:
        print(render.as_json(report))
    else:
        printed(report)


def classes_of(table: Any, target: str, rows_file: csv_file.Source, folds: int) -> NDArray[Any]:
    """Return the target column as text. Reject classes with fewer rows than folds."""
    where = f"{rows_file.name}: column {target!r}"
    y = columns.words_of(table, target, rows_file.name).astype(str)
    numbers = decimals.numbers_in(table[target], rows_file.mark, where)
    if numbers is not None and (np.floor(numbers.to_numpy()) != numbers.to_numpy()).any():
        raise FailedRunError(f"{where}: expected words or integers as classes, got fractions")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise FailedRunError(f"{where}: expected two classes or more, got {str(classes[0])!r} in every row")
    if counts.min() < folds:
        rare, few = str(classes[counts.argmin()]), counts.min()
        raise FailedRunError(
            f"{where}: expected {folds} rows or more of each class for --folds {folds}, got {few} of class {rare!r}"
        )
    if target in models.heads(classes):
        raise FailedRunError(
            f"{where}: expected a name other than those of the probability columns (p_CLASS); rename it"
        )
    return y


def printed(report: dict[str, Any]) -> None:
    """Print the report: the data, and the cross-validated quality."""
    out = render.console()
    out.print(
        f"{report['rows']:,} rows, {report['columns']} columns ({report['features']} features), "
        f"{len(report['classes'])} classes: {escape(', '.join(map(str, report['classes'][:8])))}"
        + (", .." if len(report["classes"]) > 8 else "")
    )
    low, high = report["calibration_interval"]
    title = f"{report['folds']}-fold cross-validation"
    shown = render.table("", "accuracy", "log-loss", "calibration error", title=title)
    shares = report["shares"]
    shown.add_row("class frequencies", f"{shares['accuracy']:.1%}", f"{shares['log_loss']:.4f}", "")
    shown.add_row(
        report["model"],
        f"{report['accuracy']:.1%} ± {report['accuracy_error']:.1%}",
        f"{report['log_loss']:.4f}",
        f"{report['calibration_error']:.3f} ({low:.3f} to {high:.3f})",
    )
    out.print(shown)
    out.print("[dim]The calibration error is biased upwards by noise; its interval is corrected for that.[/]")
    for line in report["warnings"]:
        out.print(f"[dim]warning: {escape(line)}[/]", soft_wrap=True)
    kept = f"saved to {escape(report['output'])}" if report["output"] else "not saved (use -o MODEL)"
    out.print(f"[dim]fitted to all rows, {kept}[/]")
