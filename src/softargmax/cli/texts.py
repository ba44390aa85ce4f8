"""Read text files as bytes, and detect their separator, header and columns."""

from __future__ import annotations

import csv
import difflib
import gzip
import re
import shlex
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from softargmax.cli import parse
from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STDIN = "standard input"
SAVE = "save it as CSV in UTF-8"
GZIP = b"\x1f\x8b"
NO_TEXT = {
    b"PK\x03\x04": "a workbook (.xlsx) or another zip archive",
    b"\xd0\xcf\x11\xe0": "an old workbook (.xls)",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
QUOTED = re.compile(r'"[^"]*"')
DECIMAL = re.compile(r"(?<=\d),(?=\d)")


def read(path: str) -> bytes:
    """Return the bytes of a file, or of standard input for ``-``. Gzip data are decompressed."""
    name = STDIN if path == "-" else path
    if path == "-" and sys.stdin is None:  # Python sets sys.stdin to None if it is closed
        raise FailedRunError(f"{STDIN} is closed; expected numbers or one file as arguments, or data on {STDIN}")
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if data.startswith(GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FailedRunError(f"{name} is not a valid gzip file: {error}") from error
    for start, what in NO_TEXT.items():
        if data.startswith(start):
            raise FailedRunError(f"{name} is {what}; {SAVE}")
    return data


def separator(line: str, kind: str) -> str | None:
    """Return the separator of a line: the most frequent of comma, semicolon and tab, or None for white space.

    `kind` is the extension of the file. In a .tsv file, the separator is always a tab. In a .csv file, it is a comma if
    the line contains none of the three. In a line with semicolons or tabs, a comma between digits is a decimal comma.

    >>> separator("1,5;2,5", ".csv"), separator("1 2", ".txt"), separator("a", ".csv"), separator('"a;b",c', ".csv")
    (';', None, ',', ',')
    """
    if kind == ".tsv":
        return "\t"
    line = QUOTED.sub("", line)
    if ";" in line or "\t" in line:
        line = DECIMAL.sub("", line)
    mark = max(",;\t", key=line.count)
    return mark if mark in line else "," if kind == ".csv" else None


def plain(cell: str, mark: str | None) -> str:
    """Return the cell with a decimal point instead of a decimal comma, if `mark` is a semicolon or tab."""
    return cell.replace(",", ".") if mark in (";", "\t") else cell


def is_header(cells: Sequence[str], mark: str | None, known: Iterable[str] = ()) -> bool:
    """True if the first row is a header: no cell is a number, or one cell is a known name.

    >>> is_header(["id", "score"], ","), is_header(["id", "2"], ","), is_header(["0", "kind"], ",", ["kind"])
    (True, False, True)
    """
    words = [cell for cell in cells if not parse.is_number(plain(cell, mark))]
    return len(words) == len(cells) or not set(words).isdisjoint(known)


def first_cells(text: str, mark: str | None) -> list[str]:
    """Return the cells of the first row that is not empty."""
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    try:
        return next(csv.reader(lines, delimiter=mark), []) if mark else next(lines, "").split()
    except csv.Error:  # the error is reported later, when all rows are read
        return []


def column(word: str, names: Sequence[str], option: str, source: str) -> int:
    """Return the index of a column, from its name or its number (from 1)."""
    if word in names:
        return list(names).index(word)
    if word.isdecimal() and 1 <= int(word) <= len(names):
        return int(word) - 1
    raise FailedRunError(f"{option} {shlex.quote(word)}: {source} has no such column{near(word, names)}")


def columns(text: str | None, names: Sequence[str], source: str) -> list[int]:
    """Parse ``--columns``: names or numbers separated by commas, in the order of the result. None means all columns."""
    if text is None:
        return list(range(len(names)))
    words = [text] if text in names else [word.strip() for word in text.split(",")]
    return [column(word, names, "--columns", source) for word in words]


def near(word: str, known: Sequence[str]) -> str:
    """Return a suggestion: the most similar known name, or a list of known names if none is similar."""
    folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), folded, n=1)
    return (
        f"; did you mean {folded[found[0]]!r}?"
        if found
        else f"; expected one of {', '.join(map(repr, known[:8]))}{', ..' * (len(known) > 8)}"
    )
