"""Read and write scores in text files. Errors name line and column. Written numbers are read back unchanged."""

from __future__ import annotations

import csv
import io
import math
import re
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from softargmax import stream
from softargmax.cli import parse, texts
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array = np.ndarray[Any, Any]
T = TypeVar("T")

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": " "}
KINDS = ".npy, .csv, .tsv or .txt"


class Reading(NamedTuple):
    """Options for reading a text file: True if it has a header (None to detect it), and the columns to read."""

    header: bool | None = None
    columns: str | None = None


class Table(NamedTuple):
    """Scores, and the names of their columns if the file has a header."""

    scores: Array
    names: list[str] | None = None


def kind_of(path: str) -> str:
    """Return the extension of a file name, in lower case."""
    kind = Path(path).suffix.lower()
    if kind != ".npy" and kind not in DELIMITERS:
        raise WrongUseError(f"{path}: expected a name that ends in {KINDS}")
    return kind


def scores_of(words: list[str], path: str | None, reading: Reading) -> Table:
    """Return the scores of a command line: its numbers, or the numbers of its file."""
    if path is not None:
        return read(path, reading)
    check_plain(reading, "got numbers")
    return Table(parse.numbers(words))


def check_plain(reading: Reading, why: str) -> None:
    """Raise WrongUseError if options of text files are used without a text file."""
    if reading != Reading():
        raise WrongUseError(f"--columns, --header: expected only with a text file, {why}")


def read(path: str, reading: Reading) -> Table:
    """Read a file, which may be gzip-compressed, or standard input for ``-``. A single column or row gives a vector."""
    if path != "-" and not Path(path).exists():
        raise FailedRunError(f"{path}: no such file, and not a number")
    if Path(path).is_dir():
        raise WrongUseError(f"{path}: expected one file, or --scheduler ADDRESS, whose workers read folders")
    kind = ".txt" if path == "-" else kind_of(re.sub(r"\.gz$", "", path, flags=re.IGNORECASE))
    name, data = texts.STDIN if path == "-" else path, texts.read(path)
    if kind == ".npy" or data.startswith(b"\x93NUMPY"):
        check_plain(reading, f"got the .npy file {name}")
        return Table(npy_in(data, name))
    return parsed(decoded(data, name), name, kind, reading)


def npy_in(data: bytes, name: str) -> Array:
    """Read the bytes of a .npy file."""
    array = valid_npy(lambda: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False), name)
    check_dtype(array, name)
    return array


def valid_npy(load: Callable[[], T], name: str) -> T:
    """Return what `load` makes of a .npy file. Raise FailedRunError if the file is invalid."""
    try:
        return load()
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
        raise FailedRunError(f"{name} is not a valid .npy file: {str(error)[:200]}") from error


def check_dtype(array: Any, name: str) -> None:
    """Raise FailedRunError unless streams can read the dtype of an array."""
    with refused_as(FailedRunError, f"{name}: "):
        stream.logsumexp(np.zeros([1] * array.ndim, array.dtype), axis=None)


def decoded(data: bytes, name: str) -> str:
    """Decode UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FailedRunError(f"{name}, line {line}: byte {error.start} is not UTF-8 text") from None


def rows_in(text: str, name: str, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty.

    Lines that begin with # are comments. Without a delimiter, the text after a # in any line is also a comment.
    """
    lines = text.splitlines(keepends=True)
    if delimiter is None:
        rows = ((line, text.partition("#")[0].split()) for line, text in enumerate(lines, 1))
        yield from ((line, cells) for line, cells in rows if cells)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1  # number of the row's first line; quoted cells can span several lines
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise FailedRunError(f"{name}, line {line}: {error}") from None


def parsed(text: str, name: str, kind: str, reading: Reading) -> Table:
    """Read a table of numbers. Raise FailedRunError with line and column for the first cell that is not a number."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    mark = texts.separator(first, kind)
    rows = rows_in(text, name, mark)
    line, cells = next(rows, (1, []))
    width, header = len(cells), reading.header
    numbers = [str(place + 1) for place in range(width)]
    if header is None:  # names in --columns imply a header
        by_name = reading.columns is not None and not reading.columns.replace(",", "").replace(" ", "").isdecimal()
        places = [] if by_name else texts.columns(reading.columns, numbers, name)
        header = texts.is_header([cells[place] for place in places], mark)
    names = [cell.strip() for cell in cells] if header else numbers
    if not header:
        rows = chain([(line, cells)], rows)
    wanted = texts.columns(reading.columns, names, name)
    table = []
    for line, cells in rows:
        if len(cells) != width:
            raise FailedRunError(f"{name}, line {line}: expected {width} values, like the first row, got {len(cells)}")
        table.append([number_in(cells[place], mark, f"{name}, line {line}, column {place + 1}") for place in wanted])
    if not table:
        raise FailedRunError(f"{name}: expected at least one number, got none")
    scores = np.array(table)
    return Table(
        scores.reshape(-1) if 1 in scores.shape else scores, [names[place] for place in wanted] if header else None
    )


def number_in(cell: str, mark: str | None, where: str) -> float:
    """Return the number in a cell."""
    try:
        return parse.number(texts.plain(cell, mark))
    except WrongUseError as error:
        raise FailedRunError(f"{where}: {error}") from None
    except ValueError:
        what = f"{cell.strip()[:40]!r} is not a number" if cell.strip() else "empty"
        raise FailedRunError(f"{where}: {what} (--columns selects columns, --header skips a header)") from None


def text_of(array: Array, delimiter: str, names: list[str] | None = None) -> Iterator[str]:
    """Yield the lines of an array, with the shortest digits that read back as the same numbers.

    A vector is written as a column. A header is written if there is one name per column. In files separated by spaces,
    the header is omitted if a name contains a space.
    """
    rows = array.reshape(-1, 1) if array.ndim < 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    if names is not None and len(names) == rows.shape[1] and (delimiter != " " or " ".join(names).split() == names):
        head = io.StringIO()
        csv.writer(head, delimiter=delimiter, lineterminator="\n").writerow(names)
        yield head.getvalue()
    for row in rows:
        yield delimiter.join(row.astype(str)) + "\n"


def write(path: str, array: Array, names: list[str] | None = None) -> None:
    """Write a text or .npy file. The file appears only when it is complete."""
    kind = kind_of(path)
    with stream.whole_file(path) as file:
        if kind == ".npy":
            np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
            return
        for line in text_of(array, DELIMITERS[kind], names):
            file.write(line.encode())
