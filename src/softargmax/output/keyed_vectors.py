"""Word vectors looked up by word: nearest words, similarities, and files in word2vec's formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from softargmax.core.signature import public
from softargmax.output import word2vec_files
from softargmax.output.counts import at_least, on_host
from softargmax.stream import whole_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from softargmax.output.philox_stream import Floats

    Keys: TypeAlias = str | int | ArrayLike | Sequence[str | int | ArrayLike]

_WORD = (str, int, np.integer)  # a word is a string, and its number an integer
_ROWS = 1 << 14  # the number of vectors whose cosines are computed together, in float64


class KeyedVectors:
    r"""Word vectors with methods for similarities and nearest words.

    .. math:: \text{similarity}(a, b) = \frac{\langle v_a, v_b \rangle}{\|v_a\| \|v_b\|}

    Parameters
    ----------
    vectors : array_like
        v, shape (K, D).
    words : list of str, optional
        K distinct words. By default the keys are the numbers from 0 to K - 1.

    Attributes
    ----------
    vectors : ndarray of float32
        v, shape (K, D).
    words : list of str, or None
        The words, in the order of the vectors.

    Raises
    ------
    TypeError, ValueError
        If vectors do not have shape (K, D), or words are not K distinct strings.

    Notes
    -----
    Files are in word2vec's formats, which gensim reads with ``KeyedVectors.load_word2vec_format``. Similarities are
    computed in float64. The similarity to a vector of zeros is 0.

    References
    ----------
    Mikolov, Chen, Corrado & Dean (2013), Efficient estimation of word representations in vector space, section 4.
    arXiv:1301.3781.

    See Also
    --------
    WordVectors

    Examples
    --------
    >>> from softargmax.output import KeyedVectors
    >>> found = KeyedVectors([[1, 0], [0.8, 0.6], [0, 1]], ["king", "queen", "woman"])
    >>> found
    KeyedVectors(3 words, dim=2)
    >>> found["queen"]
    array([0.8, 0.6], dtype=float32)
    >>> found.most_similar("king", topn=1)
    [('queen', 0.8)]
    >>> "emperor" in found
    False
    """

    vectors: NDArray[np.float32]

    @public
    def __init__(self, vectors: ArrayLike, words: Iterable[str] | None = None) -> None:
        found = _numbers(vectors, "vectors")
        if found.ndim != 2 or not found.size:
            raise ValueError(f"vectors: expected shape (K, D) with K and D at least 1, got {found.shape}")
        self.vectors = found.astype(np.float32)
        self._name(words)

    def _name(self, words: Any) -> None:
        """Set the words of the vectors."""
        self.words = None if words is None else _words_of(words, len(self.vectors))
        self._places = {word: place for place, word in enumerate(self.words or ())}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} words, dim={self.vectors.shape[1]})"

    def __len__(self) -> int:
        return len(self.vectors)

    def __iter__(self) -> Iterator[str] | Iterator[int]:
        return iter(range(len(self))) if self.words is None else iter(self.words)

    def __contains__(self, word: object) -> bool:
        try:
            self._place(word)
        except (KeyError, TypeError):
            return False
        return True

    def __getitem__(self, word: str | int | np.integer[Any]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.vectors[self._place(word)]
        return found

    def _place(self, word: Any) -> int:
        """Return the number of a word. If `word` is a number, check and return it."""
        if isinstance(word, str):
            if self.words is None:
                raise KeyError(f"word: expected a number from 0 to {len(self) - 1} (there are no words), got {word!r}")
            if word not in self._places:
                raise KeyError(f"word: expected one of the {len(self)} words, got {word!r}")
            return self._places[word]
        if isinstance(word, bool) or not isinstance(word, int | np.integer):
            raise TypeError(f"word: expected a word or its number, got {word!r:.60}")
        if not 0 <= word < len(self):
            raise KeyError(f"word: expected a number from 0 to {len(self) - 1}, got {word}")
        return int(word)

    @public
    def similarity(self, first: str | int, second: str | int) -> float:
        """Return the cosine of the angle between the vectors of two words, from -1 to 1.

        Parameters
        ----------
        first, second : str or int
            Two words, or their numbers.

        Raises
        ------
        KeyError
            If a word is unknown.
        """
        one, other = (_unit(self[word]) for word in (first, second))
        return float(np.clip(one @ other, -1, 1))

    @public
    def most_similar(
        self, positive: Keys = (), negative: Keys = (), *, topn: int = 10
    ) -> list[tuple[str, float]] | list[tuple[int, float]]:
        """Return the words nearest to the sum of `positive` minus the sum of `negative`, such as king - man + woman.

        Parameters
        ----------
        positive, negative : str, int, array_like of shape (D,), or a list of these
            Words, indices of words, or vectors. For a word, the vector of the word is scaled to length 1. A vector is
            used unchanged. A list with at least one float is one vector. A list of integers is a list of word
            indices. The words of `positive` and `negative` are excluded from the result.
        topn : int
            The number of words to return.

        Returns
        -------
        list of (str, float)
            Words and their cosines, largest cosine first. If the vectors have no words, the result is a list of (int,
            float): the indices of the vectors and their cosines.

        Raises
        ------
        KeyError
            If a word is unknown.
        TypeError, ValueError
            If both arguments are empty, or a vector does not have length D.
        """
        count = at_least(topn, "topn", 1)
        added, taken = _as_list(positive), _as_list(negative)
        if not added and not taken:
            raise ValueError("positive, negative: expected one word or more, got none")
        goal = sum((self._vector(word) for word in added), np.zeros(self.vectors.shape[1]))
        goal = _unit(goal - sum(self._vector(word) for word in taken))
        found = self._cosines(goal)
        excluded = [self._place(word) for word in (*added, *taken) if isinstance(word, _WORD)]
        others = np.delete(np.arange(len(self)), excluded)
        order = others[np.argsort(-found[others], kind="stable")[:count]].tolist()
        if self.words is None:
            return [(place, float(found[place])) for place in order]
        return [(self.words[place], float(found[place])) for place in order]

    def _vector(self, word: Any) -> Floats:
        """Return a word's vector, scaled to length 1. If `word` is a vector, return it unchanged."""
        if isinstance(word, _WORD):
            return _unit(self[word])
        found: Floats = _numbers(word, "positive, negative").astype(np.float64)
        if found.shape != self.vectors.shape[1:]:
            raise ValueError(
                f"positive, negative: expected vectors of shape {self.vectors.shape[1:]}, got {found.shape}"
            )
        return found

    def _cosines(self, goal: Floats) -> Floats:
        """Return every word's similarity to a unit vector."""
        parts = []
        for start in range(0, len(self), _ROWS):
            part = self.vectors[start : start + _ROWS].astype(np.float64)
            length = np.linalg.norm(part, axis=1)
            parts.append(part @ goal / np.where(length > 0, length, 1))
        return np.clip(np.concatenate(parts), -1, 1)

    @public
    def save(self, path: str | os.PathLike[str], *, binary: bool = False) -> None:
        """Write the vectors in word2vec's text or binary format. The file appears only when it is complete.

        Raises
        ------
        ValueError
            If a word is empty or contains white space, which separates words in these formats.
        """
        words = self.words or list(map(str, range(len(self))))
        with whole_file(path) as file:
            word2vec_files.write(file, words, self.vectors, binary=binary)

    @staticmethod
    @public
    def load(path: str | os.PathLike[str], *, binary: bool = False) -> KeyedVectors:
        """Read a file in word2vec's text or binary format.

        Returns
        -------
        KeyedVectors
            The words of the file and their vectors. These vectors cannot be trained further.

        Raises
        ------
        ValueError
            If the file is incomplete or not in this format, or a word occurs twice.
        """
        words, vectors = word2vec_files.read(path, binary=binary)
        return KeyedVectors(vectors, words)


