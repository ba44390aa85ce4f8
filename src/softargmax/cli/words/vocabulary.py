"""Split text into tokens, and number the frequent tokens as classes."""

from __future__ import annotations

import re
from collections import defaultdict
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.cli.errors import WrongUseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Ints = np.ndarray[Any, np.dtype[Any]]

TOKEN = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]|\n")
"""A token: a word, digits, one other character, or the end of a line. Indentation and spaces are dropped."""

UNKNOWN, BEGIN = "<unk>", "<file>"  # the class of rare words; the token that begins each file
COMMONEST = 1 << 15
"""By default, a vocabulary has at most this many classes."""

CLOSES, OPENS = frozenset(".,:;)]}"), frozenset("([{.@\n")


class Numbering:
    """Numbers tokens in the order of first occurrence, after `UNKNOWN` and `BEGIN`."""

    def __init__(self) -> None:
        self.numbers: defaultdict[str, int] = defaultdict()
        self.numbers.default_factory = self.numbers.__len__
        self.of((UNKNOWN, BEGIN))

    def of(self, tokens: Sequence[str]) -> Ints:
        """Return the numbers of tokens. New tokens get the next numbers."""
        return np.fromiter(map(self.numbers.__getitem__, tokens), np.int32, len(tokens))


class Vocabulary:
    """K classes by decreasing count: the most frequent tokens of a text, `BEGIN`, and `UNKNOWN` for all other tokens.

    Examples
    --------
    >>> numbering = Numbering()
    >>> numbers = numbering.of([BEGIN, *TOKEN.findall("a b a c d b a")])
    >>> vocabulary, class_of = Vocabulary.of(numbering, numbers, 4)
    >>> vocabulary.words, vocabulary.counts
    (['a', '<unk>', 'b', '<file>'], array([3, 2, 2, 1]))
    >>> class_of[numbers]
    array([3, 0, 2, 0, 1, 1, 2, 0], dtype=int32)
    """

    def __init__(self, words: Sequence[str], counts: Ints) -> None:
        self.words, self.counts = list(words), counts
        self._classes = {word: i for i, word in enumerate(words)}
        self.unknown, self.begin = self._classes[UNKNOWN], self._classes[BEGIN]

    @classmethod
    def of(cls, numbering: Numbering, numbers: Ints, classes: int | None) -> tuple[Vocabulary, Ints]:
        """Return the vocabulary of a text, and the class of every token number.

        By default K is at most `COMMONEST`, and tokens that occur only once belong to the class `UNKNOWN`.
        """
        counts = np.bincount(numbers, minlength=len(numbering.numbers))
        by_count = np.argsort(-counts[2:], kind="stable") + 2
        distinct = int(np.count_nonzero(counts[2:]))
        if classes is None:
            classes = 2 + max(1, min(int(np.count_nonzero(counts[2:] > 1)), COMMONEST - 2))
        elif not 3 <= classes <= distinct + 2:
            raise WrongUseError(
                f"--vocab {classes}: expected a number from 3 to "
                f"{distinct + 2}, the number of distinct tokens including {UNKNOWN} and {BEGIN}"
            )
        kept = np.concatenate([[0, 1], by_count[: classes - 2]])
        counted = counts[kept]
        counted[0] = counts.sum() - counted[1:].sum()
        order = np.argsort(-counted, kind="stable")
        words = list(numbering.numbers)
        made = cls([words[number] for number in kept[order]], counted[order])
        class_of = np.full(len(words), made.unknown, np.int32)
        class_of[kept[order]] = np.arange(classes)
        return made, class_of

    def encoded(self, text: str) -> list[int]:
        """Return the class of `BEGIN`, followed by the classes of the tokens of a text."""
        return [self.begin, *(self._classes.get(token, self.unknown) for token in TOKEN.findall(text))]

    def text(self, classes: Iterable[int]) -> str:
        """Return the text of classes, with spaces between tokens as is common in code.

        >>> vocabulary = Vocabulary([*"def a(1+):[]", UNKNOWN, BEGIN, "f"], np.ones(15))
        >>> vocabulary.text(vocabulary.encoded("f(1+f): a[1]"))
        'f(1 + f): a[1]'
        """
        written, before = "", "\n"
        for word in (self.words[i] for i in classes):
            if word != BEGIN:
                called = word in ("(", "[") and before.isidentifier() and not iskeyword(before)
                near = called or word == "\n" or word in CLOSES or before in OPENS
                written += word if near else f" {word}"
                before = word
        return written
