"""The columns of CSV files: numbers and categories, without gaps."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

STDIN = "standard input"
LONGEST = 120  # of what a broken file says
EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
HEAD = 1 << 16  # of a file, in which its first line ends
LARGEST = 1e100
FEW = 0.1  # of a column: fewer words than this among numbers are a mistake
LEAVE_OUT = "--drop {} leaves it out"
PACKAGES = {"pyarrow": "pyarrow", "sklearn": "scikit-learn", "skops": "skops"}


@dataclass(frozen=True)
class Columns:
    """Which columns a model reads: numbers, and categories with what each may be."""

    numbers: list[str]
    categories: dict[str, list[str]]

    @property
    def names(self) -> list[str]:
        """All of them, in the order of the matrix."""
        return [*self.numbers, *self.categories]

    @property
    def width(self) -> int:
        """The columns of the matrix: one for every number and for every category."""
        return len(self.numbers) + sum(map(len, self.categories.values()))

    def read(self, source: Source, target: str) -> Any:
        """Give the table of a source that has all of these columns, with the numbers and words that they may hold."""
        words = dict.fromkeys((*self.categories, target), "string")
        try:
            table = source.table(words | dict.fromkeys(self.numbers, "double"))
        except FailedRunError:
            text = source.table(words | dict.fromkeys(self.numbers, "string"))
            for name in (name for name in self.numbers if name in text.column_names):
                for row, word in enumerate(text[name].to_pylist(), 1):
                    if not as_number(word or "0"):
                        raise FailedRunError(
                            f"{source.name}: column {name!r}, row {row}: {word!r} is no number"
                        ) from None
            raise
        there = table.column_names
        absent = [name for name in self.names if name not in there]
        if absent:
            raise FailedRunError(f"{source.name}: there is no column {absent[0]!r}{near(absent[0], there)}")
        return table

    def matrix(self, table: Any, source: str) -> NDArray[np.float64]:
        """Give rows as numbers; categories are 1 in a column of their own."""
        parts = [np.empty((len(table), 0))]
        parts += [numbers_of(table, name, source)[:, None] for name in self.numbers]
        for name, known in self.categories.items():
            words = words_of(table, name, source)
            unknown = ~np.isin(words, known)
            if unknown.any():
                at = int(unknown.argmax())
                raise FailedRunError(
                    f"{source}: column {name!r}, row {at + 1}: {words[at]!r} is none of the {len(known)} categories "
                    f"that the model knows{near(words[at], known)}"
                )
            parts.append((words[:, None] == np.array(known, object)).astype(np.float64))
        return np.concatenate(parts, axis=1)


def ready() -> None:
    """Look first whether the packages are there."""
    for package, name in PACKAGES.items():
        if find_spec(package) is None:
            raise FailedRunError(f"tables need {name}, which is not installed: pip install 'softargmax[csv]'")


class Source:
    """A CSV file, or standard input for ``-``, whole: read as often as it takes to know what its columns are."""

    def __init__(self, path: str) -> None:
        if path == "-" and sys.stdin is None:
            raise FailedRunError(f"{STDIN} is closed; give it something to read, or a file")
        if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
            raise FailedRunError(f"{path}: {'a folder, not a file' if Path(path).is_dir() else 'no such file'}")
        self.name = STDIN if path == "-" else path
        self._data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()

    def table(self, kinds: dict[str, str]) -> Any:
        """Give a pyarrow Table with one row or more; of some columns it is known what they hold."""
        import pyarrow as pa
        from pyarrow import csv

        head = self._data[:HEAD].split(b"\n", 1)[0]
        marks = csv.ParseOptions(
            delimiter=max(",;\t", key=lambda mark: head.count(mark.encode())), newlines_in_values=True
        )
        options = csv.ConvertOptions(
            null_values=EMPTY, strings_can_be_null=True, quoted_strings_can_be_null=False,
            column_types={name: pa.type_for_alias(kind) for name, kind in kinds.items()},
        )  # fmt: skip
        try:
            table = csv.read_csv(pa.BufferReader(self._data), parse_options=marks, convert_options=options)
            names = table.column_names  # which may be no text
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            reason = "".join(c for c in str(error) if c.isprintable())[:LONGEST]
            raise FailedRunError(f"{self.name} cannot be read: {reason}") from error
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise FailedRunError(f"{self.name}: two columns are called {min(twice)!r}")
        if not len(table):
            raise FailedRunError(f"{self.name}: there is a head, and no row")
        return table


def learned(source: Source, target: str, left_out: list[str]) -> tuple[Columns, Any]:
    """Tell numbers from categories, and refuse what tells no classes apart; give the table with words as written."""
    table = source.table({target: "string"})
    for name, option in ((target, "--target"), *((name, "--drop") for name in left_out)):
        if name not in table.column_names:
            raise FailedRunError(f"{option} {name}: {source.name} has no such column{near(name, table.column_names)}")
    chosen = [name for name in table.column_names if name != target and name not in left_out]
    if not chosen:
        raise FailedRunError(
            f"{source.name}: there is no column but the target; there may be one or more to learn from"
        )
    numbers = [name for name in chosen if is_number(table[name].type)]
    dates = [name for name in chosen if is_date(table[name].type)]
    if dates:
        raise FailedRunError(
            f"{source.name}: column {dates[0]!r} holds {table[dates[0]].type}; {LEAVE_OUT.format(dates[0])}"
        )
    text = source.table({name: "string" for name in (target, *chosen) if name not in numbers})
    for name in numbers:
        if np.ptp(numbers_of(text, name, source.name, learns=True)) == 0:
            raise FailedRunError(constant(source.name, name))
    return Columns(
        numbers, {name: known_words(text, name, source.name) for name in chosen if name not in numbers}
    ), text


def known_words(table: Any, name: str, source: str) -> list[str]:
    """Give the categories of a column; numbers with a few words among them are a mistake."""
    words = words_of(table, name, source, learns=True)
    known = sorted(set(words))
    odd = [i for i, word in enumerate(words) if not as_number(word)]
    if odd and len(odd) < FEW * len(words):
        raise FailedRunError(
            f"{source}: column {name!r}, row {odd[0] + 1}: {words[odd[0]]!r} is no number, as {len(words) - len(odd)} "
            f"others of this column are; mend it, or {LEAVE_OUT.format(name)}"
        )
    if len(known) == 1:
        raise FailedRunError(constant(source, name))
    if len(known) == len(words):
        raise FailedRunError(
            f"{source}: column {name!r}: every row has a word of its own, which tells no classes apart; "
            f"{LEAVE_OUT.format(name)}"
        )
    return known


def numbers_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[np.float64]:
    """Give a column of numbers, all there and of a size that their squares have, too."""
    values: NDArray[np.float64] = filled(table, name, source, learns=learns).cast("float64", safe=False).to_numpy()
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        at = int(wrong.argmax())
        raise FailedRunError(f"{source}: column {name!r}, row {at + 1}: {values[at]}; it may be up to {LARGEST:g}")
    return values


def words_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[Any]:
    """Give a column of words."""
    return np.array(filled(table, name, source, learns=learns).to_pylist(), object)


def filled(table: Any, name: str, source: str, *, learns: bool) -> Any:
    """Give a column that has no gap."""
    column = table[name]
    if column.null_count:
        at = int(np.argmax(column.is_null().to_numpy()))
        many = f"{column.null_count} rows are" if column.null_count > 1 else "one row is"
        advice = f", or {LEAVE_OUT.format(name)}" if learns else ""
        raise FailedRunError(
            f"{source}: column {name!r}: {many} empty, the first of them {at + 1}; fill the column in or take the rows "
            f"out{advice}"
        )
    return column


def as_number(word: str) -> bool:
    """Tell whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def is_date(kind: Any) -> bool:
    """Tell whether a column holds dates or times."""
    from pyarrow import types

    return bool(types.is_temporal(kind))


def is_number(kind: Any) -> bool:
    """Tell whether a column holds numbers."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def constant(source: str, name: str) -> str:
    """Say that a column tells nothing."""
    return f"{source}: column {name!r} is the same in every row, so it tells nothing; {LEAVE_OUT.format(name)}"


def near(word: str, known: list[str]) -> str:
    """Name what may be meant."""
    found = difflib.get_close_matches(str(word), known, n=1)
    return (
        f"; {found[0]!r} is the nearest"
        if found
        else f"; they are {', '.join(map(repr, known[:8]))}{', ..' * (len(known) > 8)}"
    )