def _unit(vector: Any) -> Floats:
    """Return the vector scaled to length 1, or zeros for a zero vector."""
    wide: Floats = np.asarray(vector, np.float64)
    length = np.linalg.norm(wide)
    return wide / length if length > 0 else wide


def _numbers(values: Any, name: str) -> NDArray[Any]:
    """Return an array of integers or floats."""
    found: NDArray[Any] = on_host(values, name)
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected numbers, got dtype {found.dtype}")
    return found


def _as_list(words: Any) -> list[Any]:
    """Return an argument as a list of words and vectors.

    A single word or vector becomes a list of one item. A list of numbers is one vector if one of the numbers is a
    float.
    """
    if isinstance(words, _WORD) or getattr(words, "ndim", 0) == 1:
        return [words]
    if not isinstance(words, Iterable):
        raise TypeError(f"positive, negative: expected a word, a vector or a list of these, got {words!r:.60}")
    found = list(words)
    alone = any(isinstance(cell, float | np.floating) for cell in found)
    return [found] if alone else found


def _words_of(words: Any, count: int) -> list[str]:
    """Check the words: one per vector, all different."""
    found: list[Any] = list(words) if isinstance(words, Iterable) else [words]
    if isinstance(words, str) or not all(isinstance(word, str) for word in found):
        raise TypeError(f"words: expected a list of strings, got {words!r:.60}")
    if len(found) != count:
        raise ValueError(f"words: expected {count}, one per vector, got {len(found)}")
    places: dict[str, int] = {}
    for place, word in enumerate(found):
        if places.setdefault(word, place) != place:
            raise ValueError(f"words: expected each word once, got {word!r} at {places[word]} and {place}")
    return list(map(str, found))  # converts NumPy strings
