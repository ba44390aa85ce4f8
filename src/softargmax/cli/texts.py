"""Text files of tables, for every command alike: bytes, what separates cells, whether there is a header, columns."""

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

from softargmax.cli import values
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
    """Read a file, or standard input for ``-``, whole, and unpack it if it is in gzip's format."""
    name = STDIN if path == "-" else path
    if path == "-" and sys.stdin is None:  # as Python has it where the file descriptor was closed
        raise FailedRunError(f"{STDIN} is closed; give it something to read, numbers, or one file")
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if data.startswith(GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FailedRunError(f"{name} is not a sound gzip file: {error}") from error
    for start, what in NO_TEXT.items():
        if data.startswith(start):
            raise FailedRunError(f"{name} is {what}; {SAVE}")
    return data


def separator(line: str, kind: str) -> str | None:
    """Return the separator of a line's cells: the most frequent of comma, semicolon and tab; None for spaces.

    A comma between digits is a decimal one beside semicolons or tabs; of a .csv file without any it separates.

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
    """Write a cell's number with a point: between semicolons or tabs it may have a decimal comma."""
    return cell.replace(",", ".") if mark in (";", "\t") else cell


def is_header(cells: Sequence[str], mark: str | None, known: Iterable[str] = ()) -> bool:
    """Tell whether the first row is a header: none of its cells is a number, or one is a name that is known.

    >>> is_header(["id", "score"], ","), is_header(["id", "2"], ","), is_header(["0", "kind"], ",", ["kind"])
    (True, False, True)
    """
    words = [cell for cell in cells if not values.is_number(plain(cell, mark))]
    return len(words) == len(cells) or not set(words).isdisjoint(known)


def first_cells(text: str, mark: str | None) -> list[str]:
    """Give the cells of the first row that holds something."""
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    try:
        return next(csv.reader(lines, delimiter=mark), []) if mark else next(lines, "").split()
    except csv.Error:  # told where all rows are read
        return []


def column(word: str, names: Sequence[str], option: str, source: str) -> int:
    """Find a column by its name, or by its number, from 1 on."""
    if word in names:
        return list(names).index(word)
    if word.isdecimal() and 1 <= int(word) <= len(names):
        return int(word) - 1
    raise FailedRunError(f"{option} {shlex.quote(word)}: {source} has no such column{near(word, names)}")


def columns(text: str | None, names: Sequence[str], source: str) -> list[int]:
    """Read ``--columns``: names or numbers with commas between, in the order wanted; all without it."""
    if text is None:
        return list(range(len(names)))
    words = [text] if text in names else [word.strip() for word in text.split(",")]
    return [column(word, names, "--columns", source) for word in words]


def near(word: str, known: Sequence[str]) -> str:
    """Name what may be meant."""
    folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), folded, n=1)
    return (
        f"; {folded[found[0]]!r} is the nearest"
        if found
        else f"; they are {', '.join(map(repr, known[:8]))}{', ..' * (len(known) > 8)}"
    )
