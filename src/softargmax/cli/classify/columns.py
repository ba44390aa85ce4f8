"""The columns of CSV files: numbers and categories, without gaps."""

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

    from softargmax.cli.classify.source import Source

LARGEST = 1e100
FEW = 0.1  # of a column: fewer words than this among numbers are a mistake
CODES = 10  # different numbers, or fewer, among words are codes
MOST = 256  # categories of a column: each has a column of the matrix, which is dense
MANY = 10  # rows: in fewer, integers may rise by chance
SMALL = 10  # categories that a column may have though they are more than half of the rows


@dataclass(frozen=True)
class Columns:
    """The columns that a model reads: numeric ones, and categorical ones with their categories."""

    numbers: list[str]
    categories: dict[str, list[str]]

    @property
    def names(self) -> list[str]:
        """All of them, in the order of the matrix."""
        return [*self.numbers, *self.categories]

    @property
    def features(self) -> list[tuple[str, str | None]]:
        """Describe each column of the feature matrix: a number, or a category's indicator."""
        return [(name, None) for name in self.numbers] + [
            (name, word) for name, known in self.categories.items() for word in known
        ]

    @property
    def width(self) -> int:
        """The columns of the matrix: one for every number and for every category."""
        return len(self.features)

    def read(self, source: Source) -> Any:
        """Give the table of a source that has all of these columns, with numbers where they are."""
        table = source.table()
        there = table.column_names
        absent = [name for name in self.names if name not in there]
        if absent:
            raise FailedRunError(f"{source.name}: there is no column {absent[0]!r}{near(absent[0], there)}")
        for name in self.numbers:
            where = f"{source.name}: column {name!r}"
            found = numbers_in(table[name], source.mark, where)
            if found is None:
                words = table[name].to_pylist()
                row = next(row for row, word in enumerate(words) if word and not is_number(word, source.mark))
                raise FailedRunError(f"{where}, row {row + 1}: {words[row]!r} is no number")
            table = table.set_column(there.index(name), name, found)
        return table

    def matrix(self, table: Any, source: str) -> NDArray[np.float64]:
        """Give rows as numbers; categories are 1 in a column of their own."""
        from sklearn.preprocessing import OneHotEncoder

        parts = [numbers_of(table, name, source)[:, None] for name in self.numbers]
        if self.categories:
            words = [known_of(table, name, source, known) for name, known in self.categories.items()]
            encoder = OneHotEncoder(categories=list(self.categories.values()), sparse_output=False)
            parts.append(encoder.fit_transform(np.column_stack(words)))
        return np.concatenate(parts, axis=1)


def learned(source: Source, target: str, left_out: list[str]) -> tuple[Columns, Any, str]:
    """Tell numbers from categories, and refuse what tells no classes apart; give the table with numbers where they are.

    The target's words stay as they are written; its name comes last, as it may have been given by number.
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
        if not name.strip() or name.startswith("Unnamed: "):  # as pandas reads a column that it has written without one
            raise FailedRunError(f"{where} has no name, as row numbers have none; {leave_out(name)}")
        found = numbers_in(table[name], source.mark, where)
        if found is None:
            categories[name] = known_words(table, name, source)
            continue
        table = table.set_column(there.index(name), name, found)
        if np.ptp(numbers_of(table, name, source.name, learns=True)) == 0:
            raise FailedRunError(f"{where} is the same in every row, so it tells nothing; {leave_out(name)}")
        numbers.append(name)
    return Columns(numbers, categories), table, target


def running(columns: Columns, table: Any) -> list[str]:
    """Warn of columns of integers that rise from row to row, as row numbers do, which tell nothing of new rows."""
    found = []
    for name in columns.numbers:
        cells = table[name].to_numpy()
        if len(cells) >= MANY and (np.floor(cells) == cells).all() and (np.diff(cells) > 0).all():
            shown = ", ".join(f"{cell:.0f}" for cell in cells[:3])
            found.append(f"column {name!r} rises from row to row ({shown}, ..); if it numbers them, {leave_out(name)}")
    return found


def known_words(table: Any, name: str, source: Source) -> list[str]:
    """Give the categories of a column; dates, numbers with words among them and words without end are none."""
    where, advice = f"{source.name}: column {name!r}", leave_out(name)
    if name in source.dates:
        raise FailedRunError(f"{where} holds dates or times; {advice}")
    words = list(words_of(table, name, source.name, learns=True))
    known = sorted(set(words))
    check_numbers(words, known, source.mark, where, advice)
    if len(known) == 1:
        raise FailedRunError(f"{where} is the same in every row, so it tells nothing; {advice}")
    if len(known) == len(words):
        raise FailedRunError(f"{where}: every row has a word of its own, which tells no classes apart; {advice}")
    most = min(MOST, max(SMALL, len(words) // 2))
    if len(known) > most:
        raise FailedRunError(
            f"{where} has {len(known):,} categories in {len(words):,} rows; expected at most {most}; {advice}"
        )
    return known


def check_numbers(words: list[str], known: list[str], mark: str, where: str, advice: str) -> None:
    """Refuse words among numbers: few words, or numbers that are too many for codes and most of what there is."""
    plain = {word for word in known if is_number(word, mark)}
    like = plain.union(filter(looks_like_number, known))
    odd = [row for row, word in enumerate(words) if word not in plain]
    cells, others = sum(word in like for word in words), len(words) - len(odd)
    many = len(like) > min(CODES, cells / 2) and len(like) > len(known) / 2
    if not odd or not (many or len(odd) < FEW * len(words)):
        return
    why = f", as {others:,} others of this column are; mend it" if others else "; write it like 1234.5"
    raise FailedRunError(f"{where}, row {odd[0] + 1}: {words[odd[0]]!r} is no number{why}, or {advice}")


def numbers_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[np.float64]:
    """Give a column of numbers, all there and of a size that their squares have, too."""
    values: NDArray[np.float64] = filled(table, name, source, learns=learns).to_numpy()
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        at = int(wrong.argmax())
        raise FailedRunError(f"{source}: column {name!r}, row {at + 1}: expected at most {LARGEST:g}, got {values[at]}")
    return values


def words_of(table: Any, name: str, source: str, *, learns: bool = False) -> NDArray[Any]:
    """Give a column of words."""
    return np.array(filled(table, name, source, learns=learns).to_pylist(), object)


def known_of(table: Any, name: str, source: str, known: list[str]) -> NDArray[Any]:
    """Give a column of words that are all known."""
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
    """Give a column that has no gap."""
    column = table[name]
    if column.null_count:
        at = int(np.argmax(column.is_null().to_numpy()))
        many = f"{column.null_count} rows are" if column.null_count > 1 else "one row is"
        advice = f", or {leave_out(name)}" if learns else ""
        raise FailedRunError(
            f"{source}: column {name!r}: {many} empty, the first of them {at + 1}; fill the column in or take the rows "
            f"out{advice}"
        )
    return column


def leave_out(name: str) -> str:
    """Name the option that leaves out a column."""
    return f"--drop {shlex.quote(name)} leaves it out"
