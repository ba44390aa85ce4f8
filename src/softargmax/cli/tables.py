"""Scores in text files: read with the line and column of what is wrong, written in figures that read back the same."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import stream
from softargmax.cli import values
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    Array = np.ndarray[Any, Any]

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": None}
STDIN = "standard input"
KINDS = ".npy, .csv, .tsv or .txt"


def kind_of(path: str) -> str:
    """Give the kind of file that a name asks for."""
    kind = Path(path).suffix.lower()
    if kind != ".npy" and kind not in DELIMITERS:
        raise WrongUseError(f"{path}: the name may end in {KINDS}")
    return kind


def read(path: str) -> Array:
    """Read a file, or standard input for ``-``, whole; a single column or a single row is a vector."""
    if path == "-":
        if sys.stdin is None:  # as Python has it where the file descriptor was closed
            raise FailedRunError(f"{STDIN} is closed; give it something to read, numbers, or one file")
        data = sys.stdin.buffer.read()
        if data.startswith(b"\x93NUMPY"):
            return npy_in(data, STDIN)
        text = decoded(data, STDIN)
        first = next((line for line in text.splitlines() if line.strip()), "")
        return parsed(text, STDIN, "," if "," in first else "\t" if "\t" in first else None)
    if not Path(path).exists():
        raise FailedRunError(f"{path}: no such file, and not a number")
    kind = kind_of(path)
    return parsed(decoded(Path(path).read_bytes(), path), path, DELIMITERS[kind])


def read_any(path: str) -> Array:
    """Read a .npy file or a text file, whole."""
    if path.lower().endswith(".npy"):
        with refused_as(FailedRunError):
            stream.logsumexp(path)  # its checks: header, length, dtype
        return np.asarray(np.load(path, allow_pickle=False))
    return read(path)


def npy_in(data: bytes, name: str) -> Array:
    """Read the bytes of a .npy file."""
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (
        ValueError,
        TypeError,
        SyntaxError,
        OverflowError,
        RecursionError,
        MemoryError,
        EOFError,
        TokenError,
    ) as error:
        raise FailedRunError(f"{name} is not a sound .npy file: {str(error)[:200]}") from error
    with refused_as(FailedRunError, f"{name}: "):
        stream.logsumexp(np.zeros([1] * array.ndim, array.dtype), axis=None)  # its check of the dtype
    return array


def decoded(data: bytes, name: str) -> str:
    """Decode UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FailedRunError(f"{name}, line {line}: byte {error.start} is not UTF-8 text") from None


def rows_in(text: str, name: str, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Give each line that holds something, with its number; lines that begin with # are comments.

    Without a delimiter, what follows a # on a line of numbers is a comment too.
    """
    lines = text.splitlines(keepends=True)
    if delimiter is None:
        rows = ((line, text.partition("#")[0].split()) for line, text in enumerate(lines, 1))
        yield from ((line, cells) for line, cells in rows if cells)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1  # where the row begins: quoted cells may run over several lines
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise FailedRunError(f"{name}, line {line}: {error}") from None


def parsed(text: str, name: str, delimiter: str | None) -> Array:
    """Read a table of numbers; FailedRunError names the line and the column of the first thing that is none."""
    table: list[list[float]] = []
    for line, cells in rows_in(text, name, delimiter):
        try:
            table.append([values.number(cell) for cell in cells])
        except (ValueError, WrongUseError):
            raise FailedRunError(_wrong_cell(name, line, cells)) from None
        if len(cells) != len(table[0]):
            raise FailedRunError(
                f"{name}, line {line}: {len(cells)} values, where the lines above have {len(table[0])}"
            )
    if not table:
        raise FailedRunError(f"{name}: no numbers in it")
    scores = np.array(table)
    return scores.reshape(-1) if 1 in scores.shape else scores


def _wrong_cell(name: str, line: int, cells: list[str]) -> str:
    for column, cell in enumerate(cells, 1):
        try:
            values.number(cell)
        except WrongUseError as error:
            return f"{name}, line {line}, column {column}: {error}"
        except ValueError:
            what = f"{cell.strip()[:40]!r} is not a number" if cell.strip() else "empty"
            return f"{name}, line {line}, column {column}: {what}"
    return f"{name}, line {line}: not numbers"


def text_of(array: Array, delimiter: str) -> Iterator[str]:
    """Write an array line by line, in the fewest figures that read back as the same numbers; a vector is a column."""
    rows = array.reshape(-1, 1) if array.ndim < 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    for row in rows:
        yield delimiter.join(row.astype(str)) + "\n"


def write(path: str, array: Array) -> None:
    """Write a text file that appears when it is whole."""
    delimiter = DELIMITERS[kind_of(path)] or " "
    with stream.whole_file(path) as file:
        for line in text_of(array, delimiter):
            file.write(line.encode())
