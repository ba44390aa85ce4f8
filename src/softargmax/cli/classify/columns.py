"""The numeric and categorical columns of CSV files, and checks of their values."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.cli.classify.decimals import is_number, looks_like_number, numbers_in
from softargmax.cli.errors import FailedRunError
from softargmax.cli.texts import column, near

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softargmax.cli.classify.csv_file import Source

LARGEST = 1e100  # maximum absolute value of a number
FEW = 0.1  # if less than this share of a column's cells are words, the words are reported as mistakes
CODES = 10  # numbers among words are codes if at most this many are distinct, and each occurs at least twice on average
MOST = 256  # maximum number of categories per column; each category becomes a column of the dense feature matrix
MANY = 10  # with fewer rows, increasing integers may be chance, so they are not reported as row numbers
SMALL = 10  # this many categories per column are always allowed; a column may have more, up to half the number of rows


@dataclass(frozen=True)
class Columns:
    """The input columns of a model: the numeric columns, and the categorical columns with their categories."""

    numbers: list[str]
    categories: dict[str, list[str]]

    @property
    def names(self) -> list[str]:
        """The names of all input columns: first the numeric columns, then the categorical columns."""
        return [*self.numbers, *self.categories]

    @property
    def features(self) -> list[tuple[str, str | None]]:
        """For each column of the feature matrix: its input column, and its category (None for a numeric column)."""
        return [(name, None) for name in self.numbers] + [
            (name, word) for name, known in self.categories.items() for word in known
        ]

    @property
    def width(self) -> int:
        """The number of columns of the feature matrix: one per numeric column, and one per category."""
        return len(self.features)

    def read(self, source: Source) -> Any:
        """Return the table of a CSV file, with the numeric columns as float64.

        Raise FailedRunError if a column is missing.
        """
        table = source.table()
        there = table.column_names
        absent = [name for name in self.names if name not in there]
        if absent:
            raise FailedRunError(f"{source.name}: expected a column {absent[0]!r}, got none{near(absent[0], there)}")
        for name in self.numbers:
            where = f"{source.name}: column {name!r}"
            found = numbers_in(table[name], source.mark, where)
            if found is None:
                words = table[name].to_pylist()
                row = next(row for row, word in enumerate(words) if word and not is_number(word, source.mark))
                raise FailedRunError(f"{where}, row {row + 1}: {words[row]!r} is not a number")
            table = table.set_column(there.index(name), name, found)
        return table

    def matrix(self, table: Any, source: str) -> NDArray[np.float64]:
        """Return the feature matrix. Each category has a column of zeros and ones."""
        from sklearn.preprocessing import OneHotEncoder

        parts = [numbers_of(table, name, source)[:, None] for name in self.numbers]
        if self.categories:
            words = [known_of(table, name, source, known) for name, known in self.categories.items()]
            encoder = OneHotEncoder(categories=list(self.categories.values()), sparse_output=False)
            parts.append(encoder.fit_transform(np.column_stack(words)))
        return np.concatenate(parts, axis=1)


def learned(source: Source, target: str, left_out: list[str]) -> tuple[Columns, Any, str]:
    """Find the numeric and categorical input columns, and reject columns without information.

    Return the input columns, the table with numeric columns as float64, and the name of the target column. The
    arguments `target` and `left_out` are names or column numbers. The target column stays text.
    """
    table = source.table()
    there = table.column_names
    target = there[column(target, there, "--target", source.name)]
    left_out = [there[column(name, there, "--drop", source.name)] for name in left_out]
    chosen = [name for name in there if name != target and name not in left_out]
    if not chosen:
        raise FailedRunError(f"{source.name}: expected at least one column besides the target, got none")
    numbers, categories = [], {}
    for name in chosen:
        where = f"{source.name}: column {name!r}"
        if not name.strip() or name.startswith("Unnamed: "):  # pandas writes "Unnamed: 0"
            raise FailedRunError(f"{where} has no name (it may contain row numbers); {leave_out(name)}")
        found = numbers_in(table[name], source.mark, where)
        if found is None:
            categories[name] = known_words(table, name, source)
            continue
        table = table.set_column(there.index(name), name, found)
        if np.ptp(numbers_of(table, name, source.name, learns=True)) == 0:
            raise FailedRunError(f"{where} has the same value in every row; {leave_out(name)}")
        numbers.append(name)
    return Columns(numbers, categories), table, target


def running(columns: Columns, table: Any) -> list[str]:
    """Return a warning for each integer column that increases from row to row: such columns may contain row numbers."""
    found = []
    for name in columns.numbers:
        cells = table[name].to_numpy()
        if len(cells) >= MANY and (np.floor(cells) == cells).all() and (np.diff(cells) > 0).all():
            shown = ", ".join(f"{cell:.0f}" for cell in cells[:3])
            advice = f"if these are row numbers, {leave_out(name)}"
            found.append(f"column {name!r} increases from row to row ({shown}, ..); {advice}")
    return found


def known_words(table: Any, name: str, source: Source) -> list[str]:
    """Return the categories of a column. Reject dates, numbers mixed with words, and too many distinct words."""
    where, advice = f"{source.name}: column {name!r}", leave_out(name)
    if name in source.dates:
        raise FailedRunError(f"{where} contains dates or times; {advice}")
    words = list(words_of(table, name, source.name, learns=True))
    known = sorted(set(words))
    check_numbers(words, known, source.mark, where, advice)
    if len(known) == 1:
        raise FailedRunError(f"{where} has the same value in every row; {advice}")
    if len(known) == len(words):
        raise FailedRunError(f"{where} has a different word in every row; {advice}")
    most = min(MOST, max(SMALL, len(words) // 2))
    if len(known) > most:
        raise FailedRunError(
            f"{where}: expected at most {most} categories, got {len(known):,} in {len(words):,} rows; {advice}"
        )
    return known


def check_numbers(words: list[str], known: list[str], mark: str, where: str, advice: str) -> None:
    """Reject a text column that is probably meant to be numeric.

    In such a column almost all cells are numbers, or most distinct cells look like numbers. In the second case, the
    column is accepted if its numbers are codes (see `CODES`).
    """
    plain = {word for word in known if is_number(word, mark)}
    like = plain.union(filter(looks_like_number, known))
    not_numbers = [row for row, word in enumerate(words) if word not in plain]
    cells, others = sum(word in like for word in words), len(words) - len(not_numbers)
    many = len(like) > min(CODES, cells / 2) and len(like) > len(known) / 2
    if not not_numbers or not (many or len(not_numbers) < FEW * len(words)):
        return
    why = f", unlike {others:,} other rows; correct it" if others else "; write it like 1234.5"
    raise FailedRunError(
        f"{where}, row {not_numbers[0] + 1}: {words[not_numbers[0]]!r} is not a number{why}, or {advice}"
    )


def numbers_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[np.float64]:
    """Return a numeric column. Reject empty cells, and absolute values above `LARGEST`."""
    values: NDArray[np.float64] = filled(table, name, source, learns=learns).to_numpy()
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        at = int(wrong.argmax())
        where = f"{source}: column {name!r}, row {at + 1}"
        raise FailedRunError(f"{where}: expected an absolute value of at most {LARGEST:g}, got {values[at]}")
    return values


def words_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[Any]:
    """Return a column of words. Reject empty cells."""
    return np.array(filled(table, name, source, learns=learns).to_pylist(), object)


def known_of(table: Any, name: str, source: str, known: list[str]) -> NDArray[Any]:
    """Return a categorical column. Reject words that are not among its known categories."""
    words = words_of(table, name, source)
    unknown = ~np.isin(words, known)
    if unknown.any():
        at = int(unknown.argmax())
        raise FailedRunError(
            f"{source}: column {name!r}, row {at + 1}: {words[at]!r} is none of the {len(known)} categories "
            f"that the model knows{near(words[at], known)}"
        )
    return words


def filled(table: Any, name: str, source: str, *, learns: bool) -> Any:
    """Return a column. Reject empty cells. If `learns` is true, the error also suggests the option --drop."""
    column = table[name]
    if column.null_count:
        at = int(np.argmax(column.is_null().to_numpy()))
        many = f"{column.null_count} cells are" if column.null_count > 1 else "one cell is"
        advice = f", or {leave_out(name)}" if learns else ""
        raise FailedRunError(
            f"{source}: column {name!r}: {many} empty, first in row {at + 1}; fill in all cells, or remove the "
            f"rows{advice}"
        )
    return column


def leave_out(name: str) -> str:
    """Return the advice to omit a column with --drop."""
    return f"--drop {shlex.quote(name)} leaves out the column"
