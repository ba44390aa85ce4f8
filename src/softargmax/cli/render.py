"""Output of results: bars and tables on a terminal, plain columns in a pipe, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from softargmax.cli import scores_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

EIGHTHS = " ▏▎▍▌▋▊▉█"
MOST_ROWS = 32


def console(*, stderr: bool = False) -> Console:
    """Return a new rich console for the current sys.stdout or sys.stderr."""
    return Console(stderr=stderr, highlight=False)


def as_json(value: Any) -> str:
    """Return strict JSON: infinities and NaN become the strings "inf", "-inf", "nan"."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert arrays and NumPy numbers to lists and numbers that JSON can represent.

    >>> plain({"p": np.array([0.5, -np.inf])})
    {'p': [0.5, '-inf']}
    """
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        # Keep the type of the elements: a float32 0.1 is written as 0.1, but tolist() gives 0.10000000149011612.
        return [plain(part) for part in value] if value.ndim else plain(value[()])
    if isinstance(value, np.generic):
        value = float(str(value)) if isinstance(value, np.floating) else value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def bar(share: float, width: int = 32) -> Text:
    """Return a text bar for a number from 0 to 1. Its length is a multiple of an eighth of a character.

    >>> bar(0.5, 4).plain
    '██  '
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    return Text(("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width), style="cyan")


def figures(number: float) -> str:
    """Return a number with seven significant digits, the precision used in the documentation.

    >>> figures(0.0236405430), figures(1.0), figures(4.2e-18)
    ('0.02364054', '1', '4.2e-18')
    """
    return f"{number:.7g}"


def table(*columns: str, title: str | None = None) -> Table:
    """Return a table with a line under the header and right-aligned numbers."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    return made


def vector(values: Iterable[Any], results: Iterable[Any], shares: list[float], *, log: bool) -> None:
    """Print one row: scores, probabilities (or their logarithms) and bars."""
    if not sys.stdout.isatty():
        for value, result in zip(values, results, strict=True):
            print(f"{value!s}\t{result!s}")
        return
    shown = table("z", "log p" if log else "p")
    shown.columns[0].justify = "right"
    shown.add_column("")
    top = max(shares, default=1.0)
    for value, result, share in list(zip(values, results, shares, strict=True))[: MOST_ROWS * 2]:
        shown.add_row(figures(value), figures(result), bar(share / top if top > 0 else 0.0))
    out = console()
    out.print(shown)
    if len(shares) > MOST_ROWS * 2:
        out.print(f"[dim]and {len(shares) - MOST_ROWS * 2} more; -o FILE writes all of them[/]")


def results(
    scores: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any],
    shares: np.ndarray[Any, Any],
    *,
    log: bool = False,
    names: list[str] | None = None,
) -> None:
    """Print the result `found`, which has the shape of the scores.

    `shares` are the probabilities. If `log` is true, `found` contains their logarithms.

    On a terminal, one row is shown as numbers with bars, and several rows as a summary with one line per row. Long
    output is cut off. In a pipe, all numbers are printed.
    """
    if found.ndim <= 1:
        vector(np.atleast_1d(scores), np.atleast_1d(found), np.atleast_1d(shares).tolist(), log=log)
    elif sys.stdout.isatty():
        matrix(found, shares)
    else:
        sys.stdout.writelines(scores_file.text_of(found, "\t", names))


def matrix(results: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> None:
    """Print the arg max, the largest probability and the perplexity of each row."""
    shape = math.prod(shares.shape[:-1]), shares.shape[-1]
    flat, rows = shares.reshape(shape), results.reshape(shape)
    shown = table("row", "arg max", "max p", "perplexity", title=f"{flat.shape[0]} rows of {flat.shape[1]}")
    shown.add_column("")
    for index, row in enumerate(flat[:MOST_ROWS]):
        if not row.size:
            shown.add_row(str(index))
            continue
        best = int(np.argmax(row))
        inside = row[row > 0].astype(float)
        perplexity = math.exp(-float(np.sum(inside * np.log(inside))))
        shown.add_row(str(index), str(best), figures(rows[index, best]), f"{perplexity:.4g}", bar(float(row[best])))
    out = console()
    out.print(shown)
    if len(flat) > MOST_ROWS:
        out.print(f"[dim]and {len(flat) - MOST_ROWS} more rows; -o FILE writes all of them[/]")


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error, unless `quiet` is true or standard error is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
