"""Read CSV files as tables of text. Errors name the row and the column."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from softargmax.cli import parse, texts
from softargmax.cli.errors import FailedRunError, refused_as
from softargmax.cli.texts import SAVE
from softargmax.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 120  # maximum number of characters shown of pyarrow's error message
EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
HEAD = 1 << 16  # maximum number of bytes of the first line
# Pattern of pyarrow's error message for a row with too few or too many cells. The message counts the header as row 1.
RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


class Source:
    """A CSV file, or standard input for ``-``.

    If `header` is None, the first row is a header if no cell is a number, or one cell is a name in `known`. Without a
    header, the column names are the column numbers.
    """

    def __init__(self, path: str, *, header: bool | None = None, known: Iterable[str] = ()) -> None:
        if path != "-":
            parse.check_source(path)
        self.name = texts.STDIN if path == "-" else path
        self._data = texts.read(path)
        text = self._data[:HEAD].decode("utf-8-sig", "replace")
        self.mark = texts.separator(next((line for line in text.splitlines() if line.strip()), ""), ".csv") or ","
        cells = texts.first_cells(text, self.mark)
        headed = texts.is_header(cells, self.mark, known) if header is None else header
        self._names = None if headed else [str(place + 1) for place in range(len(cells))]
        self.dates: set[str] = set()

    def table(self) -> Any:
        """Return the file as a pyarrow Table of text, and set `dates` to the names of columns with dates or times."""
        return self._table

    @cached_property
    def _table(self) -> Any:
        import pyarrow as pa

        if not self._data.strip():
            raise FailedRunError(f"{self.name}: expected a header and rows, got an empty file")
        guessed = self._parsed({})
        try:
            names = guessed.column_names
        except UnicodeDecodeError:
            raise FailedRunError(f"{self.name}: the header is not UTF-8; {SAVE}") from None
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            called = f"are called {min(twice)!r}" if min(twice) else "have no name"
            raise FailedRunError(f"{self.name}: expected distinct column names, got two columns that {called}")
        if not len(guessed):
            raise FailedRunError(f"{self.name}: expected at least one row, got only a header")
        self.dates = {field.name for field in guessed.schema if pa.types.is_temporal(field.type)}
        found = self._parsed(dict.fromkeys(names, pa.binary()))
        return pa.table({name: self._decoded(found[name], name) for name in names})

    def _parsed(self, kinds: dict[str, Any]) -> Any:
        """Parse the file in one thread, so that pyarrow's errors name the row. `kinds` maps columns to types."""
        import pyarrow as pa
        from pyarrow import csv

        marks = csv.ParseOptions(delimiter=self.mark, newlines_in_values=True)
        options = csv.ConvertOptions(
            null_values=EMPTY, strings_can_be_null=True, quoted_strings_can_be_null=False, column_types=kinds
        )
        try:
            return csv.read_csv(
                pa.BufferReader(self._data),
                csv.ReadOptions(use_threads=False, column_names=self._names),
                marks,
                convert_options=options,
            )
        except pa.ArrowInvalid as error:
            reason = "".join(c for c in str(error) if c.isprintable())[:LONGEST]
            ragged = RAGGED.search(reason)
            if ragged:
                row, expected, fields = map(int, ragged.groups())
                row, first = (row - 1, "header") if self._names is None else (row, "first row")
                reason = f"row {row} has {fields} {'fields' if fields > 1 else 'field'}, but the {first} has {expected}"
            raise FailedRunError(f"{self.name} cannot be read: {reason}") from error

    def _decoded(self, cells: Any, name: str) -> Any:
        """Return a column as text."""
        import pyarrow as pa

        try:
            return cells.cast("string")
        except pa.ArrowInvalid:
            row = next(row for row, cell in enumerate(cells.to_pylist(), 1) if not is_text(cell or b""))
            raise FailedRunError(f"{self.name}: column {name!r}, row {row}: not UTF-8; {SAVE}") from None


def ready() -> None:
    """Raise FailedRunError if a required package is missing."""
    with refused_as(FailedRunError):
        require("tables need", "csv", pyarrow="pyarrow", sklearn="scikit-learn", skops="skops")


def is_text(cell: bytes) -> bool:
    """True if the bytes of a cell are valid UTF-8."""
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True
