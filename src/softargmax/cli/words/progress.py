"""A progress bar on standard error during training."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from softargmax.cli import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on a terminal. Yield a function that sets the finished share (0 to 1) and a short text."""
    columns = (
        TextColumn("{task.description:12}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    out = render.console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task(what, total=1.0, text="")
        yield lambda share, text: shown.update(task, completed=share, text=text)
