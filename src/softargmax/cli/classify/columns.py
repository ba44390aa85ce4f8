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
EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
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

    def matrix(self, table: Any, source: str) -> NDArray[np.float64]:
        """Give rows as numbers; categories are 1 in a column of their own."""
        from sklearn.preprocessing import OneHotEncoder

        absent = [name for name in self.names if name not in table.column_names]
        if absent:
            raise FailedRunError(f"{source}: there is no column {absent[0]!r}{near(absent[0], table.column_names)}")
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
            encoder = OneHotEncoder(categories=[np.array(known, object)], sparse_output=False)
            parts.append(encoder.fit_transform(words[:, None]))
        return np.concatenate(parts, axis=1)


def ready() -> None:
    """Look first whether the packages are there."""
    for package, name in PACKAGES.items():
        if find_spec(package) is None:
            raise FailedRunError(f"tables need {name}, which is not installed: pip install 'softargmax[csv]'")


def read(path: str) -> Any:
    """Read a CSV file, or standard input for ``-``, as a pyarrow Table with one row or more."""
    import pyarrow as pa
    from pyarrow import csv

    if path == "-" and sys.stdin is None:
        raise FailedRunError(f"{STDIN} is closed; give it something to read, or a file")
    source: Any = sys.stdin.buffer if path == "-" else path
    if path != "-" and not Path(path).is_file():
        raise FailedRunError(f"{path}: {'a folder, not a file' if Path(path).is_dir() else 'no such file'}")
    options = csv.ConvertOptions(null_values=EMPTY, strings_can_be_null=True)
    try:
        table = csv.read_csv(source, convert_options=options)
        names = table.column_names  # which may be no text
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        reason = "".join(c for c in str(error) if c.isprintable())[:LONGEST]
        raise FailedRunError(f"{named(path)} is no CSV file: {reason}") from error
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FailedRunError(f"{named(path)}: two columns are called {min(twice)!r}")
    if not len(table):
        raise FailedRunError(f"{named(path)}: there is a head, and no row")
    return table


def learned(table: Any, source: str, target: str, left_out: list[str]) -> Columns:
    """Tell numbers from categories; refuse what no class can be told by."""
    for name in left_out:
        if name not in table.column_names:
            raise FailedRunError(f"--drop {name}: there is no such column{near(name, table.column_names)}")
    numbers: list[str] = []
    categories: dict[str, list[str]] = {}
    for name in table.column_names:
        if name == target or name in left_out:
            continue
        if is_number(table[name].type):
            if np.ptp(numbers_of(table, name, source)) == 0:
                raise FailedRunError(constant(source, name))
            numbers.append(name)
            continue
        words = words_of(table, name, source)
        known = sorted(set(words))
        if len(known) == 1:
            raise FailedRunError(constant(source, name))
        if len(known) == len(words):
            raise FailedRunError(
                f"{source}: column {name!r}: every row has a word of its own, which tells no classes apart; --drop "
                f"{name} leaves it out"
            )
        categories[name] = known
    if not numbers and not categories:
        raise FailedRunError(f"{source}: there is no column but the target; there may be one or more to learn from")
    return Columns(numbers, categories)


def numbers_of(table: Any, name: str, source: str) -> NDArray[np.float64]:
    """Give a column of numbers, all there and finite."""
    column = filled(table, name, source)
    if not is_number(column.type):
        raise FailedRunError(
            f"{source}: column {name!r} holds {column.type}; it may hold numbers, as the model learned it"
        )
    values: NDArray[np.float64] = column.cast("float64").to_numpy()
    if not np.isfinite(values).all():
        at = int((~np.isfinite(values)).argmax())
        raise FailedRunError(f"{source}: column {name!r}, row {at + 1}: {values[at]}; it may be a finite number")
    return values


def words_of(table: Any, name: str, source: str) -> NDArray[Any]:
    """Give a column of words; numbers and booleans as they are written."""
    import pyarrow as pa

    column = filled(table, name, source)
    if pa.types.is_temporal(column.type):
        raise FailedRunError(f"{source}: column {name!r} holds {column.type}; --drop {name} leaves it out")
    return np.array([str(value) for value in column.to_pylist()], object)


def filled(table: Any, name: str, source: str) -> Any:
    """Give a column that has no gap."""
    column = table[name]
    if column.null_count:
        at = int(np.argmax(column.is_null().to_numpy()))
        many = f"{column.null_count} rows are" if column.null_count > 1 else "one row is"
        raise FailedRunError(
            f"{source}: column {name!r}: {many} empty, the first of them {at + 1}; fill the column in, take the rows "
            f"out, or leave it out (--drop {name})"
        )
    return column


def is_number(kind: Any) -> bool:
    """Tell whether a column holds numbers."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def constant(source: str, name: str) -> str:
    """Say that a column tells nothing."""
    return f"{source}: column {name!r} is the same in every row, so it tells nothing; --drop {name} leaves it out"


def named(path: str) -> str:
    """Give a file's name as messages show it."""
    return STDIN if path == "-" else path


def near(word: str, known: list[str]) -> str:
    """Name what may be meant."""
    found = difflib.get_close_matches(str(word), known, n=1)
    return (
        f"; {found[0]!r} is the nearest"
        if found
        else f"; they are {', '.join(map(repr, known[:8]))}{', ..' * (len(known) > 8)}"
    )
