"""``softargmax predict``: classes and probabilities of the rows of a CSV file, by a model that `fit` has kept."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from softargmax import stream
from softargmax.cli import show
from softargmax.cli.classify import columns, models
from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

File = Annotated[str, typer.Argument(help="What `softargmax fit` has kept.", metavar="MODEL")]
Source = Annotated[str, typer.Argument(help="A CSV file with a head, or - for standard input.", metavar="DATA")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this CSV file.")]


def command(model: File, source: Source, output: Output = None) -> None:
    """Tell the classes of the rows of a CSV file, and their probabilities."""
    columns.ready()
    models.check_output(output, source, model)
    kept = models.load(model)
    given = columns.Source(source)
    table = kept.columns.read(given, kept.target)
    p = kept.estimator.predict_proba(kept.columns.matrix(table, given.name))
    if not np.isfinite(p).all():
        raise FailedRunError(f"{model} is damaged: its probabilities are no numbers")
    data = written(kept, p)
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data) if hasattr(sys.stdout, "buffer") else print(data.decode(), end="")
        return
    told = f"{len(p):,} rows: {escape(output)}[dim]{judged(kept, table, given.name, p)}[/]"
    with stream.whole_file(output) as file:
        file.write(data)
    show.console().print(told)


def written(kept: models.Model, p: NDArray[Any]) -> bytes:
    """Give the CSV: the class, and the probability of every class."""
    import pyarrow as pa
    from pyarrow import csv

    told: dict[str, Any] = {kept.target: kept.classes[p.argmax(axis=1)].astype(str)}
    told |= dict(zip(models.heads(kept.classes), p.T, strict=True))
    sink = io.BytesIO()
    csv.write_csv(pa.table(told), sink)
    return sink.getvalue()


def judged(kept: models.Model, table: Any, source: str, p: NDArray[Any]) -> str:
    """Say how often the model is right, if the file has the classes."""
    if kept.target not in table.column_names or table[kept.target].null_count:
        return ""
    y = columns.words_of(table, kept.target, source).astype(str)
    known = np.isin(y, kept.classes)
    if not known.all():
        raise FailedRunError(
            f"{source}: column {kept.target!r}, row {int((~known).argmax()) + 1}: {str(y[~known][0])!r} is no class "
            "that the model knows"
        )
    from softargmax.classify import calibration_report

    found = calibration_report(y, p, classes=kept.classes)
    return f", of which {found.accuracy:.1%} are right; log-loss {found.log_loss:.4f}"
