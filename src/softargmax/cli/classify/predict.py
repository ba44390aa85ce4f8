"""``softargmax predict``: classes and probabilities of the rows of a CSV file, by a model from `softargmax fit`."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from softargmax import stream
from softargmax.cli import render
from softargmax.cli.classify import cross_validation, csv_file, models
from softargmax.cli.errors import FailedRunError, refused_as
from softargmax.cli.options import Header

if TYPE_CHECKING:
    from numpy.typing import NDArray

File = Annotated[str, typer.Argument(help="A model file from `softargmax fit`.", metavar="MODEL")]
Data = Annotated[str, typer.Argument(help="A CSV file, or - for standard input.", metavar="DATA")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this CSV file.")]


def command(model: File, data: Data, output: Output = None, header: Header = None) -> None:
    """Predict the classes of the rows of a CSV file, and their probabilities."""
    csv_file.ready()
    models.check_output(output, data, model)
    with cross_validation.collected_warnings() as warned:  # models from other scikit-learn versions cause warnings
        kept = models.load(model)
        rows_file = csv_file.Source(data, header=header, known=kept.columns.names)
        table = kept.columns.read(rows_file)
        X = kept.columns.matrix(table, rows_file.name)
        with refused_as(FailedRunError, f"{rows_file.name}: "):
            p = kept.estimator.predict_proba(X)
    if not np.isfinite(p).all():
        raise FailedRunError(f"{model} is damaged: expected finite probabilities, got NaN or infinity")
    for line in warned:
        render.console(stderr=True).print(f"[dim]warning: {escape(line)}[/]", soft_wrap=True)
    csv_bytes = written(kept, p)
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(csv_bytes) if hasattr(sys.stdout, "buffer") else print(csv_bytes.decode(), end="")
        return
    remark = accuracy_line(kept, table, p)
    with stream.whole_file(output) as file:
        file.write(csv_bytes)
    render.console().print(f"{len(p):,} rows: {escape(output)}[dim]{remark}[/]", soft_wrap=True)


def written(kept: models.Model, p: NDArray[Any]) -> bytes:
    """Return the output as CSV: for each row the predicted class, and the probability of every class."""
    import pyarrow as pa
    from pyarrow import csv

    columns: dict[str, Any] = {kept.target: kept.classes[p.argmax(axis=1)].astype(str)}
    columns |= dict(zip(models.heads(kept.classes), p.T, strict=True))
    sink = io.BytesIO()
    csv.write_csv(pa.table(columns), sink)
    return sink.getvalue()


def accuracy_line(kept: models.Model, table: Any, p: NDArray[Any]) -> str:
    """Return text with the accuracy over the rows whose class is known, or "" if there are no such rows."""
    if kept.target not in table.column_names:
        return ""
    words, classes = table[kept.target].to_pylist(), set(kept.classes)
    known = [row for row, word in enumerate(words) if word in classes]
    if not known:
        return ""
    from softargmax.classify import calibration_report

    found = calibration_report(np.array(words)[known].astype(str), p[known], classes=kept.classes)
    which = "" if len(known) == len(words) else f" (of {len(known):,} rows with known classes)"
    return f"; accuracy {found.accuracy:.1%}, log-loss {found.log_loss:.4f}{which}"
