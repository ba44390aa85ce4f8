"""Files of word vectors in word2vec's text and binary formats.

Both formats begin with a line of two numbers: K, the number of words, and D, the length of the vectors. In the text
format, each further line has a word and D numbers, separated by spaces. In the binary format, each word is followed by
a space, D little-endian float32 numbers, and optionally a line end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


def write(file: BinaryIO, words: Sequence[str], vectors: Vectors, *, binary: bool) -> None:
    """Write words and vectors. In the text format, a number has the fewest digits that restore the same float32."""
    for word in words:
        if not word or any(letter.isspace() for letter in word):
            raise ValueError(f"words: expected words without spaces, for word2vec's formats, got {word!r}")
    file.write(b"%d %d\n" % vectors.shape)
    for word, vector in zip(words, vectors, strict=True):
        cells = vector.astype("<f4").tobytes() if binary else " ".join(vector.astype(str)).encode()
        file.write(word.encode() + b" " + cells + b"\n")


def read(path: str | os.PathLike[str], *, binary: bool) -> tuple[list[str], Vectors]:
    """Return the words and vectors of a file. Errors name the file and the line or word."""
    name, data = str(path), Path(path).read_bytes()
    head, _, rest = data.partition(b"\n")
    numbers = head.split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise ValueError(
            f"{name}: expected the numbers of words and of dimensions in the first line, got {head[:40]!r}"
        )
    count, dim = map(int, numbers)
    if not count or not dim:
        raise ValueError(f"{name}: expected at least one word and one dimension, got {count} and {dim}")
    if len(rest) < count * (dim * (4 if binary else 2) + 1):
        raise ValueError(f"{name}: expected {count} words of {dim} dimensions, as its first line says, got fewer")
    return (_binary if binary else _text)(name, rest, count, dim)


def _text(name: str, data: bytes, count: int, dim: int) -> tuple[list[str], Vectors]:
    words, vectors = [], np.empty((count, dim), np.float32)
    lines = data.rstrip().split(b"\n")
    if len(lines) != count:
        raise ValueError(f"{name}: expected {count} words, as its first line says, got {len(lines)}")
    for row, line in enumerate(lines):
        word, *cells = line.rstrip().split(b" ")
        if len(cells) != dim:
            raise ValueError(
                f"{name}, line {row + 2}: expected {dim} dimensions, as the first line says, got {len(cells)}"
            )
        try:
            vectors[row] = [float(cell) for cell in cells]
        except ValueError as error:
            raise ValueError(f"{name}, line {row + 2}: {error}") from None
        words.append(_decoded(word, f"{name}, line {row + 2}"))
    return words, vectors


def _binary(name: str, data: bytes, count: int, dim: int) -> tuple[list[str], Vectors]:
    words, vectors, start = [], np.empty((count, dim), np.float32), 0
    for row in range(count):
        space = data.find(b" ", start)
        end = space + 1 + 4 * dim
        if space < 0 or end > len(data):
            raise ValueError(
                f"{name}: expected {count} words, as its first line says, got an incomplete word {row + 1}"
            )
        words.append(_decoded(data[start:space].lstrip(b"\n"), f"{name}, word {row + 1}"))
        vectors[row] = np.frombuffer(data, "<f4", dim, space + 1)
        start = end
    if data[start:].strip(b"\n"):
        raise ValueError(
            f"{name}: expected {count} words of {dim} dimensions, got {len(data) - start} more bytes after them"
        )
    return words, vectors


def _decoded(word: bytes, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where}: expected UTF-8, got {word[:40]!r}") from None
