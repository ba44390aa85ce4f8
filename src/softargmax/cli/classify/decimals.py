"""Parse numbers in text. A decimal comma is accepted if commas do not separate the fields."""

from __future__ import annotations

import re
from typing import Any

from softargmax.cli import parse, texts
from softargmax.cli.errors import FailedRunError

THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$"
LOOKS = re.compile(r"\W*\d+([.,:/'_\s]\d+)*\W*")  # matches 1.5%, 1,200, $3 and 1/2/2020, but not the range 10-19


def numbers_in(words: Any, mark: str, where: str) -> Any:
    """Convert a column of words to numbers, or return None if a word is not a number.

    `mark` is the separator of the fields. If it is not a comma, commas in the words are decimal commas.
    """
    import pyarrow as pa
    from pyarrow import compute

    words = compute.ascii_trim_whitespace(words)
    pointed = words if mark == "," else compute.replace_substring(words, ",", ".")
    try:
        numbers = pointed.cast("double")
    except pa.ArrowInvalid:
        return None
    if mark != ",":
        check_marks(words, where)
    return numbers


def check_marks(words: Any, where: str) -> None:
    """Raise FailedRunError if the points and commas in a column of numbers are ambiguous."""
    from pyarrow import compute

    point, comma, thousands = (compute.match_substring_regex(words, kind) for kind in (r"\.", ",", THOUSANDS))
    marked = compute.or_(point, comma)
    both = compute.any(point).as_py() and compute.any(comma).as_py()
    some = compute.any(marked).as_py() and not compute.all(marked).as_py()
    if not both and not (some and compute.all(compute.equal(marked, thousands)).as_py()):
        return
    row = compute.index(comma if both else marked, True).as_py()
    word = words[row].as_py()
    cell = f"{where}, row {row + 1}: {word!r}"
    if both:
        raise FailedRunError(f"{cell} has a comma, but other numbers of this column have a point; use only one")
    # Some numbers have a point or comma, always with exactly three digits after it. All others have neither. So the
    # point or comma is probably a thousands separator.
    digits = word.replace(",", "").replace(".", "")
    raise FailedRunError(f"{cell} is ambiguous: expected {digits} or {word}0")


def is_number(word: str, mark: str) -> bool:
    """True if a word is a number in ASCII characters. `mark` is the separator of fields."""
    text = texts.plain(word, mark)
    return text.isascii() and parse.is_number(text)


def looks_like_number(word: str) -> bool:
    """True if a word resembles a number, such as 1.5%, 1,200 or $3."""
    return LOOKS.fullmatch(word) is not None
